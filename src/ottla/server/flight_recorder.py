"""The flight recorder: the last events a broker heard, for the record of a failure.

A broker is a function of its events, so these tell how a broken promise came about. Kept are the latest that fit the bytes allowed, and
before them the store as it stood then. Of a request its frame is kept as it came, up to ``FRAME_KEPT_BYTES``: the decoded message may point
into a buffer that is used again. Of a larger one, which cannot be replayed, only the beginning is kept.

A record is a file of JSON lines: first what failed and where, then the events, oldest first. ``ottla sim replay`` reads it.
"""

import platform
import time
import traceback
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ottla.base.ports import NodeState
from ottla.base.units import KiB
from ottla.broker.events import Event, LogRead, PeerAnswered, RequestArrived, StoreChanged
from ottla.wire import framing
from ottla.wire.messages.fetch import FetchResponse

FRAME_KEPT_BYTES = 16 * KiB
#: Of one that is larger.
BEGINNING_BYTES = 256
#: Records of failed requests, of one broker, in its data directory.
REQUEST_RECORDS_KEPT = 10
#: Rough cost of an entry beside the bytes it holds.
ENTRY_BYTES = 256


class Request(msgspec.Struct, tag="RequestArrived"):
    """A request as it is kept: where it came from and its frame, or the first part of it."""

    connection: int
    host: str
    local: tuple[str, int]
    #: Bytes of the frame as it came; more than ``frame`` holds when it was cut.
    size: int
    frame: bytes


def framed(event: RequestArrived) -> Request:
    """A request that another broker of this process made: it came without a frame, and gets the one it would have had."""
    chunks = framing.encode_request(event.body, event.api_version, event.correlation_id, event.client_id)
    frame = b"".join(chunks)[framing.SIZE_BYTES :]  # type: ignore[arg-type]
    return Request(connection=event.connection, host=event.host, local=event.local, size=len(frame), frame=frame)


class FlightRecorder:
    """See the module's theory."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._bytes = 0
        self._entries: deque[tuple[int, Any, int]] = deque()
        #: The store's nodes as the events that are no longer kept left them.
        self._nodes: dict[str, NodeState] = {}
        #: How many events are no longer kept.
        self._dropped = 0

    def note(self, now_ms: int, event: Event, frame: memoryview | None) -> None:
        """Keeps an event; ``frame`` is the request it came from."""
        kept: Any = event
        cost = ENTRY_BYTES
        if frame is not None and isinstance(event, RequestArrived):
            data = bytes(frame if len(frame) <= FRAME_KEPT_BYTES else frame[:BEGINNING_BYTES])
            kept = Request(connection=event.connection, host=event.host, local=event.local, size=len(frame), frame=data)
            cost += len(data)
        elif isinstance(event, LogRead):
            # What lies in a log is the users' own, and may be much.
            kept = LogRead(ticket=event.ticket, data=None)
        elif isinstance(event, PeerAnswered) and isinstance(event.message, FetchResponse):
            # So is what a follower fetches.
            kept = PeerAnswered(ticket=event.ticket, message=None)
        elif isinstance(event, StoreChanged):
            cost += len(event.state.data or b"")
        self._entries.append((now_ms, kept, cost))
        self._bytes += cost
        while self._bytes > self.bytes_max and self._entries:
            _, gone, cost = self._entries.popleft()
            self._bytes -= cost
            self._dropped += 1
            if isinstance(gone, StoreChanged):
                self._nodes.pop(gone.state.path, None)
                if gone.state.data is not None:
                    self._nodes[gone.state.path] = gone.state

    def write_request(self, directory: Path, *, broker_id: int, settings: Mapping[str, str], error: BaseException) -> Path:
        """Writes the record of a request that failed; of each broker the latest ``REQUEST_RECORDS_KEPT`` are kept. Raises: OSError."""
        kept = sorted(directory.glob(f"flight-*-broker-{broker_id}-request*.jsonl"), key=lambda path: (path.stat().st_mtime_ns, path.name))
        for old in kept[: max(0, len(kept) + 1 - REQUEST_RECORDS_KEPT)]:
            old.unlink(missing_ok=True)
        return self.write(directory, broker_id=broker_id, settings=settings, error=error, kind=f"-request-{time.monotonic_ns()}")

    def write(self, directory: Path, *, broker_id: int, settings: Mapping[str, str], error: BaseException, kind: str = "") -> Path:
        """Writes the record; returns its path. ``settings`` are those the broker was started with. Raises: OSError."""
        path = directory / f"flight-{time.strftime('%Y%m%d-%H%M%S')}-broker-{broker_id}{kind}.jsonl"
        encoder = msgspec.json.Encoder(enc_hook=repr)
        failure = {
            "broker_id": broker_id,
            "settings": settings,
            "dropped": self._dropped,
            "error": repr(error),
            "traceback": traceback.format_exception(error),
            "python": platform.python_version(),
            "wall_ms": time.time_ns() // 1_000_000,
        }
        lines = [encoder.encode(failure)]
        first_ms = self._entries[0][0] if self._entries else 0
        before = [(first_ms, StoreChanged(state=self._nodes[path])) for path in sorted(self._nodes)]
        for now_ms, event in (*before, *((now_ms, event) for now_ms, event, _ in self._entries)):
            kept = framed(event) if isinstance(event, RequestArrived) else event
            lines.append(encoder.encode({"now_ms": now_ms, "kind": type(kept).__name__, "event": kept}))
        path.write_bytes(b"\n".join(lines) + b"\n")
        return path
