"""Serializers of record keys and values.

A serializer is one of

    a name            "str"  "int"  "float"  "bytes"  "json"  "uuid"       or the type: str, int, float, bytes
    a format          Str("latin-1")  Int(32)  Float(32)  Json(type=Order)  Avro(schema)  Protobuf(Order)
    a function        value -> bytes                                       not called for None, which stays None
    an object         serialize(topic, headers, value) -> bytes | None     optionally configure(settings, is_key) and close()

and a deserializer the reverse: bytes -> value, deserialize(topic, headers, data). Formats are both. `headers` is the record's list of
(name, bytes); a serializer may append to it.

The bytes are those of Kafka's serializers: text is UTF-8, numbers are big-endian, a UUID is text. None is a tombstone and stays None.
"""

from __future__ import annotations

import struct
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from io import BytesIO
from typing import Any, Protocol

import msgspec

from ottla.base.options import suggestion
from ottla.client.values.avro_limits import AvroLimits
from ottla.wire.errors import KafkaError

HeaderList = list[tuple[str, bytes | None]]
Serialize = Callable[[str, HeaderList, Any], bytes | None]
Deserialize = Callable[[str, HeaderList, bytes | None], Any]


class Serializer(Protocol):
    """A serializer object; it may also have `configure(settings, is_key)` and `close()`."""

    def serialize(self, topic: str, headers: HeaderList, data: Any) -> bytes | None: ...


class Deserializer(Protocol):
    """A deserializer object; it may also have `configure(settings, is_key)` and `close()`."""

    def deserialize(self, topic: str, headers: HeaderList, data: bytes | None) -> Any: ...


class SerializationFailed(KafkaError, ValueError):
    """A key or value cannot be serialized or deserialized."""

    sentence = "not the data that the format was made for"


class Format(ABC):
    """A format encodes and decodes values other than None."""

    name = "?"
    #: Exceptions of `encode` and `decode` for invalid data.
    failures: tuple[type[Exception], ...] = (TypeError, ValueError, struct.error, OverflowError)

    def serialize(self, topic: str, headers: HeaderList, data: Any) -> bytes | None:
        """Raises: SerializationFailed."""
        if data is None:
            return None
        try:
            return self.encode(data)
        except self.failures as error:
            raise SerializationFailed(f"a {type(data).__name__} for topic {topic} cannot be written as {self.name}: {error}") from error

    def deserialize(self, topic: str, headers: HeaderList, data: bytes | None) -> Any:
        """Raises: SerializationFailed."""
        if data is None:
            return None
        try:
            return self.decode(data)
        except self.failures as error:
            raise SerializationFailed(f"{len(data)} bytes of topic {topic} cannot be read as {self.name}: {error}") from error

    @abstractmethod
    def encode(self, data: Any) -> bytes:
        """Encodes a value."""

    @abstractmethod
    def decode(self, data: bytes) -> Any:
        """Decodes bytes."""

    def reader(self) -> Callable[[bytes], Any]:
        """A function equivalent to `decode`, with the least overhead."""
        return self.decode


class Str(Format):
    """Text. Kafka's StringSerializer."""

    name = "text"

    def __init__(self, encoding: str = "utf-8") -> None:
        self._encoding = encoding

    def serialize(self, topic: str, headers: HeaderList, data: Any) -> bytes | None:
        """Like in `Format`, with a fast path for text."""
        try:
            if data.__class__ is str:
                return data.encode(self._encoding)
        except UnicodeEncodeError:
            pass
        return super().serialize(topic, headers, data)

    def encode(self, data: Any) -> bytes:
        if not isinstance(data, str):
            raise TypeError("expected a str")
        return data.encode(self._encoding)

    def decode(self, data: bytes) -> str:
        return data.decode(self._encoding)


class Bytes(Format):
    """Bytes, unchanged."""

    name = "bytes"

    def encode(self, data: Any) -> bytes:
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError("expected bytes")
        return bytes(data)

    def decode(self, data: bytes) -> bytes:
        return data


class Int(Format):
    """A signed integer of 64 bits (Kafka's LongSerializer), 32 (IntegerSerializer) or 16 (ShortSerializer)."""

    def __init__(self, bits: int = 64) -> None:
        self._struct = struct.Struct({64: ">q", 32: ">i", 16: ">h"}[bits])
        self.name = f"a whole number of {bits} bits"

    def encode(self, data: Any) -> bytes:
        return self._struct.pack(data)

    def decode(self, data: bytes) -> int:
        return int(self._struct.unpack(data)[0])


class Float(Format):
    """A floating point number of 64 bits (Kafka's DoubleSerializer) or 32 (FloatSerializer)."""

    def __init__(self, bits: int = 64) -> None:
        self._struct = struct.Struct({64: ">d", 32: ">f"}[bits])
        self.name = f"a number of {bits} bits"

    def encode(self, data: Any) -> bytes:
        return self._struct.pack(data)

    def decode(self, data: bytes) -> float:
        return float(self._struct.unpack(data)[0])


class Uuid(Format):
    """A UUID as text. Kafka's UUIDSerializer."""

    name = "a UUID"
    failures = (TypeError, ValueError)

    def encode(self, data: Any) -> bytes:
        if not isinstance(data, uuid.UUID):
            raise TypeError("expected a uuid.UUID")
        return str(data).encode()

    def decode(self, data: bytes) -> uuid.UUID:
        return uuid.UUID(data.decode())


#: Types that JSON has.
PLAIN = frozenset((str, int, float, bool, type(None)))


def refuse_bytes(data: Any) -> None:
    """Raises: TypeError for bytes in a JSON value: msgspec would write base64, which readers do not expect."""
    kind = data.__class__
    inner: Iterable[Any] = ()
    if kind is dict:
        inner = (*data, *data.values())
    elif kind in (list, tuple, set, frozenset):
        inner = data
    elif isinstance(data, bytes | bytearray | memoryview):
        raise TypeError(
            f"JSON has no bytes: decode them first, {bytes(data[:20])!r}.decode() if they are text, base64.b64encode(...).decode() if not;"
            " or, if they are JSON already, send them without a serializer"
        )
    for value in inner:
        if value.__class__ not in PLAIN:
            refuse_bytes(value)


class Json(Format):
    """JSON, read and written by msgspec; with `type`, a class that msgspec supports, values are validated and converted.

    Bytes are refused at any depth, because JSON has none. A field of a class (dataclass, Struct) that is declared as bytes is written and
    read as base64.
    """

    name = "JSON"
    failures = (TypeError, ValueError, RecursionError, msgspec.MsgspecError)

    def __init__(self, type: Any = Any) -> None:
        self._encoder = msgspec.json.Encoder()
        self._decoder = msgspec.json.Decoder(type)

    def encode(self, data: Any) -> bytes:
        if data.__class__ not in PLAIN:
            refuse_bytes(data)
        return self._encoder.encode(data)

    def decode(self, data: bytes) -> Any:
        return self._decoder.decode(data)

    def reader(self) -> Callable[[bytes], Any]:
        return self._decoder.decode


class Avro(Format):
    """Avro's binary format with one schema, a dict or JSON text.

    With `schema_id`, values have the header of schema registries: a zero byte and the id in four bytes. `reader_schema`: the schema for
    reading. Needs the extra `schema`.
    """

    name = "Avro"

    def __init__(self, schema: Any, *, reader_schema: Any = None, schema_id: int | None = None) -> None:
        self._avro = needed("fastavro", "Avro")
        self._schema = self._avro.parse_schema(_parsed(schema))
        #: Made when the first value is read.
        self._limits: AvroLimits | None = None
        self._reader_schema = None if reader_schema is None else self._avro.parse_schema(_parsed(reader_schema))
        #: Header of each value.
        self.prefix = b"" if schema_id is None else b"\0" + schema_id.to_bytes(4, "big")
        # fastavro raises almost any exception for a field of the wrong type.
        self.failures = (TypeError, ValueError, KeyError, IndexError, EOFError, AttributeError, OverflowError, struct.error)

    def encode(self, data: Any) -> bytes:
        out = BytesIO()
        out.write(self.prefix)
        self._avro.schemaless_writer(out, self._schema, data)
        return out.getvalue()

    def decode(self, data: bytes) -> Any:
        return self.read(BytesIO(data))

    def read(self, stream: BytesIO) -> Any:
        """Reads the value at the stream's position."""
        frame = stream.read(len(self.prefix))
        if frame != self.prefix:
            raise ValueError(f"framed by {frame.hex()}, not by {self.prefix.hex()}, which is schema {int.from_bytes(self.prefix, 'big')}")
        if self._limits is None:
            self._limits = AvroLimits(self._schema)
        self._limits.check(stream.getvalue(), stream.tell())
        return self._avro.schemaless_reader(stream, self._schema, self._reader_schema)

    @property
    def write_schema(self) -> Any:
        """The parsed schema for writing."""
        return self._schema

    @property
    def read_schema(self) -> Any:
        """The parsed schema for reading."""
        return self._schema if self._reader_schema is None else self._reader_schema


class Protobuf(Format):
    """Protocol buffers: messages of one generated class. Needs the extra `schema`."""

    def __init__(self, message: type[Any]) -> None:
        self._message = message
        self.name = f"protobuf {message.__name__}"
        self.failures = (TypeError, ValueError, needed("google.protobuf.message", "Protobuf").Error)

    def encode(self, data: Any) -> bytes:
        if not isinstance(data, self._message):
            raise TypeError(f"expected a {self._message.__name__}")
        return bytes(data.SerializeToString())

    def decode(self, data: bytes) -> Any:
        return self._message.FromString(data)


def needed(module: str, what: str) -> Any:
    """A module of the extra `schema`. Raises: ImportError with the command to install it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(f"{what} needs {module.split('.')[-2 if '.' in module else 0]}: pip install 'ottla[schema]'") from error


def _parsed(schema: Any) -> Any:
    return msgspec.json.decode(schema) if isinstance(schema, str | bytes) else schema


FORMATS: dict[str, type[Format]] = {"str": Str, "int": Int, "float": Float, "bytes": Bytes, "json": Json, "uuid": Uuid}
_TYPES: dict[Any, type[Format]] = {str: Str, int: Int, float: Float, bytes: Bytes, uuid.UUID: Uuid}


def as_serializer(given: Any, settings: Mapping[str, Any], *, is_key: bool) -> Serialize | None:
    """The function of a serializer in any form; None without one. Configures objects.

    Raises: ValueError for an unknown name, TypeError for an object that is not a serializer.
    """
    found = _chosen(given, "serialize", settings, is_key=is_key)
    if found is None or given is not found or hasattr(found, "serialize"):
        return None if found is None else found.serialize
    return lambda topic, headers, data: None if data is None else found(data)


def as_deserializer(given: Any, settings: Mapping[str, Any], *, is_key: bool) -> Deserialize | None:
    """Like `as_serializer`, for deserializers."""
    found = _chosen(given, "deserialize", settings, is_key=is_key)
    if found is None or given is not found or hasattr(found, "deserialize"):
        return None if found is None else found.deserialize
    return lambda topic, headers, data: None if data is None else found(data)


def as_reader(given: Any, settings: Mapping[str, Any], *, is_key: bool) -> tuple[Deserialize | None, Callable[[bytes], Any] | None]:
    """`as_deserializer`, and an equivalent function of the bytes alone if topic and headers are not needed: it may raise another error for
    the same bytes.
    """
    deserialize = as_deserializer(given, settings, is_key=is_key)
    owner = getattr(deserialize, "__self__", None)
    if isinstance(owner, Format) and type(owner).deserialize is Format.deserialize:
        return deserialize, owner.reader()
    return deserialize, given if deserialize is not None and owner is None and not hasattr(given, "deserialize") else None


def _chosen(given: Any, method: str, settings: Mapping[str, Any], *, is_key: bool) -> Any:
    what = f"{'key' if is_key else 'value'}_{method}r"
    if given is None:
        return None
    if isinstance(given, str):
        if given not in FORMATS:
            raise ValueError(f"{what}: no format is called {given!r}{suggestion(given, FORMATS)}; there are {', '.join(FORMATS)}")
        return FORMATS[given]()
    if isinstance(given, type) and given in _TYPES:
        return _TYPES[given]()
    if isinstance(given, type) and hasattr(given, method):
        raise TypeError(f"{what}: give an object, {given.__name__}(), not the class")
    if not hasattr(given, method) and not callable(given):
        raise TypeError(f"{what}: {given!r} is no name of a format, no function, and has no method {method}")
    configure = getattr(given, "configure", None)
    if configure is not None:
        configure(settings, is_key)
    return given


def close_all(*given: Any) -> None:
    """Closes objects that have `close`."""
    for one in given:
        close = getattr(one, "close", None)
        if close is not None and not isinstance(one, type):
            close()


__all__ = [
    "Avro",
    "Bytes",
    "Deserializer",
    "Float",
    "Format",
    "Int",
    "Json",
    "Protobuf",
    "SerializationFailed",
    "Serializer",
    "Str",
    "Uuid",
]
