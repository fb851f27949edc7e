"""The flight recorder keeps the last events of a broker for the record of a failure.

A broker is a function of its events, so they reproduce a failure. The recorder keeps the latest events that fit its byte limit, and the
store's state before them. It keeps the frame of a request, because the decoded message may point into a reused buffer. Of a frame above
``FRAME_KEPT_BYTES`` it keeps the beginning only; such a request cannot be replayed. Values of secret settings are replaced.

A flight record is a file of JSON lines: the failure, then the events, oldest first. ``ottla sim replay`` reads it.
"""

import os
import platform
import time
import traceback
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ottla.base.origin import NOWHERE, Origin
from ottla.base.ports import NodeState
from ottla.base.units import KiB
from ottla.broker.events import Event, LogRead, PeerAnswered, RequestArrived, StoreChanged
from ottla.server.redaction import MAY_HAVE_SECRETS, has_secrets, redacted, redacted_request, without_secrets
from ottla.wire import framing
from ottla.wire.messages.fetch import FetchResponse

FRAME_KEPT_BYTES = 16 * KiB
#: Kept of a larger frame.
BEGINNING_BYTES = 256
#: Records of failed requests that are kept per broker in the data directory.
REQUEST_RECORDS_KEPT = 10
#: Rough overhead of an entry.
ENTRY_BYTES = 256


class Request(msgspec.Struct, tag="RequestArrived", gc=False):
    """A recorded request: its origin, and its frame or the beginning of it."""

    connection: int
    #: Size of the received frame; larger than ``frame`` if that was cut.
    size: int
    frame: bytes
    origin: Origin = NOWHERE


def framed(event: RequestArrived[Any]) -> Request:
    """Encodes a request of another broker of this process, which arrived without a frame."""
    chunks = framing.encode_request(event.body, event.api_version, event.correlation_id, event.client_id)
    frame = b"".join(chunks)[framing.SIZE_BYTES :]  # type: ignore[arg-type]
    return Request(connection=event.connection, origin=event.origin, size=len(frame), frame=frame)


def _header_bytes(event: RequestArrived[Any]) -> int:
    """Size of the header of a request, with the byte after the client id that is its last one in newer versions."""
    return min(2 + 2 + 4 + 2 + len((event.client_id or "").encode()) + 1, BEGINNING_BYTES)


class FlightRecorder:
    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._bytes = 0
        self._entries: deque[tuple[int, Any, int]] = deque()
        #: The store's nodes after the dropped events.
        self._nodes: dict[str, NodeState] = {}
        #: Number of dropped events.
        self._dropped = 0

    def note(self, now_ms: int, event: Event, frame: memoryview | None) -> None:
        """Keeps an event; ``frame`` is the request that it was decoded from."""
        kept: Any = event
        cost = ENTRY_BYTES
        if isinstance(event, RequestArrived):
            if event.api_key in MAY_HAVE_SECRETS and frame is not None and len(frame) > FRAME_KEPT_BYTES:
                # To look for secrets in thousands of settings would take milliseconds, for a beginning that cannot be replayed.
                data = bytes(frame[: _header_bytes(event)])
                kept = Request(event.connection, len(frame), data, event.origin)
                cost += len(data)
            elif event.api_key in MAY_HAVE_SECRETS and has_secrets(event):
                kept = framed(redacted_request(event))
                cost += kept.size
            elif frame is not None:
                size = len(frame)
                data = bytes(frame if size <= FRAME_KEPT_BYTES else frame[:BEGINNING_BYTES])
                kept = Request(event.connection, size, data, event.origin)
                cost += len(data)
        elif isinstance(event, LogRead):
            # Log contents are the users' data and may be large.
            kept = LogRead(ticket=event.ticket, data=None)
        elif isinstance(event, PeerAnswered) and isinstance(event.message, FetchResponse):
            # The same holds for records that a follower fetches.
            kept = PeerAnswered(ticket=event.ticket, message=None)
        elif isinstance(event, StoreChanged):
            cost += len(event.state.data or b"")
        entries = self._entries
        entries.append((now_ms, kept, cost))
        self._bytes += cost
        while self._bytes > self.bytes_max and entries:
            _, dropped, cost = entries.popleft()
            self._bytes -= cost
            self._dropped += 1
            if isinstance(dropped, StoreChanged):
                self._nodes.pop(dropped.state.path, None)
                if dropped.state.data is not None:
                    self._nodes[dropped.state.path] = dropped.state

    def write_request(self, directory: Path, *, broker_id: int, settings: Mapping[str, str], error: BaseException) -> Path:
        """Writes the record of a failed request; keeps the latest ``REQUEST_RECORDS_KEPT`` of each broker. Raises: OSError."""
        kept = sorted(directory.glob(f"flight-*-broker-{broker_id}-request*.jsonl"), key=lambda path: (path.stat().st_mtime_ns, path.name))
        for old in kept[: max(0, len(kept) + 1 - REQUEST_RECORDS_KEPT)]:
            old.unlink(missing_ok=True)
        return self.write(directory, broker_id=broker_id, settings=settings, error=error, kind=f"-request-{time.monotonic_ns()}")

    def write(self, directory: Path, *, broker_id: int, settings: Mapping[str, str], error: BaseException, kind: str = "") -> Path:
        """Writes the record; returns its path. ``settings`` are those of the broker's start. Raises: OSError."""
        path = directory / f"flight-{time.strftime('%Y%m%d-%H%M%S')}-broker-{broker_id}{kind}.jsonl"
        encoder = msgspec.json.Encoder(enc_hook=repr)
        failure = {
            "broker_id": broker_id,
            "settings": without_secrets(settings),
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
            kept = framed(event) if isinstance(event, RequestArrived) else redacted(event)
            lines.append(encoder.encode({"now_ms": now_ms, "kind": type(kept).__name__, "event": kept}))
        # Readable by its owner only: requests have records of clients.
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(b"\n".join(lines) + b"\n")
        return path
