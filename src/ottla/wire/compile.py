"""Decodes and encodes messages: each class and version is compiled on first use into straight-line Python.

`decode` takes any buffer and copies all values but records, which are memoryviews of it. For any bytes it either returns a message
or raises MalformedMessage; it allocates at most a small multiple of the input, and at most `elements_max` elements.

`encode_chunks` returns the message as buffers to write: joined, except for large records and slices of files, which are passed
on without a copy.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Sized
from typing import Any

import msgspec

from ottla.wire.codegen import Compiled
from ottla.wire.declare import MalformedMessage, MessageSchema, S, is_request, schema_of
from ottla.wire.decoding import compile_decoder, holds_records
from ottla.wire.encoding import compile_encoder
from ottla.wire.errors import UnsupportedVersion

Buffer = bytes | bytearray | memoryview
#: A buffer, or any object with a length that was passed as records, such as a slice of a file.
Chunk = bytes | bytearray | memoryview | Sized

#: Limit of array elements and tagged fields in one message: a million small objects take a hundred times the memory of their bytes.
#: Requests come from untrusted clients; a response may describe a very large cluster.
REQUEST_ELEMENTS_MAX = 100_000
RESPONSE_ELEMENTS_MAX = 10_000_000

_encoders: dict[type[msgspec.Struct], dict[int, Callable[..., Any]]] = {}
_decoders: dict[type[msgspec.Struct], dict[int, tuple[Callable[..., Any], bool, int]]] = {}
_compiled: dict[tuple[type[msgspec.Struct], int, str], Compiled] = {}


def decode(cls: type[S], buffer: Buffer, version: int, position: int = 0, *, elements_max: int | None = None) -> S:
    """Decode the message that fills a buffer from `position` to its end; a memoryview must be of bytes.

    Raises MalformedMessage for bytes that are not this message, UnsupportedVersion for a version that is not declared.
    """
    try:
        run, keeps_view, limit = _decoders[cls][version]
    except KeyError:
        run, keeps_view, limit = _new_decoder(cls, version)
    if keeps_view:
        data: bytes | memoryview = buffer if type(buffer) is memoryview else memoryview(buffer)
    else:
        data = buffer if type(buffer) is bytes else bytes(buffer)
    try:
        message: S = run(data, position, len(data), limit if elements_max is None else elements_max)
        return message
    except (MalformedMessage, IndexError, struct.error, UnicodeDecodeError) as error:
        damage = _damage(cls, version, error, _compiled[cls, version, "decode"])
    # Raised here, without a view of the buffer, so a stored exception does not keep the buffer alive.
    data = b""
    raise damage


def decode_in_turns(cls: type[S], buffer: memoryview, version: int, position: int = 0) -> Generator[None, None, S]:
    """The same as ``decode`` in steps of about 0.2 ms, for a message with very many elements: each ``yield`` ends a step.

    The buffer must not change until the message is returned. Records of the message are views of it.
    """
    compiled = _compiled.get((cls, version, "decode in turns"))
    if compiled is None:
        compiled = compile_decoder(cls, _declared(cls, version), version, in_turns=True)
        _compiled[cls, version, "decode in turns"] = compiled
    try:
        message: S = yield from compiled.run(buffer, position, len(buffer), _elements_max(cls))
        return message
    except (MalformedMessage, IndexError, struct.error, UnicodeDecodeError) as error:
        damage = _damage(cls, version, error, compiled)
    buffer = memoryview(b"")
    try:
        raise damage
    finally:
        # The callers' frames, which are in its traceback, hold the buffer: without a cycle they go at once.
        del damage


def encode(message: msgspec.Struct, version: int) -> bytes:
    """Encode a message. Raises FieldNotInVersion for a value that this version cannot hold, TypeError when records are not in memory."""
    out: list[Any] = []
    write(message, version, out)
    return b"".join(out)


def encode_chunks(message: msgspec.Struct, version: int) -> list[Chunk]:
    """Encode a message as buffers; records of 16 KiB and more, and records that are not bytes, are separate chunks."""
    out: list[Any] = []
    return joined(out, write(message, version, out))


def write(message: msgspec.Struct, version: int, out: list[Any]) -> list[int]:
    """Append a message to encoded pieces; returns the indexes of pieces that must not be joined."""
    cls = type(message)
    try:
        run = _encoders[cls][version]
    except KeyError:
        run = _new_encoder(cls, version)
    far: list[int] = []
    try:
        run(message, out, far)
    except (TypeError, ValueError, AttributeError, struct.error) as error:
        field, _ = _compiled[cls, version, "encode"].where(error.__traceback__)
        error.add_note(f"while encoding {cls.__name__} v{version}, at {field or 'its end'}")
        raise
    return far


def write_in_turns(message: msgspec.Struct, version: int, out: list[Any], far: list[int]) -> Generator[None, None, None]:
    """The same as ``write`` in steps of about 0.2 ms, for a message with very many elements; each ``yield`` ends a step.

    ``far`` gets the indexes of pieces that must not be joined. The caller may take other pieces out of ``out`` between two steps.
    """
    cls = type(message)
    compiled = _compiled.get((cls, version, "encode in turns"))
    if compiled is None:
        compiled = _compiled[cls, version, "encode in turns"] = compile_encoder(cls, _declared(cls, version), version, in_turns=True)
    try:
        yield from compiled.run(message, out, far)
    except (TypeError, ValueError, AttributeError, struct.error) as error:
        field, _ = compiled.where(error.__traceback__)
        error.add_note(f"while encoding {cls.__name__} v{version}, at {field or 'its end'}")
        raise


def joined(out: list[Any], far: list[int]) -> list[Chunk]:
    """Join the pieces, except for those at the indexes in `far`. The first chunk always is of joined pieces."""
    if not far:
        return [b"".join(out)]
    chunks: list[Chunk] = []
    start = 0
    for index in far:
        chunks += (b"".join(out[start:index]), out[index])
        start = index + 1
    if start < len(out):
        chunks.append(b"".join(out[start:]))
    return chunks


def _new_encoder(cls: type[msgspec.Struct], version: int) -> Callable[..., Any]:
    compiled = compile_encoder(cls, _declared(cls, version), version)
    _compiled[cls, version, "encode"] = compiled
    return _encoders.setdefault(cls, {}).setdefault(version, compiled.run)


def _new_decoder(cls: type[msgspec.Struct], version: int) -> tuple[Callable[..., Any], bool, int]:
    schema = _declared(cls, version)
    compiled = compile_decoder(cls, schema, version)
    _compiled[cls, version, "decode"] = compiled
    return _decoders.setdefault(cls, {}).setdefault(version, (compiled.run, holds_records(cls), _elements_max(cls)))


def _elements_max(cls: type[msgspec.Struct]) -> int:
    return REQUEST_ELEMENTS_MAX if is_request(cls) else RESPONSE_ELEMENTS_MAX


def _declared(cls: type[msgspec.Struct], version: int) -> MessageSchema:
    schema = schema_of(cls)
    if not schema.since <= version <= schema.until:
        raise UnsupportedVersion(f"{cls.__name__} is known from version {schema.since} to {schema.until}, not {version}")
    return schema


def _damage(cls: type[msgspec.Struct], version: int, error: Exception, decoder: Compiled) -> MalformedMessage:
    field, position = decoder.where(error.__traceback__)
    if isinstance(error, MalformedMessage):
        reason = error.reason
    elif isinstance(error, UnicodeDecodeError):
        reason = "is not UTF-8"
    else:
        reason = "the message ends here"
    return MalformedMessage(reason, message=cls.__name__, version=version, field=field, position=position)
