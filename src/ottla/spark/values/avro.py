"""Decodes Avro values to columns: with one schema, or each with the schema of its frame, from a schema registry.

A schema gives no columns if it is not Avro, not a record, or has a union of several types.

The registry is asked once per id and process, over HTTP: ``GET /schemas/ids/ID`` and ``GET /subjects/SUBJECT/versions/latest``.
"""

import json
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructType

from ottla.client.arrow.avro import AvroColumn, avro_values, schema_faults
from ottla.client.arrow.json import Decoded
from ottla.client.schema_registry import AVRO, Registry
from ottla.client.serializers import Avro
from ottla.spark.source.options import ValueOptions
from ottla.spark.values.framed import Decode, framed_values, newest_schema, subject_of


def avro_decoder(options: ValueOptions, target: Any) -> Callable[[Any], Decoded]:
    """`target`: the Arrow struct type of the fields that the query reads. Raises: ImportError without the extra `schema`."""
    url = options.registry_url
    if url is not None:
        return lambda raw: framed_values(raw, target, partial(_framed_decoder, url))
    avro = _parsed(options.schema or "")
    return lambda raw: avro_values(raw, avro)


def fields_of_avro(options: ValueOptions, topics: tuple[str, ...]) -> Any:
    """The fields of a value as a StructType. Raises: ValueError, RegistryFailed, ImportError."""
    text = options.schema
    if text is None:
        assert options.registry_url is not None, "the options are rejected without one of the two"
        text = newest_schema(options.registry_url, subject_of(options, topics), AVRO, "Avro").schema
    try:
        kind = AvroColumn.of(_parsed(text).read_schema, {}).type
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


def _framed_decoder(url: str, schema_id: int) -> Decode | None:
    avro = _reader(url, schema_id)
    return None if avro is None else partial(avro_values, avro=avro)


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
        return avro if pa.types.is_struct(AvroColumn.of(avro.read_schema, {}).type) else None
    except schema_faults():
        return None


@cache
def schema_of(url: str, schema_id: int) -> str | None:
    """The text of an Avro schema; None if the registry has none with this id. Raises: RegistryFailed."""
    return Registry(url).schema_if_there(schema_id)
