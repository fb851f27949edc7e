"""The log file of a process, with rotation.

::

    NAME        the current log, of all runs of the process
    NAME.1      the log before; NAME is renamed to it above OUTPUT_BYTES_MAX

Standard output and error are the file itself, so it also contains tracebacks and the output of libraries. A thread checks the size every
``LOOK_S`` and rotates the file. When another program moves the file away, as logrotate does, the thread opens a new one.
"""

import contextlib
import os
import threading
from pathlib import Path

from ottla.base.units import MiB

OUTPUT_BYTES_MAX = 16 * MiB
#: Interval of the checks.
LOOK_S = 10.0


def rotate(path: Path, *, bytes_max: int = OUTPUT_BYTES_MAX) -> bool:
    """Renames the file if it is larger than ``bytes_max``; returns whether it did. Raises: OSError."""
    try:
        if path.stat().st_size <= bytes_max:
            return False
    except FileNotFoundError:
        return False
    os.replace(path, path.with_name(f"{path.name}.1"))
    return True


def redirect_output(path: Path, *, bytes_max: int = OUTPUT_BYTES_MAX, look_s: float = LOOK_S) -> None:
    """Appends standard output and error of this process to the file from now on. Raises: OSError."""
    _direct(path)

    def look() -> None:
        waits = threading.Event()
        while not waits.wait(look_s):
            # On a failed or full disk the current file stays in use.
            with contextlib.suppress(OSError):
                if rotate(path, bytes_max=bytes_max) or not path.exists():
                    _direct(path)

    threading.Thread(target=look, name="output", daemon=True).start()


def _direct(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        for standard in (1, 2):
            os.dup2(descriptor, standard)
    finally:
        os.close(descriptor)
