"""Processes that outlive the command that started them; later commands find them by a pid file.

::

    DIR/NAME.pid     pid, and the start time of the process as the system reports it
    DIR/NAME.log     output of all runs; rotated at a start unless the process rotates it itself (``log_file.py``)

A pid can be reused after its process ended. The start time tells whether it is still the same process.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ottla.server.data_directory import CannotStart
from ottla.server.log_file import rotate

#: Interval of the checks while a caller waits for a process.
LOOK_S = 0.05


class Daemon:
    """An ``ottla`` command in its own session; messages call it ``name``."""

    def __init__(self, name: str, stem: Path, arguments: Sequence[str], *, ready: str) -> None:
        """``stem`` is ``DIR/NAME``; an output line that begins with ``ready`` means that it serves."""
        self.name = name
        self.arguments = list(arguments)
        self.pid_file = stem.with_name(stem.name + ".pid")
        self.output = stem.with_name(stem.name + ".log")
        self._ready = ready
        self._process: subprocess.Popen[bytes] | None = None
        #: Length of the log before this run.
        self._begun = 0

    @property
    def pid(self) -> int | None:
        """The pid while it runs, else None."""
        try:
            number, _, birth = self.pid_file.read_text().strip().partition(" ")
            pid = int(number)
        except (OSError, ValueError):
            return None
        if self._process is not None:
            # A child that has ended keeps its pid until it is polled.
            self._process.poll()
        return pid if birth and birth_of(pid) == birth else None

    def spawn(self) -> None:
        """Starts it without waiting. Raises: CannotStart."""
        assert self.pid is None, "a daemon runs once at a time"
        try:
            self.output.parent.mkdir(parents=True, exist_ok=True)
            rotate(self.output)
            with self.output.open("ab") as output:
                self._begun = output.tell()
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "ottla", *self.arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            self.pid_file.write_text(f"{self._process.pid} {birth_of(self._process.pid)}\n")
        except OSError as error:
            raise CannotStart(f"cannot start {self.name}: {error.strerror or error}") from None

    def await_ready(self, deadline_s: float) -> None:
        """Returns when the spawned process serves. Raises: CannotStart, with its last output line."""
        while True:
            alive = self.pid is not None
            output = self._output()
            if any(line.startswith(self._ready) for line in output):
                return
            if not alive:
                reason = next((line.removeprefix("ottla: ") for line in reversed(output) if line.startswith("ottla: ")), "")
                raise CannotStart(f"{self.name} does not start: {reason or (output[-1] if output else 'it wrote no output')}")
            if time.monotonic() > deadline_s:
                raise CannotStart(f"{self.name} is not ready in time; see {self.output}")
            time.sleep(LOOK_S)

    def stop(self, *, timeout_s: float) -> bool:
        """Sends SIGTERM, and SIGKILL after the timeout. Returns whether it ended in time. Does nothing if it does not run."""
        deadline_s = time.monotonic() + timeout_s
        sent = None
        while (pid := self.pid) is not None:
            number = signal.SIGTERM if time.monotonic() < deadline_s else signal.SIGKILL
            if number != sent:
                sent = number
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            time.sleep(LOOK_S)
        with contextlib.suppress(OSError):
            self.pid_file.unlink()
        return sent != signal.SIGKILL

    def _output(self) -> list[str]:
        try:
            with self.output.open("rb") as output:
                output.seek(self._begun)
                return output.read().decode(errors="replace").splitlines()
        except OSError:
            return []


def birth_of(pid: int) -> str | None:
    """Start time of a process as the system reports it; None when there is no such process, or it is a zombie."""
    if sys.platform == "linux":
        try:
            # The program's name is in parentheses and may contain parentheses.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            return None
        state, begun = fields[0], f"{fields[19]} {boot}"
    else:
        line = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
        state, _, begun = line.strip().partition(" ")
    return begun.strip() if begun and state[:1] not in ("Z", "X") else None
