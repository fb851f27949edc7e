"""Keys and values of a write in Avro, Protobuf or JSON Schema, with a registry's frame: the JSON of the columns is encoded in the task.

    option               value
    valueFormat          avro, avro:FILE, protobuf:MESSAGE, protobuf:FILE:MESSAGE, json-schema, json-schema:FILE
    keyFormat            the same
    schema.registry.url  the registry, which has, or gets, the schemas under TOPIC-value and TOPIC-key

A file is read by each task, so that it must be there on every worker. Text that is not JSON is taken as a text value, for keys.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pyarrow as pa

from ottla.client.values.parse import parse_value_format

if TYPE_CHECKING:
    from ottla.client.values.value_formats import ValueFormat


@cache
def _format(text: str, option: str, registry: str, subject: str) -> ValueFormat:
    return parse_value_format(text, option, registry=registry, subject=subject)


def encoded(rows: pa.RecordBatch, topic: str, formats: dict[str, str], registry: str) -> pa.RecordBatch:
    """The rows with the columns of `formats` (key, value) encoded. Raises: ValueError for a row that does not fit; RegistryFailed."""
    columns = {name: rows.column(name) for name in rows.schema.names}
    for column, text in formats.items():
        if column in columns:
            made = _format(text, f"{column}Format", registry, f"{topic}-{column}")
            columns[column] = pa.array([_encode(made, one, column, topic) for one in columns[column].to_pylist()], pa.binary())
    return pa.RecordBatch.from_pydict(columns)


def _encode(made: ValueFormat, given: str | bytes | None, column: str, topic: str) -> bytes | None:
    if given is None:
        return None
    try:
        return made.read(given.encode() if isinstance(given, str) else given)
    except ValueError as error:
        if isinstance(given, str):
            try:
                return made.read(given)
            except ValueError:
                pass
        raise ValueError(f"a {column} for topic {topic} {error}") from None
