"""Schemas of orders and encoded orders: a schema registry on a free port, and a descriptor file as written by protoc."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

ORDER = {
    "type": "record", "name": "Order", "fields": [
        {"name": "id", "type": "int"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "attributes", "type": {"type": "map", "values": "long"}},
    ],
}  # fmt: skip
ORDER_2 = {**ORDER, "fields": [{**ORDER["fields"][0], "type": "long"}, *ORDER["fields"][2:], {"name": "more", "type": "string"}]}  # type: ignore[dict-item]
AT = datetime(2026, 5, 17, 10, tzinfo=UTC)
ONE = {"id": 1, "note": "n", "at": AT, "attributes": {"a": 1}}
TWO = {"id": 2, "at": AT, "attributes": {}, "more": "m"}


#: An order whose fields do not match the columns; and, by registry id, schemas that have no columns.
OTHER_ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}, *ORDER["fields"][2:]]}
WITHOUT_COLUMNS = {
    4: {"schema": '"string"'},
    5: {"schema": "{}", "schemaType": "JSON"},
    6: {"schema": '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": ["int", "string"]}]}'},
    7: {"schema": '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "of.Another"}]}'},
}


#: The registry answers this path with 503.
BUSY = "/schemas/ids/503"


class Registry(BaseHTTPRequestHandler):
    """Two schemas of one subject, one of another type, and schemas that are not of orders."""

    answers = {
        "/schemas/ids/1": {"schema": json.dumps(ORDER)},
        "/schemas/ids/2": {"schema": json.dumps(ORDER_2)},
        "/schemas/ids/3": {"schema": json.dumps(OTHER_ORDER)},
        **{f"/schemas/ids/{number}": answer for number, answer in WITHOUT_COLUMNS.items()},
        "/subjects/orders-value/versions/latest": {"schema": json.dumps(ORDER_2), "id": 2},
        "/subjects/older-value/versions/latest": {"schema": json.dumps(ORDER), "id": 1},
        "/subjects/json-value/versions/latest": {"schema": "{}", "schemaType": "JSON", "id": 5},
    }

    def do_GET(self) -> None:
        answer = self.answers.get(self.path)
        self.send_response(503 if self.path == BUSY else 404 if answer is None else 200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_: object) -> None: ...


@contextmanager
def serving_registry() -> Iterator[str]:
    """The registry's address; it runs for the block."""
    with HTTPServer(("127.0.0.1", 0), Registry) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def write_descriptors(path: Path) -> None:
    """The message shop.Order, with its imports."""
    pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
    timestamp = pytest.importorskip("google.protobuf.timestamp_pb2")
    files = pb2.FileDescriptorSet()
    timestamp.DESCRIPTOR.CopyToProto(files.file.add())
    order = files.file.add(name="order.proto", package="shop", syntax="proto3", dependency=["google/protobuf/timestamp.proto"])
    kind = order.enum_type.add(name="Kind")
    kind.value.add(name="NEW", number=0)
    kind.value.add(name="OLD", number=1)
    message = order.message_type.add(name="Order")
    entry = message.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    field = pb2.FieldDescriptorProto
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=field.TYPE_INT32, label=field.LABEL_OPTIONAL)
    for number, (name, type, label, of) in enumerate(
        [
            ("id", field.TYPE_UINT64, field.LABEL_OPTIONAL, ""),
            ("tags", field.TYPE_STRING, field.LABEL_REPEATED, ""),
            ("kind", field.TYPE_ENUM, field.LABEL_OPTIONAL, ".shop.Kind"),
            ("at", field.TYPE_MESSAGE, field.LABEL_OPTIONAL, ".google.protobuf.Timestamp"),
            ("counts", field.TYPE_MESSAGE, field.LABEL_REPEATED, ".shop.Order.CountsEntry"),
        ],
        start=1,
    ):
        message.field.add(name=name, number=number, type=type, label=label, type_name=of or None)
    path.write_bytes(files.SerializeToString())
