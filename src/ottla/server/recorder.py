"""The flight recorder: the last events a broker heard, for the record of a failure.

A broker is a function of its events, so these, with the file of its state, tell how a broken promise came about. Kept are the latest that
fit the bytes allowed. Of a request the beginning of its frame is kept as it came: the decoded message may point into a buffer that is
used again. ``FRAME_KEPT_BYTES`` hold nearly every request whole, but for the records of a Produce.

A record is a file of JSON lines: first what failed, then the events, oldest first.
"""

import platform
import time
import traceback
from collections import deque
from pathlib import Path
from typing import Any

import msgspec

from ottla.base.units import KiB
from ottla.broker.events import Event, RequestArrived, StoreChanged

FRAME_KEPT_BYTES = KiB
#: Rough cost of an entry beside the bytes it holds.
ENTRY_BYTES = 256


class Request(msgspec.Struct, tag="RequestArrived"):
    """A request as it is kept: where it came from and its frame, or the first part of it."""

    connection: int
    host: str
    local: tuple[str, int]
    size: int
    frame: bytes


class FlightRecorder:
    """See the module's theory."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._bytes = 0
        #: (time, event, what it holds of its bytes), or (time, connection, host, local, size, frame) of a request.
        self._entries: deque[tuple[Any, ...]] = deque()

    def note(self, now_ms: int, event: Event, frame: memoryview | None) -> None:
        """Keeps an event; ``frame`` is the request it came from."""
        if frame is not None and isinstance(event, RequestArrived):
            data = bytes(frame[:FRAME_KEPT_BYTES])
            self._entries.append((now_ms, event.connection, event.host, event.local, len(frame), data))
        else:
            data = (event.state.data or b"") if isinstance(event, StoreChanged) else b""
            self._entries.append((now_ms, event, data))
        self._bytes += ENTRY_BYTES + len(data)
        while self._bytes > self.bytes_max and self._entries:
            self._bytes -= ENTRY_BYTES + len(self._entries.popleft()[-1])

    def write(self, directory: Path, *, broker_id: int, error: BaseException) -> Path:
        """Writes the record; returns its path. Raises: OSError."""
        path = directory / f"flight-{time.strftime('%Y%m%d-%H%M%S')}-broker-{broker_id}.jsonl"
        encoder = msgspec.json.Encoder(enc_hook=repr)
        failure = {
            "broker_id": broker_id,
            "error": repr(error),
            "traceback": traceback.format_exception(error),
            "python": platform.python_version(),
            "wall_ms": time.time_ns() // 1_000_000,
        }
        lines = [encoder.encode(failure)]
        for now_ms, event, *rest in self._entries:
            if len(rest) > 1:
                host, local, size, frame = rest
                event = Request(connection=event, host=host, local=local, size=size, frame=frame)
            lines.append(encoder.encode({"now_ms": now_ms, "kind": type(event).__name__, "event": event}))
        path.write_bytes(b"\n".join(lines) + b"\n")
        return path
