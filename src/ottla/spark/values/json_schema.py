"""Decodes JSON values with the frame of a schema registry; their columns are those of a JSON Schema, or named by the query.

    string boolean integer number       STRING BOOLEAN BIGINT DOUBLE
    array with items                    ARRAY
    object with properties              STRUCT
    null beside one of these            the same

Values are not validated again: their producer validated them. A value of another schema of the subject is read by name. Other types have no
column.
"""

import json
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_type

from ottla.client.arrow.json import Decoded
from ottla.client.schema_registry import JSON
from ottla.client.values.framed import FRAME_BYTES, MAGIC
from ottla.spark.source.options import ValueOptions
from ottla.spark.values.framed import Decode, newest_schema, subject_of
from ottla.spark.values.text import json_decoder

#: More than any value has.
VALUE_BYTES_MAX = 2**31 - 1
SIMPLE = {"string": pa.string(), "boolean": pa.bool_(), "integer": pa.int64(), "number": pa.float64()}


def fields_of_json_schema(options: ValueOptions, topics: tuple[str, ...]) -> Any:
    """The fields of the newest schema of the subject as Spark's StructType. Raises: ValueError, RegistryFailed."""
    subject = subject_of(options, topics)
    found = newest_schema(options.registry_url or "", subject, JSON, "JSON Schema")
    schema = json.loads(found.schema)
    kind = _type(schema, schema, (), subject)
    if not pa.types.is_struct(kind):
        raise ValueError(f"{subject}: the schema of a value must be an object with properties, so that they can become columns")
    return from_arrow_type(kind)


def framed_json_decoder(target: Any) -> Decode:
    """Raises: ValueError for a type that JSON cannot be decoded to."""
    return partial(_framed_json, decode=json_decoder(target))


def _framed_json(raw: Any, decode: Decode) -> Decoded:
    magic = pc.equal(pc.binary_slice(raw, 0, 1), pa.scalar(bytes([MAGIC]), pa.binary()))
    framed = pc.fill_null(pc.and_(pc.greater(pc.binary_length(raw), FRAME_BYTES), magic), False)
    # Without an end Arrow fails where values end before the slice begins.
    texts = pc.binary_slice(raw, FRAME_BYTES, VALUE_BYTES_MAX)
    found = decode(pc.if_else(framed, texts, pa.scalar(None, pa.binary())))
    bad = pc.and_(pc.invert(framed), raw.is_valid())
    if found.bad is not None:
        bad = pc.or_(bad, found.bad)
    why = "it has no frame of a schema registry, or does not fit the columns' types"
    return Decoded(found.array, bad if pc.any(bad).as_py() else None, why)


def _type(schema: Any, root: Any, above: tuple[str, ...], place: str) -> Any:
    """The Arrow type of a JSON Schema. `above`: the references that lead here. Raises: ValueError."""
    if isinstance(schema, dict) and "$ref" in schema:
        to = str(schema["$ref"])
        if to in above:
            raise _no_column(place, f"{to} is recursive")
        return _type(_referred(root, to, place), root, (*above, to), place)
    for word in ("oneOf", "anyOf"):
        if isinstance(schema, dict) and word in schema:
            others = [one for one in schema[word] if one != {"type": "null"}]
            if len(others) != 1:
                raise _no_column(place, f"it has several types ({word})")
            return _type(others[0], root, above, place)
    names = schema.get("type") if isinstance(schema, dict) else None
    kinds = [one for one in (names if isinstance(names, list) else [names]) if one != "null"]
    if kinds == [None] and isinstance(schema, dict) and "properties" in schema:
        kinds = ["object"]
    match kinds:
        case ["array"] if isinstance(schema.get("items"), dict):
            return pa.list_(_type(schema["items"], root, above, f"{place}[]"))
        case ["object"] if schema.get("properties"):
            inside = schema["properties"].items()
            return pa.struct([(name, _type(one, root, above, f"{place}.{name}")) for name, one in inside])
        case [str(one)] if one in SIMPLE:
            return SIMPLE[one]
    raise _no_column(place, "its type is open" if kinds == [None] else f"its type is {' or '.join(map(str, kinds))}")


def _referred(root: Any, to: str, place: str) -> Any:
    found = root
    if not to.startswith("#"):
        raise _no_column(place, f"it refers to {to}")
    for part in to.removeprefix("#").removeprefix("/").split("/") if to not in ("#", "#/") else ():
        name = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, dict) or name not in found:
            raise _no_column(place, f"{to} does not exist")
        found = found[name]
    return found


def _no_column(place: str, why: str) -> ValueError:
    return ValueError(f"{place} has no column type: {why}; name the columns that you read with valueSchema, as DDL")
