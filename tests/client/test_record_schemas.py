"""Avro and Protobuf on the command line, with schema files and a schema registry."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastavro")

from ottla.cli.common.record_options import parse_value_format
from ottla.client.schema_registry import Registry
from ottla.client.values.schemas import frame_schema_id

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "raw", "type": "bytes", "default": ""},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2}},
        {
            "name": "lines",
            "type": {"type": "array", "items": {"type": "record", "name": "Line", "fields": [{"name": "sku", "type": "string"}]}},
        },
        {"name": "next", "type": ["null", "Line"], "default": None},
        {"name": "tags", "type": {"type": "map", "values": "string"}},
    ],
}
SAID = (
    b'{"id":5,"note":"x","at":"2026-01-31T12:00:00Z","raw":"/w==","price":"1.50","lines":[{"sku":"A"}],"next":{"sku":"B"},"tags":{"a":"b"}}'
)


@pytest.fixture
def schema(tmp_path: Path) -> Path:
    file = tmp_path / "order.avsc"
    file.write_text(json.dumps(ORDER))
    return file


def test_avro_is_converted_to_json_and_back(schema: Path) -> None:
    avro = parse_value_format(f"avro:{schema}", "--value-format")
    data = avro.read(SAID)
    assert json.loads(avro.show(data)) == json.loads(SAID)
    assert avro.read(json.loads(avro.show(data))) == data
    assert avro.read(SAID.replace(b'"x"', b"null")) != data


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (b'{"id":5}', "does not fit the schema"),
        (b"nope", "expected JSON"),
        (SAID.replace(b'"id":5', b'"id":"five"'), "does not fit the schema"),
        (SAID.replace(b'"note"', b'"nota"'), "the schema has no field 'nota'"),
        (SAID.replace(b"2026-01-31T12:00:00Z", b"soon"), "does not fit the schema"),
    ],
)
def test_a_value_that_does_not_match_the_schema_is_refused(schema: Path, given: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_value_format(f"avro:{schema}", "--value-format").read(given)


def test_bytes_that_are_not_avro_are_refused(schema: Path) -> None:
    with pytest.raises(ValueError, match="not Avro with this schema"):
        parse_value_format(f"avro:{schema}", "--value-format").show(b"\xff")


@pytest.mark.parametrize("content", ["nope", '{"type": "unheard-of"}', '{"name": "x"}'])
def test_a_file_that_is_not_a_schema_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "x.avsc").write_text(content)
    with pytest.raises(ValueError, match=r"no Avro schema|not an Avro schema"):
        parse_value_format(f"avro:{tmp_path / 'x.avsc'}", "--value-format")


class _Answers(BaseHTTPRequestHandler):
    """A schema registry with `schemas`, id -> schema, and `subjects`, name -> id, set by the test."""

    schemas: dict[int, str]
    subjects: dict[str, int]
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        parts = self.path.strip("/").split("/")
        if parts[0] == "schemas" and int(parts[2]) in self.schemas:
            self._answer(200, {"schema": self.schemas[int(parts[2])]})
        elif parts[0] == "subjects" and parts[1] in self.subjects:
            number = self.subjects[parts[1]]
            self._answer(200, {"id": number, "schema": self.schemas[number]})
        else:
            self._answer(404, {"error_code": 40403, "message": "Schema not found"})

    def do_POST(self) -> None:
        self.asked.append(self.path)
        schema = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["schema"]
        number = len(self.schemas) + 1
        self.schemas[number] = schema
        self._answer(200, {"id": number})

    def _answer(self, code: int, content: Any) -> None:
        body = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Suppresses the request log."""


@pytest.fixture
def registry() -> Iterator[tuple[str, type[_Answers]]]:
    answers = type("Answers", (_Answers,), {"schemas": {}, "subjects": {}, "asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", answers
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.server
def test_the_registry_is_asked_once_per_schema(registry: tuple[str, type[_Answers]]) -> None:
    url, answers = registry
    answers.schemas[300] = '"string"'
    answers.subjects["orders-value"] = 300
    avro = parse_value_format("avro", "--value-format", registry=url, subject="orders-value")
    data = avro.read("hello")
    assert data == b"\x00\x00\x00\x01\x2c\x0ahello"
    assert frame_schema_id(data) == 300
    reader = parse_value_format("avro", "--value-format", registry=url)
    answers.asked.clear()
    assert [reader.show(data), reader.value(data)] == [b"hello", "hello"]
    assert answers.asked == ["/schemas/ids/300"]


@pytest.mark.server
def test_a_schema_from_a_file_is_registered(registry: tuple[str, type[_Answers]], schema: Path) -> None:
    url, answers = registry
    avro = parse_value_format(f"avro:{schema}", "--value-format", registry=url, subject="a/b-value")
    assert json.loads(avro.show(avro.read(SAID))) == json.loads(SAID)
    assert answers.asked[0] == "/subjects/a%2Fb-value/versions"


@pytest.mark.server
def test_an_unknown_schema_is_reported(registry: tuple[str, type[_Answers]]) -> None:
    url, _ = registry
    with pytest.raises(OSError, match="404 Not Found: Schema not found"):
        parse_value_format("avro", "--value-format", registry=url).show(b"\0\0\0\0\7x")
    with pytest.raises(ValueError, match="no schema registry frame"):
        parse_value_format("avro", "--value-format", registry=url).show(b"plain")
    assert Registry(url).schema_if_there(7) is None


def test_an_unreachable_registry_differs_from_an_unknown_schema() -> None:
    with pytest.raises(OSError, match="schema registry"):
        Registry("http://127.0.0.1:1").schema_if_there(7)


def test_a_registry_needs_an_address() -> None:
    with pytest.raises(ValueError, match="--registry must start with http"):
        Registry("localhost:8081", option="--registry")


def test_protobuf_is_converted_to_json_and_back(tmp_path: Path) -> None:
    pytest.importorskip("google.protobuf")
    from google.protobuf import descriptor_pb2 as d

    file = d.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    message.field.add(name="order_id", number=1, type=d.FieldDescriptorProto.TYPE_INT32, label=d.FieldDescriptorProto.LABEL_OPTIONAL)
    message.field.add(name="name", number=2, type=d.FieldDescriptorProto.TYPE_STRING, label=d.FieldDescriptorProto.LABEL_OPTIONAL)
    (tmp_path / "shop.desc").write_bytes(d.FileDescriptorSet(file=[file]).SerializeToString())
    kind = f"protobuf:{tmp_path / 'shop.desc'}:shop.Order"
    proto = parse_value_format(kind, "--value-format")
    data = proto.read(b'{"order_id": 5, "name": "x"}')
    assert data == b"\x08\x05\x12\x01x"
    assert proto.show(data) == b'{"order_id":5,"name":"x"}'
    framed = parse_value_format(kind, "--value-format", registry="http://127.0.0.1:1")
    assert framed.show(b"\0\0\0\0\7\0" + data) == proto.show(data)
    assert framed.show(b"\0\0\0\0\7\x04\x02\x01" + data) == proto.show(data)
    for wrong, why in ((b"\xff\xff", "not a protobuf shop.Order"), (b"\0\0\0\0\7\xff", "truncated|not a protobuf")):
        with pytest.raises(ValueError, match=why):
            (framed if wrong[0] == 0 else proto).show(wrong)
    with pytest.raises(ValueError, match="does not fit message"):
        proto.read(b'{"nome": 1}')
    with pytest.raises(ValueError, match="has no message"):
        parse_value_format(kind.replace("Order", "Ordre"), "--value-format")
