"""The console beside a large cluster: its start, its first page in a browser, its memory, and how fast it searches a topic.

The cluster is one broker with topics whose partitions are empty, and two more with JSON values of 1 kB, one compressed. Each start is a new
process that has seen nothing of the cluster:

    first byte                      from spawning the process to the first byte of the overview; CPU at that moment
    first page in Chromium          from a click in a browser that is open to the first text of the overview, the console being ready
    complete page in Chromium       the same, until the sizes of all topics are in the page
    search                          for a text that no record has, so all records are read; decompressed bytes per second, as the page shows
    peak RSS                        of the process that searched, with everything it did before
"""

from __future__ import annotations

import http.client
import json
import os
import random
import re
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psutil

from bench.cases import MB, Case, CaseContext, Figure, Measurement, Scale
from bench.load import LoadFailed
from bench.process import MIB, ServerProcess
from bench.servers import OttlaServer
from ottla import Admin, NewTopic, Producer
from ottla.wire.errors import KafkaError

READY = re.compile(r"ottla: console at http://(\S+)")
TOPICS_PER_REQUEST = 50
#: The default limit is 20,000 partitions. The topics are filled before the measurement, which does not depend on the flush.
SETTINGS = {"ottla.partitions.max": "1000000", "write.caching": "true"}
SEARCHED_PARTITIONS = 4
#: Of the records, which repeat: more than a batch has.
VALUES, SEED = 2_000, 7
PATIENCE_S = 60.0
POLL_S = 0.01
PLAIN, COMPRESSED = "bench-search", "bench-search-zstd"
SEARCHES = {
    "search": (PLAIN, {"value": "a text of no record"}),
    "search, zstd": (COMPRESSED, {"value": "a text of no record"}),
    "filter": (PLAIN, {"filter": ".amount > 1000"}),
}
FIGURES = (
    Figure("first byte", "s", False),
    Figure("CPU until first byte", "s", False),
    Figure("first page in Chromium", "s", False),
    Figure("complete page in Chromium", "s", False),
    Figure("search", "MB/s", True, 0),
    Figure("search, zstd", "MB/s", True, 0),
    Figure("filter", "MB/s", True, 0),
    Figure("CPU of a search", "s/GB", False),
    Figure("RSS after the first page", "MiB", False, 0),
    Figure("peak RSS", "MiB", False, 0),
)
#: The script waits for a page that has a size in its list of topics, and returns times in ms since the navigation began.
PAINTED = """
const done = arguments[0];
const look = () => {
    const paint = performance.getEntriesByName("first-contentful-paint")[0];
    const begun = performance.getEntriesByType("navigation")[0];
    const isComplete = [...document.querySelectorAll("main")].some((one) => / [KMG]i?B\\b/.test(one.innerText));
    if (paint && isComplete) done([paint.startTime, performance.now(), begun.responseStart]);
    else setTimeout(look, 10);
};
look();
"""


def cases(scale: Scale) -> list[Case]:
    name = f"{scale.topics:,} topics, {scale.partitions:,} partitions"
    return [Case("console", name, FIGURES, _measure, frozenset({"ottla"}), rounds=1)]


def _measure(context: CaseContext, scale: Scale) -> Measurement:
    detail: dict[str, Any] = {"load_average": [os.getloadavg()]}
    with (
        tempfile.TemporaryDirectory(dir=context.scratch, ignore_cleanup_errors=True) as directory,
        OttlaServer(settings=SETTINGS).running(Path(directory)) as running,
    ):
        log = Path(directory) / "console.log"
        _create_topics(running.bootstrap, [NewTopic(name, SEARCHED_PARTITIONS, 1) for name in (PLAIN, COMPRESSED)])
        for topic, compression in ((PLAIN, "none"), (COMPRESSED, "zstd")):
            _fill(running.bootstrap, topic, compression, scale.fill_bytes)
        each = max(1, scale.partitions // scale.topics)
        _create_topics(running.bootstrap, [NewTopic(f"bench-{number:05}", each, 1) for number in range(scale.topics)])
        starts = [_start(running.bootstrap, log) for _ in range(scale.starts)]
        detail["load_average"].append(os.getloadavg())
        pages, detail["no_browser"] = _pages(running.bootstrap, log, scale.starts)
        detail["load_average"].append(os.getloadavg())
        searched = _searches(running.bootstrap, log, scale.starts)
        detail["load_average"].append(os.getloadavg())
    detail |= {"starts": starts, "pages": pages, "searches": searched}
    text = searched["search"]
    figures = {
        "first byte": statistics.median(one["first_byte_s"] for one in starts),
        "CPU until first byte": statistics.median(one["cpu_s"] for one in starts),
        **{name: one["bytes"] / MB / one["seconds"] for name, one in searched.items() if name in SEARCHES},
        "CPU of a search": text["cpu_s"] / text["bytes"] * 1e9,
        "RSS after the first page": statistics.median(one["rss"] for one in starts) / MIB,
        "peak RSS": searched["memory"]["peak_rss"] / MIB,
    }
    if pages:
        figures["first page in Chromium"] = statistics.median(one["painted_s"] for one in pages)
        figures["complete page in Chromium"] = statistics.median(one["complete_s"] for one in pages)
    return Measurement(figures, detail)


def _create_topics(bootstrap: str, topics: Sequence[NewTopic]) -> None:
    """Raises: LoadFailed."""
    with Admin(bootstrap_servers=bootstrap, client_id="bench") as admin:
        for at in range(0, len(topics), TOPICS_PER_REQUEST):
            for name, outcome in admin.create_topics(topics[at : at + TOPICS_PER_REQUEST]).items():
                if isinstance(outcome, KafkaError):
                    raise LoadFailed(f"topic {name} was not created: {outcome}")


def _fill(bootstrap: str, topic: str, compression: str, value_bytes: int) -> None:
    """Writes JSON values of about 1 kB."""
    source = random.Random(SEED)
    values = [_value(source, number) for number in range(VALUES)]
    written = 0
    with Producer(bootstrap_servers=bootstrap, client_id="bench", compression_type=compression, linger_ms=20, batch_size=256 * 1024) as to:
        while written < value_bytes:
            for number, value in enumerate(values):
                to.send(topic, value, b"customer-%d" % (number % 500), partition=number // 50 % SEARCHED_PARTITIONS)
                written += len(value)


def _value(source: random.Random, number: int) -> bytes:
    items = [
        {"sku": f"A{source.randrange(10_000)}", "quantity": source.randrange(1, 9), "note": source.randbytes(24).hex()} for _ in range(9)
    ]
    return json.dumps({"id": number, "customer": {"country": "SI"}, "amount": round(source.uniform(1, 900), 2), "items": items}).encode()


@contextmanager
def _console(bootstrap: str, log: Path, path: str) -> Iterator[ServerProcess]:
    """A new console that has answered for this path."""

    def answers(sock: socket.socket) -> bool:
        host, port = sock.getpeername()
        sock.settimeout(PATIENCE_S)
        sock.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
        return sock.recv(12) == b"HTTP/1.1 200"

    command = [sys.executable, "-m", "ottla", "console", "-b", bootstrap, "--listen", "127.0.0.1:0"]
    with ServerProcess(command, log_path=log, ready=READY, answers=answers) as process:
        yield process


def _start(bootstrap: str, log: Path) -> dict[str, float]:
    with _console(bootstrap, log, "/") as process:
        cpu_s = process.cpu_s()
        _await_complete(process)
        return {
            "first_byte_s": process.first_answer_s,
            "ready_s": process.ready_s,
            "cpu_s": cpu_s,
            "rss": process.memory().rss,
        }


def _await_complete(process: ServerProcess) -> None:
    """Waits until the first measurement of the cluster is complete. Raises: LoadFailed."""
    connection = http.client.HTTPConnection(process.ready_match.group(1), timeout=PATIENCE_S)
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        connection.request("GET", "/live/overview")
        if re.search(rb" [KMG]i?B\b", connection.getresponse().read()):
            connection.close()
            return
        time.sleep(POLL_S)
    raise LoadFailed(f"the console has no sizes after {PATIENCE_S:.0f} s")


def _pages(bootstrap: str, log: Path, starts: int) -> tuple[list[dict[str, float]], str]:
    """The first page of new consoles in a new browser each; or why there is no browser."""
    if missing := [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]:
        return [], f"{' and '.join(missing)} not installed"
    sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "console"))
    import chromium

    found = []
    for _ in range(starts):
        with _console(bootstrap, log, "/healthz") as process, chromium.chromium(f"http://{process.ready_match.group(1)}") as page:
            page.driver.get("data:text/html,<p>open</p>")
            page.driver.set_script_timeout(PATIENCE_S)
            cpu_s = process.cpu_s()
            page.open("/")
            painted_ms, complete_ms, first_byte_ms = page.driver.execute_async_script(PAINTED)
            found.append(
                {
                    "first_byte_s": first_byte_ms / 1000,
                    "painted_s": painted_ms / 1000,
                    "complete_s": complete_ms / 1000,
                    "cpu_s": process.cpu_s() - cpu_s,
                }
            )
    return found, ""


def _searches(bootstrap: str, log: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Every search in one console, one after another, the median by time of some rounds; and its memory afterwards."""
    found: dict[str, dict[str, float]] = {}
    with _console(bootstrap, log, "/") as process:
        _await_complete(process)
        for name, (topic, conditions) in SEARCHES.items():
            runs = []
            for _ in range(rounds):
                cpu_s = process.cpu_s()
                progress = _search(process.ready_match.group(1), topic, conditions)
                runs.append({"bytes": progress["size_bytes"], "seconds": progress["seconds"], "cpu_s": process.cpu_s() - cpu_s})
            found[name] = sorted(runs, key=lambda one: one["seconds"])[rounds // 2]
        peak = re.search(r"VmHWM:\s*(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
        memory = process.memory()
        found["memory"] = {"peak_rss": int(peak[1]) * 1024 if peak else psutil.Process(process.pid).memory_info().rss, "rss": memory.rss}
    return found


def _search(address: str, topic: str, conditions: dict[str, str]) -> dict[str, Any]:
    """The final progress of a search. Raises: LoadFailed."""
    connection = http.client.HTTPConnection(address, timeout=PATIENCE_S)
    connection.request("GET", f"/topics/{topic}/stream?{urlencode({'show': 'oldest', **conditions})}")
    text = connection.getresponse().read().decode()
    connection.close()
    kind, _, data = text.strip().rpartition("\n\n")[2].partition("\ndata: ")
    if kind != "event: end":
        raise LoadFailed(f"the search of {topic} ended with {text[-300:]!r}")
    progress: dict[str, Any] = json.loads(data)
    if progress["found"] or progress["done"] != progress["total"]:
        raise LoadFailed(f"the search of {topic} did not read everything: {progress}")
    return progress
