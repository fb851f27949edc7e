"""Converts columns of keys and values to bytes and back, one column at a time.

    format      to bytes                                              from bytes
    ------      --------                                              ----------
    bytes       text and binary unchanged                             binary
    str         any scalar as text                                    string
    int         integer, big-endian, in the width of its type         int16, int32 or int64, by the number of bytes
    float       number, big-endian, 32 or 64 bits                     float, double
    json        any value, nested ones too                            the type given as schema, or the inferred one
    avro        rows of one schema                                    the schema's type

A format is a name or an object of ``ottla.serializers``: ``Avro(schema, schema_id=7)``. The bytes are those of the serializers of the same
names, and so of Kafka's. Null is a record without a key, or a tombstone, in both directions.
"""

from __future__ import annotations

from array import array as numbers
from typing import Any

from ottla.base.options import suggestion
from ottla.client.arrow import json
from ottla.client.arrow.avro import avro_bytes, avro_values
from ottla.client.arrow.columns import as_binary, fixed_buffer, is_bytes, plain, validity
from ottla.client.arrow.json import Decoded, NotJson
from ottla.client.arrow.optional import pa, pc
from ottla.client.serializers import Avro, Float, Int, Json, SerializationFailed, Str, Uuid
from ottla.client.serializers import Bytes as BytesFormat

FORMATS = ("bytes", "str", "int", "float", "json", "avro")
_OBJECTS: dict[type[Any], str] = {BytesFormat: "bytes", Str: "str", Int: "int", Float: "float", Json: "json", Uuid: "str"}
#: Type codes of `array` for big-endian numbers, by size.
_INTS, _FLOATS = {2: "h", 4: "i", 8: "q"}, {4: "f", 8: "d"}


class ColumnFormat:
    """A format of keys or of values. Raises: ValueError for an unknown one, ImportError if its library is missing."""

    def __init__(self, given: Any, schema: Any = None) -> None:
        self.avro: Avro | None = None
        self.schema = schema
        if isinstance(given, Avro):
            self.name, self.avro = "avro", given
        elif given in FORMATS:
            self.name = str(given)
        elif type(given) in _OBJECTS:
            self.name = _OBJECTS[type(given)]
        else:
            near = suggestion(given, FORMATS) if isinstance(given, str) else ""
            raise ValueError(f"no format of columns is called {given!r}{near}; there are {', '.join(FORMATS)}")
        if self.name == "avro" and self.avro is None:
            if schema is None:
                raise ValueError("avro needs its schema: give schema=, or the format as ottla.serializers.Avro(schema)")
            self.avro = Avro(schema)
        if schema is not None and self.name not in ("json", "avro"):
            raise ValueError(f"the format {self.name} has no schema")

    def encoded(self, column: pa.Array, what: str) -> pa.Array:
        """The column as text or binary. Raises: SerializationFailed, ValueError."""
        try:
            return self._encoded(plain(column))
        except (NotJson, pa.ArrowInvalid, NotImplementedError) as error:
            raise SerializationFailed(f"{what} cannot be written as {self.name}: {error}") from error

    def _encoded(self, column: Any) -> Any:
        kind, types = column.type, pa.types
        match self.name:
            case "json":
                return json.json_texts(column)
            case "avro":
                assert self.avro is not None, "avro comes with its schema"
                return avro_bytes(column, self.avro)
            case "int" if types.is_integer(kind):
                fits = kind in (pa.int16(), pa.int32(), pa.int64())
                return _big_endian(column if fits else column.cast(pa.int64()), _INTS)
            case "float" if types.is_floating(kind):
                return _big_endian(column if kind in (pa.float32(), pa.float64()) else column.cast(pa.float32()), _FLOATS)
            case "bytes" if is_bytes(kind) or types.is_null(kind):
                return as_binary(column)
            case "str" if is_bytes(kind) or types.is_null(kind):
                return as_binary(column)
            case "str" if not types.is_nested(kind):
                return column.cast(pa.string())
        raise NotJson(f"it is {kind}; cast it, or choose another format")

    def decoded(self, column: pa.Array) -> Decoded:
        """The binary column as values; null if unreadable."""
        match self.name:
            case "json":
                return json.json_values(column, _json_type(self.schema))
            case "avro":
                assert self.avro is not None, "avro comes with its schema"
                return avro_values(column, self.avro)
            case "str":
                return _text(column)
            case "int":
                return _numbers(column, _INTS, {2: pa.int16(), 4: pa.int32(), 8: pa.int64()})
            case "float":
                return _numbers(column, _FLOATS, {4: pa.float32(), 8: pa.float64()})
        return Decoded(column)


def _json_type(schema: Any) -> Any:
    """The type of a value: a given type, or the schema of its members."""
    return pa.struct(list(schema)) if isinstance(schema, pa.Schema) else schema


def _big_endian(column: Any, letters: dict[int, str]) -> Any:
    width = column.type.bit_width // 8
    swapped = numbers(letters[width], bytes(fixed_buffer(column, width))[: len(column) * width])
    swapped.byteswap()
    fixed = pa.Array.from_buffers(pa.binary(width), len(column), [_buffer(validity(column)), pa.py_buffer(swapped)])
    return fixed.cast(pa.binary())


def _buffer(given: Any) -> Any:
    return None if given is None else pa.py_buffer(given)


def _text(column: Any) -> Decoded:
    try:
        return Decoded(column.cast(pa.string()))
    except pa.ArrowInvalid as error:
        texts: list[str | None] = []
        for data in column.to_pylist():
            try:
                texts.append(None if data is None else data.decode())
            except UnicodeDecodeError:
                texts.append(None)
        found = pa.array(texts, pa.string())
        return Decoded(found, _lost(column, found), str(error))


def _lost(before: Any, after: Any) -> Any:
    """The rows with bytes and without a value."""
    return pc.and_(before.is_valid(), after.is_null())


def _numbers(column: Any, letters: dict[int, str], types: dict[int, Any]) -> Decoded:
    """Numbers in the width of most rows; other widths are unreadable."""
    sizes = pc.binary_length(column)
    counts = {entry["values"]: entry["counts"] for entry in pc.value_counts(sizes).to_pylist()}
    width = max((size for size in counts if size in letters), key=lambda size: counts[size], default=max(letters))
    fits = pc.fill_null(pc.equal(sizes, width), False)
    chosen = column.filter(fits)
    swapped = numbers(letters[width], bytes(chosen.buffers()[2] or b"")[: len(chosen) * width])
    swapped.byteswap()
    values = pa.Array.from_buffers(types[width], len(chosen), [None, pa.py_buffer(swapped)])
    found = pc.replace_with_mask(pa.nulls(len(column), types[width]), fits, values)
    bad = _lost(column, found)
    if not pc.any(bad).as_py():
        return Decoded(found)
    return Decoded(found, bad, f"some have other than {width} bytes")
