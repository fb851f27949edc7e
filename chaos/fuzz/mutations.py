"""Almost valid requests: valid messages, written token by token, with some tokens changed.

A token is one item that a decoder reads: a number, a length, a count, the bytes after a length, a section of tags. The joined tokens of
an unchanged message equal the codec's output (a test asserts this), so a change hits the intended field.
"""

from __future__ import annotations

import struct
from random import Random
from typing import Any, NamedTuple

import msgspec

from ottla.wire.declare import Array, Blob, Fixed, Type, fields_of, schema_of

INT32_MAX = 2**31 - 1
COUNTS = (-(2**31), -2, -1, 0, 1, 2, 5, 127, 128, 255, 65_535, 1_000_000, INT32_MAX - 1, INT32_MAX)


class Token(NamedTuple):
    """One item that a decoder reads; kinds: fixed, length, count, blob, records, tags."""

    kind: str
    data: bytes
    flexible: bool


def uvarint(number: int) -> bytes:
    """An unsigned varint; a negative number is written as its 32 bits."""
    number &= 0xFFFFFFFF
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def tokens(message: msgspec.Struct, version: int) -> list[Token]:
    """The body of a message."""
    out: list[Token] = []
    _structure(message, version, schema_of(type(message)).flexible(version), out)
    return out


def _structure(message: msgspec.Struct, version: int, flexible: bool, out: list[Token]) -> None:
    present = [field for field in fields_of(type(message)) if field.present(version)]
    for field in present:
        if field.tag is None:
            _value(field.type, getattr(message, field.name), version, flexible, out, nullable=field.nullable(version))
    if not flexible:
        return
    tagged = [field for field in present if field.tag is not None and getattr(message, field.name) != field.default]
    out.append(Token("tags", uvarint(len(tagged)), True))
    for field in sorted(tagged, key=lambda field: field.tag or 0):
        inner: list[Token] = []
        _value(field.type, getattr(message, field.name), version, flexible, inner, nullable=field.nullable(version))
        data = b"".join(token.data for token in inner)
        out += [Token("fixed", uvarint(field.tag or 0), True), Token("length", uvarint(len(data)), True), Token("blob", data, True)]


def _value(kind: Type, value: Any, version: int, flexible: bool, out: list[Token], *, nullable: bool) -> None:
    if isinstance(kind, Fixed):
        out.append(Token("fixed", struct.pack(">" + kind.code, value), flexible))
    elif isinstance(kind, Blob):
        data = value.encode() if isinstance(value, str) else value
        out.append(Token("length", _length(kind.name, data, flexible), flexible))
        if data is not None:
            out.append(Token("records" if kind.name == "records" else "blob", bytes(data), flexible))
    elif isinstance(kind, Array):
        out.append(Token("count", _length("array", value, flexible), flexible))
        for element in value or ():
            _value(kind.element, element, version, flexible, out, nullable=False)
    elif nullable:
        out.append(Token("fixed", b"\xff" if value is None else b"\1", flexible))
        if value is not None:
            _structure(value, version, flexible, out)
    else:
        _structure(value, version, flexible, out)


def _length(name: str, value: Any, flexible: bool) -> bytes:
    size = -1 if value is None else len(value)
    return uvarint(size + 1) if flexible else struct.pack(">h" if name == "string" else ">i", size)


# Changes.


def _count(token: Token, random: Random) -> Token:
    number = random.choice(COUNTS)
    if token.flexible:
        overlong = (b"\xff" * 4 + b"\x7f", b"\xff" * 5 + b"\x01", b"\xff" * 12, b"\x80" * 5 + b"\0", b"\x80")
        return token._replace(data=random.choice(overlong) if random.random() < 0.2 else uvarint(number + 1))
    if len(token.data) == 2:
        return token._replace(data=struct.pack(">h", max(-(2**15), min(2**15 - 1, number))))
    return token._replace(data=struct.pack(">i", number))


def _fixed(token: Token, random: Random) -> Token:
    size = len(token.data)
    return token._replace(data=random.choice((b"\0" * size, b"\xff" * size, b"\x7f" + b"\xff" * (size - 1), random.randbytes(size))))


def _blob(token: Token, random: Random) -> Token:
    data = token.data
    return token._replace(data=random.choice((b"\xff" * len(data), b"\0" * len(data), "\ud800".encode("utf-8", "surrogatepass") + data[3:],
                                              data[:-1], data + b"?", data * 50)))  # fmt: skip


def _tags(token: Token, random: Random) -> Token:
    unknown = uvarint(random.choice((0, 5, 2**31 - 1)))
    return token._replace(
        data=random.choice(
            (
                uvarint(1) + unknown + uvarint(3) + b"abc",
                uvarint(2) + unknown + uvarint(0) + unknown + uvarint(0),
                uvarint(1) + unknown + uvarint(INT32_MAX),
                uvarint(20_000_000) + b"\x01\0" * 100,
                uvarint(INT32_MAX),
                b"\xff" * 10,
            )
        )
    )


def _changed(token: Token, random: Random) -> Token:
    match token.kind:
        case "length" | "count":
            return _count(token, random)
        case "tags":
            return _tags(token, random)
        case "fixed":
            return _fixed(token, random)
    return _blob(token, random)


def mutated_tokens(body: list[Token], random: Random) -> list[Token]:
    """The body with one to three changes, preferably of lengths and counts."""
    body = list(body)
    for _ in range(random.choice((1, 1, 2, 3))):
        if not body:
            break
        sizes = [i for i, token in enumerate(body) if token.kind in ("length", "count", "tags")]
        at = random.choice(sizes) if sizes and random.random() < 0.6 else random.randrange(len(body))
        match random.randrange(8):
            case 0:
                del body[at]
            case 1:
                body.insert(at, body[at])
            case 2:
                body[at:] = []
            case _:
                body[at] = _changed(body[at], random)
    return body


def header(key: int, version: int, correlation_id: int, client_id: bytes | None, *, flexible: bool) -> bytes:
    """A request's header, without the frame's size."""
    client = b"\xff\xff" if client_id is None else struct.pack(">h", len(client_id)) + client_id
    return struct.pack(">hhi", key, version, correlation_id) + client + (b"\0" if flexible else b"")


def _bad_header(key: int, version: int, random: Random, *, flexible: bool) -> bytes:
    good = header(key, version, 1, b"fuzz", flexible=flexible)
    return random.choice(
        (
            header(random.choice((-1, 999, 4, 71, 32_767)), version, 1, b"fuzz", flexible=flexible),
            header(key, random.choice((-1, 32_767, version + 1, 99)), 1, b"fuzz", flexible=flexible),
            header(key, version, -1, None, flexible=not flexible),
            header(key, version, 1, b"\xff\xfe\0" * 40, flexible=flexible),
            struct.pack(">hhih", key, version, 1, random.choice((-2, 32_767, -(2**15)))),
            good[:-1] + _tags(Token("tags", b"", True), random).data,
            good[: random.randrange(len(good))],
        )
    )


def plain_frame(key: int, version: int, message: msgspec.Struct, correlation_id: int) -> bytes:
    """A frame of this request, written without the codec, which rejects some hostile requests."""
    flexible = schema_of(type(message)).flexible(version)
    payload = header(key, version, correlation_id, b"fuzz", flexible=flexible) + b"".join(token.data for token in tokens(message, version))
    return struct.pack(">i", len(payload)) + payload


def mutated_frame(key: int, version: int, message: msgspec.Struct, correlation_id: int, random: Random) -> bytes:
    """A frame of this request with one fault: in a token of its body, in its header, in a few bits, or in its size."""
    flexible = schema_of(type(message)).flexible(version)
    head, body = header(key, version, correlation_id, b"fuzz", flexible=flexible), tokens(message, version)
    kind = random.random()
    if kind < 0.65:
        body = mutated_tokens(body, random)
    elif kind < 0.8:
        head = _bad_header(key, version, random, flexible=flexible)
    payload = bytearray(head + b"".join(token.data for token in body))
    if 0.8 <= kind < 0.95:
        for _ in range(random.randint(1, 8)):
            payload[random.randrange(len(payload))] ^= 1 << random.randrange(8)
    size = len(payload) + (random.choice((-5, -1, 1, 7, 100)) if kind >= 0.95 else 0)
    return struct.pack(">i", max(0, size)) + payload
