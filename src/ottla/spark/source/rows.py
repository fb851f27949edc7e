"""Rows of a query: which columns are read, which come from decoded values, and the record batches of a task.

The columns of a record are those of Spark's Kafka source, built from the client's Arrow columns without a Python object per record. Spark
compares the schema of a reader's batches with the planned one, so the types are exactly those that Spark derives from `SCHEMA`: binary and
string with 32-bit offsets, timestamps in microseconds of UTC. Only the requested columns (`.schema("value binary")`) are built.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql.types import BinaryType, StructField, StructType

from ottla.base.options import suggestion
from ottla.client.arrow import columns as arrow_columns
from ottla.client.arrow.optional import pa, pc
from ottla.records.columns import Columns
from ottla.spark.source.options import ValueOptions
from ottla.spark.values.decode import CORRUPT, DecodePlan, columns_of, decoded_columns, plan_values, refuse_bad, value_fields

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
RECORD = {**SCHEMA, "headers": HEADERS_TYPE}


@dataclass(frozen=True, slots=True)
class RowPlan:
    """How rows are built from records. Pickled to the tasks."""

    #: The columns of a row.
    names: tuple[str, ...]
    #: The record columns that they need.
    read: tuple[str, ...]
    #: The columns that come from a decoded value, and the decoding.
    decoded: tuple[str, ...] = ()
    value: DecodePlan | None = None
    #: Spark's StructType of a row; None: only record columns, with their fixed types.
    schema: Any = None

    @classmethod
    def of(cls, schema: "StructType", value: ValueOptions | None, topics: tuple[str, ...]) -> "RowPlan":
        """A plan for Spark's schema of the query: the source's own, or the user's.

        Raises: ValueError if a column is unknown or has another type.
        """
        names = tuple(field.name for field in schema.fields)
        if value is None:
            check_columns(schema)
            return cls(names, names)
        descriptors = descriptors_of(value)
        plan, decoded = plan_values(schema, value_fields(value, topics, descriptors), value, descriptors, RECORD)
        check_columns(schema, but=frozenset(decoded))
        read = [name for name in names if name not in decoded]
        if plan is not None:
            read += [name for name in ("value", "offset") if name not in read and (name == "value" or value.mode == "failfast")]
        return cls(names, tuple(read), tuple(decoded), plan, schema)


def descriptors_of(value: ValueOptions) -> bytes:
    """The content of the Protobuf descriptor file; empty without one. Raises: ValueError."""
    if value.descriptor is None:
        return b""
    try:
        return Path(value.descriptor).read_bytes()
    except OSError as error:
        raise ValueError(f"valueDescriptor: {value.descriptor} cannot be read on the driver: {error.strerror}") from None


def default_schema(value: ValueOptions, topics: tuple[str, ...], *, headers: bool) -> "StructType":
    """The schema of a read without one from the user. Raises: ValueError."""
    known = value_fields(value, topics, descriptors_of(value))
    if known is None:
        raise ValueError(f"valueSchema is missing: set it to the fields of the {value.format} value as DDL, or call .schema(...)")
    fields = [StructField("value", known) if field.name == "value" else field for field in columns_of(ddl(headers=headers)).fields]
    if value.mode == "permissive":
        fields.append(StructField(CORRUPT, BinaryType()))
    return StructType(fields)


def check_columns(schema: "StructType", but: frozenset[str] = frozenset()) -> None:
    """Raises: ValueError if a column is not a record column or has another type."""
    for field in schema.fields:
        if not field.nullable:
            raise ValueError(f"column {field.name} is NOT NULL in the schema but may be null; leave NOT NULL out")
        if field.name in but:
            continue
        if field.name not in RECORD:
            raise ValueError(f"a topic has no column {field.name!r}{suggestion(field.name, RECORD)}; it has {', '.join(RECORD)}")
        expected = RECORD[field.name].replace(" ", "").lower()
        if field.dataType.simpleString().lower() != expected:
            raise ValueError(f"column {field.name} is {RECORD[field.name]}, not {field.dataType.simpleString()}; cast it with SQL")


class RowBuilder:
    """Builds the record batches of a task."""

    def __init__(self, plan: RowPlan) -> None:
        self._plan = plan
        self._read = arrow_schema(plan.read)
        self._schema = self._read if plan.schema is None else _arrow_schema(plan.schema)

    def batch(self, part: Columns, topic: str, partition: int) -> "pa.RecordBatch":
        """Raises: BadValue for a malformed value if valueMode is failfast."""
        found = record_batch(part, self._read, topic, partition)
        value = self._plan.value
        return found if value is None else self._with_values(found, value, f"{topic}-{partition}")

    def _with_values(self, found: "pa.RecordBatch", value: DecodePlan, where: str) -> "pa.RecordBatch":
        made, bad = decoded_columns(found.column("value"), value, self._schema, list(self._plan.decoded))
        if bad is not None and value.options.mode == "failfast":
            refuse_bad(bad, found.column("offset"), where, value.options.format)
        batch = pa.RecordBatch.from_arrays(
            [made[name] if name in made else found.column(name) for name in self._plan.names], schema=self._schema
        )
        return batch.filter(pc.invert(bad)) if bad is not None and value.options.mode == "dropmalformed" else batch


def _arrow_schema(schema: Any) -> "pa.Schema":
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def ddl(*, headers: bool) -> str:
    """The source's schema as DDL."""
    columns = {**SCHEMA, "headers": HEADERS_TYPE} if headers else SCHEMA
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


def arrow_schema(names: Sequence[str]) -> "pa.Schema":
    """The Arrow schema of the columns `names`, as Spark derives it."""
    return pa.schema([field.with_name(name) for field, name in zip(_ours(names), names, strict=True)])


def record_batch(columns: Columns, schema: "pa.Schema", topic: str, partition: int) -> "pa.RecordBatch":
    """`columns` of one partition (timestamps in µs) as a record batch of `schema`. Copies only constants."""
    made = arrow_columns.record_batch(columns, _ours(schema.names), topic, partition).columns
    if "headers" in schema.names:
        index = schema.names.index("headers")
        made[index] = _without_empty(made[index])
    return pa.RecordBatch.from_arrays(made, schema=schema)


def _without_empty(headers: "pa.Array") -> "pa.Array":
    """Null for a record without headers, as in Spark's own source."""
    return pc.if_else(pc.equal(pc.list_value_length(headers), 0), pa.scalar(None, headers.type), headers)


def _ours(names: Sequence[str]) -> "pa.Schema":
    return arrow_columns.record_schema([OUR_NAMES.get(name, name) for name in names], timestamp_unit="us")
