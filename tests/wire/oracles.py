"""The codecs of kio and kafka-python, with our messages mapped by field names."""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import io
import re
import uuid
from functools import cache
from typing import Any, get_args, get_type_hints

import kafka.protocol.admin
import kafka.protocol.consumer
import kafka.protocol.metadata
import kafka.protocol.producer
import msgspec
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from ottla.wire.declare import ZERO_UUID, Array, Field, Fixed, Type, fields_of, schema_of

EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)


@cache
def kio_class(cls: type[msgspec.Struct], version: int) -> type[Any] | None:
    """kio's class for one version of a message; None where it has none."""
    name = re.sub(r"(Request|Response)$", "", cls.__name__)
    snake = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
    kind = {"Request": "request", "Response": "response"}.get(cls.__name__.removeprefix(name), "data")
    try:
        module = importlib.import_module(f"kio.schema.{snake}.v{version}.{kind}")
    except ModuleNotFoundError:
        return None
    return getattr(module, cls.__name__)  # type: ignore[no-any-return]


#: Tags from here on are of fields that Kafka does not have.
OWN_TAGS = 10_000


def to_kio(message: msgspec.Struct, theirs: type[Any], version: int) -> Any:
    """Say a message in kio's classes."""
    hints = get_type_hints(theirs)
    ours = {f.name: f for f in fields_of(type(message))}
    values = {}
    for field in dataclasses.fields(theirs):
        name = field.name if field.name in ours else f"{field.name}_ms"
        value = getattr(message, name)
        values[field.name] = _kio_value(value, ours[name].type, field.metadata.get("kafka_type", ""), hints[field.name], version)
        ours.pop(name)
    missing = [f.name for f in ours.values() if f.present(version) and (f.tag or 0) < OWN_TAGS]
    assert not missing, f"kio has no {missing} in {theirs}"
    return theirs(**values)


def _kio_value(value: Any, kind: Type, kafka_type: str, hint: Any, version: int) -> Any:
    if value is None:
        return None
    if isinstance(kind, Array):
        element = next(arg for arg in (hint, *get_args(hint)) if get_args(arg) or isinstance(arg, type))
        inner = _inner_class(element)
        return tuple(_kio_value(item, kind.element, kafka_type, inner, version) for item in value)
    if isinstance(value, msgspec.Struct):
        return to_kio(value, _inner_class(hint), version)
    convert = {
        "error_code": ErrorCode,
        "timedelta_i64": lambda ms: datetime.timedelta(milliseconds=ms),
        "timedelta_i32": lambda ms: datetime.timedelta(milliseconds=ms),
        "datetime_i64": lambda ms: None if ms == -1 else EPOCH + datetime.timedelta(milliseconds=ms),
        "uuid": lambda raw: None if raw == ZERO_UUID else uuid.UUID(bytes=raw),  # type: ignore[arg-type, comparison-overlap]
    }.get(kafka_type)
    return convert(value) if convert else value  # type: ignore[no-untyped-call]


def _inner_class(hint: Any) -> Any:
    """The dataclass somewhere in `X`, `X | None`, `tuple[X, ...]`, `tuple[X, ...] | None`."""
    if dataclasses.is_dataclass(hint):
        return hint
    return next((found for found in map(_inner_class, get_args(hint)) if found is not None), None)


def kio_write(message: Any) -> bytes:
    """Encode one of kio's messages."""
    out = io.BytesIO()
    entity_writer(type(message))(out, message)
    return out.getvalue()


def kio_read(theirs: type[Any], data: bytes) -> Any:
    """Decode one of kio's messages; nothing may be left over."""
    message, size = entity_reader(theirs)(data, 0)
    assert size == len(data)
    return message


@cache
def kafka_python_class(cls: type[msgspec.Struct], version: int) -> type[Any] | None:
    """kafka-python's class for a message; None where it has none, or not this version."""
    for package in (kafka.protocol.admin, kafka.protocol.consumer, kafka.protocol.metadata, kafka.protocol.producer):
        theirs = getattr(package, cls.__name__, None)
        if theirs is not None:
            return theirs if schema_of(cls).since <= version <= theirs.max_version else None
    return None


def to_kafka_python(message: msgspec.Struct, theirs: type[Any], version: int) -> Any:
    """Say a message in kafka-python's classes; a tagged field at its default is left out, as its encoder does not compare structures."""
    values = {}
    for field in fields_of(type(message)):
        value = getattr(message, field.name)
        if field.present(version) and not (field.tag is not None and value == field.default):
            name = _kafka_python_name(field, theirs)
            values[name] = _kafka_python_value(value, theirs.fields[name], version)
    return theirs(version=version, **values)


def _kafka_python_name(field: Field, theirs: type[Any]) -> str:
    """Some of the sets of operations have another name there, and are sets and not the bits they travel in."""
    return field.name if field.name in theirs.fields else "authorized_operations"


def _kafka_python_value(value: Any, theirs: Any, version: int) -> Any:
    if isinstance(value, list):
        return [_kafka_python_value(item, theirs, version) for item in value]
    if isinstance(value, msgspec.Struct):
        return to_kafka_python(value, theirs.data_class, version)
    if type(value) is bytes and "uuid" in str(theirs._json["type"]):
        return uuid.UUID(bytes=value)
    if theirs.name == "authorized_operations":
        return {bit for bit in range(32) if value >> bit & 1}
    return value


def from_kafka_python(theirs: Any, cls: type[msgspec.Struct], version: int) -> Any:
    """Say a message that kafka-python decoded in our classes."""
    values = {}
    for field in fields_of(cls):
        if field.present(version) and (field.tag or 0) < OWN_TAGS:
            name = _kafka_python_name(field, type(theirs))
            value = getattr(theirs, name)
            values[field.name] = _bits(value) if name == "authorized_operations" else _our_value(value, field.type, field.default, version)
    return cls(**values)


def _bits(operations: set[int] | None) -> int:
    """The int32 whose bits are a set of operations; None is what kafka-python returns for a set that was not requested."""
    bits = sum(1 << bit for bit in ({31} if operations is None else operations))
    return bits - 2**32 if bits >= 2**31 else bits


def _our_value(value: Any, kind: Type, default: Any, version: int) -> Any:
    if isinstance(kind, Array):
        return None if value is None else [_our_value(item, kind.element, None, version) for item in value]
    if isinstance(kind, Fixed) and kind.name == "uuid":
        return ZERO_UUID if value is None else value.bytes
    if isinstance(kind, type):
        # A tagged structure that was not sent is None there.
        return default if value is None else from_kafka_python(value, kind, version)
    return value
