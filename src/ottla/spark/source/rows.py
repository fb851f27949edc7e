"""Rows of a query: which columns are read, which come from decoded values, and the record batches of a task."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import BinaryType, StructField, StructType

from ottla.base.options import suggestion
from ottla.records.columns import Columns
from ottla.spark.source import columns
from ottla.spark.source.options import ValueOptions
from ottla.spark.values.decode import CORRUPT, DecodePlan, columns_of, decoded_columns, plan_values, refuse_bad, value_fields

if TYPE_CHECKING:
    import pyarrow as pa

RECORD = {**columns.SCHEMA, "headers": columns.HEADERS_TYPE}


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
    fields = [StructField("value", known) if field.name == "value" else field for field in columns_of(columns.ddl(headers=headers)).fields]
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
        self._read = columns.arrow_schema(plan.read)
        self._schema = self._read if plan.schema is None else _arrow_schema(plan.schema)

    def batch(self, part: Columns, topic: str, partition: int) -> "pa.RecordBatch":
        """Raises: BadValue for a malformed value if valueMode is failfast."""
        found = columns.record_batch(part, self._read, topic, partition)
        value = self._plan.value
        return found if value is None else self._with_values(found, value, f"{topic}-{partition}")

    def _with_values(self, found: "pa.RecordBatch", value: DecodePlan, where: str) -> "pa.RecordBatch":
        import pyarrow as pa
        import pyarrow.compute as pc

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
