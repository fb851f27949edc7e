"""Converts the rows of a table to records. The columns are checked before anything is sent.

    key          a column: text and binary unchanged, other scalars as text; or in ``key_format``
    value        a column, likewise; nested ones as JSON
                 several columns, or all: the row as an object in ``value_format``: json or avro
    headers      a column of lists of (name, value), or a map; or one list of pairs for all rows
    partition    a column of integers, with null for partitioning by key; or one number for all rows
    timestamp_ms a column of timestamps, or integers of ms since 1970; or one such number; null is now

A null key is a record without a key, a null value a tombstone. A row of several columns that are all null is a tombstone, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

from ottla.base.options import suggestion
from ottla.base.units import KiB, MiB
from ottla.client.arrow.columns import (
    INT32_BYTES,
    INT64_BYTES,
    as_binary,
    batches_of,
    binary_column,
    fixed_buffer,
    gathered,
    headers_column,
    headers_type,
    is_bytes,
    is_headers,
    plain,
)
from ottla.client.arrow.optional import pa, pc
from ottla.client.arrow.values import ColumnFormat
from ottla.client.producer.record_preparation import plain_headers
from ottla.records.build import BinaryColumn, partitions_of_keys

#: Any partition.
ANY = -1
#: Bytes of a table that are processed at once: they fit the processor's caches, and give a good batch for each partition.
PORTION_BYTES, PARTITION_BYTES, PORTION_MAX_BYTES = 4 * MiB, 256 * KiB, 64 * MiB


@dataclass(slots=True)
class Portion:
    """Rows as buffers."""

    #: Number of the first row in its table.
    first_row: int
    count: int
    value: BinaryColumn
    #: Other arguments of ``column_encoder``: key, headers, timestamps, timestamps_us.
    others: dict[str, Any]
    #: One partition for all rows, None, or an int32 array with nulls.
    partition: Any

    def partitions(self, count: int) -> Any:
        """The partition of each row, as an int32 buffer: the given one, its key's, or ANY. Raises: IndexError."""
        key = self.others["key"]
        hashed = None if key is None else partitions_of_keys(key, count, first=0, last=self.count)
        if self.partition is None:
            return hashed
        named = self.partition
        if named.null_count:
            rest = pa.scalar(ANY, pa.int32()) if hashed is None else pa.Array.from_buffers(pa.int32(), self.count, [None, _py(hashed)])
            named = pc.coalesce(named, rest)
        return fixed_buffer(named, INT32_BYTES)


def _py(data: bytes) -> Any:
    return pa.py_buffer(data)


class TableColumns(TypedDict, total=False):
    """Roles of a table's columns; see the module."""

    key: str | None
    #: One column; several; None: all that have no other role.
    value: str | Sequence[str] | None
    headers: str | Sequence[tuple[str, bytes | None]] | None
    partition: str | int | None
    timestamp_ms: str | int | None
    #: The same, under the usual name of a column of times.
    timestamp: str | int | None
    #: "bytes", "str", "int", "float", "json", "avro", or an object of `ottla.serializers`.
    key_format: Any
    value_format: Any
    #: Schema of the values, for avro.
    schema: Any


class TableRows:
    """A table and the roles of its columns. Raises: ValueError or TypeError for invalid roles, before anything is read."""

    def __init__(self, table: Any, *, now_ms: int, **columns: Unpack[TableColumns]) -> None:
        key, value, headers = columns.get("key"), columns.get("value"), columns.get("headers")
        partition, timestamp, schema = columns.get("partition"), columns.get("timestamp_ms"), columns.get("schema")
        key_format, value_format = columns.get("key_format"), columns.get("value_format")
        unknown = set(columns) - set(TableColumns.__annotations__)
        if unknown:
            name = min(unknown)
            known = list(TableColumns.__annotations__)
            raise TypeError(f"a table has no {name}={suggestion(name, known)}; it has {', '.join(known)}")
        if columns.get("timestamp") is not None:
            if timestamp is not None:
                raise TypeError("timestamp= and timestamp_ms= are the same; give one of them")
            timestamp = columns["timestamp"]
        self._schema, self._batches = batches_of(table)
        self._now_ms = now_ms
        self._key, self._partition, self._timestamp = key, partition, timestamp
        self._headers = headers if headers is None or isinstance(headers, str) else plain_headers(headers)
        named = [given for given in (key, headers, partition, timestamp) if isinstance(given, str)]
        for given in [*named, *([value] if isinstance(value, str) else value or ())]:
            self._check_name(given)
        self._key_format = None if key is None else self._format(key, key_format, None, "str")
        if key_format is not None and key is None:
            raise ValueError("key_format needs the name of a column as key")
        others = [given for given in (headers, partition, timestamp) if isinstance(given, str)]
        self._value: str | list[str]
        if isinstance(value, str):
            self._value = value
            self._value_format = self._format(value, value_format, schema, "json")
        else:
            self._value = [name for name in self._schema.names if name not in others] if value is None else list(value)
            self._value_format = ColumnFormat("json" if value_format is None else value_format, schema)
            if self._value_format.name not in ("json", "avro"):
                raise ValueError(f"a row of columns is written as json or avro, not as {self._value_format.name}; name one column as value")
            if not self._value:
                raise ValueError("no columns are left for the value")
        self._check_types()

    def _check_name(self, name: str) -> None:
        names = self._schema.names
        if names.count(name) != 1:
            why = "has several columns" if name in names else "has no column"
            raise ValueError(f"the table {why} {name!r}{suggestion(name, names)}; it has {', '.join(names)}")

    def _format(self, name: str, given: Any, schema: Any, otherwise: str) -> ColumnFormat:
        if given is None:
            given = "bytes" if is_bytes(self._schema.field(name).type) else otherwise
        return ColumnFormat(given, schema)

    def _check_types(self) -> None:
        types = pa.types
        if isinstance(self._headers, str):
            kind = self._schema.field(self._headers).type
            if not is_headers(kind) and not types.is_null(kind):
                raise TypeError(f"headers are lists of (name, value) or maps of text to bytes, and column {self._headers} is {kind}")
        for what, given in (("partition", self._partition), ("timestamp_ms", self._timestamp)):
            if not isinstance(given, str):
                continue
            kind = self._schema.field(given).type
            right = types.is_integer(kind) or types.is_null(kind) or (what == "timestamp_ms" and types.is_timestamp(kind))
            if not right:
                raise TypeError(
                    f"{what}: column {given} is {kind}; expected whole numbers{' or timestamps' if what == 'timestamp_ms' else ''}"
                )

    @property
    def partition(self) -> int | None:
        """The partition of all rows, if there is one."""
        return self._partition if isinstance(self._partition, int) else None

    def portions(self, partitions: int) -> Iterator[Portion]:
        """The rows in portions, for this number of partitions. Raises: SerializationFailed if a column does not fit its format."""
        first_row = 0
        size = min(max(PORTION_BYTES, partitions * PARTITION_BYTES), PORTION_MAX_BYTES)
        for batch in gathered(self._batches, size):
            yield self._portion(batch, first_row)
            first_row += batch.num_rows

    def _portion(self, batch: pa.RecordBatch, first_row: int) -> Portion:
        if isinstance(self._value, str):
            value = self._value_format.encoded(batch.column(self._value), f"column {self._value}")
        else:
            value = self._value_format.encoded(_rows(batch, self._value), "a row")
        others = {"key": None, "headers": self._header_column(batch), **self._times(batch)}
        if self._key is not None:
            assert self._key_format is not None, "a key has a format"
            keys = as_binary(self._key_format.encoded(batch.column(self._key), f"column {self._key}"))
            others["key"] = binary_column(keys) if keys.null_count < len(keys) else None
        partition: Any = self._partition
        if isinstance(partition, str):
            partition = _partitions(batch.column(partition), first_row)
        if partition is None and others["key"] is None:
            partition = ANY
        return Portion(first_row, batch.num_rows, binary_column(as_binary(value)), others, partition)

    def _header_column(self, batch: pa.RecordBatch) -> Any:
        if self._headers is None:
            return None
        if not isinstance(self._headers, str):
            pairs = list(self._headers)
            return headers_column(pa.repeat(pa.scalar(pairs, pa.map_(pa.string(), pa.binary())), batch.num_rows).cast(headers_type()))
        column = batch.column(self._headers)
        return None if column.null_count == len(column) else headers_column(column)

    def _times(self, batch: pa.RecordBatch) -> dict[str, Any]:
        if self._timestamp is None or isinstance(self._timestamp, int):
            return {"timestamps": self._now_ms if self._timestamp is None else self._timestamp}
        column = plain(batch.column(self._timestamp))
        if pa.types.is_timestamp(column.type) and column.type.unit not in ("ms", "us"):
            column = column.cast(pa.timestamp("us" if column.type.unit == "ns" else "ms", column.type.tz), safe=False)
        micros = pa.types.is_timestamp(column.type) and column.type.unit == "us"
        times = column.cast(pa.int64())
        if times.null_count:
            times = pc.fill_null(times, self._now_ms * 1000 if micros else self._now_ms)
        return {"timestamps": fixed_buffer(times, INT64_BYTES), "timestamps_us": micros}


def _partitions(column: pa.Array, first_row: int) -> Any:
    """The column as int32; None if it is all null. Raises: ValueError for an impossible partition."""
    try:
        column = plain(column).cast(pa.int32())
    except pa.ArrowInvalid as error:
        raise ValueError(f"a partition is no number of 32 bits: {error}") from None
    if column.null_count == len(column):
        return None
    least = pc.min(column)
    if least.as_py() < 0:
        raise ValueError(f"row {first_row + pc.index(column, least).as_py()} is for partition {least}; partitions count from 0")
    return column


def _rows(batch: pa.RecordBatch, names: list[str]) -> pa.Array:
    """The columns as one column of objects, null where all are null."""
    columns = [batch.column(name) for name in names]
    empty = None
    if all(column.null_count for column in columns):
        for column in columns:
            empty = column.is_null() if empty is None else pc.and_(empty, column.is_null())
    return pa.StructArray.from_arrays(columns, names=names, mask=empty)
