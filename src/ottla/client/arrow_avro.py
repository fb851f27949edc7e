"""Avro from and to Arrow columns, by fastavro, value by value.

Avro's types are Arrow's:

    null boolean int long float double    null bool int32 int64 float double
    bytes fixed string enum               binary binary string string
    array map record                      list map<string> struct
    [null, X]                             X
    date, time-millis, time-micros        date32, time32[ms], time64[us]
    timestamp-millis, -micros             timestamp[ms, UTC], timestamp[us, UTC]
    local-timestamp-millis, -micros       timestamp[ms], timestamp[us]
    decimal, uuid                         decimal128, string

Other unions have no column that holds them, and are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import TYPE_CHECKING, Any

from ottla.client.arrow_columns import needed_arrow
from ottla.client.arrow_json import Decoded
from ottla.client.serializers import Avro, SerializationFailed

if TYPE_CHECKING:
    import pyarrow as pa


def avro_bytes(array: pa.Array, avro: Avro) -> pa.Array:
    """Each row in Avro's binary form, null where the row is. Raises: SerializationFailed, naming the row."""
    pa = needed_arrow()
    found: list[bytes | None] = []
    for row, value in enumerate(array.to_pylist()):
        try:
            found.append(None if value is None else avro.encode(value))
        except avro.failures as error:
            raise SerializationFailed(f"row {row} cannot be written as Avro: {error}") from error
    return pa.array(found, pa.binary())


def avro_values(data: pa.Array, avro: Avro) -> Decoded:
    """Values of a column in Avro's binary form; null where there is none, or where it cannot be read."""
    pa = needed_arrow()
    kind = arrow_type(avro.read_schema, {})
    found: list[Any] = []
    bad: list[int] = []
    why = ""
    for row, encoded in enumerate(data.to_pylist()):
        value = None
        if encoded is not None:
            try:
                value = _whole(avro, encoded)
            except avro.failures as error:
                why = why or f"row {row}: {error}"
                bad.append(row)
        found.append(value)
    array = pa.array(found, kind)
    if not bad:
        return Decoded(array)
    places = set(bad)
    return Decoded(array, pa.array([row in places for row in range(len(found))]), why)


def _whole(avro: Avro, encoded: bytes) -> Any:
    rest = BytesIO(encoded)
    value = avro.read(rest)
    if rest.tell() != len(encoded):
        raise ValueError(f"{len(encoded) - rest.tell()} bytes are left behind the value")
    return value


def arrow_type(schema: Any, named: dict[str, Any]) -> Any:
    """Arrow's type of what a parsed Avro schema describes. ``named`` collects the named types on the way. Raises: ValueError."""
    if isinstance(schema, list):
        others = [one for one in schema if one != "null"]
        if len(others) != 1:
            raise ValueError(f"a column holds values of one type, and the union {schema} has several; leave it out, or read bytes")
        return arrow_type(others[0], named)
    if isinstance(schema, str):
        return named[schema] if schema in named else _plain_type(schema, {})
    if schema["type"] in ("record", "error"):
        import pyarrow as pa

        if schema["name"] in named:
            raise ValueError(f"the record {schema['name']} is declared twice")
        fields = [pa.field(field["name"], arrow_type(field["type"], named)) for field in schema["fields"]]
        made = pa.struct(fields)
    else:
        made = _made_type(schema, named)
    if "name" in schema:
        named[schema["name"]] = made
    return made


def _made_type(schema: Mapping[str, Any], named: dict[str, Any]) -> Any:
    import pyarrow as pa

    match schema["type"]:
        case "array":
            return pa.list_(arrow_type(schema["items"], named))
        case "map":
            return pa.map_(pa.string(), arrow_type(schema["values"], named))
        case str(name):
            return _plain_type(name, schema)
        case inner:
            return arrow_type(inner, named)


def _plain_type(name: str, schema: Mapping[str, Any]) -> Any:
    import pyarrow as pa

    logical: dict[tuple[str, str], Any] = {
        ("int", "date"): pa.date32(),
        ("int", "time-millis"): pa.time32("ms"),
        ("long", "time-micros"): pa.time64("us"),
        ("long", "timestamp-millis"): pa.timestamp("ms", tz="UTC"),
        ("long", "timestamp-micros"): pa.timestamp("us", tz="UTC"),
        ("long", "local-timestamp-millis"): pa.timestamp("ms"),
        ("long", "local-timestamp-micros"): pa.timestamp("us"),
        ("string", "uuid"): pa.string(),
    }
    found = logical.get((name, schema.get("logicalType", "")))
    if found is not None:
        return found
    if schema.get("logicalType") == "decimal" and name in ("bytes", "fixed"):
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    types: dict[str, Any] = {
        "null": pa.null(), "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(), "double": pa.float64(),
        "bytes": pa.binary(), "fixed": pa.binary(), "string": pa.string(), "enum": pa.string(),
    }  # fmt: skip
    if name not in types:
        raise ValueError(f"Avro has no type {name!r}, and none of that name is declared before it is used")
    return types[name]
