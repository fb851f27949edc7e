"""The log file of a process, with rotation.

::

    NAME        the current log, of all runs of the process
    NAME.1      the log before; NAME is renamed to it when it would exceed OUTPUT_BYTES_MAX
    NAME.4      the oldest

Log lines go through Python's ``RotatingFileHandler``. Standard output and error are the same file, so it also contains tracebacks and the
output of libraries. When another program moves the file away, as logrotate does, the next line begins a new one.
"""

import logging
import os
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from ottla.base.units import MiB

OUTPUT_BYTES_MAX = 16 * MiB
FILES_KEPT = 4


def rotate(path: Path, *, bytes_max: int = OUTPUT_BYTES_MAX) -> bool:
    """Renames the file if it is larger than ``bytes_max``; returns whether it did. Raises: OSError."""
    try:
        if path.stat().st_size <= bytes_max:
            return False
    except FileNotFoundError:
        return False
    os.replace(path, path.with_name(f"{path.name}.1"))
    return True


class LogFile(RotatingFileHandler):
    """A handler whose file is also standard output and error of this process."""

    def __init__(self, path: Path, *, bytes_max: int = OUTPUT_BYTES_MAX) -> None:
        """Raises: OSError."""
        super().__init__(path, maxBytes=bytes_max, backupCount=FILES_KEPT, encoding="utf-8", errors="backslashreplace")

    def _open(self) -> Any:
        stream = super()._open()
        for standard in (1, 2):
            os.dup2(stream.fileno(), standard)
        return stream

    def shouldRollover(self, record: logging.LogRecord) -> bool:
        """Whether the line would exceed the size. Opens a new file first if the present one was moved away."""
        if self.stream is not None and self._moved(self.stream.fileno()):
            self.stream.close()
            self.stream = self._open()
        return bool(super().shouldRollover(record))

    def _moved(self, descriptor: int) -> bool:
        try:
            return not os.path.samestat(os.stat(self.baseFilename), os.fstat(descriptor))
        except FileNotFoundError:
            return True

    def handleError(self, record: logging.LogRecord) -> None:
        """A full disk costs lines, and nothing else: standard error, where the error would be reported, is the same file."""
