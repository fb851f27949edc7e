"""Two registries as processes on one broker: after kill -9 of the one that writes, the other one writes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

pytest.importorskip("starlette")

from ottla.testing import broker
from serving import SOURCE

pytestmark = pytest.mark.server
#: The default of `ottla registry serve` is 10 s.
SESSION_TIMEOUT_MS = int(os.environ.get("OTTLA_TEST_REGISTRY_SESSION_MS", "1500"))
PROGRAM = """
import sys
from ottla.registry.election import InstanceIdentity
from ottla.registry.instance import InstanceOptions
from ottla.registry.serve import ServeOptions, serve
instance = InstanceOptions({"bootstrap_servers": sys.argv[1]}, InstanceIdentity("127.0.0.1", 0), session_timeout_ms=int(sys.argv[2]))
serve(ServeOptions(instance, "127.0.0.1", 0), lambda url: print(url, flush=True))
"""


@contextmanager
def registry_process(bootstrap: str, errors: Path) -> Iterator[tuple[subprocess.Popen[str], Callable[[], str]]]:
    """A registry in a process of its own, and a function that waits for its URL."""
    with errors.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, bootstrap, str(SESSION_TIMEOUT_MS)],
            stdout=subprocess.PIPE, stderr=stderr, text=True, env={**os.environ, "PYTHONPATH": str(SOURCE)},
        )  # fmt: skip
    output = process.stdout
    assert output is not None, "its output is a pipe"
    try:
        yield process, lambda: output.readline().strip() or errors.read_text()
    finally:
        process.kill()
        process.wait()
        output.close()


def registered(client: httpx.Client, url: str, name: str) -> int | None:
    """The id of a new schema; None while there is no instance that writes."""
    schema = f'{{"type": "enum", "name": "{name}", "symbols": ["A"]}}'
    answer = client.post(f"{url}/subjects/{name}-value/versions", json={"schema": schema})
    assert answer.status_code in (200, 500, 503), answer.text
    return int(answer.json()["id"]) if answer.status_code == 200 else None


def test_the_other_instance_writes_after_a_kill_of_the_one_that_writes(tmp_path: Path) -> None:
    settings = {"group.min.session.timeout.ms": 1000, "group.initial.rebalance.delay.ms": 0}
    with broker(settings=settings) as started, httpx.Client(timeout=30) as client, ExitStack() as stack:
        processes = [stack.enter_context(registry_process(started.bootstrap_servers, tmp_path / f"{number}.log")) for number in range(2)]
        urls = [url() for _, url in processes]

        def leaders() -> list[bool]:
            return [bool(client.get(f"{url}/healthz").json()["is_leader"]) for url in urls]

        ends_s = time.monotonic() + 60
        while sum(leaders()) != 1:
            assert time.monotonic() < ends_s, "one instance is elected"
        writer = leaders().index(True)
        assert [registered(client, url, name) for url, name in zip(urls, ("a", "b"), strict=True)] == [1, 2]
        processes[writer][0].kill()
        killed_s = time.monotonic()
        assert client.get(f"{urls[1 - writer]}/schemas/ids/1").status_code == 200, "reads go on"
        while (number := registered(client, urls[1 - writer], "c")) is None:
            assert time.monotonic() < killed_s + SESSION_TIMEOUT_MS / 1000 + 60, "the other instance takes over"
            time.sleep(0.05)
        print(f"takeover after {time.monotonic() - killed_s:.2f} s with a session timeout of {SESSION_TIMEOUT_MS} ms")
        assert number == 3
        assert client.get(f"{urls[1 - writer]}/subjects").json() == ["a-value", "b-value", "c-value"]
