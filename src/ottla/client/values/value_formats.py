"""Formats of keys and values (`--key-format`, `--value-format`): from bytes to output, and from input to bytes.

    text               the bytes unchanged; in JSON a string, or {"base64": "..."} if they are not UTF-8     (default)
    json  pretty       JSON on one line, or indented
    hex  base64        the bytes encoded as text
    int                a big-endian integer of 8, 4, 2 or 1 bytes; int64 int32 int16 int8 fix the size
    float              a big-endian float of 8 or 4 bytes; float64 float32 fix the size
    uuid               16 bytes as a UUID
    avro               with a schema registry's frame; schemas are fetched from --registry by id
    avro:FILE          with the schema in the file; with --registry, framed with the schema's id
    protobuf:FILE:NAME message NAME of the descriptor set that `protoc --include_imports -o FILE` writes; with --registry, framed
    protobuf           with a registry's frame; written with the newest schema of the subject, its first message or protobuf:NAME
    json-schema[:FILE] JSON with a registry's frame; validated against the file's schema, or the newest of the subject, when it is written
    pack:FORMAT        numbers in a format of Python's struct module, for example pack:>iq

`show` returns the bytes to print, `value` the value for JSON, CSV and Parquet, `read` the bytes of a result of `value` or of text. All
raise ValueError for data of another format.
"""

from __future__ import annotations

import struct
import uuid
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from ottla.client.values.json_bytes import bytes_json, json_bytes

NAMES = (
    "text", "json", "pretty", "hex", "base64", "int", "int64", "int32", "int16", "int8", "float", "float64", "float32", "uuid",
    "avro", "avro:FILE", "protobuf", "protobuf:NAME", "protobuf:FILE:NAME", "json-schema", "json-schema:FILE", "pack:FORMAT",
)  # fmt: skip
_INTS = {8: ">q", 4: ">i", 2: ">h", 1: ">b"}
_FLOATS = {8: ">d", 4: ">f"}


@dataclass(frozen=True, slots=True)
class ValueFormat:
    """A format of keys or values. Its functions are not called for null."""

    name: str
    #: Bytes to the bytes that are printed.
    show: Callable[[bytes], bytes]
    #: Bytes to the value in JSON, CSV and Parquet.
    value: Callable[[bytes], Any]
    #: The reverse of `value`; also accepts text.
    read: Callable[[Any], bytes]


def printed_value(value: Any) -> bytes:
    """A value as printed: text unchanged, anything else as JSON."""
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value)


def _text(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    data = bytes_json(value, "text")
    assert data is not None, "formats are not called for null"
    return data


def _json_show(indent: int) -> Callable[[bytes], bytes]:
    def show(data: bytes) -> bytes:
        try:
            return msgspec.json.format(data, indent=indent)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ValueError(f"not JSON: {error}") from None

    return show


def _json_value(data: bytes) -> Any:
    """Structures and numbers as JSON; strings, null and base64 stay text, so that `_json_read` restores the same bytes."""
    compact = _json_show(-1)(data)
    if compact[:1] in b'"n' or compact.startswith(b'{"base64":'):
        return compact.decode()
    return msgspec.Raw(compact)


def _json_read(value: Any) -> bytes:
    """Text and bytes must be JSON; any other value is encoded as JSON."""
    data = bytes(value) if isinstance(value, bytes | msgspec.Raw) else value.encode() if isinstance(value, str) else None
    if data is None:
        return msgspec.json.encode(value)
    _json_show(-1)(data)
    return data


def _number(kinds: dict[int, str], cast: Callable[[Any], Any], name: str, size: int | None) -> ValueFormat:
    sizes = kinds if size is None else {size: kinds[size]}
    structs = {length: struct.Struct(kind) for length, kind in sizes.items()}
    written = structs[max(structs)]

    def value(data: bytes) -> Any:
        if len(data) not in structs:
            raise ValueError(f"{len(data)} bytes are not a {name}: expected {' or '.join(str(length) for length in structs)} bytes")
        return structs[len(data)].unpack(data)[0]

    def read(given: Any) -> bytes:
        try:
            if isinstance(given, bool):
                raise ValueError
            return written.pack(cast(given.decode() if isinstance(given, bytes) else given))
        except (ValueError, TypeError, struct.error, OverflowError):
            what = given.decode(errors="replace") if isinstance(given, bytes) else given
            raise ValueError(f"{what!r} is not a {name} of {written.size} bytes") from None

    return ValueFormat(name, lambda data: str(value(data)).encode(), value, read)


def _whole(given: Any) -> int:
    if isinstance(given, float) and not given.is_integer():
        raise ValueError
    return int(given)


def _plain(given: Any) -> str:
    """ASCII text. Raises: ValueError."""
    if isinstance(given, bytes):
        return given.decode("ascii").strip()
    if isinstance(given, str):
        return given.strip()
    raise ValueError(f"expected text, not {given!r}")


def _uuid_value(data: bytes) -> str:
    if len(data) != 16:
        raise ValueError(f"{len(data)} bytes are not a UUID: expected 16 bytes")
    return str(uuid.UUID(bytes=data))


def packed(kind: str, option: str) -> ValueFormat:
    try:
        packed = struct.Struct(kind)
    except struct.error as error:
        raise ValueError(f"{option}: {kind!r} is not a format of Python's struct module: {error}") from None

    def value(data: bytes) -> list[Any]:
        if len(data) != packed.size:
            raise ValueError(f"{len(data)} bytes are not {kind}: expected {packed.size} bytes")
        return [json_bytes(one) if isinstance(one, bytes) else one for one in packed.unpack(data)]

    def read(given: Any) -> bytes:
        if isinstance(given, bytes):
            given = [msgspec.json.decode(word) if word[:1] in b"-0123456789tf" else word.decode() for word in given.split()]
        parts = given if isinstance(given, list) else [given]
        try:
            return packed.pack(*(_text(part) if isinstance(part, str | dict) else part for part in parts))
        except (struct.error, TypeError) as error:
            raise ValueError(f"{given!r} cannot be packed as {kind}: {error}") from None

    return ValueFormat(f"pack:{kind}", lambda data: b" ".join(printed_value(one) for one in value(data)), value, read)


def _letters(name: str, encode: Callable[[bytes], str], decode: Callable[[str], bytes]) -> ValueFormat:
    def read(given: Any) -> bytes:
        try:
            return decode(_plain(given))
        except ValueError:
            raise ValueError(f"{given!r} is not {name}") from None

    return ValueFormat(name, lambda data: encode(data).encode(), encode, read)


TEXT = ValueFormat("text", lambda data: data, json_bytes, _text)
VALUE_FORMATS: dict[str, ValueFormat] = {
    "text": TEXT,
    "json": ValueFormat("json", _json_show(-1), _json_value, _json_read),
    "pretty": ValueFormat("pretty", _json_show(2), _json_value, _json_read),
    "hex": _letters("hex", bytes.hex, bytes.fromhex),
    "base64": _letters("base64", lambda data: b64encode(data).decode(), lambda text: b64decode(text, validate=True)),
    "uuid": _letters("uuid", _uuid_value, lambda text: uuid.UUID(text).bytes),
    "int": _number(_INTS, _whole, "whole number", None),
    "float": _number(_FLOATS, float, "floating point number", None),
    **{f"int{size * 8}": _number(_INTS, _whole, "whole number", size) for size in _INTS},
    **{f"float{size * 8}": _number(_FLOATS, float, "floating point number", size) for size in _FLOATS},
    # The name in the clients' serializers and tables.
    "str": TEXT,
}
