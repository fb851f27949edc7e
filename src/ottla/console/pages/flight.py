"""Flight records: the files of a directory, those that were uploaded, and each event with the effects of its replay."""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ottla.console.flight.record import FlightRecord, RecordedEvent, UnreadableRecord, content, read_record
from ottla.console.flight.replay import Replayed, ReplayStep, replay
from ottla.console.messages.preview import PreviewNode, tree
from ottla.console.pages.listing import Listing, listed, text
from ottla.console.web.changes import change, noted, then
from ottla.console.web.errors import Problem, Refused, invalid
from ottla.console.web.page import page, segment
from ottla.console.web.roles import Role

EVENTS = 200
#: Uploaded records that are kept, and records in memory.
UPLOADS_MAX, READ_MAX = 10, 2
SORTS: dict[str, Callable[[Any], Any]] = {"number": lambda one: one.number}


class RecordFile(msgspec.Struct, frozen=True):
    """A file that can be opened. `id` is its name in the address."""

    id: str
    path: Path
    is_uploaded: bool
    modified_ms: int
    size_bytes: int


class FlightRecords:
    """The records that a console can open. Uploaded ones are in a directory that ends with the console."""

    def __init__(self, sources: tuple[Path, ...]) -> None:
        #: Files, and directories with files flight-*.jsonl.
        self._sources = sources
        self._uploads: tempfile.TemporaryDirectory[str] | None = None
        #: By path, with the time of the file.
        self._read: dict[Path, tuple[int, FlightRecord]] = {}
        self.replays: dict[Path, Replayed] = {}
        #: One replay at a time.
        self.replaying = asyncio.Lock()

    def close(self) -> None:
        if self._uploads is not None:
            self._uploads.cleanup()

    def files(self) -> list[RecordFile]:
        """The latest first."""
        found: dict[str, RecordFile] = {}
        for source in self._sources:
            paths = sorted(source.glob("flight-*.jsonl")) if source.is_dir() else [source]
            for path in paths:
                self._add(found, path, is_uploaded=False)
        if self._uploads is not None:
            for path in Path(self._uploads.name).iterdir():
                self._add(found, path, is_uploaded=True)
        return sorted(found.values(), key=lambda one: -one.modified_ms)

    def _add(self, found: dict[str, RecordFile], path: Path, *, is_uploaded: bool) -> None:
        try:
            status = path.stat()
        except OSError:
            return
        name = path.name
        number = 1
        while name in found:
            number += 1
            name = f"{number}-{path.name}"
        found[name] = RecordFile(name, path, is_uploaded, status.st_mtime_ns // 1_000_000, status.st_size)

    def find(self, record_id: str) -> RecordFile:
        """Raises: Refused."""
        found = next((one for one in self.files() if one.id == record_id), None)
        if found is None:
            raise Refused(Problem.missing(f"There is no flight record {record_id}. Uploaded ones are kept until the console ends."))
        return found

    async def read(self, file: RecordFile) -> FlightRecord:
        """Raises: Refused."""
        known = self._read.get(file.path)
        if known is not None and known[0] == file.modified_ms:
            return known[1]
        try:
            record = await asyncio.to_thread(read_record, file.path)
        except (OSError, UnreadableRecord) as error:
            raise invalid(f"{file.id}: {error}") from None
        self._read[file.path] = file.modified_ms, record
        while len(self._read) > READ_MAX:
            self._read.pop(next(iter(self._read)))
        return record

    def keep(self, data: bytes) -> Path:
        """Stores an uploaded record; the oldest one goes."""
        if self._uploads is None:
            self._uploads = tempfile.TemporaryDirectory(prefix="ottla-console-")
        directory = Path(self._uploads.name)
        kept = sorted(directory.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        for old in kept[: max(len(kept) + 1 - UPLOADS_MAX, 0)]:
            old.unlink(missing_ok=True)
            self.replays.pop(old, None)
        path = directory / f"uploaded-{secrets.token_hex(6)}.jsonl"
        path.write_bytes(data)
        return path


def _records(request: Request) -> FlightRecords:
    found: FlightRecords = request.app.state.flight_records
    return found


async def listing_page(request: Request) -> Response:
    """The records."""
    return page(request, "flight_records.html", title="Flight records", files=await asyncio.to_thread(_records(request).files))


@change("flight.upload", Role.EDITOR)
async def upload(request: Request) -> Response:
    """Opens an uploaded record."""
    given = request.state.form.get("file")
    if not isinstance(given, UploadFile) or not given.size:
        raise invalid("Choose a file: a flight record is named flight-….jsonl and lies in the data directory of a broker.")
    records = _records(request)
    path = await asyncio.to_thread(records.keep, await given.read())
    file = next(one for one in records.files() if one.path == path)
    noted(request, file=file.id, size_bytes=file.size_bytes)
    try:
        await records.read(file)
    except Refused:
        path.unlink(missing_ok=True)
        raise
    return then(request, f"/flight/{segment(file.id)}", "The record was read.")


async def show(request: Request) -> Response:
    """The events of a record."""
    records = _records(request)
    file = records.find(request.path_params["record"])
    record = await records.read(file)
    kind = text(request, "kind")
    listing: Listing[RecordedEvent] = listed(
        request, [one for one in record.events if not kind or one.kind == kind], SORTS, default="-number", items=EVENTS
    )
    return page(
        request, "flight_record.html", title="Flight record", file=file, record=record, listing=listing, kind=kind,
        replayed=records.replays.get(file.path),
    )  # fmt: skip


async def event(request: Request) -> Response:
    """One event; with its effects, if the record was replayed."""
    records = _records(request)
    file = records.find(request.path_params["record"])
    record = await records.read(file)
    number = request.path_params["number"]
    if not 1 <= number <= len(record.events):
        raise Refused(Problem.missing(f"The record has events 1 to {len(record.events)}."))
    found = record.events[number - 1]
    replayed = records.replays.get(file.path)
    step = None if replayed is None else step_of(record, found, replayed.steps)
    return page(
        request, "flight_event.html", title=f"Event {number}", file=file, record=record, event=found, root=_tree(content(found)),
        replayed=replayed, step=step,
    )  # fmt: skip


def step_of(record: FlightRecord, wanted: RecordedEvent, steps: list[ReplayStep]) -> ReplayStep | None:
    """The step of the replay in which a recorded request arrived: the one at its place among those of the same time."""
    if wanted.kind != "Request":
        return None
    same = [one.number for one in record.events if one.kind == "Request" and one.now_ms == wanted.now_ms]
    arrived = [step for step in steps if step.event == "RequestArrived" and step.at_ms == wanted.now_ms]
    place = same.index(wanted.number)
    return arrived[place] if place < len(arrived) else None


@change("flight.replay", Role.EDITOR)
async def run(request: Request) -> Response:
    """Replays a record on a simulated broker."""
    records = _records(request)
    file = records.find(request.path_params["record"])
    noted(request, file=file.id)
    await records.read(file)
    if records.replaying.locked():
        raise invalid("Another replay is running; try again when it has ended.")
    async with records.replaying:
        records.replays[file.path] = await replay(file.path)
    return then(request, f"/flight/{segment(file.id)}/steps", "The record was replayed on a simulated broker.")


async def steps_page(request: Request) -> Response:
    """The steps of the replay."""
    records = _records(request)
    file = records.find(request.path_params["record"])
    replayed = records.replays.get(file.path)
    if replayed is None:
        raise Refused(Problem.missing("The record was not replayed by this console yet. Open it, and press Replay."))
    event_name = text(request, "event")
    chosen = [one for one in replayed.steps if not event_name or one.event == event_name]
    listing: Listing[ReplayStep] = listed(request, chosen, SORTS, default="-number", items=EVENTS)
    names = sorted({one.event for one in replayed.steps})
    return page(
        request, "flight_steps.html", title="Replay", file=file, replayed=replayed, listing=listing, event_name=event_name, names=names
    )


async def step_page(request: Request) -> Response:
    """One step: its event and its effects."""
    records = _records(request)
    file = records.find(request.path_params["record"])
    replayed = records.replays.get(file.path)
    number = request.path_params["number"]
    if replayed is None or not 1 <= number <= len(replayed.steps):
        raise Refused(Problem.missing("There is no such step of a replay."))
    step = replayed.steps[number - 1]
    effects = [(name, _tree(fields)) for name, fields in step.effects]
    return page(
        request, "flight_step.html", title=f"Step {number}", file=file, step=step, count=len(replayed.steps), root=_tree(step.fields),
        effects=effects,
    )  # fmt: skip


def _tree(value: Any) -> PreviewNode | None:
    return tree(msgspec.json.encode(value), msgspec.json.decode)


routes = [
    Route("/flight", listing_page, methods=["GET"]),
    Route("/flight/upload", upload, methods=["POST"]),
    Route("/flight/{record}", show, methods=["GET"]),
    Route("/flight/{record}/replay", run, methods=["POST"]),
    Route("/flight/{record}/steps", steps_page, methods=["GET"]),
    Route("/flight/{record}/steps/{number:int}", step_page, methods=["GET"]),
    Route("/flight/{record}/{number:int}", event, methods=["GET"]),
]
