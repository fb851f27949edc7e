"""The registry as its clients see it: Confluent's own client and serializers, two instances, TLS and users, commands."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("starlette")
from click.testing import CliRunner

from ottla.base.options import ConfigError
from ottla.base.passwords import NOBODY, hashed
from ottla.cli.main import main
from ottla.client.schema_registry import Registry, RegistryAccess, RegistryFailed, SchemaNotFound
from ottla.client.sync.loop_thread import LoopThread
from ottla.client.values.parse import parse_value_format
from ottla.registry.basic_auth import read_users
from ottla.registry.election import InstanceIdentity
from ottla.registry.instance import InstanceOptions
from ottla.registry.serve import ServeOptions, running
from ottla.testing import Broker, SchemaRegistry, broker, schema_registry

pytestmark = pytest.mark.server
ORDER = {"type": "record", "name": "Order", "namespace": "shop", "fields": [{"name": "id", "type": "long"}]}
ORDER_TEXT = json.dumps(ORDER)


@pytest.fixture(scope="module")
def a_broker() -> Iterator[Broker]:
    with broker() as started:
        yield started


@pytest.fixture(scope="module")
def registry(a_broker: Broker) -> Iterator[SchemaRegistry]:
    with schema_registry(a_broker) as started:
        yield started


@pytest.fixture
def http(registry: SchemaRegistry) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=registry.url, timeout=30) as client:
        yield client


def until(is_true: Callable[[], bool], limit_s: float = 60) -> None:
    ends = time.monotonic() + limit_s
    while not is_true():
        assert time.monotonic() < ends, "it did not happen in time"
        time.sleep(0.02)


@contextmanager
def serving(options: ServeOptions) -> Iterator[str]:
    """A registry in its own thread, during the block: its address."""
    thread, stack = LoopThread("registry"), AsyncExitStack()
    try:
        url, _ = thread.call(stack.enter_async_context(running(options)))
        yield url
    finally:
        thread.call(stack.aclose())
        thread.stop()


def register(http: httpx.Client, subject: str, schema: str = ORDER_TEXT, **more: Any) -> int:
    answer = http.post(f"/subjects/{subject}/versions", json={"schema": schema, **more})
    assert answer.status_code == 200, answer.text
    return int(answer.json()["id"])


# Confluent's client.


def test_confluents_client_registers_checks_and_deletes(registry: SchemaRegistry) -> None:
    confluent = pytest.importorskip("confluent_kafka.schema_registry")
    client = confluent.SchemaRegistryClient({"url": registry.url})
    schema = confluent.Schema(ORDER_TEXT, "AVRO")
    number = client.register_schema("c-value", schema)
    assert client.register_schema("c-value", schema) == number
    found = client.get_latest_version("c-value")
    assert (found.version, found.schema_id, json.loads(found.schema.schema_str)) == (1, number, ORDER)
    assert client.get_schema(number).schema_type == "AVRO"
    assert client.lookup_schema("c-value", schema).version == 1
    wider = {**ORDER, "fields": [{"name": "note", "type": "string"}]}
    other = confluent.Schema(json.dumps(wider), "AVRO")
    assert not client.test_compatibility("c-value", other)
    with pytest.raises(confluent.SchemaRegistryError) as refused:
        client.register_schema("c-value", other)
    assert refused.value.http_status_code == 409 and "READER_FIELD_MISSING_DEFAULT_VALUE" in str(refused.value)
    assert client.set_compatibility("c-value", "NONE")["compatibility"] == "NONE"
    assert client.get_compatibility("c-value") == "NONE"
    client.register_schema("c-value", other)
    assert client.get_versions("c-value") == [1, 2]
    assert client.delete_version("c-value", 1) == 1 and client.delete_subject("c-value") == [2]
    assert client.delete_subject("c-value", permanent=True) == [1, 2]
    assert "c-value" not in client.get_subjects()


def test_confluents_serializers_write_and_read(registry: SchemaRegistry) -> None:
    confluent = pytest.importorskip("confluent_kafka.schema_registry")
    avro = pytest.importorskip("confluent_kafka.schema_registry.avro")
    json_schema = pytest.importorskip("confluent_kafka.schema_registry.json_schema")
    serialization = pytest.importorskip("confluent_kafka.serialization")
    client = confluent.SchemaRegistryClient({"url": registry.url})
    context = serialization.SerializationContext("s", serialization.MessageField.VALUE)
    data = avro.AvroSerializer(client, ORDER_TEXT)({"id": 5}, context)
    assert avro.AvroDeserializer(confluent.SchemaRegistryClient({"url": registry.url}))(data, context) == {"id": 5}
    titled = json.dumps({"title": "T", "type": "object", "properties": {"id": {"type": "integer"}}})
    context = serialization.SerializationContext("j", serialization.MessageField.VALUE)
    data = json_schema.JSONSerializer(titled, client)({"id": 5}, context)
    assert json_schema.JSONDeserializer(titled, schema_registry_client=client)(data, context) == {"id": 5}


def test_confluents_protobuf_serializer_sends_descriptors_with_references(registry: SchemaRegistry) -> None:
    confluent = pytest.importorskip("confluent_kafka.schema_registry")
    protobuf = pytest.importorskip("confluent_kafka.schema_registry.protobuf")
    serialization = pytest.importorskip("confluent_kafka.serialization")
    pytest.importorskip("grpc_tools")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    for name, imports, field_type in (("line.proto", [], ""), ("basket.proto", ["line.proto"], ".shop.Line")):
        file = descriptor_pb2.FileDescriptorProto(name=name, package="shop", syntax="proto3", dependency=imports)
        message = file.message_type.add(name=name.removesuffix(".proto").capitalize())
        if field_type:
            message.field.add(name="lines", number=1, label=3, type=11, type_name=field_type)
        else:
            message.field.add(name="sku", number=1, label=1, type=9)
        pool.Add(file)
    basket = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Basket"))
    value = basket()
    value.lines.add(sku="a")
    client = confluent.SchemaRegistryClient({"url": registry.url})
    context = serialization.SerializationContext("p", serialization.MessageField.VALUE)
    data = protobuf.ProtobufSerializer(basket, client)(value, context)
    assert protobuf.ProtobufDeserializer(basket, {}, schema_registry_client=client)(data, context).lines[0].sku == "a"
    found = client.get_latest_version("p-value")
    assert [one.name for one in found.schema.references] == ["line.proto"] and "message Basket {" in found.schema.schema_str


# The API.


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/subjects/missing/versions", None, 404, 40401),
        ("GET", "/subjects/errors/versions/9", None, 404, 40402),
        ("GET", "/subjects/errors/versions/zero", None, 422, 42202),
        ("GET", "/schemas/ids/99999", None, 404, 40403),
        ("GET", "/schemas/guids/none", None, 404, 40403),
        ("POST", "/subjects/missing", {"schema": '"int"'}, 404, 40401),
        ("POST", "/subjects/errors", {"schema": '"int"'}, 404, 40403),
        ("POST", "/subjects/errors/versions", {"schema": "{"}, 422, 42201),
        ("POST", "/subjects/errors/versions", {"schema": '"int"'}, 409, 409),
        ("DELETE", "/subjects/errors?permanent=true", None, 404, 40405),
        ("DELETE", "/subjects/errors/versions/1?permanent=true", None, 404, 40407),
        ("GET", "/config/errors", None, 404, 40408),
        ("GET", "/mode/errors", None, 404, 40409),
        ("PUT", "/config/errors", {"compatibility": "SOME"}, 422, 42203),
        ("PUT", "/mode/errors", {"mode": "SOME"}, 422, 42204),
        ("POST", "/subjects/errors/versions", {"schema": '"int"', "id": 900}, 422, 42205),
        ("POST", "/compatibility/subjects/errors/versions/7", {"schema": '"int"'}, 404, 40402),
        ("GET", "/nothing", None, 404, 404),
        ("POST", "/subjects/errors/versions", "no object", 422, 422),
    ],
)
def test_errors_have_confluents_codes(http: httpx.Client, method: str, path: str, body: Any, status: int, code: int) -> None:
    register(http, "errors")
    answer = http.request(method, path, json=body)
    assert (answer.status_code, answer.json()["error_code"]) == (status, code), answer.text
    assert answer.json()["message"]


def test_a_body_that_is_not_json_is_refused(http: httpx.Client) -> None:
    answer = http.post("/subjects/errors/versions", content=b"{")
    assert (answer.status_code, answer.json()["error_code"]) == (400, 400)


def test_schemas_are_found_by_id_guid_version_and_subject(http: httpx.Client) -> None:
    number = register(http, "found", '{"type":"int","x":1}')
    register(http, "found-too", '{"type":"int","x":1}')
    shown = http.get(f"/schemas/ids/{number}").json()
    assert shown["schema"] == '{"type":"int","x":1}' and "schemaType" not in shown
    assert http.get(f"/schemas/ids/{number}/schema").json() == {"type": "int", "x": 1}
    assert http.get(f"/schemas/ids/{number}/subjects").json() == ["found", "found-too"]
    assert http.get(f"/schemas/ids/{number}/versions").json() == [
        {"subject": "found", "version": 1},
        {"subject": "found-too", "version": 1},
    ]
    version = http.get("/subjects/found/versions/latest").json()
    assert (version["subject"], version["version"], version["id"]) == ("found", 1, number)
    assert http.get("/subjects/found/versions/1/schema").json() == {"type": "int", "x": 1}
    assert http.get(f"/schemas/guids/{version['guid']}").json()["schema"] == '{"type":"int","x":1}'
    assert http.get(f"/schemas/guids/{version['guid']}/ids").json() == [{"context": ".", "id": number}]
    assert [one["subject"] for one in http.get("/schemas?subjectPrefix=found").json()] == ["found", "found-too"]
    assert set(http.get("/schemas/types").json()) == {"AVRO", "JSON", "PROTOBUF"}
    assert http.get("/").json() == {} and http.get("/healthz").json()["is_leader"] is True
    assert http.get("/v1/metadata/id").json()["scope"]["clusters"]["schema-registry-cluster"] == "schema-registry"


def test_subjects_may_have_slashes_and_contexts(http: httpx.Client) -> None:
    register(http, "a%2Fb%20c", '"double"')
    assert http.get("/subjects/a%2Fb%20c/versions").json() == [1]
    assert "a/b c" in http.get("/subjects?subjectPrefix=a/").json()
    assert register(http, ":.test:ctx", '"double"') == 1
    assert http.get("/contexts/.test/subjects/ctx/versions/1").json()["subject"] == ":.test:ctx"
    assert http.get("/contexts/.test/schemas/ids/1").json()["schema"] == '"double"'
    assert http.get("/contexts/.test/subjects").json() == [":.test:ctx"]
    assert http.get("/contexts").json() == [".", ".test"]
    assert http.delete("/contexts/.test").status_code == 422
    assert http.get("/subjects/ctx/versions/1").json()["subject"] == ":.test:ctx", "looked for in all contexts"


def test_a_check_says_why_a_schema_may_not_follow(http: httpx.Client) -> None:
    register(http, "checked", '"int"')
    for tail in ("", "/latest", "/1"):
        answer = http.post(f"/compatibility/subjects/checked/versions{tail}?verbose=true", json={"schema": '"string"'}).json()
        assert answer["is_compatible"] is False and "TYPE_MISMATCH" in answer["messages"][0]
    assert http.post("/compatibility/subjects/checked/versions", json={"schema": '"long"'}).json() == {"is_compatible": True}
    assert http.post("/compatibility/subjects/new/versions/latest", json={"schema": '"long"'}).json() == {"is_compatible": True}


def test_a_restarted_registry_has_the_same_schemas(a_broker: Broker) -> None:
    with schema_registry(a_broker) as first, httpx.Client(base_url=first.url, timeout=30) as http:
        number = register(http, "kept", '"bytes"')
        assert http.put("/config/kept", json={"compatibility": "FULL"}).json() == {"compatibility": "FULL"}
    with schema_registry(a_broker) as second, httpx.Client(base_url=second.url, timeout=30) as http:
        assert http.get("/subjects/kept/versions/1").json()["id"] == number
        assert http.get("/config/kept").json() == {"compatibilityLevel": "FULL"}


# Several instances.


def test_one_of_two_instances_writes_and_the_other_takes_over() -> None:
    with broker() as a_broker, schema_registry(a_broker) as first, schema_registry(a_broker) as second:
        until(lambda: {first.leader_url, second.leader_url} in ({first.url}, {second.url}))
        leader, other = (first, second) if first.is_leader else (second, first)
        assert leader.is_leader and not other.is_leader
        with httpx.Client(base_url=other.url, timeout=60) as http:
            number = register(http, "forwarded", '"int"')
            # The other instance waits until it has read what it forwarded.
            assert http.get(f"/schemas/ids/{number}").json()["schema"] == '"int"'
            answer = http.post("/subjects/forwarded/versions", json={"schema": '"string"'})
            assert (answer.status_code, answer.json()["error_code"]) == (409, 409)
            answer = http.delete("/subjects/forwarded", headers={"X-Forward": "true"})
            assert answer.json()["error_code"] == 50004, "a forwarded request is not forwarded again"
            leader.stop()
            until(lambda: other.is_leader)
            assert register(http, "taken-over", '"long"') == number + 1


# Security.


def test_users_and_tls_protect_the_registry(a_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = CliRunner().invoke(main, ["tls", "init", "127.0.0.1", "--dir", str(tmp_path)])
    assert made.exit_code == 0, made.output
    pem = {path.name: path for path in tmp_path.iterdir()}
    certificate = next(path for name, path in pem.items() if "127.0.0.1" in name and "key" not in name)
    users = tmp_path / "users"
    users.write_text(f"# name hash role\nwriter {hashed('w', b'salt')}\nreader {hashed('r', b'salt')} reader\n")
    settings = InstanceOptions(
        a_broker.client_settings(), InstanceIdentity("127.0.0.1", 0, scheme="https"), topic="_secured", group="secured"
    )
    key = next((path for name, path in pem.items() if "127.0.0.1" in name and "key" in name), None)
    options = ServeOptions(settings, "127.0.0.1", 0, read_users(users), certificate, key)
    with serving(options) as url:
        monkeypatch.setenv("OTTLA_REGISTRY_CA", str(next(path for name, path in pem.items() if name == "ca.pem")))
        monkeypatch.setenv("OTTLA_REGISTRY_USER", "writer:w")
        assert Registry(url).added("s", '"int"').id == 1
        monkeypatch.setenv("OTTLA_REGISTRY_USER", "reader:r")
        assert Registry(url).newest("s").id == 1 and Registry(url).incompatibilities("s", '"long"') is None
        for login, why in (("reader:r", "403"), ("reader:w", "401"), ("nobody:w", "401"), ("", "401")):
            monkeypatch.setenv("OTTLA_REGISTRY_USER", login)
            with pytest.raises(RegistryFailed, match=why):
                Registry(url).added("s", '"long"')
        monkeypatch.delenv("OTTLA_REGISTRY_CA")
        with pytest.raises(RegistryFailed, match="CERTIFICATE_VERIFY_FAILED"):
            Registry(url).by_id(1)


def test_a_user_who_may_only_read_registers_nothing_however_the_path_is_written(a_broker: Broker, tmp_path: Path) -> None:
    paths = [
        "/subjects/s/versions",
        "/subjects/a%2Fcompatibility%2Fb/versions",
        "/subjects/a%2Fsubjects/versions",
        "/contexts/a%2Fcompatibility%2Fb/subjects/:.:s/versions",
    ]
    users = tmp_path / "users"
    users.write_text(f"writer {hashed('w', b'salt')}\nreader {hashed('r', b'salt')} reader\n")
    settings = InstanceOptions(a_broker.client_settings(), InstanceIdentity("127.0.0.1", 0), topic="_roles", group="roles")
    with serving(ServeOptions(settings, "127.0.0.1", 0, read_users(users))) as url, httpx.Client(base_url=url, timeout=30) as http:
        for path in paths:
            refused = http.post(path, json={"schema": '"int"'}, auth=("reader", "r"))
            assert (refused.status_code, refused.json()["message"]) == (403, "This user may only read"), path
        assert http.get("/subjects", auth=("reader", "r")).json() == []
        assert http.post("/compatibility/subjects/s/versions", json={"schema": '"int"'}, auth=("reader", "r")).status_code == 200
        assert {http.post(path, json={"schema": '"int"'}, auth=("writer", "w")).status_code for path in paths} == {200}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"sec-fetch-site": "cross-site", "content-type": "text/plain"}, 403),
        ({"origin": "https://evil.example", "content-type": "text/plain"}, 403),
        ({"sec-fetch-site": "same-origin", "origin": "https://registry.example"}, 200),
        ({}, 200),
    ],
    ids=["cross-site", "another origin", "behind a proxy", "not a browser"],
)
def test_a_page_of_another_site_changes_nothing(http: httpx.Client, headers: dict[str, str], status: int) -> None:
    """A browser sends such a request without asking first, and with the login that it knows."""
    answer = http.post("/subjects/of-a-page/versions", content=b'{"schema": "\\"int\\""}', headers=headers)
    assert answer.status_code == status, answer.text
    assert http.get("/subjects", headers={"origin": "https://evil.example"}).status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8081", 200),
        ("127.0.0.1", 200),
        ("[::1]:1", 200),
        ("evil.example:8081", 403),
        ("evil.example", 403),
        ("[::1", 403),
        ("", 403),
    ],
)
def test_a_registry_without_users_answers_to_names_of_this_machine_only(http: httpx.Client, host: str, status: int) -> None:
    """A page can have its own name resolved to a loopback address; for the browser the registry then belongs to the page's site."""
    assert http.get("/subjects", headers={"host": host}).status_code == status


def test_schemas_that_are_too_complex_to_compare_are_refused_with_the_reason(http: httpx.Client) -> None:
    """Two fields of a type with two fields of a type, and so on: 2^40 differences."""

    def deep(leaf: str) -> str:
        made: Any = {"type": "record", "name": "L", "fields": [{"name": "x", "type": leaf}]}
        for level in range(40):
            made = {"type": "record", "name": f"R{level}", "fields": [{"name": "a", "type": made}, {"name": "b", "type": made["name"]}]}
        return json.dumps(made)

    register(http, "deep-value", deep("int"))
    for path in ("/subjects/deep-value/versions", "/compatibility/subjects/deep-value/versions"):
        refused = http.post(path, json={"schema": deep("string")})
        assert (refused.status_code, refused.json()["error_code"]) == (422, 42201) and "too complex" in refused.json()["message"]


@pytest.mark.parametrize(
    ("lines", "why"),
    [("", "has no user"), ("name password", "expected NAME HASH"), (f"name {NOBODY} king", "there are the roles reader and writer")],
)
def test_a_wrong_file_of_users_is_refused(tmp_path: Path, lines: str, why: str) -> None:
    (tmp_path / "users").write_text(lines)
    with pytest.raises(ConfigError, match=why):
        read_users(tmp_path / "users")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--listen", "0.0.0.0:0"], "there are no users"),
        (["--listen", "0.0.0.0:0", "--no-auth"], "--advertise"),
        (["--listen", "nowhere"], "expected HOST:PORT"),
        (["--tls-client-ca", __file__], "needs --tls-certificate"),
    ],
)
def test_a_registry_that_others_could_misuse_does_not_start(arguments: list[str], why: str) -> None:
    result = CliRunner().invoke(main, ["registry", "serve", *arguments])
    assert result.exit_code == 2 and why in result.output


# Commands and the client of all parts.


def run(registry: SchemaRegistry, *arguments: str, code: int = 0) -> Any:
    result = CliRunner().invoke(main, ["registry", *arguments], env={"OTTLA_REGISTRY": registry.url})
    assert result.exit_code == code, result.output
    return result


def test_commands_register_show_check_and_delete(registry: SchemaRegistry, tmp_path: Path) -> None:
    file = tmp_path / "order.avsc"
    file.write_text(ORDER_TEXT)
    number = json.loads(run(registry, "register", "cli-value", str(file), "-o", "json").stdout)["id"]
    assert [one["versions"] for one in json.loads(run(registry, "list", "cli-", "-o", "json").stdout)] == [[1]]
    assert json.loads(run(registry, "show", "cli-value@1").stdout) == ORDER
    assert json.loads(run(registry, "show", "--id", str(number)).stdout) == ORDER
    file.write_text('"string"')
    assert "TYPE_MISMATCH" in run(registry, "check", "cli-value", str(file), code=1).stdout
    assert run(registry, "config", "cli-value").stdout == "BACKWARD\n"
    assert run(registry, "config", "cli-value", "--set", "none").stdout == "NONE\n"
    assert run(registry, "check", "cli-value", str(file)).stdout == "compatible\n"
    assert run(registry, "config", "cli-value", "--remove").stdout == "BACKWARD\n"
    assert run(registry, "mode", "-o", "json").stdout == '{"subject":null,"mode":"READWRITE","own":true}\n'
    run(registry, "delete", "cli-value@1")
    run(registry, "delete", "cli-value@1", "--permanent", code=2)
    run(registry, "delete", "cli-value@1", "--permanent", "--yes")
    assert "40401" not in run(registry, "show", "cli-value", code=1).output


def test_avro_protobuf_and_json_schema_are_registered_and_written(registry: SchemaRegistry, tmp_path: Path) -> None:
    """Keys and values, with the schemas of files and then with those of the registry."""
    pytest.importorskip("grpc_tools")
    from google.protobuf import descriptor_pb2 as d

    files = d.FileDescriptorSet()
    line = files.file.add(name="out/line.proto", package="out", syntax="proto3")
    line.message_type.add(name="Line").field.add(name="sku", number=1, label=1, type=9)
    order = files.file.add(name="out/order.proto", package="out", syntax="proto3", dependency=["out/line.proto"])
    order.message_type.add(name="Other")
    order.message_type.add(name="Order").field.add(name="lines", number=1, label=3, type=11, type_name=".out.Line")
    (tmp_path / "order.desc").write_bytes(files.SerializeToString())
    (tmp_path / "order.json").write_text('{"type":"object","properties":{"id":{"type":"integer"}},"required":["id"]}')
    (tmp_path / "order.avsc").write_text(ORDER_TEXT)
    cases = [
        ("avro", f"avro:{tmp_path}/order.avsc", "out-a-key", {"id": 1}),
        ("json-schema", f"json-schema:{tmp_path}/order.json", "out-j-value", {"id": 1}),
        ("protobuf:out.Order", f"protobuf:{tmp_path}/order.desc:out.Order", "out-p-value", {"lines": [{"sku": "a"}]}),
    ]
    for plain, with_file, subject, value in cases:
        data = parse_value_format(with_file, "--value-format", registry=registry.url, subject=subject).read(json.dumps(value).encode())
        assert data[0] == 0
        later = parse_value_format(plain, "--value-format", registry=registry.url, subject=subject)
        assert later.value(data) == value and later.read(value) == data, plain
    assert data[5:8] == b"\x02\x02\x0a", "one index, 1: the second message of the file"
    found = Registry(registry.url).references(Registry(registry.url).newest("out-p-value").id)
    assert [(one.name, one.subject, one.version) for one in found] == [("out/line.proto", "out/line.proto", 1)]
    checked = parse_value_format("json-schema", "--value-format", registry=registry.url, subject="out-j-value")
    with pytest.raises(ValueError, match="does not fit the schema: 'id' is a required property"):
        checked.read(b"{}")


def test_the_client_asks_the_next_address_and_says_what_failed(registry: SchemaRegistry) -> None:
    client = Registry(f"http://127.0.0.1:1,{registry.url}")
    made = client.added("asked", '"float"')
    assert client.by_id(made.id).schema == '"float"' and client.newest("asked").version == 1
    with pytest.raises(SchemaNotFound, match="Subject 'nobody' not found"):
        client.newest("nobody")
    with pytest.raises(RegistryFailed, match="409") as refused:
        client.added("asked", '"string"')
    assert refused.value.code == 409
    client.close()
    with pytest.raises(RegistryFailed, match="the request to the schema registry for /schemas/ids/1 failed"):
        Registry("http://127.0.0.1:1").by_id(1)


def test_secrets_of_an_address_are_not_shown() -> None:
    access = RegistryAccess.of("http://me:secret@registry:8081", environment={"OTTLA_REGISTRY_TOKEN": "token"})
    assert (access.urls, access.user, access.password) == (("http://registry:8081",), "me", "secret")
    assert "secret" not in repr(access) and "token'" not in repr(access)
    with pytest.raises(ValueError, match="must start with http") as wrong:
        RegistryAccess.of("ftp://me:secret@registry")
    assert "secret" not in str(wrong.value)
