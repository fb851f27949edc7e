"""A flight record as pages show it: the failure, and the events that led to it, with decoded requests.

A record is a file of JSON lines that a broker of Ottla wrote when it or a request failed: the failure, then the events, oldest first.
It has no effects: these come from a replay (`replay.py`).
"""

from __future__ import annotations

import base64
import contextlib
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from ottla.base.shortened import shown
from ottla.wire import framing
from ottla.wire.compile import decode
from ottla.wire.declare import MalformedMessage
from ottla.wire.messages import API

#: Largest file that is read.
RECORD_BYTES_MAX = 64 << 20


class UnreadableRecord(ValueError):
    """The file is not a flight record, or is too large."""


class RecordedFailure(msgspec.Struct, frozen=True):
    """The first line."""

    broker_id: int
    settings: dict[str, str]
    dropped: int
    error: str
    wall_ms: int
    traceback: list[str] = []
    python: str = ""


class _Line(msgspec.Struct, frozen=True):
    now_ms: int
    kind: str
    event: msgspec.Raw


class RecordedEvent(msgspec.Struct, frozen=True):
    """An event. `before_ms`: how long before the last one."""

    number: int
    now_ms: int
    before_ms: int
    kind: str
    title: str
    raw: msgspec.Raw


class FlightRecord(msgspec.Struct, frozen=True):
    """A whole record; events are numbered from 1."""

    failure: RecordedFailure
    events: list[RecordedEvent]

    @property
    def kinds(self) -> dict[str, int]:
        """Number of events by kind."""
        return dict(Counter(event.kind for event in self.events).most_common())


class DecodedRequest(msgspec.Struct, frozen=True):
    """A request in a record. `problem`: why its body is not shown."""

    api: str
    version: int
    client_id: str | None
    connection: int
    size: int
    body: Any = None
    problem: str = ""


def read_record(path: Path) -> FlightRecord:
    """Raises: OSError, UnreadableRecord."""
    if (size := path.stat().st_size) > RECORD_BYTES_MAX:
        raise UnreadableRecord(f"it has {size >> 20} MiB; at most {RECORD_BYTES_MAX >> 20} MiB are read")
    lines = path.read_bytes().splitlines()
    try:
        failure = msgspec.json.decode(lines[0] if lines else b"", type=RecordedFailure)
        decoder = msgspec.json.Decoder(_Line)
        parsed = [decoder.decode(line) for line in lines[1:]]
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UnreadableRecord(f"it is not a flight record: {error}") from None
    last_ms = parsed[-1].now_ms if parsed else 0
    events = [
        RecordedEvent(number, line.now_ms, last_ms - line.now_ms, line.kind, _title(line), line.event)
        for number, line in enumerate(parsed, 1)
    ]
    return FlightRecord(failure, events)


def _title(line: _Line) -> str:
    """One line about an event, for the list."""
    if line.kind == "Request":
        request = decoded_request(line.event, with_body=False)
        return f"{request.api} v{request.version} of {request.client_id or 'a client'} on connection {request.connection}"
    if line.kind == "StoreChanged":
        path = _at(line.event, "state", "path")
        return "" if path is None else str(path)
    return ""


def _at(raw: msgspec.Raw, *names: str) -> Any:
    try:
        found = msgspec.json.decode(raw)
    except msgspec.MsgspecError:
        return None
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found


class _Frame(msgspec.Struct, frozen=True):
    connection: int
    size: int
    frame: bytes


def decoded_request(raw: msgspec.Raw, *, with_body: bool = True) -> DecodedRequest:
    """A recorded request; never an error."""
    try:
        kept = msgspec.json.decode(raw, type=_Frame)
        header, position = framing.decode_request_header(kept.frame)
    except (msgspec.MsgspecError, MalformedMessage, IndexError) as error:
        return DecodedRequest("unreadable request", 0, None, -1, 0, problem=str(error))
    api = API.get(header.api_key)
    name = f"API {header.api_key}" if api is None else api.name
    made = DecodedRequest(name, header.api_version, header.client_id, kept.connection, kept.size)
    if not with_body:
        return made
    if kept.size > len(kept.frame):
        return msgspec.structs.replace(made, problem=f"only {len(kept.frame)} of its {kept.size} bytes were kept")
    if api is None:
        return msgspec.structs.replace(made, problem="this API is not known here")
    try:
        return msgspec.structs.replace(made, body=shown(decode(api.request, kept.frame, header.api_version, position)))
    except (MalformedMessage, ValueError) as error:
        return msgspec.structs.replace(made, problem=f"it cannot be decoded: {error}")


def content(event: RecordedEvent) -> Any:
    """An event as a value for a tree: a request decoded, others as they are, shortened."""
    if event.kind == "Request":
        return msgspec.to_builtins(decoded_request(event.raw))
    found = msgspec.json.decode(event.raw)
    data = found.get("state", {}).get("data") if event.kind == "StoreChanged" and isinstance(found, dict) else None
    if isinstance(data, str):
        # Nodes of the store are JSON or text.
        with contextlib.suppress(ValueError):
            found["state"]["data"] = base64.b64decode(data, validate=True).decode()
    return shown(found)
