"""Secrets do not reach what a broker writes: a sentinel in every secret setting, in passwords and in tokens is looked for everywhere."""

import logging
import os
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka.admin import AdminClient

import ottla
from ottla.base.ids import ConnectionId
from ottla.base.options import ConfigType
from ottla.base.origin import Origin
from ottla.base.ports import NodeState
from ottla.base.scram import ScramMechanism
from ottla.broker.events import RequestArrived, StoreChanged
from ottla.broker.metadata.configs import SPECS_BY_NAME
from ottla.broker.security.envelope import enveloped
from ottla.client.admin.results import ConfigChange, Resource
from ottla.server.flight_recorder import FlightRecorder
from ottla.server.redaction import redacted
from ottla.store import layout
from ottla.testing import broker
from ottla.wire.errors import KafkaError
from ottla.wire.framing import SIZE_BYTES, decode_request_header, encode_request
from ottla.wire.messages.alter_user_scram_credentials import AlterUserScramCredentialsRequest, ScramCredentialUpsertion
from ottla.wire.messages.envelope import EnvelopeRequest
from ottla.wire.messages.incremental_alter_configs import AlterableConfig, AlterConfigsResource, IncrementalAlterConfigsRequest
from ottla.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from serving import Serving

pytestmark = pytest.mark.server

SENTINEL = "s3ntinel"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
JAAS = "listener.name.client.plain.sasl.jaas.config"
MODULE = f'{PLAIN} username="broker" password="{SENTINEL}-1" user_alice="{SENTINEL}-2";'
#: Of TLS: these need files, and their tests look for sentinels themselves.
OF_TLS = tuple(name for name in SPECS_BY_NAME if name.startswith(("ssl.", "zookeeper.ssl.")))


def settings() -> dict[str, str]:
    """Every secret setting has a sentinel."""
    secret = [name for name, spec in SPECS_BY_NAME.items() if spec.kind is ConfigType.PASSWORD and name not in OF_TLS]
    values = {name: MODULE if name == "sasl.jaas.config" else f"{SENTINEL}-{name}" for name in secret}
    assert {"sasl.jaas.config", "delegation.token.secret.key", "delegation.token.master.key"} <= values.keys()
    return values | {
        "listeners": "CLIENT://127.0.0.1:0",
        "listener.security.protocol.map": "CLIENT:SASL_PLAINTEXT",
        "inter.broker.listener.name": "CLIENT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        JAAS: MODULE,
    }


def use(bootstrap: str) -> str:
    """Uses every secret, rightly and wrongly; returns all that clients got back."""
    common: dict[str, Any] = {"bootstrap_servers": bootstrap, "security_protocol": "SASL_PLAINTEXT"}
    alice = {**common, "sasl_mechanism": "PLAIN", "sasl_username": "alice", "sasl_password": f"{SENTINEL}-2"}
    seen: list[Any] = []
    with ottla.Admin(**alice) as admin:
        admin.set_scram_credential("bob", ScramMechanism.SHA_512, f"{SENTINEL}-bob")
        seen.append(admin.describe_config(Resource.broker(1), synonyms=True, documentation=True))
        for name, value in ((JAAS, f'{PLAIN} user_x="{SENTINEL}'), (JAAS, MODULE), ("delegation.token.secret.key", f"{SENTINEL}-new")):
            changed = admin.incremental_alter_configs({Resource.broker(1): [ConfigChange(name, value)]})
            seen.extend(str(outcome) for outcome in changed.values())
        seen.append(admin.describe_config(Resource.broker(1), synonyms=True))
        seen.append(admin.describe_scram_credentials())
        token = admin.create_delegation_token()
        seen.append(repr(token))
        seen.append(admin.renew_delegation_token(token.hmac))
    for user, password, mechanism in (("alice", f"{SENTINEL}-no", "PLAIN"), ("bob", f"{SENTINEL}-no", "SCRAM-SHA-512")):
        wrong = {**common, "sasl_mechanism": mechanism, "sasl_username": user, "sasl_password": password}
        with ottla.Admin(**wrong) as admin, pytest.raises(KafkaError) as refused:
            admin.list_topics()
        seen.append(str(refused.value))
    librdkafka = {"bootstrap.servers": bootstrap, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512"}
    AdminClient({**librdkafka, "sasl.username": "bob", "sasl.password": f"{SENTINEL}-bob"}).list_topics(timeout=10)
    return "\n".join(map(str, seen))


def test_logs_answers_and_arguments_have_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTTLA_LOG", "debug")
    config = tmp_path / "server.properties"
    config.write_text("".join(f"{name}={value}\n" for name, value in settings().items()))
    with Serving(tmp_path / "data", arguments=["--config", str(config)], listen=False) as server:
        assert SENTINEL not in use(server.bootstrap)
        assert SENTINEL not in Path(f"/proc/{server.pid}/cmdline").read_text()
        assert SENTINEL not in Path(f"/proc/{server.pid}/environ").read_text()
        os.kill(server.pid, 10)
    assert "authentication of 127.0.0.1" in server.logs(), "the log level is low enough to see"
    assert SENTINEL not in server.logs()
    # The store has the settings that were changed, as Kafka's has; nothing else does.
    written = [path for path in (tmp_path / "data").rglob("*") if path.is_file() and "ottla-store" not in path.name]
    assert written
    assert not [path for path in written if SENTINEL.encode() in path.read_bytes()]


def test_a_flight_record_has_no_secrets(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with broker(settings=settings(), data_dir=tmp_path) as started:
        assert SENTINEL not in use(started.bootstrap_servers)
        process = started._process
        assert process is not None
        shell = process.brokers[0].shell
        record = process._record(shell, AssertionError("a bug")).read_bytes()
        stored = process.brokers[0].node.context.image.overrides("users", "bob")["SCRAM-SHA-512"]
    assert record.count(b"RequestArrived") > 5
    assert SENTINEL.encode() not in record
    assert stored.encode() not in record
    assert SENTINEL not in caplog.text


def test_other_users_of_the_machine_read_neither_the_store_nor_flight_records(tmp_path: Path) -> None:
    with broker(data_dir=tmp_path) as started:
        process = started._process
        assert process is not None
        shell = process.brokers[0].shell
        record = process._record(shell, AssertionError("a bug"))
    assert stat.S_IMODE(record.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "meta").stat().st_mode) == 0o700


def forwarded(message: Any, version: int) -> RequestArrived[Any]:
    """A request that a broker forwards to the controller for a client."""
    body = enveloped(message, version, Origin(host="10.0.0.7", principal="User:root"), "app")
    return RequestArrived(connection=ConnectionId(1), correlation_id=1, api_key=58, api_version=0, client_id=None, body=body)


def noted(event: RequestArrived[Any]) -> bytes:
    """The frame that a flight recorder keeps of a request."""
    frame = b"".join(encode_request(event.body, event.api_version, 1, None))[SIZE_BYTES:]  # type: ignore[arg-type]
    recorder = FlightRecorder(bytes_max=1 << 20)
    recorder.note(0, event, memoryview(frame))
    [(_, kept, _)] = recorder._entries
    return bytes(kept.frame)


def test_a_flight_record_has_no_secrets_of_requests_in_envelopes() -> None:
    password = ScramCredentialUpsertion(
        name="bob", mechanism=2, iterations=4096, salt=f"{SENTINEL}-salt".encode(), salted_password=SENTINEL.encode()
    )
    user = forwarded(AlterUserScramCredentialsRequest(deletions=[], upsertions=[password]), 0)
    change = AlterableConfig(name="listener.name.client.ssl.keystore.password", config_operation=0, value=SENTINEL)
    resource = AlterConfigsResource(resource_type=4, resource_name="1", configs=[change])
    setting = forwarded(IncrementalAlterConfigsRequest(resources=[resource]), 1)
    unreadable = msgspec.structs.replace(
        user, body=EnvelopeRequest(request_data=SENTINEL.encode(), request_principal=b"", client_host_address=b"")
    )
    for event in (user, setting, unreadable):
        assert SENTINEL.encode() in b"".join(encode_request(event.body, 0, 1, None))  # type: ignore[arg-type]
        assert SENTINEL.encode() not in noted(event)
    assert b"bob" in noted(user) and b"ssl.keystore.password" in noted(setting) and b"User:root" in noted(setting)


def test_a_flight_record_has_no_tokens_of_sasl() -> None:
    body = SaslAuthenticateRequest(auth_bytes=f"\0alice\0{SENTINEL}".encode())
    event = RequestArrived(connection=ConnectionId(1), correlation_id=1, api_key=36, api_version=2, client_id=None, body=body)
    assert SENTINEL.encode() not in noted(event)


def test_a_flight_record_has_no_values_of_unknown_broker_settings() -> None:
    """They may be passwords of plugins; values of topics are never secret."""
    configs = [("my.plugin.password", SENTINEL), ("max.connections", "4321")]
    changes = [AlterableConfig(name=name, config_operation=0, value=value) for name, value in configs]
    of_broker = AlterConfigsResource(resource_type=4, resource_name="1", configs=changes)
    of_topic = AlterConfigsResource(
        resource_type=2, resource_name="t", configs=[AlterableConfig(name="retention.ms", config_operation=0, value="8765")]
    )
    body = IncrementalAlterConfigsRequest(resources=[of_broker, of_topic])
    kept = noted(RequestArrived(connection=ConnectionId(1), correlation_id=1, api_key=44, api_version=1, client_id=None, body=body))
    assert SENTINEL.encode() not in kept and b"4321" in kept and b"8765" in kept
    for path in ("/config/brokers/1", "/config/users/alice"):
        texts = {"my.plugin.password": SENTINEL} if "brokers" in path else {"producer_byte_rate": "1024.0"}
        state = NodeState(path=path, data=layout.encode_config(texts), version=0)
        told = redacted(StoreChanged(state=state))
        assert isinstance(told, StoreChanged) and told.state.data is not None
        assert SENTINEL.encode() not in told.state.data and (b"1024" in told.state.data) == ("users" in path)


def test_a_flight_record_has_only_the_header_of_a_large_request_that_may_have_secrets() -> None:
    changes = [AlterableConfig(name="ssl.keystore.password", config_operation=0, value=SENTINEL)]
    resources = [AlterConfigsResource(resource_type=4, resource_name=str(number), configs=changes) for number in range(500)]
    body = IncrementalAlterConfigsRequest(resources=resources)
    frame = b"".join(encode_request(body, 1, 7, "client"))[SIZE_BYTES:]  # type: ignore[arg-type]
    event = RequestArrived(connection=ConnectionId(1), correlation_id=7, api_key=44, api_version=1, client_id="client", body=body)
    recorder = FlightRecorder(1 << 20)
    recorder.note(0, event, memoryview(frame))
    [(_, kept, _)] = recorder._entries
    assert SENTINEL.encode() in frame[:256] and SENTINEL.encode() not in kept.frame
    header, _ = decode_request_header(memoryview(kept.frame))
    assert (header.api_key, header.client_id, kept.size) == (44, "client", len(frame))
