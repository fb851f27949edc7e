"""Converts between the bytes of a log and Arrow, without a Python object per record.

    batches of a fetch --ottla.records--> buffers in Arrow's layout --from_buffers, no copy--> pyarrow.RecordBatch
    pyarrow arrays --their buffers--> ottla.records --> batches to send

Columns of a record in Arrow:

    key, value       binary, null if the record has none
    headers          list<element: struct<key: string, value: binary>>
    partition        int32
    offset           int64
    timestamp        timestamp[ms, UTC]
    topic            string
    timestamp_type   int32: 0 set by the producer, 1 by the broker

"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

from ottla.base.options import suggestion
from ottla.client.arrow.optional import pa, pc
from ottla.records.build import BinaryColumn, HeadersColumn
from ottla.records.columns import BinaryBuffers, Columns

NAMES = ("key", "value", "headers", "partition", "offset", "timestamp", "topic", "timestamp_type")
INT32_BYTES, INT64_BYTES = 4, 8
#: Up to this number of rows a constant column is shared by many batches.
SAME_ROWS_MAX = 1 << 17


def check_names(names: Iterable[str]) -> tuple[str, ...]:
    """Names of record columns. Raises: ValueError for an unknown or repeated name."""
    given = (names,) if isinstance(names, str) else tuple(names)
    for name in given:
        if name not in NAMES:
            raise ValueError(f"a record has no column {name!r}{suggestion(name, NAMES)}; it has {', '.join(NAMES)}")
    if len(set(given)) < len(given):
        raise ValueError(f"a column is there twice: {', '.join(given)}")
    return given


def headers_type() -> Any:
    """Arrow's type of record headers."""
    return pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])))


def record_schema(names: Sequence[str], *, timestamp_unit: str = "ms") -> pa.Schema:
    """Arrow's schema of record columns."""
    types = {
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": headers_type(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp(timestamp_unit, tz="UTC"),
        "topic": pa.string(),
        "timestamp_type": pa.int32(),
    }
    return pa.schema([pa.field(name, types[name]) for name in names])


def record_batch(columns: Columns, schema: pa.Schema, topic: str, partition: int) -> pa.RecordBatch:
    """``columns`` of one partition with the columns of ``schema``; timestamps keep the unit in which they were read.

    Copies only constants.
    """
    rows = columns.rows

    def fixed(data: bytes, kind: Any) -> Any:
        return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(data)])

    make: dict[str, Callable[[], Any]] = {
        "key": lambda: _binary(columns.key, pa.binary()),
        "value": lambda: _binary(columns.value, pa.binary()),
        "topic": lambda: same_text(topic, rows),
        "partition": lambda: same_number(partition, rows),
        "offset": lambda: fixed(columns.offsets, pa.int64()),
        "timestamp": lambda: fixed(columns.timestamps, schema.field("timestamp").type),
        "timestamp_type": lambda: fixed(columns.timestamp_types, pa.int32()),
        "headers": lambda: _headers(columns, schema.field("headers").type),
    }
    return pa.RecordBatch.from_arrays([make[name]() for name in schema.names], schema=schema)


def same_text(text: str, rows: int) -> Any:
    """A column with ``text`` in each row."""
    return _texts(text, _room(rows)).slice(0, rows) if rows <= SAME_ROWS_MAX else _texts.__wrapped__(text, rows)


def same_number(number: int, rows: int) -> Any:
    """A column with ``number`` in each row, as int32."""
    return _numbers(number, _room(rows)).slice(0, rows) if rows <= SAME_ROWS_MAX else _numbers.__wrapped__(number, rows)


def _room(rows: int) -> int:
    """Rounds up to a power of two, so that batches of similar size share a column."""
    return 1 << max(rows - 1, 0).bit_length()


@lru_cache(maxsize=8)
def _numbers(number: int, rows: int) -> Any:
    return pa.repeat(pa.scalar(number, pa.int32()), rows)


@lru_cache(maxsize=4)
def _texts(text: str, rows: int) -> Any:
    # Same result as pa.repeat, twenty times as fast.
    raw = text.encode()
    offsets = pc.cumulative_sum(pa.repeat(pa.scalar(len(raw), pa.int32()), rows + 1), start=-len(raw))
    return pa.Array.from_buffers(pa.string(), rows, [None, offsets.buffers()[1], pa.py_buffer(raw * rows)])


def _binary(parts: BinaryBuffers, kind: Any) -> Any:
    buffers = [None if part is None else pa.py_buffer(part) for part in (parts.validity, parts.offsets, parts.data)]
    return pa.Array.from_buffers(kind, len(parts.offsets) // INT32_BYTES - 1, buffers, parts.null_count)


def _headers(columns: Columns, kind: Any) -> Any:
    parts = columns.headers
    assert parts is not None, "headers are decoded when their column is read"
    fields = [kind.value_type.field(index) for index in range(2)]
    pairs = pa.StructArray.from_arrays([_binary(parts.names, pa.string()), _binary(parts.values, pa.binary())], fields=fields)
    return pa.Array.from_buffers(kind, columns.rows, [None, pa.py_buffer(parts.offsets)], children=[pairs])


# ---------------------------------------------------------------------------------------------------------------- from Arrow


def plain(array: Any) -> Any:
    """An array without dictionary encoding, run-end encoding and extension types."""
    if isinstance(array, pa.ExtensionArray):
        return plain(array.storage)
    if pa.types.is_dictionary(array.type):
        return plain(array.dictionary_decode())
    if pa.types.is_run_end_encoded(array.type):
        return plain(pc.run_end_decode(array))
    return array


def is_bytes(kind: Any) -> bool:
    """Whether values of this type are bytes: text and binary of all forms."""
    types = pa.types
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return is_bytes(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return is_bytes(kind.storage_type)
    tests = (types.is_binary, types.is_string, types.is_large_binary, types.is_large_string, types.is_fixed_size_binary)
    return any(test(kind) for test in tests) or types.is_binary_view(kind) or types.is_string_view(kind)


def as_binary(array: Any) -> Any:
    """The same bytes as binary, string or their large forms; for an array that ``is_bytes``, or is all null."""
    array = plain(array)
    types, kind = pa.types, array.type
    if types.is_string_view(kind):
        return array.cast(pa.large_string())
    if types.is_binary_view(kind):
        return array.cast(pa.large_binary())
    if types.is_fixed_size_binary(kind) or types.is_null(kind):
        return array.cast(pa.binary())
    return array


def binary_column(array: Any) -> BinaryColumn:
    """The buffers of an array from ``as_binary``, with row 0 first, even if it is a slice."""
    kind = array.type
    wide = pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)
    _, offsets, data = array.buffers()
    return BinaryColumn(ends_of(array, offsets, wide=wide), data or b"", validity(array), wide)


def headers_column(array: Any) -> HeadersColumn:
    """The buffers of an array of lists or maps of (name, value), with row 0 first. See ``headers_of``."""
    pairs = array.values
    wide = pa.types.is_large_list(array.type)
    names, values = (binary_column(as_binary(column)) for column in pairs.flatten())
    return HeadersColumn(ends_of(array, array.buffers()[1], wide=wide), names, values, validity(array), wide)


def is_headers(kind: Any) -> bool:
    """Whether a column of this type can be headers: lists of pairs, or maps, of text to bytes."""
    types = pa.types
    if not (types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind)):
        return False
    if types.is_map(kind):
        parts = [kind.key_type, kind.item_type]
    elif types.is_struct(kind.value_type) and kind.value_type.num_fields == 2:
        parts = [kind.value_type.field(index).type for index in range(2)]
    else:
        return False
    return all(is_bytes(part) for part in parts)


def ends_of(array: Any, offsets: Any, *, wide: bool) -> Any:
    """The offsets of an array's rows from its first row on."""
    width = INT64_BYTES if wide else INT32_BYTES
    if offsets is None or not offsets.size:
        return bytes(width)
    return offsets.slice(array.offset * width) if array.offset else offsets


def validity(array: Any) -> Any:
    """The validity bitmap of an array's rows from its first row on; None without nulls."""
    if not array.null_count:
        return None
    if array.offset % 8:
        return array.is_valid().buffers()[1]
    return array.buffers()[0].slice(array.offset // 8)


def fixed_buffer(array: Any, width: int) -> Any:
    """The values of a column with this width in bytes, without the rest of what it was sliced from."""
    return array.buffers()[1].slice(array.offset * width, len(array) * width)


def batches_of(table: Any) -> tuple[Any, Iterable[Any]]:
    """The schema and record batches of an Arrow source: Table, RecordBatch, reader, or a polars, pandas or DuckDB object.

    Streams are read as needed. Raises: TypeError.
    """
    if isinstance(table, pa.Table):
        return table.schema, table.to_batches()
    if isinstance(table, pa.RecordBatch):
        return table.schema, [table]
    if isinstance(table, pa.RecordBatchReader):
        return table.schema, table
    if hasattr(table, "__arrow_c_stream__"):
        reader = pa.RecordBatchReader.from_stream(table)
        return reader.schema, reader
    if hasattr(table, "__arrow_c_array__"):
        batch = pa.record_batch(table)
        return batch.schema, [batch]
    if hasattr(table, "__dataframe__"):
        return batches_of(pa.table(table))
    raise TypeError(
        f"expected an Arrow table, or something that gives one (polars, pandas 2.2, DuckDB), not {type(table).__name__};"
        " of rows as dicts, pyarrow.Table.from_pylist(rows) makes one"
    )


def gathered(batches: Iterable[Any], size: int) -> Iterable[Any]:
    """The same rows in batches of about ``size`` bytes: small batches are concatenated, large ones sliced without a copy."""
    waiting: list[Any] = []
    held = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        if batch.nbytes >= size:
            if waiting:
                yield _joined(waiting)
                waiting, held = [], 0
            rows = max(1, batch.num_rows * size // batch.nbytes)
            yield from (batch.slice(first, rows) for first in range(0, batch.num_rows, rows))
            continue
        waiting.append(batch)
        held += batch.nbytes
        if held >= size:
            yield _joined(waiting)
            waiting, held = [], 0
    if waiting:
        yield _joined(waiting)


def _joined(batches: list[Any]) -> Any:
    if len(batches) == 1:
        return batches[0]
    if hasattr(pa, "concat_batches"):
        return pa.concat_batches(batches)
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
