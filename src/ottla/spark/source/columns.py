"""The columns of Spark's Kafka source, built from the client's Arrow columns without a Python object per record.

Spark compares the schema of a reader's batches with the planned one, so the types are exactly those that Spark derives from `SCHEMA`:
binary and string with 32-bit offsets, timestamps in microseconds of UTC. Only the requested columns (`.schema("value binary")`) are built.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ottla.client.arrow import columns as arrow_columns
from ottla.records.columns import Columns

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
#: Columns with another name in the client.
OUR_NAMES = {"timestampType": "timestamp_type"}
HEADERS_TYPE = "ARRAY<STRUCT<key: STRING, value: BINARY>>"


def ddl(*, headers: bool) -> str:
    """The source's schema as DDL."""
    columns = {**SCHEMA, "headers": HEADERS_TYPE} if headers else SCHEMA
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


def arrow_schema(names: Sequence[str]) -> "pa.Schema":
    """The Arrow schema of the columns `names`, as Spark derives it."""
    import pyarrow as pa

    return pa.schema([field.with_name(name) for field, name in zip(_ours(names), names, strict=True)])


def record_batch(columns: Columns, schema: "pa.Schema", topic: str, partition: int) -> "pa.RecordBatch":
    """`columns` of one partition (timestamps in µs) as a record batch of `schema`. Copies only constants."""
    import pyarrow as pa

    made = arrow_columns.record_batch(columns, _ours(schema.names), topic, partition).columns
    if "headers" in schema.names:
        index = schema.names.index("headers")
        made[index] = _without_empty(made[index])
    return pa.RecordBatch.from_arrays(made, schema=schema)


def _without_empty(headers: "pa.Array") -> "pa.Array":
    """Null for a record without headers, as in Spark's own source."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.if_else(pc.equal(pc.list_value_length(headers), 0), pa.scalar(None, headers.type), headers)


def _ours(names: Sequence[str]) -> "pa.Schema":
    return arrow_columns.record_schema([OUR_NAMES.get(name, name) for name in names], timestamp_unit="us")
