"""Maps the columns of a row to the fields of a record.

    key          a column, as text; or a template: "{country}-{id}". If one of its columns is null, the key is null
    value        the row as a JSON object, with all or some columns; or one column, unchanged; or a line, unchanged
    headers      NAME=TEMPLATE; if a column of the template is null, so is the header's value. Or a column of lists or maps
    timestamp    a column: a time, ISO 8601 as text, or whole ms since 1970; null means now
    partition    a column, or a number; null or not set: chosen by the key, or without a key by the row number

A template may also name ``{_file}``, the file's name, and ``{_row}``, the row's number in the file, from 0. ``{{`` is a brace.

A record depends only on its row and the row's number, so a second run of a load makes the same records.
"""

import re
from array import array as numbers
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePath
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ottla.base.options import suggestion
from ottla.client.arrow.columns import as_binary, binary_column, headers_type, is_bytes, is_headers, plain
from ottla.client.arrow.json import NotJson, json_texts
from ottla.lake.load.inputs import CannotLoad
from ottla.lake.load.reader import RejectedRow
from ottla.records.build import partitions_of_keys

FILE, ROW = "_file", "_row"
_FIELD = re.compile(r"\{\{|\}\}|\{([^{}]+)\}|[{}]")
#: Consecutive rows without key and partition that go to one partition.
TURN_ROWS = 1000


class Template(NamedTuple):
    """Texts and, as one-element tuples, names of columns."""

    parts: tuple[str | tuple[str], ...]

    @property
    def columns(self) -> list[str]:
        """The columns of the file that it names."""
        return [part[0] for part in self.parts if isinstance(part, tuple) and part[0] not in (FILE, ROW)]


def parse_template(text: str) -> Template:
    """Raises: CannotLoad for an unbalanced brace."""
    parts: list[str | tuple[str]] = []
    at = 0
    for found in _FIELD.finditer(text):
        parts.append(text[at : found.start()])
        if found[1] is not None:
            parts.append((found[1],))
        elif found[0] in ("{{", "}}"):
            parts.append(found[0][0])
        else:
            raise CannotLoad(f"{text!r}: unbalanced brace at {found.start() + 1}; write {{{{ and }}}} for braces, {{column}} for a column")
        at = found.end()
    parts.append(text[at:])
    return Template(tuple(part for part in parts if part))


@dataclass(frozen=True, slots=True)
class ColumnMapping:
    """Options of the mapping; unset ones are None or empty. `plan.digest` depends on the names of the fields."""

    key: Template | None = None
    value: str | None = None
    columns: tuple[str, ...] | None = None
    without: tuple[str, ...] = ()
    headers: tuple[tuple[str, Template | None], ...] = ()
    #: A column of lists of (name, value), or of maps, instead.
    headers_column: str | None = None
    timestamp: str | None = None
    partition: str | int | None = None
    base64: tuple[str, ...] = ()
    #: Largest record that brokers accept.
    bytes_max: int = 1 << 20

    @property
    def needed(self) -> tuple[str, ...]:
        """Columns that the mapping names, apart from those of a JSON value."""
        templates = [self.key, *(one for _, one in self.headers)]
        named = [name for one in templates if one is not None for name in one.columns]
        named += [name for name in (self.headers_column, self.timestamp, self.partition, self.value) if isinstance(name, str)]
        return tuple(dict.fromkeys(named))

    def check(self, columns: Mapping[str, str] | None, file: str) -> None:
        """Raises: CannotLoad if the file lacks a column."""
        if columns is None:
            return
        for name in (*self.needed, *(self.columns or ()), *self.without, *self.base64):
            if name not in columns:
                raise CannotLoad(f"{file}: no column {name!r}{suggestion(name, columns)}; the columns are {', '.join(columns)}")


class Records(NamedTuple):
    """Records to send: columns key, value, headers, timestamp, partition; all but the value are optional."""

    batch: pa.RecordBatch
    #: Row numbers in the file, int64; rejected rows leave gaps.
    rows: pa.Array
    bad: list[RejectedRow]


def map_columns(mapping: ColumnMapping, batch: Any, whole: str | None, first_row: int, file: str) -> Records:
    """Map rows to records. ``first_row``: number of the first row in its file. ``whole``: the column that is the value, unchanged.

    Raises: CannotLoad if the type of a column does not fit.
    """
    rows = _numbers(first_row, batch.num_rows)
    file_columns = _FileColumns(file, first_row, batch.num_rows)
    made: dict[str, Any] = {"value": _value(mapping, batch, whole)}
    bad = _Rejections(batch.num_rows)
    if mapping.key is not None:
        made["key"] = _render(mapping.key, batch, file_columns)
    if mapping.headers:
        made["headers"] = _headers(mapping.headers, batch, file_columns)
    elif mapping.headers_column is not None:
        made["headers"] = _headers_of_column(batch.column(mapping.headers_column), mapping.headers_column)
    if mapping.timestamp is not None:
        made["timestamp"] = _times(batch.column(mapping.timestamp), mapping.timestamp, bad)
    if isinstance(mapping.partition, str):
        made["partition"] = _partitions(batch.column(mapping.partition), mapping.partition, bad)
    elif mapping.partition is not None:
        made["partition"] = pa.repeat(pa.scalar(mapping.partition, pa.int32()), batch.num_rows)
    sizes = pc.fill_null(pc.binary_length(made["value"]), 0)
    if batch.num_rows and pc.max(sizes).as_py() > mapping.bytes_max - 1024:
        bad.add(
            pc.greater(sizes, mapping.bytes_max - 1024),
            lambda row: f"{sizes[row].as_py():,} bytes exceed the largest record; raise -X max.request.size",
        )
    records = pa.RecordBatch.from_arrays(list(made.values()), names=list(made))
    if not bad.found:
        return Records(records, rows, [])
    kept = pa.array([number not in bad.found for number in range(batch.num_rows)])
    rejected = [RejectedRow(row, None, why, _as_bytes(made["value"][row].as_py())) for row, why in sorted(bad.found.items())]
    return Records(records.filter(kept), rows.filter(kept), rejected)


def _as_bytes(value: Any) -> bytes:
    return b"" if value is None else value if isinstance(value, bytes) else str(value).encode()


def _numbers(first: int, count: int) -> Any:
    return pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(numbers("q", range(first, first + count)))])


class _FileColumns:
    """The columns ``_file`` and ``_row``."""

    def __init__(self, file: str, first_row: int, count: int) -> None:
        self._file, self._first_row, self._count = file, first_row, count

    def column(self, name: str) -> Any:
        if name == FILE:
            return pa.repeat(pa.scalar(PurePath(self._file).name), self._count)
        return _numbers(self._first_row, self._count).cast(pa.string())


class _Rejections:
    """Rows that cannot become records, with the first reason of each."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self.found: dict[int, str] = {}

    def add(self, mask: Any, why: Any) -> None:
        for row in pc.indices_nonzero(mask).to_pylist():
            self.found.setdefault(row, why(row))


def _value(mapping: ColumnMapping, batch: Any, whole: str | None) -> Any:
    one = mapping.value or whole
    try:
        if one is not None:
            column = _encode_base64(batch.column(one), one, mapping.base64)
            return as_binary(column) if is_bytes(column.type) or pa.types.is_null(column.type) else json_texts(column)
        names = [name for name in mapping.columns or batch.schema.names if name not in mapping.without]
        if not names:
            raise CannotLoad("the value has no columns: all are excluded")
        columns = [_encode_base64(batch.column(name), name, mapping.base64) for name in names]
        return json_texts(pa.StructArray.from_arrays(columns, names=names))
    except NotJson as error:
        raise CannotLoad(f"{error}; encode such columns with --base64 COLUMN") from None


def _encode_base64(column: Any, name: str, base64: Sequence[str]) -> Any:
    """The column, in base64 if ``base64`` names it."""
    if name not in base64:
        return column
    column = plain(column)
    if not is_bytes(column.type):
        raise CannotLoad(f"--base64 encodes bytes; column {name} is {column.type}")
    cast = column.cast(pa.large_binary())
    return pa.array([None if one is None else b64encode(one).decode() for one in cast.to_pylist()], pa.string())


def _text(batch: Any, file_columns: _FileColumns, name: str) -> Any:
    """A column as text or bytes."""
    if name in (FILE, ROW) and name not in batch.schema.names:
        return file_columns.column(name)
    column = plain(batch.column(name))
    if is_bytes(column.type) or pa.types.is_null(column.type):
        return as_binary(column)
    return json_texts(column) if pa.types.is_nested(column.type) else column.cast(pa.string())


def _render(pattern: Template, batch: Any, file_columns: _FileColumns) -> Any:
    """The template filled in per row; null if one of its columns is null."""
    if len(pattern.parts) == 1 and isinstance(pattern.parts[0], tuple):
        return _text(batch, file_columns, pattern.parts[0][0])
    if not any(isinstance(part, tuple) for part in pattern.parts):
        return pa.repeat(pa.scalar("".join(str(part) for part in pattern.parts)), batch.num_rows)
    pieces = [
        pa.scalar(part.encode(), pa.large_binary())
        if isinstance(part, str)
        else _text(batch, file_columns, part[0]).cast(pa.large_binary())
        for part in pattern.parts
    ]
    return pc.binary_join_element_wise(*pieces, pa.scalar(b"", pa.large_binary()))


def _headers(templates: Sequence[tuple[str, Template | None]], batch: Any, file_columns: _FileColumns) -> Any:
    """A column of lists of (name, value)."""
    rows, count = batch.num_rows, len(templates)
    values = [pa.nulls(rows, pa.binary()) if one is None else _render(one, batch, file_columns).cast(pa.binary()) for _, one in templates]
    names = [pa.repeat(pa.scalar(name), rows) for name, _ in templates]
    order = _interleaved(rows, count)
    kind = headers_type()
    fields = [kind.value_type.field(index) for index in range(2)]
    pairs = pa.StructArray.from_arrays([pa.concat_arrays(names).take(order), pa.concat_arrays(values).take(order)], fields=fields)
    ends = pa.Array.from_buffers(pa.int32(), rows + 1, [None, pa.py_buffer(numbers("i", range(0, (rows + 1) * count, count)))])
    return pa.ListArray.from_arrays(ends, pairs, type=kind)


def _headers_of_column(column: Any, name: str) -> Any:
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), headers_type())
    if not is_headers(column.type):
        raise CannotLoad(f"a headers column holds lists of (name, value) or maps of text to bytes; column {name} is {column.type}")
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    if not pa.types.is_map(column.type):
        names = [column.type.value_type.field(index).name for index in range(2)]
        column = column.cast(pa.list_(pa.struct([(names[0], pa.string()), (names[1], pa.binary())])))
        kind = headers_type()
        pairs = pa.StructArray.from_arrays(column.values.flatten(), fields=list(kind.value_type))
        made = pa.ListArray.from_arrays(column.offsets, pairs, type=kind)
        return made if not column.null_count else pc.if_else(column.is_valid(), made, pa.scalar(None, kind))
    return column.cast(kind).cast(headers_type())


@lru_cache(maxsize=4)
def _interleaved(rows: int, count: int) -> Any:
    """Indices that take one element of each of ``count`` concatenated columns, row by row."""
    order = numbers("i", bytes(4 * rows * count))
    for index in range(count):
        order[index::count] = numbers("i", range(index * rows, (index + 1) * rows))
    return pa.Array.from_buffers(pa.int32(), rows * count, [None, pa.py_buffer(order)])


_WHOLE_NUMBER = r"^[ ]*-?[0-9]{1,18}[ ]*$"


def _times(column: Any, name: str, bad: _Rejections) -> Any:
    column = plain(column)
    kind, ms = column.type, pa.timestamp("ms", "UTC")
    if pa.types.is_integer(kind):
        return column.cast(pa.int64()).cast(ms)
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        times = column.cast(pa.timestamp("ms", kind.tz if pa.types.is_timestamp(kind) else None), safe=False)
        return times.cast(ms)
    if pa.types.is_null(kind):
        return pa.nulls(len(column), ms)
    if not is_bytes(kind):
        raise CannotLoad(f"a timestamp column holds times, ISO 8601 text or whole ms; column {name} is {kind}")
    words = column.cast(pa.string())
    if pc.all(pc.match_substring_regex(words, _WHOLE_NUMBER)).as_py():
        return pc.utf8_trim_whitespace(words).cast(pa.int64()).cast(ms)
    try:
        return _parse_iso(words).cast(ms)
    except pa.ArrowInvalid:
        times = [_parse_time(word) for word in words.to_pylist()]
        wrong = pa.array([isinstance(one, str) for one in times])
        bad.add(wrong, lambda row: f"column {name}: {words[row].as_py()!r} is not a time such as 2026-01-31T12:00:00Z")
        return pa.array([None if isinstance(one, str) else one for one in times], pa.int64()).cast(ms)


def _parse_iso(words: Any) -> Any:
    """Raises: ArrowInvalid unless all have a zone or none has."""
    try:
        return words.cast(pa.timestamp("us")).cast(pa.timestamp("ms"), safe=False)
    except pa.ArrowInvalid:
        return words.cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("ms", "UTC"), safe=False)


def _parse_time(word: str | None) -> int | str | None:
    """Milliseconds of a time, in UTC if it names no zone; the word itself if it is not a time."""
    from datetime import UTC, datetime

    if word is None or not word.strip():
        return None
    if re.fullmatch(_WHOLE_NUMBER, word):
        return int(word)
    try:
        found = datetime.fromisoformat(word.strip())
    except ValueError:
        return word
    return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)


def _partitions(column: Any, name: str, bad: _Rejections) -> Any:
    column = plain(column)
    if is_bytes(column.type):
        column = column.cast(pa.string())
        column = pc.if_else(pc.equal(column, ""), None, column)
    try:
        found = column.cast(pa.int32())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        if not is_bytes(column.type):
            raise CannotLoad(f"a partition column holds whole numbers; column {name} is {column.type}") from None
        words = column.to_pylist()
        bad.add(
            pa.array([word is not None and not word.isdecimal() for word in words]),
            lambda row: f"column {name}: {words[row]!r} is not a partition number",
        )
        found = pa.array([int(word) if word is not None and word.isdecimal() else None for word in words], pa.int64()).cast(pa.int32())
    bad.add(pc.fill_null(pc.less(found, 0), False), lambda row: f"column {name}: {found[row].as_py()} is not a partition number")
    return found


def choose_partitions(records: Records, partitions: int, bad: list[RejectedRow] | None = None) -> Any:
    """The partition of each row, int32: from its column, else by its key, else by its row number.

    Raises: CannotLoad for a partition that the topic does not have.
    """
    batch, count = records.batch, records.batch.num_rows
    names = batch.schema.names
    if partitions == 1 and "partition" not in names:
        return pa.repeat(pa.scalar(0, pa.int32()), count)
    found = batch.column("partition") if "partition" in names else None
    if found is not None and found.null_count < count and pc.max(found).as_py() >= partitions:
        row = records.rows[pc.index(found, pc.max(found)).as_py()].as_py()
        raise CannotLoad(f"row {row} names partition {pc.max(found).as_py()}; the topic has {partitions} partitions, counted from 0")
    if found is not None and not found.null_count:
        return found
    if "key" in names and (keys := as_binary(batch.column("key"))).null_count < count:
        hashed = partitions_of_keys(binary_column(keys), partitions, first=0, last=count)
        by_key = pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(hashed)])
        by_key = pc.if_else(keys.is_valid(), by_key, pa.scalar(None, pa.int32())) if keys.null_count else by_key
        found = by_key if found is None else pc.coalesce(found, by_key)
        if not found.null_count:
            return found
    turn = pc.divide(records.rows, TURN_ROWS)
    turn = pc.subtract(turn, pc.multiply(pc.divide(turn, partitions), partitions)).cast(pa.int32())
    return turn if found is None else pc.coalesce(found, turn)
