"""Headers and the length prefix of a message.

    request    size int32 | api key int16 | version int16 | correlation id int32 | client id nullable string | tags (flexible) | body
    response   size int32 | correlation id int32 | tags (flexible) | body

The size counts the bytes after it. The client id has an int16 length even in a flexible header, so a broker can read it before it knows
the version. A response to ApiVersions never has tags in its header: the client does not know the broker's versions yet.

Source: KIP-482, KIP-511.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

import msgspec

from ottla.wire.codegen import skip_tags, tag_count
from ottla.wire.compile import Buffer, Chunk, decode, joined, write, write_in_turns
from ottla.wire.declare import MalformedMessage, S, schema_of
from ottla.wire.messages import API, ApiVersionsResponse

_SIZE = struct.Struct(">i")
_REQUEST = struct.Struct(">hhih")
#: Size and header of a response.
_RESPONSE = struct.Struct(">ii")
_FLEXIBLE_RESPONSE = struct.Struct(">iix")
SIZE_BYTES = 4

_NEVER = 1 << 15
_FLEXIBLE_SINCE = {api.key: api.flexible_since for api in API.values() if api.flexible_since is not None}
#: Packers of response headers by message class and version, created on first use.
_HEADS: dict[tuple[type[msgspec.Struct], int], struct.Struct] = {}

#: Limit of tagged fields in a header. Kafka defines none, so a header with many is hostile.
HEADER_TAGS_MAX = 64


class RequestHeader(NamedTuple):
    """API, version, correlation id and client id of a request."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def decode_request_header(buffer: Buffer) -> tuple[RequestHeader, int]:
    """Read the header of a request without its size prefix; returns the header and the start of the body.

    For an API that is not declared only the first four fields are read. Raises MalformedMessage.
    """
    end = len(buffer)
    try:
        api_key, api_version, correlation_id, length = _REQUEST.unpack_from(buffer)
        position = _REQUEST.size
        client_id = None
        if length >= 0:
            if length > end - position:
                raise MalformedMessage(f"length {length}, {end - position} bytes are left")
            client_id = str(buffer[position : position + length], "utf-8") if length else ""
            position += length
        elif length < -1:
            raise MalformedMessage(f"length {length}")
        if api_version >= _FLEXIBLE_SINCE.get(api_key, _NEVER):
            position = position + 1 if buffer[position] == 0 else _pass_tags(buffer, position, end)
        return tuple.__new__(RequestHeader, (api_key, api_version, correlation_id, client_id)), position
    except MalformedMessage as error:
        reason = error.reason
    except UnicodeDecodeError:
        reason = "the client id is not UTF-8"
    except (struct.error, IndexError):
        reason = f"{end} bytes are too few"
    raise MalformedMessage(reason, message="RequestHeader")


def encode_request(message: msgspec.Struct, version: int, correlation_id: int, client_id: str | None) -> list[Chunk]:
    """Encode a request frame as buffers."""
    schema = schema_of(type(message))
    client = b"" if client_id is None else client_id.encode()
    head = _REQUEST.pack(schema.key, version, correlation_id, -1 if client_id is None else len(client)) + client
    if schema.flexible(version):
        head += b"\0"
    out: list[Any] = []
    chunks, size = _chunks(out, write(message, version, out))
    chunks[0] = _SIZE.pack(len(head) + size) + head + chunks[0]  # type: ignore[operator]
    return chunks


def encode_response(message: msgspec.Struct, version: int, correlation_id: int) -> list[Chunk]:
    """Encode a response frame as buffers."""
    out: list[Any] = []
    return _response(type(message), version, correlation_id, out, write(message, version, out))


def encode_response_in_turns(message: msgspec.Struct, version: int, correlation_id: int) -> Generator[None, None, list[Chunk]]:
    """Encode a response with very many elements, in steps of about 0.2 ms; returns the buffers."""
    out: list[Any] = []
    done: list[Chunk] = []
    far: list[int] = []
    for _ in write_in_turns(message, version, out, far):
        # Joined as they come: all pieces together would be a long step.
        done += joined(out, far)
        out.clear()
        far.clear()
        yield
    return _response(type(message), version, correlation_id, out, far, done)


def _response(
    cls: type[msgspec.Struct], version: int, correlation_id: int, out: list[Any], far: list[int], done: Sequence[Chunk] = ()
) -> list[Chunk]:
    """A frame of these pieces, which follow those that are ``done``."""
    head = _HEADS.get((cls, version))
    if head is None:
        head = _HEADS[cls, version] = _FLEXIBLE_RESPONSE if _flexible_header(cls, version) else _RESPONSE
    chunks, size = _chunks(out, far)
    if done:
        chunks = [*done, *chunks]
        size += sum(map(len, done))
    chunks[0] = head.pack(head.size - SIZE_BYTES + size, correlation_id) + chunks[0]  # type: ignore[operator]
    return chunks


def decode_response(cls: type[S], buffer: Buffer, version: int) -> tuple[int, S]:
    """Decode a response without its size prefix: correlation id and message. Raises MalformedMessage."""
    end = len(buffer)
    try:
        correlation_id: int = _SIZE.unpack_from(buffer)[0]
        position = _pass_tags(buffer, _SIZE.size, end) if _flexible_header(cls, version) else _SIZE.size
    except (struct.error, IndexError):
        position = -1
    if position < 0:
        raise MalformedMessage(f"{end} bytes are too few", message="ResponseHeader")
    return correlation_id, decode(cls, buffer, version, position)


def _flexible_header(cls: type[msgspec.Struct], version: int) -> bool:
    return cls is not ApiVersionsResponse and schema_of(cls).flexible(version)


def _pass_tags(buffer: Any, position: int, end: int) -> int:
    count = buffer[position]
    position += 1
    if count:
        count, position = tag_count(buffer, position, end, count, HEADER_TAGS_MAX)
        position = skip_tags(buffer, position, end, count)
    return position


def _chunks(out: list[Any], far: list[int]) -> tuple[list[Chunk], int]:
    """The pieces of a message without its header: chunks, the first of which is of type bytes, and their size together."""
    if not far:
        body = b"".join(out)
        return [body], len(body)
    chunks = joined(out, far)
    return chunks, sum(map(len, chunks))
