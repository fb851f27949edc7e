"""Protobuf and JSON Schema values with the frames of a schema registry as typed columns, without Spark. The registry is a real one."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from ottla.client.schema_registry import AVRO, JSON, Registry, RegistryFailed
from ottla.client.values.framed import frame, json_schema, protobuf_framed
from ottla.spark.source.options import OptionError, SourceOptions
from ottla.testing.registry import SchemaRegistry

from .decoding import BASE, decoded, plan

pytestmark = pytest.mark.server

PROTOBUF = {"valueFormat": "protobuf"}
JSON_SCHEMA = {"valueFormat": "json-schema"}
LINES = {"type": "array", "items": {"$ref": "#/definitions/line"}}
ORDER = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "price": {"oneOf": [{"type": "null"}, {"type": "number"}]},
        "paid": {"type": ["boolean", "null"]},
        "lines": LINES,
    },
    "definitions": {"line": {"type": "object", "properties": {"article": {"type": "string"}}}},
}


@pytest.fixture
def subject() -> str:
    return f"orders-{uuid.uuid4().hex[:8]}-value"


def options(registry: SchemaRegistry, subject: str, **more: str) -> dict[str, Any]:
    return {"schema__registry__url": registry.url, "valueSubject": subject, **more}


def messages(path: Path, fields: dict[str, str], *, other_first: bool = False) -> Path:
    """A descriptor set of shop.Order with these fields of type string or int64, and shop.Other after it or before."""
    pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
    files = pb2.FileDescriptorSet()
    file = files.file.add(name="order.proto", package="shop", syntax="proto3")
    for name in ("Other", "Order") if other_first else ("Order", "Other"):
        message = file.message_type.add(name=name)
        for number, (field, kind) in enumerate(fields.items() if name == "Order" else {"reason": "string"}.items(), 1):
            types = {"string": pb2.FieldDescriptorProto.TYPE_STRING, "int64": pb2.FieldDescriptorProto.TYPE_INT64}
            message.field.add(name=field, number=number, type=types[kind], label=pb2.FieldDescriptorProto.LABEL_OPTIONAL)
    path.write_bytes(files.SerializeToString())
    return path


def test_messages_are_read_with_the_schema_of_their_frame(ottla_registry: SchemaRegistry, subject: str, tmp_path: Path) -> None:
    old = protobuf_framed(ottla_registry.url, subject, messages(tmp_path / "1", {"id": "int64"}), "shop.Order")
    new = protobuf_framed(ottla_registry.url, subject, messages(tmp_path / "2", {"id": "int64", "note": "string"}), "shop.Order")
    unframed, unknown, empty = b"\x08\x01", frame(99_999) + b"\0\x08\x01", b"\0\0"
    given = [old.read({"id": 1}), new.read({"id": 2, "note": "n"}), None, unframed, unknown, empty]
    found = decoded(given, None, **PROTOBUF, **options(ottla_registry, subject))
    assert [row["value"] for row in found] == [{"id": 1, "note": None}, {"id": 2, "note": "n"}, None, None, None, None]
    assert [row["_corrupt"] for row in found] == [None, None, None, unframed, unknown, empty]


def test_a_message_of_another_type_is_bad_and_can_be_chosen_by_name(ottla_registry: SchemaRegistry, subject: str, tmp_path: Path) -> None:
    file = messages(tmp_path / "1", {"id": "int64"}, other_first=True)
    order = protobuf_framed(ottla_registry.url, subject, file, "shop.Order").read({"id": 1})
    other = protobuf_framed(ottla_registry.url, subject, file, "shop.Other").read({"reason": "late"})
    first = decoded([order, other], None, **PROTOBUF, **options(ottla_registry, subject))
    assert [row["value"] for row in first] == [None, {"reason": "late"}]
    for name in ("Order", "shop.Order"):
        chosen = decoded([order, other], None, **PROTOBUF, **options(ottla_registry, subject, valueMessage=name))
        assert [(row["value"], row["_corrupt"]) for row in chosen] == [({"id": 1}, None), (None, other)]
    with pytest.raises(ValueError, match=r"no message 'Ordr'; it has shop.Other, shop.Order"):
        plan(None, **PROTOBUF, **options(ottla_registry, subject, valueMessage="Ordr"))


def test_values_of_a_json_schema_become_its_columns(ottla_registry: SchemaRegistry, subject: str, tmp_path: Path) -> None:
    (tmp_path / "order.json").write_text(json.dumps(ORDER))
    writer = json_schema(str(tmp_path / "order.json"), ottla_registry.url, subject)
    whole = {"id": 7, "price": 1.5, "paid": True, "lines": [{"article": "a"}]}
    plain, short = b'{"id": 1}', b"{}"
    misfit = writer.read({"id": 1})[:5] + b'{"id": "one"}'
    given = [writer.read(whole), writer.read({"id": 8, "price": None, "more": 1}), None, plain, misfit, short]
    found = decoded(given, None, **JSON_SCHEMA, **options(ottla_registry, subject))
    assert [row["value"] for row in found] == [whole, {"id": 8, "price": None, "paid": None, "lines": None}, None, None, None, None]
    assert [row["_corrupt"] for row in found] == [None, None, None, plain, misfit, short]
    named = decoded(given[:1], "lines ARRAY<STRUCT<article: STRING>>", **JSON_SCHEMA, **options(ottla_registry, subject))
    assert named == [{"lines": [{"article": "a"}]}]


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        ({"type": "string"}, "must be an object with properties"),
        ({"properties": {"a": {}}}, r"\.a has no column type: its type is open"),
        ({"properties": {"a": {"type": "object"}}}, "its type is object; name the columns that you read with valueSchema"),
        ({"properties": {"a": {"type": ["string", "integer"]}}}, "its type is string or integer"),
        ({"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "integer"}]}}}, r"it has several types \(anyOf\)"),
        ({"properties": {"next": {"$ref": "#"}}}, "# is recursive"),
        ({"properties": {"list": {"type": "array"}}}, "its type is array"),
    ],
)
def test_a_json_schema_without_columns_is_told_with_its_field(
    ottla_registry: SchemaRegistry, subject: str, schema: dict[str, Any], sentence: str
) -> None:
    Registry(ottla_registry.url).added(subject, json.dumps(schema), JSON)
    with pytest.raises(ValueError, match=sentence):
        plan(None, **JSON_SCHEMA, **options(ottla_registry, subject))
    assert plan(None, **JSON_SCHEMA, **options(ottla_registry, subject, valueSchema="a STRING")).decoded == ("value", "_corrupt")


@pytest.mark.parametrize("how", [PROTOBUF, JSON_SCHEMA])
def test_a_subject_of_another_type_is_refused(ottla_registry: SchemaRegistry, subject: str, how: dict[str, str]) -> None:
    Registry(ottla_registry.url).added(subject, '"string"', AVRO)
    with pytest.raises(RegistryFailed, match=f"{subject} of the registry is AVRO, not "):
        plan(None, **how, **options(ottla_registry, subject))


@pytest.mark.parametrize(("how", "hint"), [(PROTOBUF, "name another with valueSubject$"), (JSON_SCHEMA, "or set valueSchema$")])
def test_a_missing_subject_is_told_with_what_to_set(ottla_registry: SchemaRegistry, how: dict[str, str], hint: str) -> None:
    with pytest.raises(RegistryFailed, match=hint):
        plan(None, **how, **options(ottla_registry, "none-value"))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({**PROTOBUF, "valueDescriptor": "/x", "schema.registry.url": "http://h"}, "exclude each other"),
        ({**PROTOBUF, "valueDescriptor": "/x", "valueMessage": "m", "valueSubject": "s"}, "valueSubject: needs schema.registry.url"),
        (PROTOBUF, "or schema.registry.url"),
        (JSON_SCHEMA, 'without one use valueFormat "json"'),
    ],
)
def test_contradictory_options_of_a_registry_are_refused(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(OptionError) as refused:
        SourceOptions.of({**BASE, **given}, streaming=True)
    assert sentence in str(refused.value)
