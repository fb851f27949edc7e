"""What `--key-format` and `--value-format` make of bytes, and bytes of what they have made.

    text               the bytes as they are; in JSON a string, or {"base64": "..."} where they are not UTF-8     (default)
    json  pretty       JSON on one line, or indented over several
    hex  base64        the bytes in letters
    int                a big-endian number of 8, 4, 2 or 1 bytes by their count; int64 int32 int16 int8 say which
    float              a big-endian number of 8 or 4 bytes; float64 float32 say which
    uuid               16 bytes as a UUID
    avro               framed as schema registries have it: asks --registry for the schema of each id that comes
    avro:FILE          by the schema in the file; with --registry, framed by the schema's id there
    protobuf:FILE:NAME message NAME of the descriptor set that `protoc --include_imports -o FILE` writes
    pack:FORMAT        numbers as Python's struct module has them, for example pack:>iq

`show` gives what is printed, `value` what stands in JSON, CSV and Parquet, `read` the bytes of what `value` gave, or of text. All three
raise ValueError over what is not theirs.
"""

from __future__ import annotations

import struct
import uuid
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ottla.cli.common.errors import bytes_json, json_bytes

NAMES = (
    "text", "json", "pretty", "hex", "base64", "int", "int64", "int32", "int16", "int8", "float", "float64", "float32", "uuid",
    "avro", "avro:FILE", "protobuf:FILE:NAME", "pack:FORMAT",
)  # fmt: skip
_INTS = {8: ">q", 4: ">i", 2: ">h", 1: ">b"}
_FLOATS = {8: ">d", 4: ">f"}


@dataclass(frozen=True, slots=True)
class Form:
    """One way to see bytes; none of it is asked about null."""

    name: str
    #: Bytes to the bytes that are printed.
    show: Callable[[bytes], bytes]
    #: Bytes to what JSON, CSV and Parquet hold.
    value: Callable[[bytes], Any]
    #: The reverse of `value`; text stands for what is written so.
    read: Callable[[Any], bytes]


def form(text: str, option: str, *, registry: str | None = None, subject: str = "") -> Form:
    """The form of that name. `subject`: whose newest schema is written with. Raises: ValueError, OSError, ImportError."""
    name, _, argument = text.partition(":")
    if name in ("avro", "protobuf"):
        from ottla.cli.common import schemas

        if name == "avro":
            return schemas.avro(argument, registry, subject)
        file, _, message = argument.rpartition(":")
        if not file or not message:
            raise ValueError(f"{option} expects protobuf:FILE:NAME, not {text!r}")
        return schemas.protobuf(Path(file), message, framed=registry is not None)
    if name == "pack" and argument:
        return _packed(argument, option)
    if not argument and text in FORMS:
        return FORMS[text]
    from ottla.base.options import suggestion

    raise ValueError(f"{option}: there is no format {text!r}{suggestion(text, NAMES)}; there are {', '.join(NAMES)}")


def shown(value: Any) -> bytes:
    """A value as it is printed: text as it is, anything else as JSON."""
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value)


def _text(value: Any) -> bytes:
    """What stands in JSON as bytes: see `render`."""
    if isinstance(value, bytes):
        return value
    found = bytes_json(value, "text")
    assert found is not None, "null is not asked about"
    return found


def _json_show(indent: int) -> Callable[[bytes], bytes]:
    def show(data: bytes) -> bytes:
        try:
            return msgspec.json.format(data, indent=indent)
        except msgspec.MsgspecError as error:
            raise ValueError(f"not JSON: {error}") from None

    return show


def _json_value(data: bytes) -> Any:
    """Structures and numbers as they are; what `_json_read` would take for something else stays text."""
    compact = _json_show(-1)(data)
    if compact[:1] in b'"n' or compact.startswith(b'{"base64":'):
        return compact.decode()
    return msgspec.Raw(compact)


def _json_read(value: Any) -> bytes:
    """Text and bytes must be JSON; anything else is written as JSON."""
    data = bytes(value) if isinstance(value, bytes | msgspec.Raw) else value.encode() if isinstance(value, str) else None
    if data is None:
        return msgspec.json.encode(value)
    _json_show(-1)(data)
    return data


def _number(kinds: dict[int, str], cast: Callable[[Any], Any], said: str, size: int | None) -> Form:
    sizes = kinds if size is None else {size: kinds[size]}
    structs = {length: struct.Struct(kind) for length, kind in sizes.items()}
    written = structs[max(structs)]

    def value(data: bytes) -> Any:
        if len(data) not in structs:
            raise ValueError(f"{len(data)} bytes are no {said}, which has {' or '.join(str(length) for length in structs)}")
        return structs[len(data)].unpack(data)[0]

    def read(given: Any) -> bytes:
        try:
            if isinstance(given, bool):
                raise ValueError
            return written.pack(cast(given.decode() if isinstance(given, bytes) else given))
        except (ValueError, TypeError, struct.error, OverflowError):
            what = given.decode(errors="replace") if isinstance(given, bytes) else given
            raise ValueError(f"{what!r} is no {said} of {written.size} bytes") from None

    return Form(said, lambda data: str(value(data)).encode(), value, read)


def _whole(given: Any) -> int:
    if isinstance(given, float) and not given.is_integer():
        raise ValueError
    return int(given)


def _plain(given: Any) -> str:
    """Text of letters. Raises: ValueError."""
    if isinstance(given, bytes):
        return given.decode("ascii").strip()
    if isinstance(given, str):
        return given.strip()
    raise ValueError(f"expected text, not {given!r}")


def _uuid_value(data: bytes) -> str:
    if len(data) != 16:
        raise ValueError(f"{len(data)} bytes are no UUID, which has 16")
    return str(uuid.UUID(bytes=data))


def _packed(kind: str, option: str) -> Form:
    try:
        packed = struct.Struct(kind)
    except struct.error as error:
        raise ValueError(f"{option}: {kind!r} is no format of Python's struct module: {error}") from None

    def value(data: bytes) -> list[Any]:
        if len(data) != packed.size:
            raise ValueError(f"{len(data)} bytes are no {kind}, which has {packed.size}")
        return [json_bytes(one) if isinstance(one, bytes) else one for one in packed.unpack(data)]

    def read(given: Any) -> bytes:
        if isinstance(given, bytes):
            given = [msgspec.json.decode(word) if word[:1] in b"-0123456789tf" else word.decode() for word in given.split()]
        parts = given if isinstance(given, list) else [given]
        try:
            return packed.pack(*(_text(part) if isinstance(part, str | dict) else part for part in parts))
        except (struct.error, TypeError) as error:
            raise ValueError(f"{given!r} cannot be packed as {kind}: {error}") from None

    return Form(f"pack:{kind}", lambda data: b" ".join(shown(one) for one in value(data)), value, read)


def _letters(name: str, encode: Callable[[bytes], str], decode: Callable[[str], bytes]) -> Form:
    def read(given: Any) -> bytes:
        try:
            return decode(_plain(given))
        except ValueError:
            raise ValueError(f"{given!r} is not {name}") from None

    return Form(name, lambda data: encode(data).encode(), encode, read)


TEXT = Form("text", lambda data: data, json_bytes, _text)
FORMS: dict[str, Form] = {
    "text": TEXT,
    "json": Form("json", _json_show(-1), _json_value, _json_read),
    "pretty": Form("pretty", _json_show(2), _json_value, _json_read),
    "hex": _letters("hex", bytes.hex, bytes.fromhex),
    "base64": _letters("base64", lambda data: b64encode(data).decode(), lambda text: b64decode(text, validate=True)),
    "uuid": _letters("uuid", _uuid_value, lambda text: uuid.UUID(text).bytes),
    "int": _number(_INTS, _whole, "whole number", None),
    "float": _number(_FLOATS, float, "floating point number", None),
    **{f"int{size * 8}": _number(_INTS, _whole, "whole number", size) for size in _INTS},
    **{f"float{size * 8}": _number(_FLOATS, float, "floating point number", size) for size in _FLOATS},
    # What the clients' serializers and tables call it.
    "str": TEXT,
}
