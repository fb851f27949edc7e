"""Records of a topic: search, live tail, one record, downloads, and new records.

The page has the form. Its results come as server-sent events, whose data are rendered rows:

    rows        HTML of table rows            progress    JSON of `SearchProgress`
    problem     HTML of a message             end         JSON of `SearchProgress`; the stream is complete
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import msgspec
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Route

from ottla.aio import Consumer, Producer
from ottla.client.consumer.record import ConsumerRecord
from ottla.client.values.parse import parse_value_format
from ottla.console.messages import download
from ottla.console.messages.preview import PAGE_CHARACTERS, Formats, hex_lines, tree
from ottla.console.messages.query import FORMATS, LIVE, BadQuery, Query, parse
from ottla.console.messages.search import Results, Search, consumer_of, live, record_at
from ottla.console.pages.listing import text
from ottla.console.web.changes import change, field, noted, raw_field, then
from ottla.console.web.errors import Problem, Refused, explain, invalid
from ottla.console.web.page import fragment, page, query, segment
from ottla.console.web.roles import Role
from ottla.wire.errors import KafkaError

#: Searches and tails at once; each has connections and memory of its own.
STREAMS_MAX = 16
#: A produced record may have this size.
REQUEST_BYTES_MAX = 16 * 2**20
#: A record up to this size can be edited in the form.
EDITED_BYTES_MAX = 2**20
WRITTEN = ("text", "json", "hex", "base64", "int64", "int32", "float64", "uuid", "null")
WRITTEN_CHOICES, FORMAT_CHOICES = [(one, one) for one in WRITTEN], [(one, one) for one in FORMATS]
#: Parameters of a search in the address.
PARAMETERS = ("show", "from", "to", "partitions", "key", "value", "header", "filter", "kf", "vf", "limit", "committed")


def _given(request: Request) -> dict[str, str]:
    return {name: request.query_params[name] for name in PARAMETERS if name in request.query_params}


def _parsed(request: Request) -> Query:
    """Raises: BadQuery."""
    return parse(request.path_params["topic"], _given(request), int(request.app.state.time_s() * 1000))


def formats(request: Request, topic: str) -> tuple[Formats, Formats]:
    """The formats of the topic's keys and values."""
    options = request.app.state.options
    key, value = options.formats.get(topic, ("", ""))
    return Formats(key, options.registry), Formats(value, options.registry)


async def show(request: Request) -> Response:
    """The form; its results are a stream."""
    topic = request.path_params["topic"]
    await request.app.state.admin.describe_topic(topic)
    given, problem = _given(request), None
    try:
        asked = _parsed(request)
    except BadQuery as error:
        asked, problem = Query(topic=topic), error
    is_open = asked.has_conditions or any(name in given for name in ("from", "to", "kf", "vf", "committed", "limit", "partitions"))
    stream = f"/topics/{segment(topic)}/stream{query(**given)}"
    return page(
        request, "messages.html", title=topic, tab="messages", given=given, asked=asked, problem=problem, is_open=is_open, stream=stream,
        format_choices=FORMAT_CHOICES, downloads=download.FORMATS, is_live=asked.show == LIVE, status=200 if problem is None else 400,
        download=lambda form: f"/topics/{segment(topic)}/download{query(**{**given, 'as': form})}",
    )  # fmt: skip


@asynccontextmanager
async def _consumer(request: Request, asked: Query) -> AsyncIterator[Consumer]:
    options = request.app.state.options
    async with consumer_of(options.bootstrap, options.settings, asked) as consumer:
        yield consumer


async def stream(request: Request) -> Response:
    """The results of a search, as events."""
    state = request.app.state
    if state.streams >= STREAMS_MAX:
        raise Refused(Problem(429, "Too many searches", f"The console runs {STREAMS_MAX} searches and tails at once."))
    try:
        asked = _parsed(request)
    except BadQuery as error:
        raise invalid(f"{error.field}: {error}.") from None
    return StreamingResponse(_events(request, asked), media_type="text/event-stream", headers={"x-accel-buffering": "no"})


async def _events(request: Request, asked: Query) -> AsyncIterator[bytes]:
    state = request.app.state
    state.streams += 1
    shown = formats(request, asked.topic)
    try:
        async with _consumer(request, asked) as consumer:
            results = live(consumer, asked) if asked.show == LIVE else Search(consumer, asked).results()
            async with aclosing(results) as parts:
                async for part in parts:
                    if part.records or part.unreadable:
                        yield event("rows", await asyncio.to_thread(_rows, request, asked, part, shown))
                    yield event("end" if part.progress.is_complete else "progress", msgspec.json.encode(part.progress).decode())
    except KafkaError as error:
        yield event("problem", fragment(request, "_stream_problem.html", problem=explain(error, state.options.command_flags)))
    finally:
        state.streams -= 1


def _rows(request: Request, asked: Query, part: Results, shown: tuple[Formats, Formats]) -> str:
    """The rows of records, with their keys and values as text."""
    rows = [(one, shown[0].show(one.key, asked.key_format), shown[1].show(one.value, asked.value_format)) for one in part.records]
    return fragment(request, "_rows.html", rows=rows, unreadable=part.unreadable)


def event(kind: str, data: str) -> bytes:
    """A server-sent event."""
    lines = "".join(f"data: {line}\n" for line in data.replace("\r", "").split("\n"))
    return f"event: {kind}\n{lines}\n".encode()


async def _record(request: Request) -> ConsumerRecord:
    """The record of the address. Raises: Refused, KafkaError."""
    topic, partition, offset = (request.path_params[name] for name in ("topic", "partition", "offset"))
    asked = Query(topic=topic)
    async with _consumer(request, asked) as consumer:
        found = await record_at(consumer, topic, partition, offset)
    if found is None:
        what = f"There is no record at offset {offset} of {topic}-{partition}: it was deleted, compacted, or is a transaction marker."
        raise Refused(Problem.missing(what))
    return found


async def record(request: Request) -> Response:
    """One record: key, value as tree, text and hexadecimal digits, headers."""
    found = await _record(request)
    kf, vf = (text(request, name) or "auto" for name in ("kf", "vf"))
    if kf not in FORMATS or vf not in FORMATS:
        raise invalid(f"Formats are {', '.join(FORMATS)}.")
    keys, values = formats(request, found.topic)
    parts = []
    for name, data, known, form in (("Key", found.key, keys, kf), ("Value", found.value, values, vf)):
        shown = known.show(data, form, PAGE_CHARACTERS)
        chosen = known.chosen(form) if form != "auto" or not shown.problem else None
        if chosen is None and data and data[0] == 0 and shown.kind == "avro":
            chosen = known.framed()
        decode = msgspec.json.decode if chosen is None or chosen.name == "text" else chosen.value
        parts.append((name, shown, tree(data, decode), hex_lines(data or b"")))
    return page(
        request, "record.html", title=f"{found.topic}-{found.partition} offset {found.offset}", record=found, parts=parts, kf=kf, vf=vf,
        formats=FORMATS, headers_shown=[(name, Formats("", None).show(content)) for name, content in found.headers],
    )  # fmt: skip


async def raw_value(request: Request) -> Response:
    """The bytes of a key or value, as a file."""
    found = await _record(request)
    part = request.path_params["part"]
    data = found.key if part == "key" else found.value
    if data is None:
        raise Refused(Problem.missing(f"The {part} is null."))
    name = f"{found.topic}-{found.partition}-{found.offset}.{part}"
    return Response(data, media_type="application/octet-stream", headers={"content-disposition": f'attachment; filename="{name}"'})


async def as_file(request: Request) -> Response:
    """All matches, as a file."""
    form = text(request, "as", "jsonl")
    if form not in download.FORMATS:
        raise invalid(f"as expects {', '.join(download.FORMATS)}.")
    try:
        asked = _parsed(request)
        decode = download.decoders(asked, *formats(request, asked.topic))
    except (BadQuery, ImportError, OSError) as error:
        raise invalid(f"{error}.") from None
    await request.app.state.admin.describe_topic(asked.topic)
    name = f"{asked.topic}.{form}"
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    if form != "parquet":
        return StreamingResponse(_text(request, asked, form, decode), media_type=download.FORMATS[form], headers=headers)
    async with _consumer(request, asked) as consumer:
        try:
            path = await download.parquet_file(Search(consumer, asked), asked)
        except ImportError:
            what = "Parquet needs pyarrow, which is not installed beside the console."
            raise Refused(Problem(501, "Parquet is not available", what, ["Install it."], ["pip install 'ottla[arrow]'"])) from None
    return FileResponse(path, filename=name, media_type=download.FORMATS[form], background=BackgroundTask(path.unlink, missing_ok=True))


async def _text(request: Request, asked: Query, form: str, decode: Any) -> AsyncIterator[bytes]:
    async with _consumer(request, asked) as consumer, aclosing(download.text_file(Search(consumer, asked), asked, form, decode)) as parts:
        async for part in parts:
            yield part


# New records.


async def new(request: Request) -> Response:
    """The form of a record, filled in from another one with `?from=PARTITION:OFFSET`."""
    topic, origin = request.path_params["topic"], text(request, "from")
    await request.app.state.admin.describe_topic(topic)
    given = {"topic": topic, "partition": "", "key": "", "key_format": "text", "value": "", "value_format": "text", "headers": ""}
    partition, _, offset = origin.partition(":")
    if partition.isdecimal() and offset.isdecimal() and len(offset) < 19:
        async with _consumer(request, Query(topic=topic)) as consumer:
            found = await record_at(consumer, topic, int(partition), int(offset))
        if found is not None:
            given |= _filled(found)
    return page(
        request, "produce.html", title=topic, tab="messages", given=given, written_choices=WRITTEN_CHOICES, problem=None, origin=origin,
    )  # fmt: skip


def _filled(found: ConsumerRecord) -> dict[str, str]:
    """The fields of a form for a record. Raises: Refused, if it is too large."""
    if len(found.value or b"") > EDITED_BYTES_MAX:
        raise invalid("The record is too large to be edited here.", "Copy it with ottla consume and ottla produce.")
    key, value = _written(found.key), _written(found.value)
    lines = "\n".join(f"{name}={(content or b'').decode('utf-8', 'replace')}" for name, content in found.headers)
    return {"key": key[0], "key_format": key[1], "value": value[0], "value_format": value[1], "headers": lines}


def _written(data: bytes | None) -> tuple[str, str]:
    if data is None:
        return "", "null"
    try:
        return data.decode(), "text"
    except UnicodeDecodeError:
        return b64encode(data).decode(), "base64"


@change("record.produce", Role.EDITOR)
async def produce(request: Request) -> Response:
    """Writes a record."""
    given = {name: field(request, name) for name in ("topic", "partition", "key_format", "value_format")}
    given |= {name: raw_field(request, name) for name in ("key", "value", "headers")}
    topic, options = given["topic"], request.app.state.options
    noted(request, topic=topic)
    try:
        key, value = (_bytes(given[name], given[f"{name}_format"], options.registry, f"{topic}-{name}") for name in ("key", "value"))
        headers = _headers(given["headers"])
        partition = int(given["partition"]) if given["partition"] else None
        await request.app.state.admin.describe_topic(topic)
        settings = {"max_block_ms": 15_000, "delivery_timeout_ms": 60_000, **options.settings, "max_request_size": REQUEST_BYTES_MAX}
        async with Producer(bootstrap_servers=options.bootstrap, client_id="ottla-console", **settings) as producer:
            made = await (await producer.send(topic, value, key, headers, partition))
    except (KafkaError, ValueError, OSError, ImportError) as error:
        noted(request, error=str(error))
        return page(
            request, "produce.html", status=400, title=request.path_params["topic"], tab="messages", given=given,
            written_choices=WRITTEN_CHOICES, problem=explain(error).what, origin="",
        )  # fmt: skip
    noted(request, partition=made.partition, offset=made.offset, size_bytes=len(value or b""))
    where = f"/topics/{segment(topic)}/records/{made.partition}/{made.offset}"
    return then(request, where, f"The record has offset {made.offset} in partition {made.partition}.")


def _bytes(given: str, form: str, registry: str | None, subject: str) -> bytes | None:
    """Raises: Refused for a format that the form does not offer: those with a file would read any file of this machine. ValueError,
    OSError, ImportError.
    """
    if form not in WRITTEN:
        raise invalid(f"The format {form[:100]!r} is none of {', '.join(WRITTEN)}.")
    if form == "null":
        return None
    if form == "text":
        return given.encode()
    return parse_value_format(form, "the format", registry=registry, subject=subject).read(given.encode())


def _headers(lines: str) -> list[tuple[str, bytes | None]]:
    """Raises: Refused."""
    found: list[tuple[str, bytes | None]] = []
    for line in filter(None, lines.split("\n")):
        name, equals, value = line.partition("=")
        if not equals or not name:
            raise invalid(f"Headers expect a line NAME=VALUE each, not {line[:100]!r}.")
        found.append((name, value.encode()))
    return found


BASE = "/topics/{topic}"
routes = [
    Route(f"{BASE}/messages", show, methods=["GET"]),
    Route(f"{BASE}/stream", stream, methods=["GET"]),
    Route(f"{BASE}/download", as_file, methods=["GET"]),
    Route(f"{BASE}/produce", new, methods=["GET"]),
    Route(f"{BASE}/produce", produce, methods=["POST"]),
    Route(BASE + "/records/{partition:int}/{offset:int}", record, methods=["GET"]),
    Route(BASE + "/records/{partition:int}/{offset:int}/{part}", raw_value, methods=["GET"]),
]
