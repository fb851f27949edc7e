"""Starts that wait, and starts that are stopped."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from ottla import Admin, NewTopic
from ottla.base.ports import Disk, Op
from ottla.log import filenames
from ottla.server.data_directory import StoppedWhileStarting
from ottla.server.environment import OperatingSystem
from ottla.server.process import STOPPED, Process
from ottla.server.process_plan import ProcessPlan
from ottla.server.store_factory import submit_and_wait
from ottla.server.zookeeper_ensemble import Ensemble
from ottla.store.embedded.store import EmbeddedStore
from serving import Serving

pytestmark = pytest.mark.server

WAITS = "waiting for ZooKeeper: no server at 127.0.0.1:"


def eventually(holds: Callable[[], bool], timeout_s: float = 30.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline_s, "it did not happen in time"
        time.sleep(0.01)


def unused_port() -> int:
    with closing(socket.socket()) as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def forwarding(port: int, target: tuple[str, int]) -> Iterator[None]:
    """Connections to the port reach the target."""

    def copy(source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        except OSError:
            pass
        finally:
            source.close()
            sink.close()

    def accept() -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            far = socket.create_connection(target)
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=copy, args=(one, other), daemon=True).start()

    listener = socket.create_server(("127.0.0.1", port))
    threading.Thread(target=accept, daemon=True).start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def test_a_broker_waits_for_zookeeper_and_serves_once_it_answers(tmp_path: Path, zookeeper: Ensemble) -> None:
    port = unused_port()
    server = Serving(tmp_path / "data", arguments=["--zookeeper", f"127.0.0.1:{port}/starting-late"])
    server.spawn()
    try:
        eventually(lambda: WAITS in server.logs())
        assert server.alive and "ready on" not in server.logs()
        with forwarding(port, zookeeper.servers[0].address):
            eventually(lambda: "ready on" in server.logs())
            server.stop()
        assert "Traceback" not in server.logs()
    finally:
        server.kill()


def test_a_broker_that_waits_for_zookeeper_stops_when_asked(tmp_path: Path) -> None:
    server = Serving(tmp_path / "data", arguments=["--zookeeper", f"127.0.0.1:{unused_port()}"])
    server.spawn()
    try:
        eventually(lambda: WAITS in server.logs())
        server.stop(timeout_s=20)
        assert "Traceback" not in server.logs()
    finally:
        server.kill()


def test_broker_waits_for_a_zookeeper_that_accepts_and_does_not_respond(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        server = Serving(tmp_path / "data", arguments=["--zookeeper", f"127.0.0.1:{silent.getsockname()[1]}"])
        server.spawn()
        try:
            eventually(lambda: WAITS in server.logs())
            server.stop(timeout_s=30)
            assert "Traceback" not in server.logs()
        finally:
            server.kill()


class StoppedInTheMiddle(OperatingSystem):
    """The process is asked to stop while it opens its log directories."""

    def __init__(self) -> None:
        super().__init__()
        self.process: Process | None = None

    def disk(self, path: Path, *, descriptors_max: int) -> Disk:
        if self.process is not None:
            stopped = threading.Event()
            process, loop = self.process, self.process._end.get_loop()
            loop.call_soon_threadsafe(lambda: (process.request_stop(), stopped.set()))  # type: ignore[func-returns-value]
            assert stopped.wait(10), "the loop runs while logs are opened"
        return super().disk(path, descriptors_max=descriptors_max)


def a_plan(data_dir: Path) -> ProcessPlan:
    return ProcessPlan(data_dir=data_dir, texts={"listeners": "PLAINTEXT://127.0.0.1:0"})


def create(bootstrap: str) -> None:
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topic(NewTopic("t", 2))


async def started(data_dir: Path) -> Process:
    process = Process(a_plan(data_dir))
    await process.start()
    return process


async def test_a_process_that_is_asked_to_stop_while_it_opens_its_logs_ends_at_the_next_log(tmp_path: Path) -> None:
    process = await started(tmp_path)
    host, port = process.brokers[0].address
    await asyncio.to_thread(create, f"{host}:{port}")
    await process.stop()
    marker = tmp_path / "broker-1" / filenames.CLEAN_SHUTDOWN
    assert marker.exists()

    ground = StoppedInTheMiddle()
    process = Process(a_plan(tmp_path), environment=ground)
    ground.process = process
    with pytest.raises(StoppedWhileStarting):
        await process.start()
    await process.stop()
    assert await process.ended() == STOPPED
    # Not all logs were opened, so none of them is known to be in order.
    assert not marker.exists()

    process = await started(tmp_path)
    assert process.brokers[0].node.partitions.leaders
    await process.stop()
    assert marker.exists()


async def test_a_stop_before_the_registration_leaves_logs_in_order_and_keeps_the_last_registration(tmp_path: Path) -> None:
    process = await started(tmp_path)
    await process.stop()
    marker = tmp_path / "broker-1" / filenames.CLEAN_SHUTDOWN
    before = marker.read_bytes()

    process = Process(a_plan(tmp_path))
    opened = process._open_logs

    def then_stopped(*arguments: object) -> object:
        found = opened(*arguments)  # type: ignore[arg-type]
        process._end.get_loop().call_soon_threadsafe(process.request_stop)
        return found

    process._open_logs = then_stopped  # type: ignore[assignment, method-assign]
    with pytest.raises(StoppedWhileStarting):
        await process.start()
    await process.stop()
    assert marker.read_bytes() == before


async def test_a_store_that_answers_after_a_stop_is_no_internal_error(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "store")
    session, errors = store.session(), list[Any]()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context))
    waiting = asyncio.get_running_loop().create_task(submit_and_wait(session, Op("create", "/a")))
    # The change is submitted, and not written.
    await asyncio.sleep(0)
    waiting.cancel()
    await store.settled()
    assert waiting.cancelled() and not errors
    await store.close()


def test_sigterm_at_any_moment_of_the_start_is_a_clean_stop(tmp_path: Path) -> None:
    with Serving(tmp_path / "data") as server:
        pass
    for wait_s in (0.3, 0.4, 0.5, 0.6, 0.8):
        server.spawn()
        time.sleep(wait_s)
        server._process.terminate()  # type: ignore[union-attr]
        # Before Python has set up its handlers the signal ends the process by itself.
        assert server._process.wait(30) in (0, -15)  # type: ignore[union-attr]
    assert "Traceback" not in server.logs() and "internal error" not in server.logs()
    with server:
        pass
