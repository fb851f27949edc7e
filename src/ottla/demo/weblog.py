"""A web server's log as a stream: its lines in order, keyed by client address, spread over some seconds so that there is something to
see.
"""

import time
from collections.abc import Iterator
from pathlib import Path

#: Lines between two looks at the clock.
STRIDE = 100


def weblog(path: Path, seconds: float) -> Iterator[tuple[bytes, bytes]]:
    """Every line of the file, as even over `seconds` as the machine can. Raises: OSError."""
    size = path.stat().st_size
    began = time.monotonic()
    done = 0
    with path.open("rb") as lines:
        for number, line in enumerate(lines):
            done += len(line)
            text = line.rstrip(b"\r\n")
            yield text.partition(b" ")[0], text
            if number % STRIDE == 0:
                due = began + seconds * done / size
                time.sleep(max(0.0, due - time.monotonic()))
