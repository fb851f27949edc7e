"""Processes that outlive the command that started them, found again by a file with their number.

::

    DIR/NAME.pid     number of the process, and when it began, in the system's own words
    DIR/NAME.log     what all its lives wrote; of a process that does not see to its size itself (``output.py``) it is put aside at a start

A number is another's once its process is gone; that it is still the same process is seen by when it began.
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

#: How often a process is looked at that somebody waits for.
LOOK_S = 0.05


class Daemon:
    """``ottla`` with these arguments, in a session of its own; ``name`` is what people call it."""

    def __init__(self, name: str, stem: Path, arguments: Sequence[str], *, ready: str) -> None:
        """``stem`` is ``DIR/NAME``; a line that begins with ``ready`` says that it serves."""
        self.name = name
        self.arguments = list(arguments)
        self.pid_file = stem.with_name(stem.name + ".pid")
        self.output = stem.with_name(stem.name + ".log")
        self._ready = ready
        self._process: subprocess.Popen[bytes] | None = None
        #: Length of the log before the present life.
        self._begun = 0

    @property
    def pid(self) -> int | None:
        """Its number while it runs."""
        try:
            number, _, birth = self.pid_file.read_text().strip().partition(" ")
            pid = int(number)
        except (OSError, ValueError):
            return None
        if self._process is not None:
            # A child that has ended keeps its number until it is asked about.
            self._process.poll()
        return pid if birth and birth_of(pid) == birth else None

    def spawn(self) -> None:
        """Starts it, without waiting for anything. Raises: CannotStart."""
        assert self.pid is None, "one life at a time"
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
        """Returns when the life that ``spawn`` began serves. Raises: CannotStart, with what it said last."""
        while True:
            alive = self.pid is not None
            said = self._said()
            if any(line.startswith(self._ready) for line in said):
                return
            if not alive:
                reason = next((line.removeprefix("ottla: ") for line in reversed(said) if line.startswith("ottla: ")), "")
                raise CannotStart(f"{self.name} does not start: {reason or (said[-1] if said else 'it says nothing')}")
            if time.monotonic() > deadline_s:
                raise CannotStart(f"{self.name} is not ready in time; see {self.output}")
            time.sleep(LOOK_S)

    def stop(self, *, timeout_s: float) -> bool:
        """Asks it to end with SIGTERM, and kills it after a while; whether it ended in time. Nothing if it does not run."""
        deadline_s = time.monotonic() + timeout_s
        asked = None
        while (pid := self.pid) is not None:
            wanted = signal.SIGTERM if time.monotonic() < deadline_s else signal.SIGKILL
            if wanted != asked:
                asked = wanted
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, wanted)
            time.sleep(LOOK_S)
        with contextlib.suppress(OSError):
            self.pid_file.unlink()
        return asked != signal.SIGKILL

    def _said(self) -> list[str]:
        try:
            with self.output.open("rb") as output:
                output.seek(self._begun)
                return output.read().decode(errors="replace").splitlines()
        except OSError:
            return []


def birth_of(pid: int) -> str | None:
    """When a process began, as the system tells it; None when there is none, or it has ended and only its parent does not know."""
    if sys.platform == "linux":
        try:
            # The name of the program stands in parentheses, and may hold any.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            return None
        state, begun = fields[0], f"{fields[19]} {boot}"
    else:
        told = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
        state, _, begun = told.strip().partition(" ")
    return begun.strip() if begun and state[:1] not in ("Z", "X") else None
