"""Writing files safely: errors of a full disk with the file's name, and syncs. Imports neither pyarrow nor deltalake."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: Part of the errors of all libraries.
FULL = "No space left on device"
AGAIN = "free some space and start it again: it continues where it stopped"


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Converts Arrow's error for a file that cannot be written, with the file's name. Raises: OSError."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from error


def sync(path: Path) -> None:
    """Syncs a file or a directory: a table's log must not name a file that a power failure removes."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
