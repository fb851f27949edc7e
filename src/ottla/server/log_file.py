"""What a process says, in a file that does not grow without end.

::

    NAME        what is said, in all lives of the process
    NAME.1      what was said before that, once NAME had grown to OUTPUT_BYTES_MAX; the next time it is replaced

Standard output and error are the file itself, so it has everything: messages, the traces of failures, what libraries write. A thread looks
at its size now and then, and puts a new file in its place. Whoever moves the file away, as logrotate does, finds a new one there, too.
"""

import contextlib
import os
import threading
from pathlib import Path

from ottla.base.units import MiB

OUTPUT_BYTES_MAX = 16 * MiB
#: How often the size is looked at.
LOOK_S = 10.0


def rotate(path: Path, *, bytes_max: int = OUTPUT_BYTES_MAX) -> bool:
    """Renames the file if it has grown too large; whether it did. Raises: OSError."""
    try:
        if path.stat().st_size <= bytes_max:
            return False
    except FileNotFoundError:
        return False
    os.replace(path, path.with_name(f"{path.name}.1"))
    return True


def redirect_output(path: Path, *, bytes_max: int = OUTPUT_BYTES_MAX, look_s: float = LOOK_S) -> None:
    """From now on standard output and error of this process go to the end of this file, as long as it lives. Raises: OSError."""
    _direct(path)

    def look() -> None:
        waits = threading.Event()
        while not waits.wait(look_s):
            # On a disk that fails or is full the present file goes on.
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
