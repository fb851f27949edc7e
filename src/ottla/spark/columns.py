"""Between the bytes of a log and Arrow: the columns of Spark's Kafka source, made without a Python object per record.

    batches of a fetch --ottla.records--> buffers in Arrow's layout --from_buffers, no copy--> pyarrow.RecordBatch
    pyarrow.RecordBatch --buffers--> ottla.records --> batches to send

Spark compares the schema of what a reader yields with the one it planned, so types here are exactly those that Spark derives from `SCHEMA`:
binary and string with 32-bit offsets, timestamps in microseconds of UTC. A read of a subset of the columns (`.schema("value binary")`) makes
only these.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ottla.records.read import Columns

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
    """`columns` of one partition as a record batch with the columns of `schema`."""
    import pyarrow as pa

    rows = columns.rows

    def binary(parts: Any, kind: Any) -> Any:
        buffers = [None if part is None else pa.py_buffer(part) for part in (parts.validity, parts.offsets, parts.data)]
        return pa.Array.from_buffers(kind, rows_of(parts), buffers)

    def rows_of(parts: Any) -> int:
        return len(parts.offsets) // 4 - 1

    def fixed(data: Any, kind: Any) -> Any:
        return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(data)])

    def headers() -> Any:
        lists = columns.headers
        assert lists is not None, "headers are decoded when their column is read"
        kind = schema.field("headers").type
        structs = pa.StructArray.from_arrays(
            [binary(lists.keys, pa.string()), binary(lists.values, pa.binary())], fields=list(kind.value_type)
        )
        return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(lists.offsets)], children=[structs])

    make: dict[str, Callable[[], Any]] = {
        "key": lambda: binary(columns.key, pa.binary()),
        "value": lambda: binary(columns.value, pa.binary()),
        "topic": lambda: pa.repeat(pa.scalar(topic, pa.string()), rows),
        "partition": lambda: pa.repeat(pa.scalar(partition, pa.int32()), rows),
        "offset": lambda: fixed(columns.offsets, pa.int64()),
        "timestamp": lambda: fixed(columns.timestamps, pa.timestamp("us", tz="UTC")),
        "timestampType": lambda: fixed(columns.timestamp_types, pa.int32()),
        "headers": headers,
    }
    return pa.RecordBatch.from_arrays([make[name]() for name in schema.names], schema=schema)
