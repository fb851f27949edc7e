"""A server as a child process: its start time, CPU and memory.

Everything is measured in the same way for Ottla and Kafka. A thread reads the server's standard output, records the time of each
line and writes the text to a log file, so the start time does not depend on polling. A second thread takes the time until the
first response: it sends ApiVersions and Metadata on a raw socket every few milliseconds.

CPU is user plus system time of the process, of its living children, and of the children it has reaped.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench import probe

MIB = 1 << 20


class ServerDied(RuntimeError):
    """The server process ended, or never became ready; the message has the end of its log."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident memory in bytes, summed over the process and its living children. PSS divides shared pages; USS excludes them."""

    rss: int
    pss: int
    uss: int


class ServerProcess:
    """One running server. As a context manager it stops the process at exit."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        log_path: Path,
        ready: re.Pattern[str],
        port: int | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
        answers: Callable[[socket.socket], bool] = probe.answers,
    ) -> None:
        self.command = list(command)
        self.log_path = log_path
        self._ready = ready
        #: Whether a new connection gets its first response.
        self._answers = answers
        self._lines_done = threading.Event()
        self._ready_at: float | None = None
        self._ready_match: re.Match[str] | None = None
        self._ready_seen = threading.Event()
        self._first_answer_at: float | None = None
        log_path.parent.mkdir(parents=True, exist_ok=True)
        self._spawned_at = time.perf_counter()
        self._process = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=None if env is None else dict(env),
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read_lines, daemon=True)
        self._reader.start()
        self._psutil = psutil.Process(self._process.pid)
        try:
            self._wait_until_ready(port, timeout_s)
        except BaseException:
            self.stop()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ready_s(self) -> float:
        """Seconds from spawn to the line that says the server is ready."""
        assert self._ready_at is not None, "a ServerProcess is only handed out once its ready line was seen"
        return self._ready_at - self._spawned_at

    @property
    def first_answer_s(self) -> float:
        """Seconds from spawn to the first successful response: of a broker, to ApiVersions and Metadata."""
        assert self._first_answer_at is not None, "a ServerProcess is only handed out once it has answered"
        return self._first_answer_at - self._spawned_at

    @property
    def ready_match(self) -> re.Match[str]:
        assert self._ready_match is not None, "a ServerProcess is only handed out once its ready line was seen"
        return self._ready_match

    def cpu_s(self) -> float:
        """CPU seconds used so far by the process and its children."""
        total = 0.0
        for process in self._family():
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
        return total

    def memory(self) -> Memory:
        rss = pss = uss = 0
        for process in self._family():
            with contextlib.suppress(psutil.NoSuchProcess):
                full = process.memory_full_info()
                rss, pss, uss = rss + full.rss, pss + full.pss, uss + full.uss
        return Memory(rss=rss, pss=pss, uss=uss)

    def alive(self) -> bool:
        return self._process.poll() is None

    def stop(self, *, timeout_s: float = 20.0) -> None:
        """Send SIGTERM, then SIGKILL. Safe to call twice."""
        if self.alive():
            self._process.terminate()
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                # The whole session: a server's children must not outlive it and disturb the next case.
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        self._reader.join(5)

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _family(self) -> list[psutil.Process]:
        try:
            return [self._psutil, *self._psutil.children(recursive=True)]
        except psutil.NoSuchProcess:
            raise ServerDied(self._story("ended")) from None

    def _read_lines(self) -> None:
        assert self._process.stdout is not None, "the process was spawned with a pipe for its output"
        with self.log_path.open("ab") as log:
            for line in self._process.stdout:
                now = time.perf_counter()
                log.write(line)
                log.flush()
                if self._ready_at is None and (match := self._ready.search(line.decode(errors="replace"))):
                    self._ready_match, self._ready_at = match, now
                    self._ready_seen.set()
        self._ready_seen.set()

    def _wait_until_ready(self, port: int | None, timeout_s: float) -> None:
        """Poll a known port from the start; otherwise wait for the ready line with the port."""
        deadline = self._spawned_at + timeout_s
        if port is not None:
            self._ask_until_answered("127.0.0.1", port, deadline)
        if not self._ready_seen.wait(max(0.0, deadline - time.perf_counter())) or self._ready_at is None:
            raise ServerDied(self._story("did not become ready"))
        if port is None:
            host, _, text = self.ready_match.group(1).split(",")[0].rpartition(":")
            self._ask_until_answered(host, int(text), deadline)

    def _ask_until_answered(self, host: str, port: int, deadline: float) -> None:
        while time.perf_counter() < deadline and self.alive():
            try:
                with socket.create_connection((host, port), timeout=2) as sock:
                    if self._answers(sock):
                        self._first_answer_at = time.perf_counter()
                        return
            except OSError:
                pass
            time.sleep(0.005)
        raise ServerDied(self._story("did not answer"))

    def _story(self, what: str) -> str:
        tail = ""
        with contextlib.suppress(OSError):
            tail = "\n".join(self.log_path.read_text(errors="replace").splitlines()[-20:])
        return f"{' '.join(self.command[:4])} ... {what} (exit code {self._process.poll()}); the end of its log:\n{tail}"
