"""Brokers of several processes that authenticate to each other, and renew their sessions."""

import time
from pathlib import Path
from typing import Any

import pytest

import ottla
from ottla.client.admin.results import NewTopic
from ottla.server.zookeeper_ensemble import Ensemble
from serving import Serving

pytestmark = pytest.mark.server

PLAIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="broker" password="{}" user_broker="b" user_alice="a";'


def settings(password: str = "b") -> dict[str, str]:
    return {
        "listeners": "INTERNAL://127.0.0.1:0",
        "listener.security.protocol.map": "INTERNAL:SASL_PLAINTEXT",
        "inter.broker.listener.name": "INTERNAL",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.internal.plain.sasl.jaas.config": PLAIN.format(password),
        "listener.name.internal.plain.connections.max.reauth.ms": "1500",
        "default.replication.factor": "2",
        "min.insync.replicas": "2",
    }


def test_brokers_replicate_over_sasl_beyond_the_lifetime_of_a_session(tmp_path: Path, zookeeper: Ensemble) -> None:
    config = tmp_path / "server.properties"
    config.write_text("".join(f"{name}={value}\n" for name, value in settings().items()))
    connect = f"{zookeeper.connect}/{tmp_path.name}"
    servers = [
        Serving(
            tmp_path / f"b{number}",
            arguments=["--config", str(config), "--broker-id", str(number), "--zookeeper", connect],
            listen=False,
        )
        for number in (1, 2)
    ]
    with servers[0], servers[1]:
        client: dict[str, Any] = {
            "bootstrap_servers": servers[0].bootstrap, "security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN",
            "sasl_username": "alice", "sasl_password": "a",
        }  # fmt: skip
        with ottla.Admin(**client) as admin:
            admin.create_topic(NewTopic("t", 2))
        with ottla.Producer(**client) as producer:
            deadline_s = time.monotonic() + 4
            sent = 0
            while time.monotonic() < deadline_s:
                producer.send("t", b"x").result(20)
                sent += 1
        with ottla.Consumer("t", group_id="g", auto_offset_reset="earliest", **client) as consumer:
            found = 0
            while found < sent:
                found += len(consumer.poll(10_000))
    assert found == sent
    assert "not authenticated" not in servers[0].logs() + servers[1].logs()
