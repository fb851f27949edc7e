"""Avro from and to Arrow columns: with compiled code for whole columns, or with fastavro value by value where that is not possible.

Arrow types of Avro's types:

    null boolean int long float double    null bool int32 int64 float double
    bytes fixed string enum               binary binary string string
    array map record                      list map<string> struct
    [null, X]                             X
    date, time-millis, time-micros        date32, time32[ms], time64[us]
    timestamp-millis, -micros             timestamp[ms, UTC], timestamp[us, UTC]
    local-timestamp-millis, -micros       timestamp[ms], timestamp[us]
    decimal, uuid                         decimal128, string

Other unions have no Arrow type and are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from io import BytesIO
from typing import Any

from ottla.client.arrow.columns import as_binary, binary_column, ends_of, fixed_buffer, is_bytes, plain, validity
from ottla.client.arrow.json import Decoded
from ottla.client.arrow.optional import pa, pc
from ottla.client.serializers import Avro, SerializationFailed, needed
from ottla.codecs.compiled import decode_avro, encode_avro


def schema_faults() -> tuple[type[Exception], ...]:
    """The exceptions of `Avro` and `Column.of` for an invalid schema, or one without an Arrow type."""
    return (needed("fastavro.schema", "Avro").SchemaParseException, ValueError, KeyError, TypeError)


def avro_bytes(array: pa.Array, avro: Avro) -> pa.Array:
    """Each row in Avro's binary form, null for null. Raises: SerializationFailed, with the row or the column."""
    try:
        column = AvroColumn.of(avro.write_schema, {})
    except ValueError:
        # A union of several types, which only fastavro handles, row by row.
        return _bytes_one_by_one(array, avro)
    if encode_avro is None or column.kind == KINDS["null"]:
        return _bytes_one_by_one(array, avro)
    try:
        found = encode_avro(column.given(plain(array)), len(array), avro.prefix)
    except pa.ArrowInvalid as error:
        raise SerializationFailed(f"a row cannot be written as Avro: {error}") from error
    except (pa.ArrowNotImplementedError, ValueError):
        # Other types than the schema's columns: fastavro may accept the rows, otherwise its error names the problem.
        return _bytes_one_by_one(array, avro)
    if isinstance(found, int):
        _bytes_one_by_one(array.slice(found, 1), avro, found)
        raise SerializationFailed(f"row {found} cannot be written as Avro: there is null, or more than fits, where the schema has none")
    ends, data = (pa.py_buffer(part) for part in found)
    bits = validity(array)
    return pa.Array.from_buffers(pa.binary(), len(array), [None if bits is None else pa.py_buffer(bits), ends, data])


def _bytes_one_by_one(array: pa.Array, avro: Avro, first_row: int = 0) -> pa.Array:
    found: list[bytes | None] = []
    for row, value in enumerate(array.to_pylist(maps_as_pydicts="lossy")):
        try:
            found.append(None if value is None else avro.encode(value))
        except avro.failures as error:
            raise SerializationFailed(f"row {first_row + row} cannot be written as Avro: {error}") from error
    return pa.array(found, pa.binary())


def avro_values(data: pa.Array, avro: Avro) -> Decoded:
    """Values of a column in Avro's binary form; null if null or unreadable."""
    column = AvroColumn.of(avro.read_schema, {})
    # fastavro resolves a differing reader's schema, and handles invalid UTF-8.
    if decode_avro is not None and avro.read_schema is avro.write_schema:
        found, bad = decode_avro(column.spec(), binary_column(data), len(data), avro.prefix)
        try:
            array = column.array(found)
            array.validate(full=True)
        except pa.ArrowInvalid:
            return _values_one_by_one(data, avro, column.type)
        if not bad:
            return Decoded(array)
        places = set(bad)
        why = f"row {bad[0]} is not of the schema"
        return Decoded(array, pa.array([row in places for row in range(len(data))]), why)
    return _values_one_by_one(data, avro, column.type)


def _values_one_by_one(data: pa.Array, avro: Avro, kind: Any) -> Decoded:
    found: list[Any] = []
    bad: list[bool] = []
    why = ""
    for row, encoded in enumerate(data.to_pylist()):
        value = None
        failed = False
        if encoded is not None:
            try:
                value = _whole(avro, encoded)
            except avro.failures as error:
                why, failed = why or f"row {row}: {error}", True
        found.append(value)
        bad.append(failed)
    return Decoded(pa.array(found, kind), pa.array(bad) if any(bad) else None, why)


def _whole(avro: Avro, encoded: bytes) -> Any:
    rest = BytesIO(encoded)
    value = avro.read(rest)
    if rest.tell() != len(encoded):
        raise ValueError(f"{len(encoded) - rest.tell()} bytes are left behind the value")
    return value


#: Numbers of kinds in the codec.
KINDS = {
    "null": 0, "boolean": 1, "int": 2, "long": 3, "float": 4, "double": 5, "bytes": 6, "string": 6, "fixed": 7, "enum": 8, "array": 9,
    "map": 10, "record": 11, "error": 11,
}  # fmt: skip
DECIMAL = 12
NOT_NULLABLE = -1


@dataclass(slots=True)
class AvroColumn:
    """A node of a schema as a column."""

    kind: int
    type: Any
    children: list[AvroColumn] = field(default_factory=list)
    #: Size of a fixed; symbols of an enum.
    parameter: Any = 0
    #: Position of null in a union of two.
    null_index: int = NOT_NULLABLE

    @classmethod
    def of(cls, schema: Any, named: dict[str, AvroColumn]) -> AvroColumn:
        """The column of a parsed Avro schema. ``named`` collects the named types. Raises: ValueError if there is no Arrow type for it."""
        if isinstance(schema, list):
            others = [one for one in schema if one != "null"]
            if len(others) != 1 or len(schema) > 2:
                raise ValueError(f"a column holds values of one type, and the union {schema} has several; leave it out, or read bytes")
            return replace(cls.of(others[0], named), null_index=schema.index("null") if "null" in schema else NOT_NULLABLE)
        if isinstance(schema, str):
            return named[schema] if schema in named else cls._plain(schema, {})
        if isinstance(schema["type"], dict | list):
            return cls.of(schema["type"], named)
        made = cls._made(schema, named)
        if "name" in schema:
            named[schema["name"]] = made
        return made

    @classmethod
    def _made(cls, schema: Mapping[str, Any], named: dict[str, AvroColumn]) -> AvroColumn:
        match schema["type"]:
            case "record" | "error":
                fields = [(field["name"], cls.of(field["type"], named)) for field in schema["fields"]]
                return cls(KINDS["record"], pa.struct([(name, one.type) for name, one in fields]), [one for _, one in fields])
            case "array":
                items = cls.of(schema["items"], named)
                return cls(KINDS["array"], pa.list_(items.type), [items])
            case "map":
                values = cls.of(schema["values"], named)
                return cls(KINDS["map"], pa.map_(pa.string(), values.type), [cls._plain("string", {}), values])
            case "enum":
                return cls(KINDS["enum"], pa.string(), parameter=[symbol.encode() for symbol in schema["symbols"]])
            case name:
                return cls._plain(name, schema)

    @classmethod
    def _plain(cls, name: str, schema: Mapping[str, Any]) -> AvroColumn:
        size = schema.get("size", 0)
        if schema.get("logicalType") == "decimal" and name in ("bytes", "fixed"):
            return cls(DECIMAL, pa.decimal128(schema["precision"], schema.get("scale", 0)), parameter=size)
        if name not in KINDS:
            raise ValueError(f"Avro has no type {name!r}, and none of that name is declared before it is used")
        types: dict[str, Any] = {
            "null": pa.null(), "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(), "double": pa.float64(),
            "bytes": pa.binary(), "fixed": pa.binary(), "string": pa.string(),
        }  # fmt: skip
        logical: dict[tuple[str, str], Any] = {
            ("int", "date"): pa.date32(),
            ("int", "time-millis"): pa.time32("ms"),
            ("long", "time-micros"): pa.time64("us"),
            ("long", "timestamp-millis"): pa.timestamp("ms", tz="UTC"),
            ("long", "timestamp-micros"): pa.timestamp("us", tz="UTC"),
            ("long", "local-timestamp-millis"): pa.timestamp("ms"),
            ("long", "local-timestamp-micros"): pa.timestamp("us"),
        }
        return cls(KINDS[name], logical.get((name, schema.get("logicalType", "")), types[name]), parameter=size)

    def spec(self) -> tuple[int, int, Any, list[Any]]:
        """The node in the codec's form."""
        return self.kind, self.null_index, self.parameter, [child.spec() for child in self.children]

    def given(self, array: pa.Array) -> tuple[Any, ...]:
        """The column's values in the codec's form. Raises: ValueError, ArrowInvalid for a column that does not fit."""
        kind = self.kind
        if kind == KINDS["null"]:
            return kind, self.null_index, 0, None, None, None, []
        bits, types = validity(array), pa.types
        if kind == KINDS["record"]:
            return kind, self.null_index, 0, bits, None, None, self._members(array)
        if kind in (KINDS["array"], KINDS["map"]):
            if types.is_large_list(array.type) or types.is_fixed_size_list(array.type):
                array = array.cast(pa.list_(array.type.value_type))
            if not (types.is_map(array.type) if kind == KINDS["map"] else types.is_list(array.type)):
                raise ValueError(f"{array.type} is no {self.type}")
            parts = array.values.flatten() if kind == KINDS["map"] else [array.values]
            children = [(child.given(plain(part)), len(part)) for child, part in zip(self.children, parts, strict=True)]
            return kind, self.null_index, 0, bits, ends_of(array, array.buffers()[1], wide=False), None, children
        if kind in (KINDS["bytes"], KINDS["fixed"]):
            if not is_bytes(array.type) and not types.is_null(array.type):
                raise ValueError(f"{array.type} is no {self.type}")
            column = binary_column(as_binary(array).cast(self.type))
            return kind, self.null_index, self.parameter, bits, column.offsets, column.data, []
        numbers, width = self._numbers(array)
        return kind, self.null_index, self.parameter if kind == DECIMAL else 0, bits, fixed_buffer(numbers, width), None, []

    def _numbers(self, array: pa.Array) -> tuple[pa.Array, int]:
        """Values of fixed width, and the width in bytes. Raises: ValueError, ArrowInvalid."""
        types, kind = pa.types, array.type
        if self.kind == KINDS["enum"]:
            # Values below a null record are arbitrary, so invalid symbols are detected by the encoder.
            places = pc.index_in(array.cast(pa.string()), pa.array([symbol.decode() for symbol in self.parameter]))
            return pc.fill_null(places, -1), 4
        whole = types.is_integer(kind) or types.is_null(kind)
        if self.kind == DECIMAL:
            fits, width = whole or types.is_decimal(kind), 16
        elif self.kind == KINDS["boolean"]:
            fits, width = types.is_boolean(kind) or types.is_null(kind), 1
        elif self.kind in (KINDS["int"], KINDS["long"]):
            fits, width = whole or types.is_temporal(kind), 4 if self.kind == KINDS["int"] else 8
        else:
            fits, width = whole or types.is_floating(kind), 4 if self.kind == KINDS["float"] else 8
        if not fits:
            raise ValueError(f"{kind} is no {self.type}")
        return array.cast(pa.uint8() if width == 1 else self.type), width

    def _members(self, array: pa.Array) -> list[tuple[Any, ...]]:
        if not pa.types.is_struct(array.type):
            raise ValueError(f"{array.type} is no record")
        there = {one.name: index for index, one in enumerate(array.type)}
        found = []
        for one, child in zip(self.type, self.children, strict=True):
            if one.name not in there and child.null_index < 0 and child.kind != KINDS["null"]:
                raise ValueError(f"there is no column {one.name}")
            part = array.field(there[one.name]) if one.name in there else pa.nulls(len(array), child.type)
            found.append((child.given(plain(part)), len(array)))
        return found

    def array(self, found: tuple[Any, ...]) -> pa.Array:
        """The array of the codec's result for the node."""
        rows, validity, nulls, numbers, data, children = found
        bits = None if validity is None else pa.py_buffer(validity)
        arrays = [child.array(part) for child, part in zip(self.children, children, strict=True)]
        if self.kind == KINDS["null"]:
            return pa.nulls(rows)
        if self.kind == KINDS["record"]:
            return pa.Array.from_buffers(self.type, rows, [bits], nulls, children=arrays)
        if self.kind == KINDS["array"]:
            return pa.Array.from_buffers(self.type, rows, [bits, pa.py_buffer(numbers)], nulls, children=arrays)
        if self.kind == KINDS["map"]:
            entries = pa.StructArray.from_arrays(arrays, fields=[self.type.key_field, self.type.item_field])
            return pa.Array.from_buffers(self.type, rows, [bits, pa.py_buffer(numbers)], nulls, children=[entries])
        buffers = [bits, pa.py_buffer(numbers)]
        if self.kind in (KINDS["bytes"], KINDS["fixed"], KINDS["enum"]):
            buffers.append(pa.py_buffer(data))
        return pa.Array.from_buffers(self.type, rows, buffers, nulls)
