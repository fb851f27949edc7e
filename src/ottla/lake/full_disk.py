"""Messages for a full disk. The libraries report one in different ways; some omit the file. Imports neither pyarrow nor deltalake."""

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
