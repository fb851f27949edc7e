"""Between the bytes of a log and Arrow: the columns of Spark's Kafka source, made without a Python object per record.

    batches of a fetch --ottla.records--> buffers in Arrow's layout --from_buffers, no copy--> pyarrow.RecordBatch
    pyarrow.RecordBatch --buffers--> ottla.records --> batches to send

Spark compares the schema of what a reader yields with the one it planned, so types here are exactly those that Spark derives from `SCHEMA`:
binary and string with 32-bit offsets, timestamps in microseconds of UTC. A read of a subset of the columns (`.schema("value binary")`)
makes only these.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ottla.records.build import BinaryColumn, HeadersColumn
from ottla.records.columns import BinaryBuffers, Columns

if TYPE_CHECKING:
    import pyarrow as pa

#: Name -> Spark's DDL type, in the order of Spark's Kafka source.
SCHEMA = {
    "key": "BINARY",
    "value": "BINARY",
    "topic": "STRING",
    "partition": "INT",
    "offset": "BIGINT",
    "timestamp": "TIMESTAMP",
    "timestampType": "INT",
}
INT32_BYTES = 4
HEADERS_TYPE = "ARRAY<STRUCT<key: STRING, value: BINARY>>"


def ddl(*, headers: bool) -> str:
    """The source's schema as DDL."""
    columns = {**SCHEMA, "headers": HEADERS_TYPE} if headers else SCHEMA
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


def arrow_schema(names: Sequence[str]) -> "pa.Schema":
    """Arrow's side of the columns `names`, as Spark derives it."""
    import pyarrow as pa

    header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    types = {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestampType": pa.int32(),
        "headers": pa.list_(pa.field("element", header)),
    }
    return pa.schema([pa.field(name, types[name]) for name in names])


def record_batch(columns: Columns, schema: "pa.Schema", topic: str, partition: int) -> "pa.RecordBatch":
    """`columns` of one partition, timestamps in µs, as a record batch with the columns of `schema`. Copies nothing but constants."""
    import pyarrow as pa

    rows = columns.rows

    def fixed(data: bytes, kind: Any) -> Any:
        return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(data)])

    make: dict[str, Callable[[], Any]] = {
        "key": lambda: _binary(columns.key, pa.binary()),
        "value": lambda: _binary(columns.value, pa.binary()),
        "topic": lambda: pa.repeat(pa.scalar(topic, pa.string()), rows),
        "partition": lambda: pa.repeat(pa.scalar(partition, pa.int32()), rows),
        "offset": lambda: fixed(columns.offsets, pa.int64()),
        "timestamp": lambda: fixed(columns.timestamps, schema.field("timestamp").type),
        "timestampType": lambda: fixed(columns.timestamp_types, pa.int32()),
        "headers": lambda: _headers(columns, schema.field("headers").type),
    }
    return pa.RecordBatch.from_arrays([make[name]() for name in schema.names], schema=schema)


def _binary(parts: BinaryBuffers, kind: Any) -> Any:
    import pyarrow as pa

    buffers = [None if part is None else pa.py_buffer(part) for part in (parts.validity, parts.offsets, parts.data)]
    return pa.Array.from_buffers(kind, len(parts.offsets) // INT32_BYTES - 1, buffers, parts.null_count)


def _headers(columns: Columns, kind: Any) -> Any:
    import pyarrow as pa

    parts = columns.headers
    assert parts is not None, "headers are decoded when their column is read"
    fields = [kind.value_type.field(index) for index in range(2)]
    pairs = pa.StructArray.from_arrays([_binary(parts.names, pa.string()), _binary(parts.values, pa.binary())], fields=fields)
    return pa.Array.from_buffers(kind, columns.rows, [None, pa.py_buffer(parts.offsets)], children=[pairs])


def binary_column(array: Any) -> BinaryColumn:
    """The buffers of an Arrow array of binary, string or their large forms; rows begin at `array.offset`."""
    import pyarrow as pa

    kind = array.type
    validity, offsets, data = array.buffers()
    wide = pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)
    return BinaryColumn(offsets or bytes(8 if wide else INT32_BYTES), data or b"", validity, wide)


def headers_column(array: Any) -> HeadersColumn:
    """The buffers of an Arrow array of list<struct<key: string, value: binary>>."""
    import pyarrow as pa

    pairs = array.values
    assert pairs.offset == 0, "Spark sends whole lists"
    validity, offsets = array.buffers()[:2]
    names, values = binary_column(pairs.field(0)), binary_column(pairs.field(1))
    return HeadersColumn(offsets or bytes(INT32_BYTES), names, values, validity, pa.types.is_large_list(array.type))
