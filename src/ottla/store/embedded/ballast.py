"""Room on a disk that is kept for one purpose: a file of no content, given up when the disk is full.

A coordination store must be able to write when nothing else can, since deleting a topic, which makes room, begins with a write. So space
is taken while there is plenty; whoever is refused space drops the ballast and tries once more, and lays a new one when there is room
again. What fills a disk up to the last byte is not ours (produce stops at the reserve), so it may take even that; it seldom does at once.
"""

import contextlib
import os
from pathlib import Path

#: Smaller than this is no help.
LEAST_BYTES = 64 * 1024


class Ballast:
    """A file that takes up ``size_bytes``, or what there is of them down to LEAST_BYTES."""

    def __init__(self, path: Path, *, size_bytes: int) -> None:
        self.path = path
        self.size_bytes = size_bytes

    @property
    def laid(self) -> bool:
        return self.path.exists()

    def lay(self) -> None:
        """Takes the space, unless it is taken already; as much as there is. Never raises for a disk that is full."""
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
        """As ``lay``, but only where several times the space is free: it would be needed again at once. Never raises."""
        with contextlib.suppress(OSError):
            state = os.statvfs(self.path.parent)
            if state.f_bavail * state.f_frsize >= 4 * self.size_bytes:
                self.lay()

    def drop(self) -> bool:
        """Gives the space up; whether there was any."""
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
