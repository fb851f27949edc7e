"""How standard input and files become records for `ottla produce`.

    text    each line is a value; with a key delimiter, what stands before it is the key
    json    each line is an object as `consume -o json` prints it; only the value must be there:
                {"key": "k", "value": "v", "headers": [["name", "value"]], "partition": 0, "timestamp": 1700000000000}
            a value of null is a tombstone, {"base64": "..."} are bytes, anything else that is no string is taken as it is written
    csv     the first line names the columns: those of `consume -o csv`, or others of which a value is made: see `_CsvShape`
    parquet, arrow   rows of typed columns: see `record_arrow`
    files   each file is the value of one record

Input is read in pieces and never held whole. Records come in chunks, with the numbers of their lines; what cannot be understood is told by
its line, after all that came before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from ottla.cli.common.errors import bytes_json
from ottla.cli.common.record_csv import fields, joined
from ottla.cli.common.value_formats import TEXT, Form

#: Read at a time.
PIECE_BYTES = 1 << 20
Headers = tuple[tuple[str, bytes | None], ...]
#: What JSON and CSV may say of a record.
NAMES = ("key", "value", "headers", "partition", "timestamp")
#: What consume says besides.
IGNORED = ("topic", "offset", "time", "timestamp_type")


#: One record to send, in the order of `Producer.send`: value, key, headers, partition, time in ms. A plain tuple: millions are made.
Given = tuple[bytes | None, bytes | None, Headers, int | None, int | None]


class Chunk(NamedTuple):
    """Records that follow each other, and the number of the line of each."""

    file: str
    numbers: Sequence[int]
    records: list[Given]


class BadLine(ValueError):
    """A line, named, that makes no record."""


class Reading(NamedTuple):
    """How the input is to be understood."""

    form: str = "text"
    key: Form = TEXT
    value: Form = TEXT
    delimiter: bytes = b"\n"
    key_delimiter: bytes | None = None
    #: Text that stands for null; None: there is none.
    null: bytes | None = None
    columns: tuple[str, ...] = ()
    key_column: str | None = None
    value_column: str | None = None
    #: Names of JSON and CSV that are not looked at.
    ignore: frozenset[str] = frozenset()
    longest: int = 1 << 20


def where(file: str, number: int, kind: str = "line") -> str:
    """A line, for people."""
    return f"{kind} {number}" if file in ("", "-") else f"{file}, {kind} {number}"


class Counted:
    """A file that is read in pieces; `done` counts the bytes."""

    def __init__(self, files: Sequence[tuple[str, BinaryIO]]) -> None:
        self.files = files
        self.done = 0

    def pieces(self, file: BinaryIO) -> Iterator[bytes]:
        """What there is, as it comes: a pipe's lines do not wait for more."""
        read = getattr(file, "read1", file.read)
        while piece := read(PIECE_BYTES):
            self.done += len(piece)
            yield piece


def chunks(source: Counted, reading: Reading, complain: Callable[[str], None]) -> Iterator[Chunk]:
    """All records. `complain` is told of each line that is none; it raises, or reading goes on. Raises: OSError, and what it raises."""
    for name, file in source.files:
        if reading.form in ("parquet", "arrow"):
            from ottla.cli.produce.arrow_input import arrow_chunks

            yield from arrow_chunks(name, source, reading, complain)
            continue
        lines = split(source.pieces(file), reading, name)
        if reading.form == "csv":
            yield from _csv_chunks(name, lines, reading, complain)
        elif reading.form == "json":
            take = _JsonLines(reading).record
            for first, some in lines:
                yield from _taken(name, zip(range(first, first + len(some)), some, strict=True), take, complain)
        else:
            yield from _text_chunks(name, lines, reading, complain)


def split(pieces: Iterable[bytes], reading: Reading, name: str) -> Iterator[tuple[int, list[bytes]]]:
    """The lines that each piece ends, and the number of the first. Raises: BadLine for one that is too long to be a record."""
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
            raise BadLine(f"{where(name, number)}: longer than {reading.longest} bytes, which max.request.size allows")
    if rest:
        yield number, [b"".join(rest)]


def whole_files(names: Sequence[str], given: Form) -> Iterator[Chunk]:
    """One record of each file. Raises: OSError."""
    for name in names:
        data = Path(name).read_bytes()
        yield Chunk(name, [1], [(data if given is TEXT else given.read(data), None, (), None, None)])


def _taken(
    name: str, lines: Iterable[tuple[int, bytes]], take: Callable[[bytes], Given | None], complain: Callable[[str], None]
) -> Iterator[Chunk]:
    """One line after the other; what stood before a bad one is given before it is told."""
    numbers: list[int] = []
    records: list[Given] = []
    for number, line in lines:
        try:
            record = take(line)
        except ValueError as error:
            if records:
                yield Chunk(name, numbers, records)
                numbers, records = [], []
            complain(f"{where(name, number)}: {error}")
            continue
        if record is not None:
            numbers.append(number)
            records.append(record)
    if records:
        yield Chunk(name, numbers, records)


# -- text


def _text_chunks(name: str, lines: Iterable[tuple[int, list[bytes]]], reading: Reading, complain: Callable[[str], None]) -> Iterator[Chunk]:
    plain = reading.key is TEXT and reading.value is TEXT
    key_delimiter, null = reading.key_delimiter, reading.null
    take = _text_line(reading)
    for first, some in lines:
        numbers = range(first, first + len(some))
        if not plain:
            yield from _taken(name, zip(numbers, some, strict=True), take, complain)
        elif null is not None:
            yield Chunk(name, numbers, [take(line) for line in some])
        elif key_delimiter is None:
            yield Chunk(name, numbers, [(line, None, (), None, None) for line in some])
        else:
            parts = [line.partition(key_delimiter) for line in some]
            records: list[Given] = [(value, key, (), None, None) if found else (key, None, (), None, None) for key, found, value in parts]
            yield Chunk(name, numbers, records)


def _text_line(reading: Reading) -> Callable[[bytes], Given]:
    key_delimiter, null, key_form, value_form = reading.key_delimiter, reading.null, reading.key, reading.value

    def take(line: bytes) -> Given:
        key: bytes | None = None
        value: bytes | None = line
        if key_delimiter is not None:
            before, found, after = line.partition(key_delimiter)
            if found:
                key, value = before, after
        if null is not None:
            key, value = None if key == null else key, None if value == null else value
        if key is not None and key_form is not TEXT:
            key = form_read(key_form, key, "key")
        if value is not None and value_form is not TEXT:
            value = form_read(value_form, value, "value")
        return value, key, (), None, None

    return take


def form_read(form: Form, given: Any, name: str) -> bytes:
    """What a format makes of a key or value. Raises: ValueError, which names it."""
    try:
        return form.read(given)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


# -- JSON


class _JsonLines:
    """Takes JSON objects apart. Values stay the text that they are in the line unless a format needs what they mean."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        fields: list[Any] = [(name, msgspec.Raw, msgspec.field(default=msgspec.Raw())) for name in (*NAMES, *IGNORED)]
        line = msgspec.defstruct("Line", fields, gc=False, forbid_unknown_fields=True)
        self._decode = msgspec.json.Decoder(line).decode
        self._text = msgspec.json.Decoder(str).decode

    def record(self, line: bytes) -> Given | None:
        """None of an empty line. Raises: ValueError."""
        if not line.strip():
            return None
        try:
            found: Any = self._decode(line)
        except msgspec.ValidationError as error:
            raise ValueError(f"{error}; known are {', '.join(NAMES)}") from None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ValueError(f"not JSON: {error}") from None
        if not len(bytes(found.value)) or "value" in self._reading.ignore:
            raise ValueError("no field 'value'; null makes a tombstone")
        ignore = self._reading.ignore
        return (
            self._bytes(found.value, "value", self._reading.value),
            None if "key" in ignore else self._bytes(found.key, "key", self._reading.key),
            () if "headers" in ignore else self._headers(found.headers),
            None if "partition" in ignore else _whole(found.partition, "partition"),
            None if "timestamp" in ignore else _time(found.timestamp),
        )

    def _bytes(self, raw: msgspec.Raw, name: str, form: Form) -> bytes | None:
        data = bytes(raw)
        if not data or data == b"null":
            return None
        if form is not TEXT:
            return form_read(form, msgspec.json.decode(data) if form.name not in ("json", "pretty") else _json_text(data), name)
        if data[:1] == b'"':
            return self._text(data).encode()
        return bytes_json(msgspec.json.decode(data), name) if data.startswith(b"{") and b'"base64"' in data else data

    def _headers(self, raw: msgspec.Raw) -> Headers:
        data = bytes(raw)
        return () if data in (b"", b"[]", b"null") else headers_of(msgspec.json.decode(data))


def _json_text(data: bytes) -> Any:
    """A JSON value whose format is JSON: a string holds the text of one."""
    value = msgspec.json.decode(data) if data[:1] == b'"' else msgspec.Raw(data)
    return bytes_json(msgspec.json.decode(data), "value") if data.startswith(b'{"base64"') else value


def headers_of(found: Any) -> Headers:
    """Headers from JSON: pairs, or an object. Raises: ValueError."""
    pairs = found.items() if isinstance(found, dict) else found
    made = []
    for pair in pairs if isinstance(pairs, list) or pairs is not found else [None]:
        name, value = pair if isinstance(pair, list | tuple) and len(pair) == 2 else (None, None)
        if not isinstance(name, str):
            raise ValueError("headers: expected a list of [name, value]")
        made.append((name, bytes_json(value, f"header {name}")))
    return tuple(made)


def _whole(raw: msgspec.Raw | bytes, name: str) -> int | None:
    data = bytes(raw)
    if not data or data == b"null":
        return None
    try:
        return msgspec.json.decode(data, type=int)
    except msgspec.MsgspecError:
        raise ValueError(f"{name}: expected a whole number") from None


def _time(raw: msgspec.Raw | bytes) -> int | None:
    """A timestamp; -1 is how consume shows that there is none."""
    found = _whole(raw, "timestamp")
    return None if found is not None and found < 0 else found


# -- CSV


def _csv_chunks(name: str, lines: Iterable[tuple[int, list[bytes]]], reading: Reading, complain: Callable[[str], None]) -> Iterator[Chunk]:
    single = ((number, line) for first, some in lines for number, line in enumerate(some, first))
    records = joined(single, reading.longest)
    columns = list(reading.columns)
    if not columns:
        for number, line in records:
            try:
                columns = [(cell or b"").decode().strip() for cell in fields(line.removesuffix(b"\r"))]
            except ValueError as error:
                raise BadLine(f"{where(name, number)}: {error}") from None
            break
        else:
            return
    shape = _CsvShape(columns, reading)
    group: list[tuple[int, bytes]] = []
    try:
        for record in records:
            group.append(record)
            if len(group) >= 1000:
                yield from _taken(name, group, shape.record, complain)
                group = []
    except ValueError as error:
        yield from _taken(name, group, shape.record, complain)
        raise BadLine(str(error)) from None
    yield from _taken(name, group, shape.record, complain)


class _CsvShape:
    """Which column is what.

    The columns key, value, headers, partition and timestamp are what they say, and other names that consume prints are passed over. A file
    without a column for the value has records for rows: the value is a JSON object of all columns, as text. Nothing between two commas is
    null, "" the empty text.
    """

    def __init__(self, columns: list[str], reading: Reading) -> None:
        self._reading, self._columns = reading, columns
        for given in (reading.key_column, reading.value_column):
            if given is not None and given not in columns:
                raise BadLine(f"there is no column {given!r}; there are {', '.join(columns)}")
        self._at = {name: columns.index(name) for name in NAMES if name in columns and name not in reading.ignore}
        if reading.key_column is not None:
            self._at["key"] = columns.index(reading.key_column)
        if reading.value_column is not None:
            self._at["value"] = columns.index(reading.value_column)
        self._as_object = "value" not in self._at
        if self._as_object:
            # It is no file of consume's: nothing but the key is known by its name.
            self._at = {name: at for name, at in self._at.items() if name == "key"}

    def record(self, line: bytes) -> Given | None:
        """None of an empty line. Raises: ValueError."""
        line = line.removesuffix(b"\r")
        if not line:
            return None
        cells = fields(line)
        if len(cells) != len(self._columns):
            raise ValueError(f"{len(cells)} fields, but there are {len(self._columns)} columns")
        key = self._cell(cells, "key", self._reading.key)
        if self._as_object:
            value = msgspec.json.encode(
                {name: None if cell is None else cell.decode(errors="replace") for name, cell in zip(self._columns, cells, strict=True)}
            )
            return value if self._reading.value is TEXT else form_read(self._reading.value, value, "value"), key, (), None, None
        return (
            self._cell(cells, "value", self._reading.value),
            key,
            self._headers(cells),
            _whole(self._plain(cells, "partition"), "partition"),
            _time(self._plain(cells, "timestamp")),
        )

    def _plain(self, cells: list[bytes | None], name: str) -> bytes:
        return cells[self._at[name]] or b"" if name in self._at else b""

    def _headers(self, cells: list[bytes | None]) -> Headers:
        text = self._plain(cells, "headers")
        if not text:
            return ()
        try:
            return headers_of(msgspec.json.decode(text))
        except msgspec.MsgspecError as error:
            raise ValueError(f"headers: not JSON: {error}") from None

    def _cell(self, cells: list[bytes | None], name: str, form: Form) -> bytes | None:
        cell = cells[self._at[name]] if name in self._at else None
        if cell is None or cell == self._reading.null:
            return None
        return cell if form is TEXT else form_read(form, cell, name)
