"""Values as typed columns, decoded inside the source: bytes of a record batch in, Arrow columns of Spark's types out.

    value bytes --a decoder of the format--> struct column, and which rows could not be read
                --planned for the query-->   the columns that the query's schema names, and no others

A query's schema may name, beside the columns of a record,

    value STRUCT<...>     the decoded value, with those of its fields that are wanted
    value BINARY          its bytes
    NAME TYPE             a field of the value, for any name that is no column of a record
    _corrupt BINARY       the bytes of a value that could not be decoded, null otherwise

Without a schema of the user's there are the columns of a record, `value` as a struct of all fields, and with valueMode=permissive
`_corrupt`. A record without a value (a tombstone) has nulls and is not corrupt. A value with one bad field is bad as a whole.

Nothing of a format's library is imported before a value of that format is read.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from ottla.base.options import suggestion
from ottla.client.arrow.json import Decoded
from ottla.records.errors import RecordsError
from ottla.spark.values.options import ValueOptions

if TYPE_CHECKING:
    import pyarrow as pa

CORRUPT = "_corrupt"
#: A column of binary as a struct column.
Decode = Callable[[Any], Decoded]


class BadValue(RecordsError):
    """A value that is not of its format, where such values end the query."""


@dataclass(frozen=True, slots=True)
class ValuePlan:
    """What a query wants of each value. Travels to the tasks."""

    options: ValueOptions
    #: The fields to decode, Spark's StructType as JSON; of csv all that there are, in their order.
    fields: str
    #: protobuf's descriptors.
    descriptors: bytes = b""

    def decoder(self) -> Decode:
        """The function that decodes. Kept by the process."""
        return _decoder(self)


@cache
def _decoder(plan: ValuePlan) -> Decode:
    wanted = arrow_type(plan.fields)
    match plan.options.format:
        case "json":
            from ottla.spark.values.text import json_decoder

            return json_decoder(wanted)
        case "csv":
            from ottla.spark.values.text import csv_decoder

            return csv_decoder(wanted, plan.options)
        case "avro":
            from ottla.spark.values.avro import avro_decoder

            return avro_decoder(plan.options, wanted)
        case "protobuf":
            from ottla.spark.values.protobuf import protobuf_decoder

            return protobuf_decoder(plan.descriptors, plan.options.message or "")


def arrow_type(fields: str) -> "pa.DataType":
    """The Arrow type of a StructType, as Spark derives it."""
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import StructType

    return to_arrow_type(StructType.fromJson(json.loads(fields)), timezone="UTC")


def decoded_columns(raw: Any, plan: ValuePlan, schema: "pa.Schema", names: list[str]) -> tuple[dict[str, Any], Any]:
    """The columns `names` of `schema` that come of values, and which rows are bad (None: none is). Raises: what the decoder raises."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = plan.decoder()(raw)
    made: dict[str, Any] = {}
    for name in names:
        kind = schema.field(name).type
        if name == CORRUPT:
            none = pa.scalar(None, pa.binary())
            made[name] = pa.nulls(len(raw), pa.binary()) if found.bad is None else pc.if_else(found.bad, raw, none)
        elif name == "value":
            made[name] = fitted(found.array, kind)
        else:
            made[name] = field_of(found.array, name, kind)
    return made, found.bad


def fitted(array: Any, kind: Any) -> Any:
    """A column as one of another type: fields by name, null where there is none of that name; numbers and times by their value."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if array.type == kind:
        return array
    if pa.types.is_struct(kind) and pa.types.is_struct(array.type):
        children = [field_of(array, one.name, one.type) for one in kind]
        mask = pc.is_null(array) if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    if pa.types.is_list(kind) and pa.types.is_list(array.type):
        items = fitted(array.flatten(), kind.value_type)
        sizes = pc.fill_null(pc.list_value_length(array), 0)
        ends = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(sizes).cast(pa.int32())])
        mask = pc.is_null(array) if array.null_count else None
        return pa.ListArray.from_arrays(ends, items, type=kind, mask=mask)
    return array.cast(kind)


def field_of(array: Any, name: str, kind: Any) -> Any:
    """A field of a struct column, null where the struct is or has no such field."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if array.type.get_field_index(name) < 0:
        return pa.nulls(len(array), kind)
    return fitted(pc.struct_field(array, name), kind)


def refuse_bad(bad: Any, offsets: Any, where: str, format: str) -> None:
    """Raises: BadValue for the first bad row."""
    import pyarrow.compute as pc

    row = pc.index(bad, True).as_py()
    raise BadValue(f"{where} at offset {offsets[row].as_py()}: its value cannot be read as {format}, and valueMode is failfast")


def fields_of_value(options: ValueOptions, topics: tuple[str, ...], descriptors: bytes) -> Any:
    """All the fields that a value has, as Spark's StructType; None where only the query's own schema can tell.

    Raises: ValueError for a schema that cannot be used.
    """
    match options.format:
        case "json" | "csv":
            if options.schema is None:
                return None
            from ottla.spark.values.ddl import columns_of

            return columns_of(options.schema)
        case "avro":
            from ottla.spark.values.avro import fields_of_avro

            return fields_of_avro(options, topics)
        case "protobuf":
            from ottla.spark.values.protobuf import fields_of_message

            return fields_of_message(descriptors, options.message or "")


def planned(
    schema: Any, known: Any, options: ValueOptions, descriptors: bytes, record: Mapping[str, str]
) -> tuple[ValuePlan | None, list[str]]:
    """What is decoded for a query's schema, None where nothing has to be; and the columns of the schema that come of it.

    `known`: all fields that values have, None: nobody said. `record`: the columns of a record.

    Raises: ValueError for a field that values do not have, or of another type.
    """
    from pyspark.sql.types import StructType

    names, wanted = [], {}
    for field in schema.fields:
        if field.name == "value":
            if field.dataType.simpleString() == "binary":
                continue
            if not isinstance(field.dataType, StructType):
                raise ValueError(f"column value is a STRUCT of the fields that are wanted, or BINARY, not {field.dataType.simpleString()}")
            wanted.update({one.name: one for one in field.dataType.fields})
        elif field.name == CORRUPT:
            if field.dataType.simpleString() != "binary":
                raise ValueError(f"column {CORRUPT} is BINARY, not {field.dataType.simpleString()}")
        elif field.name in record:
            continue
        elif field.name in wanted and wanted[field.name].dataType != field.dataType:
            raise ValueError(f"field {field.name} of the value is wanted as two types")
        else:
            wanted[field.name] = field
        names.append(field.name)
    if not names:
        return None, names
    if known is not None:
        check_fields(list(wanted.values()), known, options)
    elif not wanted:
        raise ValueError(f"valueSchema is missing: nothing says what fields a value of {options.format} has")
    chosen = list(wanted.values()) if wanted and (options.format != "csv" or known is None) else known.fields
    return ValuePlan(options, StructType(chosen).json(), descriptors), names


def check_fields(wanted: list[Any], known: Any, options: ValueOptions) -> None:
    """Raises: ValueError for a wanted field that values do not have, or of another type."""
    there = {field.name: field.dataType for field in known.fields}
    for field in wanted:
        if field.name not in there:
            near = suggestion(field.name, there)
            raise ValueError(f"neither a record nor its value has a column {field.name!r}{near}; the value has {', '.join(there)}")
        has, want = there[field.name].simpleString(), field.dataType.simpleString()
        if has != want and not want.startswith("struct"):
            raise ValueError(f"field {field.name} of the value is {has}, not {want}; cast it with SQL")
