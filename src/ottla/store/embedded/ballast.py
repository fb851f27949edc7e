"""Disk space reserved for one purpose: a file without content that is deleted when the disk is full.

A coordination store must be able to write when the disk is full, because deleting a topic, which frees space, begins with a write. The file
is created while there is space. When a write fails for lack of space, the owner drops the ballast, tries once more, and creates a new
ballast when there is space again. Another program may take the freed space first; that is rare, because produce requests stop at the
disk reserve.
"""

import contextlib
import os
from pathlib import Path

#: A smaller file is not worth having.
LEAST_BYTES = 64 * 1024


class Ballast:
    """A file of ``size_bytes``, or of the available space, but at least LEAST_BYTES."""

    def __init__(self, path: Path, *, size_bytes: int) -> None:
        self.path = path
        self.size_bytes = size_bytes

    @property
    def laid(self) -> bool:
        return self.path.exists()

    def lay(self) -> None:
        """Reserves the space if it is not reserved, as much as there is. Never raises for a full disk."""
        if self.laid:
            return
        size_bytes = self.size_bytes
        while size_bytes >= LEAST_BYTES:
            try:
                self._take(size_bytes)
            except OSError:
                self.drop()
                size_bytes //= 2
            else:
                return

    def lay_in_plenty(self) -> None:
        """Like ``lay``, but only if several times the space is free; otherwise it would be needed at once. Never raises."""
        with contextlib.suppress(OSError):
            state = os.statvfs(self.path.parent)
            if state.f_bavail * state.f_frsize >= 4 * self.size_bytes:
                self.lay()

    def drop(self) -> bool:
        """Frees the space; returns whether there was any."""
        with contextlib.suppress(OSError):
            self.path.unlink()
            return True
        return False

    def _take(self, size_bytes: int) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.posix_fallocate(descriptor, 0, size_bytes)
        finally:
            os.close(descriptor)
