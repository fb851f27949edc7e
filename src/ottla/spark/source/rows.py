"""What a query's rows are made of: which columns are read, which of them come of decoded values, and the record batches of a task."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.base.options import suggestion
from ottla.records.columns import Columns
from ottla.spark.source import columns
from ottla.spark.values.decode import CORRUPT, ValuePlan, decoded_columns, fields_of_value, planned, refuse_bad
from ottla.spark.values.options import ValueOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

RECORD = {**columns.SCHEMA, "headers": columns.HEADERS_TYPE}


@dataclass(frozen=True, slots=True)
class RowPlan:
    """How rows are made of records. Travels to the tasks."""

    #: The columns of a row.
    names: tuple[str, ...]
    #: The columns of a record that they need.
    read: tuple[str, ...]
    #: Those that come of a decoded value, and how.
    decoded: tuple[str, ...] = ()
    value: ValuePlan | None = None
    #: Spark's StructType of a row; None: the columns of a record have types of their own.
    schema: Any = None

    @classmethod
    def of(cls, schema: "StructType", value: ValueOptions | None, topics: tuple[str, ...]) -> "RowPlan":
        """From the schema that Spark planned with: the source's own, or the user's.

        Raises: ValueError when a column is unknown or of another type.
        """
        names = tuple(field.name for field in schema.fields)
        if value is None:
            check_columns(schema)
            return cls(names, names)
        descriptors = descriptors_of(value)
        plan, decoded = planned(schema, fields_of_value(value, topics, descriptors), value, descriptors, RECORD)
        check_columns(schema, but=frozenset(decoded))
        read = [name for name in names if name not in decoded]
        if plan is not None:
            read += [name for name in ("value", "offset") if name not in read and (name == "value" or value.mode == "failfast")]
        return cls(names, tuple(read), tuple(decoded), plan, schema)


def descriptors_of(value: ValueOptions) -> bytes:
    """The content of the file of descriptors, if there is to be one. Raises: ValueError."""
    if value.descriptor is None:
        return b""
    try:
        return Path(value.descriptor).read_bytes()
    except OSError as error:
        raise ValueError(f"valueDescriptor: {value.descriptor} cannot be read on the driver: {error.strerror}") from None


def default_schema(value: ValueOptions, topics: tuple[str, ...], *, headers: bool) -> "StructType":
    """The schema of a read that names none. Raises: ValueError."""
    from pyspark.sql.types import BinaryType, StructField, StructType

    from ottla.spark.values.ddl import columns_of

    known = fields_of_value(value, topics, descriptors_of(value))
    if known is None:
        raise ValueError(f"valueSchema is missing: give the fields of a value of {value.format} as DDL, or name them with .schema(...)")
    fields = [StructField("value", known) if field.name == "value" else field for field in columns_of(columns.ddl(headers=headers)).fields]
    if value.mode == "permissive":
        fields.append(StructField(CORRUPT, BinaryType()))
    return StructType(fields)


def check_columns(schema: "StructType", but: frozenset[str] = frozenset()) -> None:
    """Raises: ValueError when a column is not one of a record, or of another type."""
    for field in schema.fields:
        if not field.nullable:
            raise ValueError(f"column {field.name} may be null, whatever the schema says; leave NOT NULL out")
        if field.name in but:
            continue
        if field.name not in RECORD:
            raise ValueError(f"a topic has no column {field.name!r}{suggestion(field.name, RECORD)}; it has {', '.join(RECORD)}")
        wanted = RECORD[field.name].replace(" ", "").lower()
        if field.dataType.simpleString().lower() != wanted:
            raise ValueError(f"column {field.name} is {RECORD[field.name]}, not {field.dataType.simpleString()}; cast it with SQL")


class Rows:
    """Makes the record batches of a task."""

    def __init__(self, plan: RowPlan) -> None:
        self._plan = plan
        self._read = columns.arrow_schema(plan.read)
        self._schema = self._read if plan.schema is None else _arrow_schema(plan.schema)

    def batch(self, part: Columns, topic: str, partition: int) -> "pa.RecordBatch":
        """Raises: BadValue where a bad value ends the query."""
        found = columns.record_batch(part, self._read, topic, partition)
        value = self._plan.value
        return found if value is None else self._with_values(found, value, f"{topic}-{partition}")

    def _with_values(self, found: "pa.RecordBatch", value: ValuePlan, where: str) -> "pa.RecordBatch":
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
