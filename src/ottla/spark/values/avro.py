"""Decodes Avro values to columns: with one schema, or each with the schema of its frame, from a schema registry.

A frame is a zero byte and the schema's id in four bytes, big-endian. A value is read with the schema of its own frame and mapped to the
query's columns by name: a missing field is null, and numbers widen. A value is malformed, and does not fail the query by itself, if

    the registry does not have its schema
    its schema gives no columns: not Avro, not a record, a union of several types
    its fields do not fit the query's columns

The registry is asked once per id and process, over HTTP: ``GET /schemas/ids/ID`` and ``GET /subjects/SUBJECT/versions/latest``.
"""

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructType

from ottla.client.arrow.avro import Column, avro_values, schema_faults
from ottla.client.arrow.json import Decoded
from ottla.client.schema_registry import AVRO, Registry, RegistryFailed, SchemaNotFound
from ottla.client.serializers import Avro
from ottla.lake.casts import fitted
from ottla.spark.source.options import ValueOptions

FRAME_BYTES = 5


def avro_decoder(options: ValueOptions, target: Any) -> Callable[[Any], Decoded]:
    """`target`: the Arrow struct type of the fields that the query reads. Raises: ImportError without the extra `schema`."""
    url = options.registry_url
    if url is not None:
        return lambda raw: _framed(raw, url, target)
    avro = _parsed(options.schema or "")
    return lambda raw: avro_values(raw, avro)


def fields_of_avro(options: ValueOptions, topics: tuple[str, ...]) -> Any:
    """The fields of a value as a StructType. Raises: ValueError, RegistryFailed, ImportError."""
    text = options.schema
    if text is None:
        assert options.registry_url is not None, "the options are rejected without one of the two"
        if options.subject is None and len(topics) != 1:
            raise ValueError("several topics may have several schemas: name the registry's subject with valueSubject, or set valueSchema")
        text = latest_schema(options.registry_url, options.subject or f"{topics[0]}-value")
    try:
        kind = Column.of(_parsed(text).read_schema, {}).type
    except schema_faults() as error:
        raise ValueError(f"valueSchema is not an Avro schema with columns: {error}") from error
    found = from_arrow_type(_for_spark(kind), prefer_timestamp_ntz=True)
    if not isinstance(found, StructType):
        raise ValueError("the schema of a value must be a record, so that its fields can become columns")
    return found


def _parsed(text: str, schema_id: int | None = None) -> Avro:
    try:
        schema = json.loads(text)
    except ValueError:
        # A type's name without quotes.
        schema = text.strip()
    return Avro(json.dumps(schema) if isinstance(schema, str) else schema, schema_id=schema_id)


def _for_spark(kind: Any) -> Any:
    """The closest type that Spark supports: timestamps in microseconds, times of day as numbers."""
    types = pa.types
    if types.is_struct(kind):
        return pa.struct([(one.name, _for_spark(one.type)) for one in kind])
    if types.is_list(kind):
        return pa.list_(_for_spark(kind.value_type))
    if types.is_map(kind):
        return pa.map_(kind.key_type, _for_spark(kind.item_type))
    if types.is_timestamp(kind):
        return pa.timestamp("us", tz=kind.tz)
    if types.is_time32(kind):
        return pa.int32()
    return pa.int64() if types.is_time64(kind) else kind


def _framed(raw: Any, url: str, target: Any) -> Decoded:
    """Decodes framed values, each with its own schema, to structs of type `target`."""
    heads = pc.binary_slice(raw, 0, FRAME_BYTES)
    places, parts = [], []
    for head in pc.unique(heads).to_pylist():
        framed = head is not None and len(head) == FRAME_BYTES and head[0] == 0
        avro = _reader(url, int.from_bytes(head[1:], "big")) if framed else None
        if avro is None:
            continue
        where = pc.indices_nonzero(pc.fill_null(pc.equal(heads, pa.scalar(head, pa.binary())), False))
        places.append(where)
        parts.append(_shaped(avro_values(raw.take(where), avro), target))
    if len(parts) == 1 and len(places[0]) == len(raw):
        return parts[0]
    order = pc.index_in(pa.array(range(len(raw)), pa.uint64()), pa.concat_arrays(places) if places else pa.array([], pa.uint64()))
    array = pa.concat_arrays([found.array for found in parts]).take(order) if parts else pa.nulls(len(raw), target)
    unread = pc.and_(raw.is_valid(), order.is_null())
    flags = [_none(len(found.array)) if found.bad is None else found.bad for found in parts]
    bad = pc.or_(unread, pc.fill_null(pa.concat_arrays(flags).take(order), False)) if flags else unread
    return Decoded(
        array, bad if pc.any(bad).as_py() else None, "it has no frame with a schema of the registry, or does not fit the columns' types"
    )


def _shaped(found: Decoded, target: Any) -> Decoded:
    """Converts values of one schema to structs of type `target`; values that do not fit are bad."""
    array, misfits = _fitted_rows(found.array, target)
    if misfits is None:
        return Decoded(array, found.bad, found.why)
    misfits = pc.and_(misfits, found.array.is_valid())
    return Decoded(array, misfits if found.bad is None else pc.or_(misfits, found.bad), "a field does not have its column's type")


def _fitted_rows(array: Any, target: Any) -> tuple[Any, Any]:
    """Like `fitted`, with flags of rows that do not fit; these are null (None: all fit)."""
    if _goes_into(array.type, target):
        try:
            return fitted(array, target), None
        except pa.ArrowNotImplementedError:
            pass
        except pa.ArrowInvalid:
            if len(array) > 1:
                # Few values are too large for their column; bisection finds them without a check of each.
                middle = len(array) // 2
                halves = [_fitted_rows(array.slice(0, middle), target), _fitted_rows(array.slice(middle), target)]
                flags = [_none(len(half)) if misfits is None else misfits for half, misfits in halves]
                return pa.concat_arrays([half for half, _ in halves]), pa.concat_arrays(flags)
    return pa.nulls(len(array), target), pa.repeat(pa.scalar(True), len(array))


def _goes_into(has: Any, target: Any) -> bool:
    """Whether values of one type may be cast to another: text is never cast to a number or a time."""
    types = pa.types
    if types.is_struct(has) and types.is_struct(target):
        return all(_goes_into(has.field(one.name).type, one.type) for one in target if has.get_field_index(one.name) >= 0)
    if types.is_list(has) and types.is_list(target):
        return _goes_into(has.value_type, target.value_type)
    if types.is_nested(has) or types.is_nested(target):
        return bool(types.is_map(has) and types.is_map(target))
    return bool(types.is_string(target) or types.is_binary(target)) or not (types.is_string(has) or types.is_binary(has))


def _none(count: int) -> Any:
    return pa.repeat(pa.scalar(False), count)


@cache
def _reader(url: str, schema_id: int) -> Avro | None:
    """The reader of values of a registry's schema; None if the registry lacks the id or its schema gives no columns.

    Raises: RegistryFailed.
    """
    text = schema_of(url, schema_id)
    if text is None:
        return None
    try:
        avro = _parsed(text, schema_id)
        return avro if pa.types.is_struct(Column.of(avro.read_schema, {}).type) else None
    except schema_faults():
        return None


@cache
def schema_of(url: str, schema_id: int) -> str | None:
    """The text of an Avro schema; None if the registry has none with this id. Raises: RegistryFailed."""
    return Registry(url).schema_if_there(schema_id)


def latest_schema(url: str, subject: str) -> str:
    """The newest schema of a subject. Raises: RegistryFailed; ValueError for an invalid URL."""
    try:
        found = Registry(url).newest(subject)
    except SchemaNotFound:
        raise RegistryFailed(f"the schema registry has no subject {subject}; name another with valueSubject, or set valueSchema") from None
    if found.type != AVRO:
        raise RegistryFailed(f"subject {subject} of the registry is {found.type}, not Avro")
    return found.schema
