"""Avro values, with schemas from files or from a schema registry, and Protobuf values without a registry.

A registry's frame is a zero byte, the schema's id (4 bytes, big-endian), then the value.

Values are JSON: bytes as base64, times as ISO 8601, decimals as text. Input has the same format.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec

from ottla.client.schema_registry import Registry
from ottla.client.serializers import Avro, needed
from ottla.client.values.framed import FRAME_BYTES as FRAME_BYTES
from ottla.client.values.framed import frame_schema_id as frame_schema_id
from ottla.client.values.value_formats import ValueFormat, printed_value


def avro(file: str, registry_url: str | None, subject: str) -> ValueFormat:
    """Avro with the schema in a file, or with a registry's."""
    needed("fastavro", "Avro")
    registry = Registry(registry_url, option="--registry") if registry_url else None
    if not file and registry is None:
        raise ValueError("avro needs a schema: avro:FILE, or --registry URL")
    schema = _read_schema(file) if file else None
    if registry is None:
        assert schema is not None, "without a registry there is a file"
        return _avro_format(_AvroUnframed(schema))
    return _avro_format(_AvroFramed(registry, subject, schema))


def _read_schema(file: str) -> str:
    text = Path(file).read_text()
    try:
        json.loads(text)
    except ValueError as error:
        raise ValueError(f"{file} is not an Avro schema: invalid JSON: {error}") from None
    return text


class _AvroUnframed:
    """Values of one schema, without a frame."""

    def __init__(self, schema: str) -> None:
        self._format = _format(schema)
        self._convert = json_to_avro(json.loads(schema))

    def decode(self, data: bytes) -> Any:
        return self._format.decode(data)

    def encode(self, value: Any) -> bytes:
        return self._format.encode(self._convert(value))


class _AvroFramed:
    """Values framed with the id of their schema. Values are written with the file's schema, else with the subject's newest."""

    def __init__(self, registry: Registry, subject: str, file_schema: str | None) -> None:
        self._registry, self._subject, self._file_schema = registry, subject, file_schema
        self._readers: dict[int, Avro] = {}
        self._writer: tuple[Avro, Callable[[Any], Any]] | None = None

    def decode(self, data: bytes) -> Any:
        number = frame_schema_id(data)
        if number not in self._readers:
            self._readers[number] = _format(self._registry.by_id(number).schema)
        return self._readers[number].decode(data[FRAME_BYTES:])

    def encode(self, value: Any) -> bytes:
        if self._writer is None:
            registry, subject = self._registry, self._subject
            latest = registry.added(subject, self._file_schema) if self._file_schema else registry.newest(subject)
            self._writer = _format(latest.schema, latest.id), json_to_avro(json.loads(latest.schema))
        return self._writer[0].encode(self._writer[1](value))


def _format(schema: str, number: int | None = None) -> Avro:
    wrong = needed("fastavro.schema", "Avro").SchemaParseException
    try:
        return Avro(schema, schema_id=number)
    except (wrong, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not an Avro schema: {' '.join(str(error).split())}") from error


def _avro_format(codec: _AvroUnframed | _AvroFramed) -> ValueFormat:
    failures = (TypeError, ValueError, KeyError, IndexError, EOFError, AttributeError, OverflowError, ArithmeticError)

    def value(data: bytes) -> Any:
        try:
            return codec.decode(data)
        except failures as error:
            raise ValueError(f"not Avro with this schema: {' '.join(str(error).split()) or type(error).__name__}") from None

    def read(given: Any) -> bytes:
        if isinstance(given, bytes):
            try:
                given = msgspec.json.decode(given)
            except msgspec.MsgspecError as error:
                raise ValueError(f"expected JSON to encode as Avro: {error}") from None
        try:
            return codec.encode(given)
        except failures as error:
            raise ValueError(f"does not fit the schema: {' '.join(str(error).split()) or type(error).__name__}") from None

    return ValueFormat("avro", lambda data: printed_value(value(data)), value, read)


#: Converts a JSON value to the value that fastavro expects, by type or logical type.
_CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "bytes": lambda value: b64decode(value, validate=True) if isinstance(value, str) else value,
    "fixed": lambda value: b64decode(value, validate=True) if isinstance(value, str) else value,
    "decimal": lambda value: Decimal(str(value)),
    "date": lambda value: date.fromisoformat(value) if isinstance(value, str) else value,
    **dict.fromkeys(("time-millis", "time-micros"), lambda value: time.fromisoformat(value) if isinstance(value, str) else value),
    **dict.fromkeys(
        ("timestamp-millis", "timestamp-micros", "local-timestamp-millis", "local-timestamp-micros"),
        lambda value: datetime.fromisoformat(value) if isinstance(value, str) else value,
    ),
}


def json_to_avro(schema: Any) -> Callable[[Any], Any]:
    """A function that converts JSON values to fastavro's for a schema: bytes from base64, times from ISO 8601, decimals from text."""
    named: dict[str, Any] = {}

    def know(part: Any) -> None:
        if isinstance(part, list):
            for branch in part:
                know(branch)
        elif isinstance(part, dict):
            if "name" in part:
                named[part["name"]] = part
            for inner in (part.get("type"), part.get("items"), part.get("values")):
                know(inner)
            for field in part.get("fields", ()):
                know(field["type"])

    def shape(part: Any, value: Any) -> Any:
        if isinstance(part, list):
            return _branch(part, value)
        if isinstance(part, str):
            return shape(named[part], value) if part in named else _CONVERSIONS[part](value) if part in _CONVERSIONS else value
        kind = part["type"]
        if part.get("logicalType") in _CONVERSIONS:
            return _CONVERSIONS[part["logicalType"]](value)
        if kind == "record" and isinstance(value, dict):
            fields = {field["name"]: field["type"] for field in part["fields"]}
            unknown = [name for name in value if name not in fields]
            if unknown:
                raise ValueError(f"the schema has no field {unknown[0]!r}")
            return {name: shape(fields[name], inner) for name, inner in value.items()}
        if kind == "array" and isinstance(value, list):
            return [shape(part["items"], inner) for inner in value]
        if kind == "map" and isinstance(value, dict):
            return {name: shape(part["values"], inner) for name, inner in value.items()}
        return (
            _CONVERSIONS[kind](value)
            if isinstance(kind, str) and kind in _CONVERSIONS
            else shape(kind, value)
            if not isinstance(kind, str)
            else value
        )

    def _branch(branches: list[Any], value: Any) -> Any:
        if value is None:
            return None
        for branch in branches:
            if branch in ("null", "string") and not (branch == "string" and isinstance(value, str)):
                continue
            try:
                return shape(branch, value)
            except (ValueError, TypeError, KeyError, ArithmeticError):
                continue
        return value

    know(schema)
    return lambda value: shape(schema, value)


def protobuf(file: Path, name: str) -> ValueFormat:
    """Messages of a descriptor set, without a frame."""
    failed = needed("google.protobuf.message", "Protobuf").Error
    from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

    pool = descriptor_pool.DescriptorPool()
    try:
        for one in descriptor_pb2.FileDescriptorSet.FromString(file.read_bytes()).file:
            pool.Add(one)
        message = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
    except KeyError:
        raise ValueError(f"{file} has no message {name!r}; name it with its package, such as shop.Order") from None
    except (failed, TypeError) as error:
        raise ValueError(f"{file} is not a descriptor set of protoc --include_imports -o: {error}") from None

    def value(data: bytes) -> Any:
        try:
            return json_format.MessageToDict(message.FromString(data), preserving_proto_field_name=True)
        except failed as error:
            raise ValueError(f"not a protobuf {name}: {error}") from None

    def read(given: Any) -> bytes:
        try:
            text = given.decode() if isinstance(given, bytes) else given if isinstance(given, str) else msgspec.json.encode(given).decode()
            return bytes(json_format.Parse(text, message()).SerializeToString())
        except (failed, json_format.Error) as error:
            raise ValueError(f"does not fit message {name}: {' '.join(str(error).split())}") from None

    return ValueFormat("protobuf", lambda data: printed_value(value(data)), value, read)
