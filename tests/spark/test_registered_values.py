"""Keys and values of a Spark write are encoded with schemas of a registry, without Spark."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from ottla.client.schema_registry import RegisteredSchema, Registry
from ottla.spark.sink.options import SinkOptions
from ottla.spark.sink.registered_values import encoded
from ottla.spark.source.options import OptionError

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
SCHEMAS = {"t-key": RegisteredSchema(1, '"string"'), "t-value": RegisteredSchema(2, json.dumps(ORDER))}
OPTIONS = {"topic": "t", "kafka.bootstrap.servers": "localhost:1"}


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Registry, "newest", lambda self, subject: SCHEMAS[subject])


def rows(**columns: list[Any]) -> Any:
    return pa.RecordBatch.from_pydict(columns)


def test_keys_and_values_get_the_frame_of_their_schema() -> None:
    given = rows(key=["a", "7", None], value=['{"id":1}', '{"id":2}', None], topic=["t"] * 3)
    made = encoded(given, "t", {"key": "avro", "value": "avro"}, "http://localhost:1")
    assert made.column("key").to_pylist() == [b"\0\0\0\0\1\2a", b"\0\0\0\0\1\x027", None]
    assert made.column("value").to_pylist() == [b"\0\0\0\0\2\2", b"\0\0\0\0\2\4", None]
    assert made.column("topic").to_pylist() == ["t"] * 3


def test_a_row_that_does_not_fit_fails_with_its_column_and_topic() -> None:
    with pytest.raises(ValueError, match="a value for topic t does not fit the schema"):
        encoded(rows(value=['{"id":"one"}']), "t", {"value": "avro"}, "http://localhost:1")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"valueFormat": "avro"}, "schema.registry.url.*is missing"),
        ({"keyFormat": "text", "schema.registry.url": "http://r"}, "expected avro"),
    ],
)
def test_formats_need_a_registry_and_a_schema(options: dict[str, str], why: str) -> None:
    with pytest.raises(OptionError, match=why):
        SinkOptions.of({**OPTIONS, **options})


def test_the_formats_are_options_of_a_write() -> None:
    made = SinkOptions.of({**OPTIONS, "valueFormat": "avro:o.avsc", "schema.registry.url": "http://u:p@r"})
    assert (dict(made.formats), made.registry_url) == ({"value": "avro:o.avsc"}, "http://u:p@r") and "u:p" not in repr(made)
