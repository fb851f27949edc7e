"""`ottla serve` as the tests run it: a child process on a free loopback port, identified and stopped by its pid only.

    with Serving(tmp_path / "data", settings={"log.segment.bytes": "1048576"}) as server:
        server.bootstrap                # 127.0.0.1:40123[,127.0.0.1:40124 ...]
        server.kill(); server.start()   # a crash, and another life on the same directory

With OTTLA_TEST_BOOTSTRAP=HOST:PORT the tests of the client use the broker that serves there instead, Apache Kafka's for instance (`make
test-kafka`): `Elsewhere` stands in for a server then, and a test that needs a server of its own is skipped.

Both output streams of all lives go to one file beside the data directory; what a process wrote before it died is in the failure's message.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

import pytest

#: A broker that is not ours to start or to stop.
ELSEWHERE = os.environ.get("OTTLA_TEST_BOOTSTRAP", "")
READY = re.compile(r"^ottla: ready on (\S+)$", re.MULTILINE)
SOURCE = Path(__file__).resolve().parents[1] / "src"


class ServerFailed(AssertionError):
    """The server did not become ready, or ended when it should not have; carries the end of what it wrote."""


class Elsewhere:
    """The broker that OTTLA_TEST_BOOTSTRAP names. Whoever asks more of it than its address is skipped."""

    bootstrap = address = ELSEWHERE

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...

    def __getattr__(self, name: str) -> NoReturn:
        needs_its_own(name)


def needs_its_own(what: str) -> NoReturn:
    """Skips a test that cannot run against an external broker."""
    pytest.skip(f"needs an Ottla server of its own ({what}), and OTTLA_TEST_BOOTSTRAP is set")


class Serving:
    """A server on a data directory; a context manager that starts it and leaves no process behind."""

    def __init__(
        self,
        data_dir: Path,
        *,
        brokers: int = 1,
        settings: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        ready_timeout_s: float = 30.0,
        listen: bool = True,
    ) -> None:
        """``listen``: at a free port, with plaintext; otherwise the arguments say where."""
        self.listen = listen
        if ELSEWHERE:
            needs_its_own("with settings or a life of its own")
        self.data_dir = data_dir
        self.output = data_dir.with_name(data_dir.name + ".output")
        self.command = [sys.executable, "-m", "ottla", "serve", "--data-dir", str(data_dir)]
        if brokers != 1:
            self.command += ["--brokers", str(brokers)]
        for name, value in (settings or {}).items():
            self.command += ["--set", f"{name}={value}"]
        self.command += arguments
        self.ready_timeout_s = ready_timeout_s
        #: Where the package of the next life is.
        self.source = SOURCE
        #: HOST:PORT of every broker, comma-separated. A single broker listens at the same port in all its lives.
        self.bootstrap = ""
        #: Seconds from spawn to the ready line, of the last start.
        self.ready_s = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.alive:
            try:
                self.stop()
            finally:
                self.kill()

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server was started"
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of each broker."""
        pairs = (address.rpartition(":") for address in self.bootstrap.split(","))
        return [(host, int(port)) for host, _, port in pairs]

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the first broker."""
        return self.addresses[0]

    def logs(self) -> str:
        """All that the lives so far wrote."""
        return self.output.read_text(errors="replace") if self.output.exists() else ""

    def resident_bytes(self) -> int:
        """Resident memory of the process."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def start(self) -> Self:
        """Starts a life and waits until it serves. Raises ServerFailed."""
        assert not self.alive, "one life at a time"
        self.data_dir.parent.mkdir(parents=True, exist_ok=True)
        begun = len(self.logs())
        self.spawn()
        deadline = time.monotonic() + self.ready_timeout_s
        while not (match := READY.search(self.logs()[begun:])):
            if not self.alive or time.monotonic() > deadline:
                code = self._process.poll() if self._process else None
                self.kill()
                raise ServerFailed(f"not ready (exit code {code}):\n{self.logs()[begun:][-4000:]}")
            time.sleep(0.01)
        self.ready_s = time.monotonic() - self._spawned_at
        self.bootstrap = match.group(1)
        return self

    def fails_to_start(self, *, timeout_s: float = 20.0) -> str:
        """Starts a life that must end by itself with an exit code above 0; what it wrote. Raises ServerFailed."""
        begun = len(self.logs())
        self.spawn()
        assert self._process is not None, "it was just started"
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServerFailed(f"still alive after {timeout_s} s:\n{self.logs()[begun:][-4000:]}") from None
        said = self.logs()[begun:]
        if code <= 0:
            raise ServerFailed(f"ended with code {code}:\n{said[-4000:]}")
        return said

    def stop(self, *, timeout_s: float = 60.0) -> None:
        """Asks with SIGTERM and waits: for a disk that others use too, if need be. Raises ServerFailed unless the exit code is 0."""
        assert self._process is not None, "the server was started"
        self._process.terminate()
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServerFailed(f"did not stop within {timeout_s} s of SIGTERM:\n{self.logs()[-4000:]}") from None
        if code != 0:
            raise ServerFailed(f"exit code {code} after SIGTERM:\n{self.logs()[-4000:]}")

    def kill(self) -> None:
        """Ends the process as a crash would: it gets to do nothing any more."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def spawn(self) -> None:
        """Starts a life without waiting for anything."""
        self.data_dir.parent.mkdir(parents=True, exist_ok=True)
        path = os.pathsep.join(filter(None, (str(self.source), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "PYTHONPATH": path}
        if self.source != SOURCE:
            # Another version runs in pure Python.
            environment.pop("OTTLA_REQUIRE_NATIVE", None)
        one = self.bootstrap and "," not in self.bootstrap
        listen = ["--listen", self.bootstrap if one else "127.0.0.1:0"] if self.listen else []
        with self.output.open("ab") as output:
            self._spawned_at = time.monotonic()
            self._process = subprocess.Popen(self.command + listen, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment)
