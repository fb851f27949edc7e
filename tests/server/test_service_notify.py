"""What systemd hears: from the notifier on a loop, and from a server."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.server.service_notify import ServiceNotify
from serving import Serving

#: systemd waits this long for a beat, in microseconds.
INTERVAL = 300_000


class Systemd:
    """The other end of the socket."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self.environment = {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": str(INTERVAL)}

    def next(self, timeout_s: float = 20.0) -> str:
        """The next message. Raises: TimeoutError."""
        self._socket.settimeout(timeout_s)
        return self._socket.recv(4096).decode()

    def until(self, wanted: str) -> list[str]:
        """All messages up to the first that begins with this one."""
        heard = [self.next()]
        while not heard[-1].startswith(wanted):
            heard.append(self.next())
        return heard

    def drain(self) -> None:
        """Forgets what was sent so far."""
        self._socket.setblocking(False)
        try:
            while True:
                self._socket.recv(4096)
        except BlockingIOError:
            return

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    made = Systemd(tmp_path / "notify")
    yield made
    made.close()


async def test_a_ready_loop_beats_until_it_stops(systemd: Systemd) -> None:
    environment = dict(systemd.environment)
    service = ServiceNotify.of_environment(environment)
    service.ready("ready on 127.0.0.1:9092")
    assert not environment, "children must not notify"
    assert systemd.next() == "READY=1\nSTATUS=ready on 127.0.0.1:9092"
    assert [await asyncio.to_thread(systemd.next) for _ in range(3)] == ["WATCHDOG=1"] * 3
    service.stopping()
    assert systemd.until("STOPPING=1")[-1].startswith("STOPPING=1\n")
    with pytest.raises(TimeoutError):
        await asyncio.to_thread(systemd.next, INTERVAL / 1e6)
    service.close()


async def test_a_blocked_loop_does_not_beat(systemd: Systemd) -> None:
    service = ServiceNotify.of_environment(dict(systemd.environment))
    service.ready("ready")
    assert [systemd.next(), systemd.next()] == ["READY=1\nSTATUS=ready", "WATCHDOG=1"]
    with pytest.raises(TimeoutError):
        systemd.next(2 * INTERVAL / 1e6)
    service.close()


async def test_a_watchdog_of_another_process_gets_no_beats(systemd: Systemd) -> None:
    service = ServiceNotify.of_environment({**systemd.environment, "WATCHDOG_PID": "1"})
    service.ready("ready")
    assert systemd.next() == "READY=1\nSTATUS=ready"
    with pytest.raises(TimeoutError):
        await asyncio.to_thread(systemd.next, INTERVAL / 1e6)
    service.close()


async def test_a_missing_socket_is_logged_once_and_serving_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    service = ServiceNotify.of_environment({"NOTIFY_SOCKET": str(tmp_path / "none"), "WATCHDOG_USEC": str(INTERVAL)})
    service.starting()
    service.ready("ready")
    service.stopping()
    service.close()
    assert [record.message for record in caplog.records] == [
        f"systemd cannot be notified at {tmp_path / 'none'}: No such file or directory"
    ]


@pytest.mark.server
def test_a_server_notifies_systemd_and_a_stopped_one_is_found_out(
    systemd: Systemd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in systemd.environment.items():
        monkeypatch.setenv(name, value)
    with Serving(tmp_path / "data") as server:
        heard = systemd.until("READY=1")
        assert heard[0].startswith("STATUS=starting") and "WATCHDOG=1" not in heard
        assert heard[-1] == f"READY=1\nSTATUS=ready on {server.bootstrap}"
        assert systemd.next() == "WATCHDOG=1"
        os.kill(server.pid, signal.SIGSTOP)
        systemd.drain()
        with pytest.raises(TimeoutError):
            systemd.next(2 * INTERVAL / 1e6)
        os.kill(server.pid, signal.SIGCONT)
        assert systemd.next() == "WATCHDOG=1"
        server.stop()
        assert systemd.until("STOPPING=1")[-1].startswith("STOPPING=1\n")


def test_the_watchdogs_signal_leaves_the_stacks_of_all_threads(systemd: Systemd) -> None:
    watched = "import os; from ottla.server.service_notify import ServiceNotify as S; S.of_environment(os.environ).starting(); os.abort()"
    done = subprocess.run([sys.executable, "-c", watched], env={**os.environ, **systemd.environment}, capture_output=True, text=True)
    assert done.returncode == -signal.SIGABRT and "Fatal Python error: Aborted" in done.stderr
