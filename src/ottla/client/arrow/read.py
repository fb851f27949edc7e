"""Fetched bytes into Arrow, for all readers of tables: the consumer's `poll_table`, `read_table`, and Spark's source.

    record batches of one partition --checksums, decompression, columns--> column sets of some MiB --wrapped, not copied--> RecordBatch

The work runs in compiled code without the GIL, so several threads read at once; the order is kept.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypedDict, TypeVar

from ottla.base.ids import TopicPartition
from ottla.base.units import MiB
from ottla.client.arrow.columns import check_names, record_batch, record_schema
from ottla.client.arrow.json import Decoded, json_values
from ottla.client.arrow.optional import needed_arrow, pa, pc
from ottla.client.arrow.values import ColumnFormat
from ottla.client.serializers import SerializationFailed
from ottla.records.batch import crc_ok, headers
from ottla.records.columns import AbortedTransactions, Columns, columns
from ottla.records.errors import CorruptBatch
from ottla.records.read import INT64_MAX

T = TypeVar("T")
U = TypeVar("U")
#: Decompressed bytes in one set of columns.
COLUMNS_BYTES = 16 * MiB
#: Threads that decompress and decode.
THREADS = min(4, os.cpu_count() or 1)
#: Smaller inputs are not worth a second thread.
ALONE_BYTES = 256 * 1024
#: Columns of a table by default.
DEFAULT_NAMES = ("key", "value", "headers", "partition", "offset", "timestamp")
CORRUPT = "_corrupt"


def portions(
    buffer: Any,
    start: int,
    end: int = INT64_MAX,
    *,
    position: int = 0,
    aborted: AbortedTransactions | None = None,
    with_headers: bool = False,
    timestamps_us: bool = False,
) -> Iterator[Columns]:
    """The records in ``[start, end)`` of the complete batches from ``position`` on, some MiB at a time; a set may have no rows.

    Raises: RecordsError.
    """
    while position < len(buffer):
        part = columns(
            buffer,
            start,
            end,
            position=position,
            aborted=aborted,
            headers=with_headers,
            timestamps_us=timestamps_us,
            bytes_max=COLUMNS_BYTES,
        )
        if part.next_position == position:
            return
        yield part
        position = part.next_position


def check_sums(buffer: Any, where: object) -> None:
    """Checks the checksum of each complete batch. Raises: CorruptBatch."""
    for at, header in headers(buffer):
        if not crc_ok(buffer, at):
            raise CorruptBatch(f"{where}: the batch at offset {header.base_offset} is damaged: its checksum is wrong")


def in_order(work: Callable[[T], U], given: Sequence[T], size: int) -> Iterable[U]:
    """Applies ``work`` to each, in several threads if ``size`` bytes are worth it, in order."""
    if THREADS < 2 or len(given) < 2 or size < ALONE_BYTES:
        return map(work, given)
    with ThreadPoolExecutor(min(THREADS, len(given)), "ottla-read") as pool:
        return list(pool.map(work, given))


class TableForm(TypedDict, total=False):
    """Columns and formats of a table of records."""

    #: Names of its columns, of key, value, headers, partition, offset, timestamp, topic, timestamp_type. None: the first six, and topic
    #: where there are several.
    columns: Sequence[str] | None
    #: "bytes", "str", "int", "float", "json", "avro", or an object of `ottla.serializers`.
    key_format: Any
    value_format: Any
    #: Of the values: Arrow's for json, Avro's for avro.
    schema: Any
    #: Keys and values that cannot be read: "raise" an error, or "keep" them: null, with the value's bytes in a column `_corrupt`.
    on_corrupt: str


class Piece(NamedTuple):
    """Records of one partition."""

    tp: TopicPartition
    batch: pa.RecordBatch


class Tables:
    """Makes tables with these columns and formats. Raises: ValueError for invalid ones, ImportError without pyarrow."""

    def __init__(self, form: TableForm) -> None:
        needed_arrow()
        unknown = set(form) - set(TableForm.__annotations__)
        if unknown:
            raise TypeError(f"a table has no {min(unknown)}=; it has {', '.join(TableForm.__annotations__)}")
        given = form.get("columns")
        self._names = None if given is None else check_names(given)
        self._keep = form.get("on_corrupt", "raise") == "keep"
        if form.get("on_corrupt", "raise") not in ("raise", "keep"):
            raise ValueError(f"on_corrupt is 'raise' or 'keep', not {form.get('on_corrupt')!r}")
        key_format, value_format = form.get("key_format"), form.get("value_format")
        if value_format is None and form.get("schema") is not None:
            raise ValueError("a schema needs value_format: json or avro")
        self._formats = {
            "key": None if key_format is None else ColumnFormat(key_format),
            "value": None if value_format is None else ColumnFormat(value_format, form.get("schema")),
        }
        for name, format in self._formats.items():
            if format is not None and self._names is not None and name not in self._names:
                raise ValueError(f"{name}_format needs the column {name}")

    def names(self, *, several: bool) -> tuple[str, ...]:
        """The columns, before values are decoded, for one topic or several."""
        if self._names is not None:
            return self._names
        return (*DEFAULT_NAMES, "topic") if several else DEFAULT_NAMES

    def read_schema(self, *, several: bool) -> pa.Schema:
        """Arrow's schema of the columns to read, with the offset, which gives the next position."""
        names = self.names(several=several)
        return record_schema(names if "offset" in names else (*names, "offset"))

    def table(self, pieces: Sequence[Piece], *, several: bool) -> pa.Table:
        """The pieces as one table. Raises: SerializationFailed with the record if a value is unreadable and not kept."""
        names = self.names(several=several)
        table = pa.Table.from_batches([piece.batch for piece in pieces], self.read_schema(several=several)).select(names)
        corrupt = None
        for name, format in self._formats.items():
            if format is None:
                continue
            raw = table.column(name)
            found, bad, why = _decoded(raw, format)
            if bad is not None and not self._keep:
                raise SerializationFailed(f"{_place(pieces, bad)}: its {name} cannot be read as {format.name}: {why}")
            if name == "value":
                corrupt = _only(raw, bad)
            table = table.set_column(table.column_names.index(name), pa.field(name, found.type), found)
        if self._keep and corrupt is not None:
            table = table.append_column(CORRUPT, corrupt)
        return table

    def read(self, found: Iterable[Columns], schema: pa.Schema, tp: TopicPartition) -> list[Piece]:
        """Column sets of one partition as pieces, without empty ones."""
        return [Piece(tp, record_batch(part, schema, tp.topic, tp.partition)) for part in found if part.rows]


def _decoded(raw: pa.ChunkedArray, format: ColumnFormat) -> tuple[pa.ChunkedArray, pa.ChunkedArray | None, str]:
    """A binary column decoded to one type, and the unreadable rows."""
    parts = list(in_order(format.decoded, raw.chunks, raw.nbytes))
    kind = _one_type([part.array.type for part in parts]) if parts else format.decoded(pa.array([], pa.binary())).array.type
    parts = [part if part.array.type == kind else _again(chunk, part, kind) for chunk, part in zip(raw.chunks, parts, strict=True)]
    found = pa.chunked_array([part.array for part in parts], kind)
    if all(part.bad is None for part in parts):
        return found, None, ""
    bad = [pa.repeat(pa.scalar(False), len(part.array)) if part.bad is None else part.bad for part in parts]
    return found, pa.chunked_array(bad, pa.bool_()), next(part.why for part in parts if part.bad is not None)


def _one_type(kinds: list[Any]) -> Any:
    """The common type of several inferred ones. Raises: SerializationFailed."""
    if len(set(kinds)) == 1:
        return kinds[0]
    try:
        return pa.unify_schemas([pa.schema([("v", kind)]) for kind in kinds], promote_options="permissive").field("v").type
    except pa.ArrowException as error:
        raise SerializationFailed(f"values show as several types, give a schema: {error}") from None


def _again(raw: Any, part: Decoded, kind: Any) -> Decoded:
    """Decodes values with a wider type than inferred before."""
    if pa.types.is_nested(kind):
        return json_values(raw, kind)
    return Decoded(part.array.cast(kind), part.bad, part.why)


def _only(raw: pa.ChunkedArray, bad: pa.ChunkedArray | None) -> pa.ChunkedArray:
    """The unreadable bytes, null elsewhere."""
    if bad is None:
        return pa.chunked_array([pa.nulls(len(raw), pa.binary())])
    return pc.if_else(bad, raw, pa.scalar(None, pa.binary()))


def _place(pieces: Sequence[Piece], bad: pa.ChunkedArray) -> str:
    """The first unreadable record."""
    row: int = pc.index(bad, True).as_py()
    for tp, batch in pieces:
        if row < batch.num_rows:
            return f"{tp} at offset {batch.column('offset')[row]}"
        row -= batch.num_rows
    raise AssertionError("each bad row is one of the table's")
