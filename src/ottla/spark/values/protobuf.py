"""Decodes Protobuf values to columns: messages of one type, with descriptors from a file that protoc wrote, or from a schema registry.

With a registry the columns are those of the newest schema of the subject, and each value is read with the schema of its own frame. A
value of another message type is malformed.

    double float int32 int64 ...    the same type; uint32 and uint64 are BIGINT, and a value with a larger number is malformed
    bool string bytes               BOOLEAN STRING BINARY
    enum                            STRING: its name, or its number if unknown
    message                         STRUCT; google.protobuf.Timestamp is TIMESTAMP; recursive messages are rejected
    repeated, map                   ARRAY, MAP

An unset field with presence is null; an unset field without presence has its default. The library (extra `schema`) decodes messages one
by one, which takes several times as long as JSON or Avro.
"""

from collections.abc import Callable
from datetime import UTC
from functools import cache, partial
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type

from ottla.client.arrow.json import Decoded
from ottla.client.schema_registry import PROTOBUF, Registry, SchemaNotFound
from ottla.client.serializers import needed
from ottla.client.values.framed import RegistryMessages, class_of, indexes_of, named_kind, read_place
from ottla.spark.values.framed import Decode, framed_values, newest_schema

TIMESTAMP = "google.protobuf.Timestamp"


def message_class(descriptors: bytes, message: str) -> Any:
    """Raises: ValueError for invalid descriptors or an unknown message; ImportError without the extra `schema`."""
    pb2 = needed("google.protobuf.descriptor_pb2", "Protobuf")
    pool = needed("google.protobuf.descriptor_pool", "Protobuf").DescriptorPool()
    factory = needed("google.protobuf.message_factory", "Protobuf")
    try:
        files = pb2.FileDescriptorSet.FromString(descriptors).file
        for one in files:
            pool.Add(one)
        return factory.GetMessageClass(pool.FindMessageTypeByName(message))
    except KeyError:
        names = ", ".join(".".join(filter(None, (one.package, kind.name))) for one in files for kind in one.message_type)
        raise ValueError(f"valueMessage: the descriptors have no message {message}; they have {names or 'none'}") from None
    except (needed("google.protobuf.message", "Protobuf").Error, TypeError, ValueError) as error:
        raise ValueError(f"valueDescriptor is not a descriptor file (protoc --include_imports --descriptor_set_out): {error}") from error


def fields_of_message(descriptors: bytes, message: str) -> Any:
    """The fields of a message as Spark's StructType."""
    return from_arrow_type(_struct(message_class(descriptors, message).DESCRIPTOR, ()))


def protobuf_decoder(descriptors: bytes, message: str) -> Decode:
    """Raises: what `message_class` raises."""
    made = message_class(descriptors, message)
    return _decoder(made.DESCRIPTOR, made.FromString)


def _decoder(descriptor: Any, parsed: Callable[[bytes], Any]) -> Decode:
    """`parsed`: the message in a value. Raises: ValueError if the message type gives no columns."""
    errors = (needed("google.protobuf.message", "Protobuf").Error, ValueError, OverflowError)
    kind = _struct(descriptor, ())

    def decode(raw: Any) -> Decoded:
        found: list[Any] = []
        bad: list[bool] = []
        for data in raw.to_pylist():
            failed = False
            value = None
            if data is not None:
                try:
                    value = _fields(parsed(data))
                except errors:
                    failed = True
            found.append(value)
            bad.append(failed)
        return Decoded(pa.array(found, kind), pa.array(bad) if any(bad) else None, f"it is not a {descriptor.full_name}")

    return decode


def fields_of_registered(url: str, subject: str, message: str) -> Any:
    """The fields of a message of a subject's newest schema as Spark's StructType. Raises: ValueError, RegistryFailed."""
    newest_schema(url, subject, PROTOBUF, "Protobuf")
    kind, _ = RegistryMessages(Registry(url), subject, None, message).newest()
    return from_arrow_type(_struct(kind, ()))


def framed_decoder(url: str, message: str, target: Any) -> Decode:
    """The decoding of framed messages: of the type `message`, or without a name of the first type of each schema."""
    messages = RegistryMessages(Registry(url), "", None, message)

    @cache
    def decoder(schema_id: int) -> Decode | None:
        try:
            kind = named_kind(messages.kinds(schema_id), message)
            return None if kind is None else _decoder(kind, partial(_framed_message, class_of(kind), indexes_of(kind)))
        except (SchemaNotFound, ValueError):
            return None

    return lambda raw: framed_values(raw, target, decoder)


def _framed_message(made: Any, indexes: list[int], data: bytes) -> Any:
    """Raises: ValueError for another message type; DecodeError."""
    found, at = read_place(data)
    if found != indexes:
        raise ValueError(f"it is not a {made.DESCRIPTOR.full_name}")
    return made.FromString(data[at:])


def _struct(descriptor: Any, above: tuple[str, ...]) -> Any:
    if descriptor.full_name in above:
        raise ValueError(f"message {descriptor.full_name} is recursive, which a column cannot be; decode values in Python")
    inside = (*above, descriptor.full_name)
    return pa.struct([(field.name, _type(field, inside)) for field in descriptor.fields])


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _repeated(field: Any) -> bool:
    return bool(field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED)


def _type(field: Any, above: tuple[str, ...]) -> Any:
    if _is_map(field):
        entry = field.message_type.fields_by_name
        return pa.map_(_single(entry["key"], above), _single(entry["value"], above))
    one = _single(field, above)
    return pa.list_(one) if _repeated(field) else one


def _single(field: Any, above: tuple[str, ...]) -> Any:
    if field.message_type is not None:
        if field.message_type.full_name == TIMESTAMP:
            return pa.timestamp("us", tz="UTC")
        return _struct(field.message_type, above)
    kinds = {
        field.CPPTYPE_INT32: pa.int32(), field.CPPTYPE_INT64: pa.int64(), field.CPPTYPE_UINT32: pa.int64(),
        field.CPPTYPE_UINT64: pa.int64(), field.CPPTYPE_DOUBLE: pa.float64(), field.CPPTYPE_FLOAT: pa.float32(),
        field.CPPTYPE_BOOL: pa.bool_(), field.CPPTYPE_ENUM: pa.string(), field.CPPTYPE_STRING: pa.string(),
    }  # fmt: skip
    return pa.binary() if field.type == field.TYPE_BYTES else kinds[field.cpp_type]


def _fields(message: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if _is_map(field):
            inner = field.message_type.fields_by_name["value"]
            found[field.name] = [(key, _value(inner, value[key])) for key in value]
        elif _repeated(field):
            found[field.name] = [_value(field, one) for one in value]
        elif field.has_presence and not message.HasField(field.name):
            found[field.name] = None
        else:
            found[field.name] = _value(field, value)
    return found


def _value(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return value.ToDatetime(tzinfo=UTC) if field.message_type.full_name == TIMESTAMP else _fields(value)
    if field.enum_type is not None:
        named = field.enum_type.values_by_number.get(value)
        return str(value) if named is None else named.name
    if field.cpp_type == field.CPPTYPE_UINT64 and value >= 1 << 63:
        raise OverflowError(field.name)
    return value
