"""Records as a Parquet file; needs pyarrow.

    topic string (dictionary)   partition int32   offset int64   timestamp timestamp[ms, UTC]   time the same   timestamp_type string
    key, value   binary; string with a format like json or hex; int64 or double with a numeric format
    headers      list of (name string, value binary)            header.NAME, paths   string, values other than text as JSON

Rows are written in row groups, which limits memory. The file is readable once it is closed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, BinaryIO

from ottla.cli.consume.columns import RecordColumn, byte_rows, is_bytes
from ottla.client.consumer.record import ConsumerRecord
from ottla.client.serializers import needed
from ottla.client.values.value_formats import printed_value

#: Limits of a row group.
GROUP_ROWS, GROUP_BYTES = 100_000, 32 << 20


class ParquetFile:
    """Writes records in row groups."""

    def __init__(self, out: BinaryIO, chosen: Sequence[RecordColumn], *, numbers: dict[str, str]) -> None:
        """`numbers`: Arrow types of the columns key and value with numeric formats. Raises: ImportError."""
        self._arrow = arrow = _arrow()
        self._out = out
        self._rows = byte_rows([column if column.name != "headers" else column._replace(expression="r.headers") for column in chosen])
        self._fields = [_field(arrow, column, numbers) for column in chosen]
        self._schema = arrow.schema(self._fields)
        self._plain = [arrow.types.is_string(field.type) and field.name not in ("topic", "timestamp_type") for field in self._fields]
        needed("pyarrow.parquet", "Parquet")
        self._writer = arrow.parquet.ParquetWriter(out, self._schema, compression="zstd")
        self._pending: list[tuple[Any, ...]] = []
        self._bytes = 0

    def write(self, records: Sequence[ConsumerRecord]) -> None:
        self._pending += self._rows(records)
        self._bytes += sum(len(record.key or b"") + len(record.value or b"") + 64 for record in records)
        if len(self._pending) >= GROUP_ROWS or self._bytes >= GROUP_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        arrow = self._arrow
        arrays = []
        for field, plain, values in zip(self._fields, self._plain, zip(*self._pending, strict=True), strict=True):
            column = (
                [None if value is None else printed_value(value).decode(errors="replace") for value in values] if plain else list(values)
            )
            arrays.append(arrow.array(column, field.type))
        self._writer.write_table(arrow.Table.from_arrays(arrays, schema=self._schema))
        self._pending, self._bytes = [], 0

    def close(self) -> None:
        """Writes the remaining rows and the footer."""
        if self._pending:
            self._write_group()
        self._writer.close()
        self._out.flush()


def _arrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ImportError("Parquet needs pyarrow: pip install 'ottla[spark]', or pip install pyarrow") from None
    return pyarrow


def _field(arrow: Any, column: RecordColumn, numbers: dict[str, str]) -> Any:
    stamp = arrow.timestamp("ms", "UTC")
    kinds = {
        "topic": arrow.dictionary(arrow.int32(), arrow.string()),
        "partition": arrow.int32(),
        "offset": arrow.int64(),
        "timestamp": stamp,
        "timestamp_type": arrow.dictionary(arrow.int8(), arrow.string()),
        "headers": arrow.list_(arrow.struct([("name", arrow.string()), ("value", arrow.binary())])),
    }
    if is_bytes(column):
        return arrow.field(column.name, arrow.binary())
    if column.name in numbers:
        return arrow.field(column.name, arrow.type_for_alias(numbers[column.name]))
    return arrow.field(column.name, kinds.get(column.name, arrow.string()))
