"""Protobuf and JSON Schema with a schema registry: values with a frame, read with the schema of their frame.

    frame        0, the schema's id in four bytes, for Protobuf the place of the message type in its file, then the value
    place        indexes of the type and its enclosing ones: a count and each index as zigzag varints; the first type of a file is one zero

Values are written with the schema of a file, which is registered with what it imports, or with the newest schema of the subject. An
imported `.proto` file is registered under its own name, as Confluent's serializers do by default.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from ottla.client.schema_registry import JSON, PROTOBUF, Reference, RegisteredSchema, Registry
from ottla.client.serializers import needed
from ottla.client.values.proto_text import proto_text
from ottla.client.values.value_formats import ValueFormat, printed_value

MAGIC, FRAME_BYTES = 0, 5
#: Imports that every registry and reader has.
KNOWN_IMPORTS = "google/protobuf/"


def frame(schema_id: int) -> bytes:
    """The frame of values of a schema."""
    return bytes([MAGIC]) + schema_id.to_bytes(4, "big")


def frame_schema_id(data: bytes) -> int:
    """The id of the schema in a registry's frame. Raises: ValueError without a frame."""
    if len(data) < FRAME_BYTES or data[0] != MAGIC:
        raise ValueError("no schema registry frame: expected a zero byte and a schema id at the beginning")
    return int.from_bytes(data[1:FRAME_BYTES], "big")


# -- Protobuf.


def varint(number: int) -> bytes:
    """A number of at least 0 as a zigzag varint."""
    number <<= 1
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def message_place(indexes: list[int]) -> bytes:
    """The place of a message type as bytes."""
    return b"\0" if indexes == [0] else varint(len(indexes)) + b"".join(map(varint, indexes))


def read_place(data: bytes) -> tuple[list[int], int]:
    """The indexes after the frame, and where the message begins. Raises: ValueError."""
    at = FRAME_BYTES

    def number() -> int:
        nonlocal at
        found = shift = 0
        while True:
            if at >= len(data):
                raise ValueError("truncated within the schema registry frame")
            byte = data[at]
            at += 1
            found |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return (found >> 1) ^ -(found & 1)

    count = number()
    return ([number() for _ in range(count)] if count else [0]), at


def indexes_of(message: Any) -> list[int]:
    """The indexes of a message's descriptor in its file."""
    found = []
    while message is not None:
        above = message.containing_type
        siblings = list(above.nested_types if above is not None else message.file.message_types_by_name.values())
        found.append(siblings.index(message))
        message = above
    return found[::-1]


def named_kind(kinds: list[Any], name: str) -> Any:
    """The message type of this name, with or without its package; without a name the first one. None if there is none."""
    return next((kind for kind in kinds if not name or name in (kind.name, kind.full_name)), None)


class RegistryMessages:
    """Message classes of a registry's Protobuf schemas, and the schema for writing."""

    def __init__(self, registry: Registry, subject: str, file: Path | None, name: str) -> None:
        self._registry, self._subject, self._file, self._name = registry, subject, file, name
        self._files: dict[int, Any] = {}
        self._writer: tuple[Any, bytes] | None = None
        self._own: Any = None

    def _own_class(self, path: Path) -> Any:
        """The class of the file's message."""
        if self._own is None:
            self._own = class_of(self._found_in(path, _descriptor_set(path)))
        return self._own

    def _found_in(self, path: Path, files: list[Any]) -> Any:
        from google.protobuf import descriptor_pool

        pool = descriptor_pool.DescriptorPool()
        for one in files:
            pool.Add(one)
        try:
            return pool.FindMessageTypeByName(self._name)
        except KeyError:
            raise ValueError(f"{path} has no message {self._name!r}; name it with its package, such as shop.Order") from None

    def check(self) -> None:
        """Raises: ValueError if the file or its message is wrong."""
        if self._file is not None:
            self._own_class(self._file)

    def parse(self, data: bytes) -> Any:
        """The message. Raises: ValueError, DecodeError, RegistryFailed."""
        number = frame_schema_id(data)
        indexes, at = read_place(data)
        if self._file is not None:
            return self._own_class(self._file).FromString(data[at:])
        kinds: Any = self.kinds(number)
        kind = None
        for index in indexes:
            if not 0 <= index < len(kinds):
                raise ValueError(f"schema {number} has no message type at {indexes}")
            kind = kinds[index]
            kinds = kind.nested_types
        return class_of(kind).FromString(data[at:])

    def kinds(self, number: int) -> list[Any]:
        """Descriptors of the outer message types of a schema. Raises: ValueError, SchemaNotFound, RegistryFailed."""
        if number not in self._files:
            self._files[number] = self._descriptor(number)
        return list(self._files[number].message_types_by_name.values())

    def newest(self) -> tuple[Any, int]:
        """The named message of the subject's newest schema, without a name its first one, and the schema's id.

        Raises: ValueError, SchemaNotFound, RegistryFailed.
        """
        newest = self._registry.newest(self._subject)
        if newest.type != PROTOBUF:
            raise ValueError(f"the newest schema of {self._subject} is {newest.type}, not Protobuf")
        kinds = self.kinds(newest.id)
        if not kinds:
            raise ValueError(f"the newest schema of {self._subject} has no message type")
        found = named_kind(kinds, self._name)
        if found is None:
            raise ValueError(
                f"the newest schema of {self._subject} has no message {self._name!r}; it has {', '.join(k.full_name for k in kinds)}"
            )
        return found, newest.id

    def _descriptor(self, number: int) -> Any:
        from google.protobuf import descriptor_pool

        if self._registry.by_id(number).type != PROTOBUF:
            raise ValueError(f"schema {number} is not Protobuf")
        pool = descriptor_pool.DescriptorPool()
        self._add_imports(pool, self._registry.references(number), set())
        return _added(pool, b64decode(self._registry.descriptor(number)), f"schema-{number}.proto")

    def _add_imports(self, pool: Any, references: Iterable[Reference], known: set[str]) -> None:
        for one in references:
            if one.name not in known:
                known.add(one.name)
                found = self._registry.ask("GET", f"/subjects/{_quoted(one.subject)}/versions/{one.version}?format=serialized")
                self._add_imports(pool, [Reference(r["name"], r["subject"], r["version"]) for r in found.get("references") or ()], known)
                _added(pool, b64decode(found["schema"]), one.name)

    def writer(self) -> tuple[Any, bytes]:
        """The class of messages to write, and what precedes each. Raises: ValueError, RegistryFailed."""
        if self._writer is None:
            kind, number = self.newest() if self._file is None else self._from_file(self._file)
            self._writer = class_of(kind), frame(number) + message_place(indexes_of(kind))
        return self._writer

    def _from_file(self, path: Path) -> tuple[Any, int]:
        files = _descriptor_set(path)
        kind = self._found_in(path, files)
        by_name = {one.name: one for one in files}
        return kind, self._registered(by_name[kind.file.name], by_name, self._subject, {}).id

    def _registered(self, file: Any, by_name: dict[str, Any], subject: str, done: dict[str, RegisteredSchema]) -> RegisteredSchema:
        """Registers a file after those that it imports."""
        references = []
        for name in file.dependency:
            if not name.startswith(KNOWN_IMPORTS):
                if name not in done:
                    done[name] = self._registered(by_name[name], by_name, name, done)
                references.append(Reference(name, name, done[name].version))
        made = self._registry.added(subject, proto_text(file), PROTOBUF, references)
        if made.version:
            return made
        versions = self._registry.ask("GET", f"/schemas/ids/{made.id}/versions?subject={_quoted(subject)}")
        return made._replace(version=max(one["version"] for one in versions if one["subject"] == subject))


def _quoted(subject: str) -> str:
    from urllib.parse import quote

    return quote(subject, safe="")


def class_of(kind: Any) -> Any:
    """The class of a descriptor's messages."""
    from google.protobuf import message_factory

    return message_factory.GetMessageClass(kind)


def _added(pool: Any, data: bytes, name: str) -> Any:
    """Adds a file to a pool under a name, with Protobuf's own files that it imports."""
    from importlib import import_module

    from google.protobuf import descriptor_pb2

    file = descriptor_pb2.FileDescriptorProto.FromString(data)
    file.name = name
    for one in file.dependency:
        if one.startswith(KNOWN_IMPORTS):
            known = import_module(one.removesuffix(".proto").replace("/", ".") + "_pb2").DESCRIPTOR
            pool.AddSerializedFile(known.serialized_pb)
    pool.Add(file)
    return pool.FindFileByName(name)


def _descriptor_set(path: Path) -> list[Any]:
    """The files of a descriptor set. Raises: ValueError."""
    from google.protobuf import descriptor_pb2

    try:
        return list(descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes()).file)
    except (needed("google.protobuf.message", "Protobuf").Error, TypeError) as error:
        raise ValueError(f"{path} is not a descriptor set of protoc --include_imports -o: {error}") from None


def protobuf_framed(registry_url: str, subject: str, file: Path | None, name: str, option: str = "--registry") -> ValueFormat:
    """Messages with a frame: read with the registry's schemas, written with a file's or the subject's newest."""
    failed = needed("google.protobuf.message", "Protobuf").Error
    from google.protobuf import json_format

    messages = RegistryMessages(Registry(registry_url, option=option), subject, file, name)
    messages.check()

    def value(data: bytes) -> Any:
        try:
            return json_format.MessageToDict(messages.parse(data), preserving_proto_field_name=True)
        except (failed, TypeError, KeyError) as error:
            raise ValueError(f"not a protobuf {name or 'message of its schema'}: {error}") from None

    def read(given: Any) -> bytes:
        kind, prefix = messages.writer()
        try:
            return prefix + bytes(json_format.Parse(_json_text(given), kind()).SerializeToString())
        except (failed, json_format.Error) as error:
            raise ValueError(f"does not fit message {kind.DESCRIPTOR.full_name}: {' '.join(str(error).split())}") from None

    return ValueFormat("protobuf", lambda data: printed_value(value(data)), value, read)


def _json_text(given: Any) -> str:
    return given.decode() if isinstance(given, bytes) else given if isinstance(given, str) else msgspec.json.encode(given).decode()


# -- JSON Schema.


def json_schema(file: str, registry_url: str | None, subject: str, option: str = "--registry") -> ValueFormat:
    """JSON with a frame. Values are validated against the schema when they are written."""
    if registry_url is None:
        raise ValueError("json-schema needs --registry URL")
    validators = needed("jsonschema.validators", "JSON Schema")
    wrong = needed("jsonschema.exceptions", "JSON Schema")
    registry = Registry(registry_url, option=option)
    text = Path(file).read_text() if file else None
    if text is not None:
        _checked(text, file, validators, wrong)
    written: list[tuple[bytes, Callable[[Any], Any]]] = []

    def value(data: bytes) -> Any:
        frame_schema_id(data)
        try:
            return msgspec.json.decode(data[FRAME_BYTES:])
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ValueError(f"not JSON after the frame: {error}") from None

    def read(given: Any) -> bytes:
        if not written:
            found = registry.newest(subject) if text is None else registry.added(subject, text, JSON)
            if found.type != JSON:
                raise ValueError(f"the newest schema of {subject} is {found.type}, not JSON")
            written.append((frame(found.id), _checked(found.schema, subject, validators, wrong)))
        prefix, validate = written[0]
        try:
            decoded = msgspec.json.decode(given) if isinstance(given, bytes) else given
        except msgspec.MsgspecError as error:
            raise ValueError(f"expected JSON: {error}") from None
        try:
            validate(decoded)
        except wrong.ValidationError as error:
            place = "/".join(map(str, error.absolute_path))
            raise ValueError(f"does not fit the schema: {error.message}{f' at {place}' if place else ''}") from None
        return prefix + msgspec.json.encode(decoded)

    return ValueFormat("json-schema", lambda data: printed_value(value(data)), value, read)


def _checked(text: str, where: str, validators: Any, wrong: Any) -> Callable[[Any], Any]:
    """The validation of a schema. Raises: ValueError if it is none."""
    try:
        schema = json.loads(text)
        kind = validators.validator_for(schema, default=validators.Draft7Validator)
        kind.check_schema(schema)
    except (ValueError, wrong.SchemaError) as error:
        raise ValueError(f"{where} has no JSON schema: {getattr(error, 'message', error)}") from None
    found: Callable[[Any], Any] = kind(schema).validate
    return found
