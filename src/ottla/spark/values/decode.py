"""Decodes values inside the source: bytes of a record batch in, Arrow columns of Spark's types out.

    value bytes --decoder of the format--> struct column, and a flag for each malformed row
                --plan of the query-->     only the columns in the query's schema

Besides record columns a query's schema may name

    value STRUCT<...>     the decoded value with the requested fields
    value BINARY          its bytes
    NAME TYPE             a field of the value, for any other name
    _corrupt BINARY       the bytes of a malformed value, else null

The default schema has the record columns, `value` as a struct of all fields, and with valueMode=permissive `_corrupt`. A record without a
value (a tombstone) gives nulls and is not malformed. A value with one bad field is malformed as a whole.

A format's library is imported when the first value of that format is read.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from pyspark.sql.types import StructType

from ottla.base.options import suggestion
from ottla.client.arrow.json import Decoded
from ottla.client.arrow.optional import pa, pc
from ottla.records.errors import RecordsError
from ottla.spark.source.options import ValueOptions
from ottla.spark.values.framed import subject_of

CORRUPT = "_corrupt"
#: Decodes a binary column to a struct column of the query's fields.
Decode = Callable[[Any], Decoded]


class BadValue(RecordsError):
    """A malformed value with valueMode=failfast."""


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """The fields of a value that a query uses. Pickled to the tasks."""

    options: ValueOptions
    #: The fields to decode, Spark's StructType as JSON. For csv always all fields, in order.
    fields: str
    #: Protobuf's descriptors.
    descriptors: bytes = b""

    def decoder(self) -> Decode:
        """The decoder, cached per process."""
        return _decoder(self)


@cache
def _decoder(plan: DecodePlan) -> Decode:
    target = arrow_type(plan.fields)
    match plan.options.format:
        case "json":
            from ottla.spark.values.text import json_decoder

            return json_decoder(target)
        case "csv":
            from ottla.spark.values.text import csv_decoder

            return csv_decoder(target, plan.options)
        case "avro":
            from ottla.spark.values.avro import avro_decoder

            return avro_decoder(plan.options, target)
        case "protobuf":
            from ottla.spark.values.protobuf import framed_decoder, protobuf_decoder

            if plan.options.registry_url is not None:
                return framed_decoder(plan.options.registry_url, plan.options.message or "", target)
            return protobuf_decoder(plan.descriptors, plan.options.message or "")
        case "json-schema":
            from ottla.spark.values.json_schema import framed_json_decoder

            return framed_json_decoder(target)


def arrow_type(fields: str) -> "pa.DataType":
    """The Arrow type of a StructType, as Spark derives it."""
    from pyspark.sql.pandas.types import to_arrow_type

    return to_arrow_type(StructType.fromJson(json.loads(fields)), timezone="UTC")


def decoded_columns(raw: Any, plan: DecodePlan, schema: "pa.Schema", names: list[str]) -> tuple[dict[str, Any], Any]:
    """The columns `names` of `schema` that come from values, and flags of bad rows (None: no bad row). Raises: what the decoder raises."""
    from ottla.lake.casts import field_of, fitted

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


def refuse_bad(bad: Any, offsets: Any, where: str, format: str) -> None:
    """Raises: BadValue for the first bad row."""
    row = pc.index(bad, True).as_py()
    raise BadValue(f"{where} at offset {offsets[row].as_py()}: the value is not valid {format}, and valueMode is failfast")


def columns_of(text: str) -> Any:
    """Columns in DDL as Spark's StructType. Needs no JVM: the processes that plan a source have none. Raises: BadDdl."""
    from pyspark.sql.pandas.types import from_arrow_schema

    from ottla.lake.ddl import parse_schema

    return from_arrow_schema(parse_schema(text), prefer_timestamp_ntz=True)


def value_fields(options: ValueOptions, topics: tuple[str, ...], descriptors: bytes) -> Any:
    """All fields of a value as Spark's StructType; None if only the query's schema defines them.

    Raises: ValueError for an invalid schema.
    """
    match options.format:
        case "json" | "csv":
            if options.schema is None:
                return None
            return columns_of(options.schema)
        case "avro":
            from ottla.spark.values.avro import fields_of_avro

            return fields_of_avro(options, topics)
        case "json-schema":
            if options.schema is not None:
                return columns_of(options.schema)
            from ottla.spark.values.json_schema import fields_of_json_schema

            return fields_of_json_schema(options, topics)
        case "protobuf":
            from ottla.spark.values.protobuf import fields_of_message, fields_of_registered

            if options.registry_url is not None:
                return fields_of_registered(options.registry_url, subject_of(options, topics), options.message or "")
            return fields_of_message(descriptors, options.message or "")


def plan_values(
    schema: Any, known: Any, options: ValueOptions, descriptors: bytes, record: Mapping[str, str]
) -> tuple[DecodePlan | None, list[str]]:
    """The plan for a query's schema (None: nothing to decode), and the columns that come from the value.

    `known`: all fields of a value, None: unknown. `record`: the columns of a record.

    Raises: ValueError for a field that values lack or that has another type.
    """
    names, requested = [], {}
    for field in schema.fields:
        if field.name == "value":
            if field.dataType.simpleString() == "binary":
                continue
            if not isinstance(field.dataType, StructType):
                raise ValueError(f"column value must be a STRUCT of fields, or BINARY, not {field.dataType.simpleString()}")
            requested.update({one.name: one for one in field.dataType.fields})
        elif field.name == CORRUPT:
            if field.dataType.simpleString() != "binary":
                raise ValueError(f"column {CORRUPT} must be BINARY, not {field.dataType.simpleString()}")
        elif field.name in record:
            continue
        elif field.name in requested and requested[field.name].dataType != field.dataType:
            raise ValueError(f"the schema names field {field.name} of the value with two types")
        else:
            requested[field.name] = field
        names.append(field.name)
    if not names:
        return None, names
    if known is not None:
        check_fields(list(requested.values()), known, options)
    elif not requested:
        raise ValueError(f"valueSchema is missing: set it to the fields of the {options.format} value")
    chosen = list(requested.values()) if requested and (options.format != "csv" or known is None) else known.fields
    return DecodePlan(options, StructType(chosen).json(), descriptors), names


def check_fields(requested: list[Any], known: Any, options: ValueOptions) -> None:
    """Raises: ValueError for a requested field that values lack or that has another type."""
    types = {field.name: field.dataType for field in known.fields}
    for field in requested:
        if field.name not in types:
            near = suggestion(field.name, types)
            raise ValueError(f"neither a record nor its value has a column {field.name!r}{near}; the value has {', '.join(types)}")
        actual, expected = types[field.name].simpleString(), field.dataType.simpleString()
        if actual != expected and not expected.startswith("struct"):
            raise ValueError(f"field {field.name} of the value is {actual}, not {expected}; cast it with SQL")
