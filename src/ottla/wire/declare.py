"""How a Kafka message is declared: a class whose annotations are its schema.

A message is a `Struct` (a msgspec.Struct: cheap to build, comparable, made by keyword) under `@message`. Its fields stand in wire order,
with Kafka's names in snake case and Kafka's defaults; the Python type is the wire type:

    str  bool  bytes            string, bool, bytes; `| None` makes it nullable
    Int8 Int16 Int32 Int64 ...  signed big-endian integers; UInt16, UInt32 and Float64 exist too
    Uuid                        sixteen raw bytes; the zero uuid is `ZERO_UUID`
    Records                     record batches, which are not copied
    list[T]  T(Struct)          array, nested structure; `| None` makes them nullable

What differs between versions is said beside the type:

    leader_epoch: Annotated[Int32, Since(7), Ignorable] = -1
                                   |         |            what a reader of an older version sees
                                   |         dropped without complaint where the version has no room for it;
                                   |         without this mark, a value other than the default raises `FieldNotInVersion`
                                   on the wire from version 7 on

`Until(12)` ends a field, `NullableSince(10)` allows null only from there on, `Tag(0)` moves the field into the tagged section at the end of
its structure (flexible versions only). A version number always means the version of the whole message, in nested structures too. A nested
structure that cannot be null is a `SharedStruct`: all messages share its one, frozen default. If it holds a list, it is a `Struct` that
`msgspec.field(default_factory=...)` makes anew for each message.

Source: KIP-482 (flexible versions), KIP-893 (nullable structures), the README of Kafka's message schemas.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Sized
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, TypeVar

import msgspec

ZERO_UUID = bytes(16)


class MalformedMessage(ValueError):
    """The bytes are not a valid message. Names the message, the field and the position of the error."""

    def __init__(self, reason: str, *, message: str = "", version: int = -1, field: str = "", position: int = 0) -> None:
        where = f"{message} v{version}: " if message else ""
        what = f"{field} at byte {position}: " if field else ""
        super().__init__(f"{where}{what}{reason}")
        self.reason = reason
        self.message = message
        self.version = version
        self.field = field
        self.position = position


class FieldNotInVersion(ValueError):
    """A field has a value that the encoded version cannot hold, and the field is not ignorable."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """A type of fixed size: its Kafka name and its code in the `struct` module."""

    name: str
    code: str
    size: int


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes behind a length: string, bytes or records."""

    name: str


@dataclass(frozen=True, slots=True)
class Array:
    """Elements of one type behind a count."""

    element: Type


@dataclass(frozen=True, slots=True)
class Since:
    """The first version that has the field."""

    version: int


@dataclass(frozen=True, slots=True)
class Until:
    """The last version that has the field."""

    version: int


@dataclass(frozen=True, slots=True)
class NullableSince:
    """The first version in which the field may be null; without it, every version allows null if the Python type does."""

    version: int


@dataclass(frozen=True, slots=True)
class Tag:
    """The field is optional on the wire: sent under this number, and only when it differs from its default.

    ``sends_null``: null is sent although it is the default. Kafka's default of a nullable structure without a default in its schema is a
    structure with defaults, so Kafka would read that where the field is missing.
    """

    number: int
    sends_null: bool = False


@dataclass(frozen=True, slots=True)
class Ignorable:
    """Marks a field that is dropped in versions without it."""


Int8 = Annotated[int, Fixed("int8", "b", 1)]
Int16 = Annotated[int, Fixed("int16", "h", 2)]
UInt16 = Annotated[int, Fixed("uint16", "H", 2)]
Int32 = Annotated[int, Fixed("int32", "i", 4)]
UInt32 = Annotated[int, Fixed("uint32", "I", 4)]
Int64 = Annotated[int, Fixed("int64", "q", 8)]
Float64 = Annotated[float, Fixed("float64", "d", 8)]
Uuid = Annotated[bytes, Fixed("uuid", "16s", 16)]
#: Decoding gives a memoryview of the input; encoding takes that, bytes, or anything with a length, such as a slice of a file.
Records = Annotated[bytes | bytearray | memoryview | Sized | None, Blob("records")]

BOOL = Fixed("bool", "?", 1)
STRING = Blob("string")
BYTES = Blob("bytes")


class Struct(msgspec.Struct, gc=False):
    """A group of fields. The collector does not track it: a message is a tree, never a cycle."""


class SharedStruct(msgspec.Struct, gc=False, frozen=True):
    """A group of fields that cannot be null, and whose default all messages share."""


S = TypeVar("S", bound=msgspec.Struct)
Type = Fixed | Blob | Array | type[msgspec.Struct]


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a structure, from its annotation."""

    name: str
    type: Type
    default: Any
    since: int
    until: int | None
    nullable_since: int | None
    tag: int | None
    sends_null: bool
    ignorable: bool

    def present(self, version: int) -> bool:
        """Whether this version has the field."""
        return self.since <= version and (self.until is None or version <= self.until)

    def nullable(self, version: int) -> bool:
        """Whether the field may be null in this version."""
        return self.nullable_since is not None and self.nullable_since <= version


@dataclass(frozen=True, slots=True)
class MessageSchema:
    """Properties of a message: its API key (None: not a request or response), its versions, and the first flexible one."""

    key: int | None
    since: int
    until: int
    #: Later versions exist but are not final: encoded and decoded, never advertised.
    stable_until: int
    #: None: no version is flexible.
    flexible_since: int | None
    #: Whether bytes after the end are ignored as fields of a newer version.
    extensible: bool

    def flexible(self, version: int) -> bool:
        """Whether this version uses compact lengths and carries tagged fields."""
        return self.flexible_since is not None and version >= self.flexible_since


#: All declared messages.
SCHEMAS: dict[type[msgspec.Struct], MessageSchema] = {}


def message(
    *,
    key: int | None = None,
    since: int = 0,
    until: int,
    flexible_since: int | None,
    stable_until: int | None = None,
    extensible: bool = False,
) -> Callable[[type[S]], type[S]]:
    """Declare a `Struct` as a message with versions `since` to `until`, both included."""

    def declare(cls: type[S]) -> type[S]:
        SCHEMAS[cls] = MessageSchema(key, since, until, until if stable_until is None else stable_until, flexible_since, extensible)
        return cls

    return declare


def schema_of(cls: type[msgspec.Struct]) -> MessageSchema:
    """Return the schema of a message class. Raises TypeError for a structure that is only a part of messages."""
    try:
        return SCHEMAS[cls]
    except KeyError:
        raise TypeError(f"{cls.__name__} is part of a message, not a message") from None


def is_request(cls: type[msgspec.Struct]) -> bool:
    """Whether clients send it. Bytes after its end are ignored then, as in Kafka's brokers: librdkafka leaves three bytes after some."""
    return cls.__name__.endswith("Request")


@cache
def fields_of(cls: type[msgspec.Struct]) -> tuple[Field, ...]:
    """Return the fields of a structure in wire order. Raises TypeError for an unknown annotation."""
    hints = typing.get_type_hints(cls, include_extras=True)
    defaults = cls()
    return tuple(_field(f"{cls.__name__}.{name}", name, hints[name], getattr(defaults, name)) for name in cls.__struct_fields__)


def _field(label: str, name: str, hint: Any, default: Any) -> Field:
    base, marks = _unwrap(hint)
    base, optional = _without_none(base)
    since = next((m.version for m in marks if isinstance(m, Since)), 0)
    nullable = next((m.version for m in marks if isinstance(m, NullableSince)), since) if optional else None
    tag = next((m for m in marks if isinstance(m, Tag)), None)
    return Field(
        name=name,
        type=_wire_type(label, base, marks),
        default=default,
        since=since,
        until=next((m.version for m in marks if isinstance(m, Until)), None),
        nullable_since=nullable,
        tag=None if tag is None else tag.number,
        sends_null=tag is not None and tag.sends_null,
        ignorable=Ignorable in marks,
    )


def _unwrap(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    if typing.get_origin(hint) is Annotated:
        base, *marks = typing.get_args(hint)
        return base, tuple(marks)
    return hint, ()


def _without_none(hint: Any) -> tuple[Any, bool]:
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint, False
    left = [arg for arg in typing.get_args(hint) if arg is not type(None)]
    return left[0], len(left) < len(typing.get_args(hint))


_PLAIN: dict[Any, Fixed | Blob] = {str: STRING, bytes: BYTES, bool: BOOL}


def _wire_type(label: str, base: Any, marks: tuple[Any, ...]) -> Type:
    for mark in marks:
        if isinstance(mark, Fixed | Blob):
            return mark
    if base in _PLAIN:
        return _PLAIN[base]
    if typing.get_origin(base) is list:
        return Array(_wire_type(label, *_unwrap(typing.get_args(base)[0])))
    if isinstance(base, type) and issubclass(base, msgspec.Struct):
        return base
    raise TypeError(f"{label}: {base!r} has no form on the wire")
