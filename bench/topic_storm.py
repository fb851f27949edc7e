"""`python -m bench.topic_storm`: latency of a well-behaved client while thousands of topics are created, written to and deleted.

A probe process uses a topic of its own. It sends a Produce request (acks=all, one record of 1 KiB) every 50 ms
on one connection, and a Fetch request on another. A Produce waits for the disk, a Fetch does not. A latency counts from the time when the
request was due, so a stall affects all requests that were due in it.

    alone      the probe alone
    create     four clients create the topics, 50 in a request
    write      four clients write one record to each topic, one request each
    delete     the same four clients delete the topics, 50 in a request
    again      the topics are created and deleted under the same names

`--source PATH` runs a server of another source tree, to compare two versions on one machine.
`--control` sends the storm to a second server on the same machine. The probe's latency then shows the effect of the shared processors
and disk, and not of the broker.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click

from bench import probe
from bench.frames import batch_of, check_produced, fetch_frame, produce_frame, stamp
from bench.process import ServerProcess
from bench.servers import OTTLA_READY
from ottla import Admin, NewTopic
from ottla.base.units import KiB
from ottla.wire.compile import decode
from ottla.wire.messages.produce import ProduceResponse

CLIENTS, TOPICS_PER_REQUEST = 4, 50
PROBE_TOPIC, PROBE_EVERY_S = "probe", 0.05
#: Codes of errors that a client retries: LEADER_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER, UNKNOWN_TOPIC_OR_PARTITION.
RETRIABLE = (5, 6, 3)
#: Keeps lines of the probe's two threads apart.
WRITING = threading.Lock()


def main_of_probe(host: str, port: int) -> None:
    """Print a line of JSON for each request until standard input ends: its kind, its due time, and its latency in seconds."""
    ended = threading.Event()
    produce = produce_frame(PROBE_TOPIC, [0], batch_of(KiB, 2 * KiB).data, acks=-1)
    fetch = fetch_frame(PROBE_TOPIC, {0: 0}, partition_bytes_max=KiB, bytes_max=KiB, wait_ms=0)
    with ThreadPoolExecutor(2) as pool:
        pool.submit(_repeat, "produce", (host, port), produce, lambda reply: check_produced(reply, PROBE_TOPIC, 1), ended)
        pool.submit(_repeat, "fetch", (host, port), fetch, lambda reply: None, ended)
        sys.stdin.read()
        ended.set()


def _repeat(kind: str, address: tuple[str, int], frame: bytearray, check: Callable[[bytes], None], ended: threading.Event) -> None:
    with socket.create_connection(address) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        due = time.monotonic()
        number = 0
        while not ended.is_set():
            number += 1
            time.sleep(max(due - time.monotonic(), 0))
            stamp(frame, number)
            sock.sendall(frame)
            check(probe.receive(sock))
            with WRITING:
                print(json.dumps([kind, due, time.monotonic() - due]), flush=True)
            due += PROBE_EVERY_S


class Probe:
    """The probe as a child process, with its measurements so far."""

    def __init__(self, bootstrap: str) -> None:
        self.measured: list[tuple[str, float, float]] = []
        command = [sys.executable, "-m", "bench.topic_storm", "--probe", bootstrap]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None, "the probe's output is a pipe"
        self.measured += (tuple(json.loads(line)) for line in self._process.stdout)

    def stop(self) -> None:
        assert self._process.stdin is not None, "the probe's input is a pipe"
        self._process.stdin.close()
        self._reader.join()
        self._process.wait()


@contextmanager
def probing(bootstrap: str) -> Iterator[Probe]:
    running = Probe(bootstrap)
    try:
        yield running
    finally:
        running.stop()


def in_parts(names: Sequence[str], *acts: Callable[[Sequence[str]], None]) -> None:
    """Divide the names among four clients, which run the actions one after the other."""
    with ThreadPoolExecutor(CLIENTS) as pool:
        for act in acts:
            for done in [pool.submit(act, names[part::CLIENTS]) for part in range(CLIENTS)]:
                done.result()


def create(bootstrap: str, names: Sequence[str]) -> None:
    with Admin(bootstrap_servers=bootstrap, request_timeout_ms=300_000) as admin:
        for first in range(0, len(names), TOPICS_PER_REQUEST):
            new_topics = [NewTopic(name, 1) for name in names[first : first + TOPICS_PER_REQUEST]]
            _check(admin.create_topics(new_topics, timeout_ms=300_000))


def delete(bootstrap: str, names: Sequence[str]) -> None:
    with Admin(bootstrap_servers=bootstrap, request_timeout_ms=300_000) as admin:
        for first in range(0, len(names), TOPICS_PER_REQUEST):
            _check(admin.delete_topics(names[first : first + TOPICS_PER_REQUEST], timeout_ms=300_000))


def _check(outcomes: Mapping[Any, Any]) -> None:
    for outcome in outcomes.values():
        if isinstance(outcome, Exception):
            raise outcome


def write(address: tuple[str, int], names: Sequence[str]) -> None:
    """Write one record to each topic, one request in flight."""
    data = batch_of(KiB, 2 * KiB).data
    with socket.create_connection(address) as sock:
        for name in names:
            while True:
                sock.sendall(produce_frame(name, [0], data, acks=-1))
                reply = probe.receive(sock)
                answer = decode(ProduceResponse, reply, 9, 5)
                code = answer.responses[0].partition_responses[0].error_code
                if code not in RETRIABLE:
                    break
                time.sleep(0.01)
            assert code == 0, f"Produce to {name} was answered with error code {code}"


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """In milliseconds; empty when no request was due, because an earlier one took the whole time."""
    if not values:
        return {}
    ordered = sorted(values)
    p50, p99 = (ordered[min(int(len(ordered) * share), len(ordered) - 1)] for share in (0.5, 0.99))
    return {"p50": round(1000 * p50, 2), "p99": round(1000 * p99, 2), "max": round(1000 * ordered[-1], 1)}


@contextmanager
def serving(directory: Path, name: str, source: Path | None) -> Iterator[str]:
    """Start a server with its own data directory; yields its address."""
    env = dict(os.environ) if source is None else {**os.environ, "PYTHONPATH": str(source)}
    command = [sys.executable, "-m", "ottla", "serve", "--data-dir", str(directory / name), "--listen", "127.0.0.1:0"]
    with ServerProcess(command, log_path=directory / f"{name}.log", ready=OTTLA_READY, env=env) as server:
        yield server.ready_match.group(1)


def measured(directory: Path, source: Path | None, topics: int, alone_s: float, control: bool) -> dict[str, Any]:
    """The probe's latencies in each phase, and the duration of each phase."""
    names = [f"storm-{number:05d}" for number in range(topics)]
    phases: dict[str, tuple[float, float]] = {}
    with ExitStack() as servers:
        probed = servers.enter_context(serving(directory, "probed", source))
        bootstrap = servers.enter_context(serving(directory, "control", source)) if control else probed
        host, _, port = bootstrap.rpartition(":")
        address = (host, int(port))
        create(probed, [PROBE_TOPIC])
        acts: dict[str, Callable[[], None]] = {
            "alone": lambda: time.sleep(alone_s),
            "create": lambda: in_parts(names, lambda part: create(bootstrap, part)),
            "write": lambda: in_parts(names, lambda part: write(address, part)),
            "delete": lambda: in_parts(names, lambda part: delete(bootstrap, part)),
            "again": lambda: in_parts(names, lambda part: create(bootstrap, part), lambda part: delete(bootstrap, part)),
        }
        with probing(probed) as running:
            time.sleep(1)
            for phase, act in acts.items():
                began = time.monotonic()
                act()
                phases[phase] = (began, time.monotonic())
            time.sleep(1)
    outcome: dict[str, Any] = {"topics": topics, "source": str(source or "here"), "control": control}
    for phase, (began, ended) in phases.items():
        outcome[phase] = {"seconds": round(ended - began, 1)}
        for kind in ("produce", "fetch"):
            outcome[phase][f"{kind}_ms"] = percentiles([row[2] for row in running.measured if row[0] == kind and began <= row[1] < ended])
    return outcome


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--topics", default=5_000, show_default=True, help="How many topics come and go.")
@click.option("--alone-s", default=10.0, show_default=True, help="Seconds of measuring the client alone.")
@click.option("--source", type=click.Path(file_okay=False, exists=True, path_type=Path), help="Run the server of this source tree.")
@click.option("--control", is_flag=True, help="Send the storm to a second server on the same machine.")
@click.option("--directory", type=click.Path(file_okay=False, exists=True, path_type=Path), help="Where data is kept for the time.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write the outcome here, too.")
@click.option("--probe", "bootstrap", hidden=True)
def main(
    topics: int, alone_s: float, source: Path | None, control: bool, directory: Path | None, json_path: Path | None, bootstrap: str | None
) -> None:
    """Measure the latency of a client during a storm of topics."""
    if bootstrap is not None:
        host, _, port = bootstrap.rpartition(":")
        main_of_probe(host, int(port))
        return
    with tempfile.TemporaryDirectory(prefix="ottla-storm-", dir=directory, ignore_cleanup_errors=True) as made:
        outcome = measured(Path(made), source, topics, alone_s, control)
    text = json.dumps(outcome, indent=1)
    click.echo(text)
    if json_path is not None:
        json_path.write_text(text + "\n")


if __name__ == "__main__":
    main()
