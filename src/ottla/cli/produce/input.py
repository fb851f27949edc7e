"""Parses standard input and files into records, for `ottla produce`.

    text    each line is a value; with a key delimiter, the text before it is the key
    json    each line is an object in the format of `consume -o json`; only the value is required:
                {"key": "k", "value": "v", "headers": [["name", "value"]], "partition": 0, "timestamp": 1700000000000}
            null is a tombstone, {"base64": "..."} is bytes, any other value that is not a string is kept as JSON text
    csv     the first line names the columns: those of `consume -o csv`, or others; see `_CsvColumns`
    parquet, arrow   rows of typed columns; see `produce.arrow_input`
    files   each file is the value of one record

Input is streamed. Records come in chunks with their line numbers. An invalid line is reported after the records before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from ottla.cli.common.errors import bytes_json
from ottla.cli.common.record_csv import fields, joined
from ottla.client.values.value_formats import TEXT, ValueFormat

#: Size of a read.
PIECE_BYTES = 1 << 20
Headers = tuple[tuple[str, bytes | None], ...]
#: Fields of a record in JSON and CSV.
NAMES = ("key", "value", "headers", "partition", "timestamp")
#: Further fields of consume's output, which are ignored.
IGNORED = ("topic", "offset", "time", "timestamp_type")


#: A record in the order of `Producer.send`: value, key, headers, partition, timestamp in ms. A plain tuple is faster than a class.
InputRecord = tuple[bytes | None, bytes | None, Headers, int | None, int | None]


class Chunk(NamedTuple):
    """Consecutive records and their line numbers."""

    file: str
    numbers: Sequence[int]
    records: list[InputRecord]


class BadLine(ValueError):
    """Invalid input; the message names its line."""


class SendFailed(Exception):
    """A record was not written or is invalid; the message names its line."""


class InputFormat(NamedTuple):
    """The format of the input."""

    form: str = "text"
    key: ValueFormat = TEXT
    value: ValueFormat = TEXT
    delimiter: bytes = b"\n"
    key_delimiter: bytes | None = None
    #: Text that is read as null; None: there is none.
    null: bytes | None = None
    columns: tuple[str, ...] = ()
    key_column: str | None = None
    value_column: str | None = None
    #: Fields of JSON and CSV that are ignored.
    ignore: frozenset[str] = frozenset()
    #: Maximum size of a record in bytes.
    longest: int = 1 << 20


def line_label(file: str, number: int, kind: str = "line") -> str:
    """The position of a line, for messages."""
    return f"{kind} {number}" if file in ("", "-") else f"{file}, {kind} {number}"


class CountedInput:
    """Input files that are read in pieces; `done` counts the bytes."""

    def __init__(self, files: Sequence[tuple[str, BinaryIO]]) -> None:
        self.files = files
        self.done = 0

    def pieces(self, file: BinaryIO) -> Iterator[bytes]:
        """The content in pieces. A read returns what is available, so lines of a pipe are not delayed."""
        read = getattr(file, "read1", file.read)
        while piece := read(PIECE_BYTES):
            self.done += len(piece)
            yield piece


def split(pieces: Iterable[bytes], reading: InputFormat, name: str) -> Iterator[tuple[int, list[bytes]]]:
    """Complete lines of each piece, and the number of the first. Raises: BadLine, if a line is longer than a record can be."""
    delimiter, number = reading.delimiter, 1
    rest: list[bytes] = []
    size = 0
    for piece in pieces:
        if len(delimiter) == 1 and delimiter not in piece:
            rest.append(piece)
            size += len(piece)
        else:
            lines = (b"".join([*rest, piece]) if rest else piece).split(delimiter)
            last = lines.pop()
            rest, size = ([last] if last else []), len(last)
            if lines:
                yield number, lines
                number += len(lines)
        if size > reading.longest:
            raise BadLine(f"{line_label(name, number)}: longer than max.request.size, {reading.longest} bytes")
    if rest:
        yield number, [b"".join(rest)]


def whole_files(names: Sequence[str], form: ValueFormat) -> Iterator[Chunk]:
    """A record per file. Raises: OSError."""
    for name in names:
        data = Path(name).read_bytes()
        yield Chunk(name, [1], [(data if form is TEXT else form.read(data), None, (), None, None)])


def parsed_chunks(
    name: str, lines: Iterable[tuple[int, bytes]], parse: Callable[[bytes], InputRecord | None], complain: Callable[[str], None]
) -> Iterator[Chunk]:
    """Parses line by line. The records before an invalid line are returned before it is reported."""
    numbers: list[int] = []
    records: list[InputRecord] = []
    for number, line in lines:
        try:
            record = parse(line)
        except ValueError as error:
            if records:
                yield Chunk(name, numbers, records)
                numbers, records = [], []
            complain(f"{line_label(name, number)}: {error}")
            continue
        if record is not None:
            numbers.append(number)
            records.append(record)
    if records:
        yield Chunk(name, numbers, records)


def text_chunks(
    name: str, lines: Iterable[tuple[int, list[bytes]]], reading: InputFormat, complain: Callable[[str], None]
) -> Iterator[Chunk]:
    plain = reading.key is TEXT and reading.value is TEXT
    key_delimiter, null = reading.key_delimiter, reading.null
    parse = _text_line(reading)
    for first, some in lines:
        numbers = range(first, first + len(some))
        if not plain:
            yield from parsed_chunks(name, zip(numbers, some, strict=True), parse, complain)
        elif null is not None:
            yield Chunk(name, numbers, [parse(line) for line in some])
        elif key_delimiter is None:
            yield Chunk(name, numbers, [(line, None, (), None, None) for line in some])
        else:
            parts = [line.partition(key_delimiter) for line in some]
            records: list[InputRecord] = [
                (value, key, (), None, None) if found else (key, None, (), None, None) for key, found, value in parts
            ]
            yield Chunk(name, numbers, records)


def _text_line(reading: InputFormat) -> Callable[[bytes], InputRecord]:
    key_delimiter, null, key_form, value_form = reading.key_delimiter, reading.null, reading.key, reading.value

    def parse(line: bytes) -> InputRecord:
        key: bytes | None = None
        value: bytes | None = line
        if key_delimiter is not None:
            before, found, after = line.partition(key_delimiter)
            if found:
                key, value = before, after
        if null is not None:
            key, value = None if key == null else key, None if value == null else value
        if key is not None and key_form is not TEXT:
            key = encode_field(key_form, key, "key")
        if value is not None and value_form is not TEXT:
            value = encode_field(value_form, value, "value")
        return value, key, (), None, None

    return parse


def encode_field(form: ValueFormat, value: Any, name: str) -> bytes:
    """The bytes of a key or value in a format. Raises: ValueError with the field's name."""
    try:
        return form.read(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


class JsonLines:
    """Parses JSON objects. Values keep their JSON text unless a format needs to decode them."""

    def __init__(self, reading: InputFormat) -> None:
        self._reading = reading
        fields: list[Any] = [(name, msgspec.Raw, msgspec.field(default=msgspec.Raw())) for name in (*NAMES, *IGNORED)]
        line = msgspec.defstruct("Line", fields, gc=False, forbid_unknown_fields=True)
        self._decode = msgspec.json.Decoder(line).decode
        self._text = msgspec.json.Decoder(str).decode

    def record(self, line: bytes) -> InputRecord | None:
        """The record of a line; None for an empty line. Raises: ValueError."""
        if not line.strip():
            return None
        try:
            parsed: Any = self._decode(line)
        except msgspec.ValidationError as error:
            raise ValueError(f"{error}; fields are {', '.join(NAMES)}") from None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ValueError(f"not JSON: {error}") from None
        if not len(bytes(parsed.value)) or "value" in self._reading.ignore:
            raise ValueError("no field 'value'; for a tombstone set it to null")
        ignore = self._reading.ignore
        return (
            self._bytes(parsed.value, "value", self._reading.value),
            None if "key" in ignore else self._bytes(parsed.key, "key", self._reading.key),
            () if "headers" in ignore else self._headers(parsed.headers),
            None if "partition" in ignore else _integer(parsed.partition, "partition"),
            None if "timestamp" in ignore else _time(parsed.timestamp),
        )

    def _bytes(self, raw: msgspec.Raw, name: str, form: ValueFormat) -> bytes | None:
        data = bytes(raw)
        if not data or data == b"null":
            return None
        if form is not TEXT:
            return encode_field(form, msgspec.json.decode(data) if form.name not in ("json", "pretty") else _json_text(data), name)
        if data[:1] == b'"':
            return self._text(data).encode()
        return bytes_json(msgspec.json.decode(data), name) if data.startswith(b"{") and b'"base64"' in data else data

    def _headers(self, raw: msgspec.Raw) -> Headers:
        data = bytes(raw)
        return () if data in (b"", b"[]", b"null") else headers_from_json(msgspec.json.decode(data))


def _json_text(data: bytes) -> Any:
    """A JSON value for the format json; a string holds JSON text."""
    value = msgspec.json.decode(data) if data[:1] == b'"' else msgspec.Raw(data)
    return bytes_json(msgspec.json.decode(data), "value") if data.startswith(b'{"base64"') else value


def headers_from_json(value: Any) -> Headers:
    """Headers from a list of pairs or an object. Raises: ValueError."""
    headers = []
    for pair in value.items() if isinstance(value, dict) else value if isinstance(value, list) else [None]:
        name, content = pair if isinstance(pair, list | tuple) and len(pair) == 2 else (None, None)
        if not isinstance(name, str):
            raise ValueError("headers: expected a list of [name, value]")
        headers.append((name, bytes_json(content, f"header {name}")))
    return tuple(headers)


def _integer(raw: msgspec.Raw | bytes, name: str) -> int | None:
    data = bytes(raw)
    if not data or data == b"null":
        return None
    try:
        return msgspec.json.decode(data, type=int)
    except msgspec.MsgspecError:
        raise ValueError(f"{name}: expected a whole number") from None


def _time(raw: msgspec.Raw | bytes) -> int | None:
    """A timestamp; None for negative ones: consume prints -1 for a record without one."""
    timestamp = _integer(raw, "timestamp")
    return None if timestamp is not None and timestamp < 0 else timestamp


def csv_chunks(
    name: str, lines: Iterable[tuple[int, list[bytes]]], reading: InputFormat, complain: Callable[[str], None]
) -> Iterator[Chunk]:
    single = ((number, line) for first, some in lines for number, line in enumerate(some, first))
    records = joined(single, reading.longest)
    columns = list(reading.columns)
    if not columns:
        for number, line in records:
            try:
                columns = [(cell or b"").decode().strip() for cell in fields(line.removesuffix(b"\r"))]
            except ValueError as error:
                raise BadLine(f"{line_label(name, number)}: {error}") from None
            break
        else:
            return
    shape = _CsvColumns(columns, reading)
    group: list[tuple[int, bytes]] = []
    try:
        for record in records:
            group.append(record)
            if len(group) >= 1000:
                yield from parsed_chunks(name, group, shape.record, complain)
                group = []
    except ValueError as error:
        yield from parsed_chunks(name, group, shape.record, complain)
        raise BadLine(str(error)) from None
    yield from parsed_chunks(name, group, shape.record, complain)


class _CsvColumns:
    """The column mapping of a CSV file.

    With a value column, the columns key, value, headers, partition and timestamp have these meanings, and consume's other columns are
    ignored. Without one, the value is a JSON object of all columns as text. An empty cell is null, "" the empty text.
    """

    def __init__(self, columns: list[str], reading: InputFormat) -> None:
        self._reading, self._columns = reading, columns
        for name in (reading.key_column, reading.value_column):
            if name is not None and name not in columns:
                raise BadLine(f"column {name!r} does not exist; columns are {', '.join(columns)}")
        self._at = {name: columns.index(name) for name in NAMES if name in columns and name not in reading.ignore}
        if reading.key_column is not None:
            self._at["key"] = columns.index(reading.key_column)
        if reading.value_column is not None:
            self._at["value"] = columns.index(reading.value_column)
        self._as_object = "value" not in self._at
        if self._as_object:
            # Not a file of consume: only the key column has a meaning.
            self._at = {name: at for name, at in self._at.items() if name == "key"}

    def record(self, line: bytes) -> InputRecord | None:
        """The record of a line; None for an empty line. Raises: ValueError."""
        line = line.removesuffix(b"\r")
        if not line:
            return None
        cells = fields(line)
        if len(cells) != len(self._columns):
            raise ValueError(f"{len(cells)} fields, expected {len(self._columns)} columns")
        key = self._cell(cells, "key", self._reading.key)
        if self._as_object:
            value = msgspec.json.encode(
                {name: None if cell is None else cell.decode(errors="replace") for name, cell in zip(self._columns, cells, strict=True)}
            )
            return value if self._reading.value is TEXT else encode_field(self._reading.value, value, "value"), key, (), None, None
        return (
            self._cell(cells, "value", self._reading.value),
            key,
            self._headers(cells),
            _integer(self._plain(cells, "partition"), "partition"),
            _time(self._plain(cells, "timestamp")),
        )

    def _plain(self, cells: list[bytes | None], name: str) -> bytes:
        return cells[self._at[name]] or b"" if name in self._at else b""

    def _headers(self, cells: list[bytes | None]) -> Headers:
        text = self._plain(cells, "headers")
        if not text:
            return ()
        try:
            return headers_from_json(msgspec.json.decode(text))
        except msgspec.MsgspecError as error:
            raise ValueError(f"headers: not JSON: {error}") from None

    def _cell(self, cells: list[bytes | None], name: str, form: ValueFormat) -> bytes | None:
        cell = cells[self._at[name]] if name in self._at else None
        if cell is None or cell == self._reading.null:
            return None
        return cell if form is TEXT else encode_field(form, cell, name)
