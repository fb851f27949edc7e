"""Two brokers over ZooKeeper whose only listeners have TLS, with certificates on both sides."""

from pathlib import Path
from typing import Any

import pytest

import ottla
from certificates import Certificate
from ottla.server.zookeeper_ensemble import Ensemble
from serving import Serving

pytestmark = pytest.mark.server


def test_brokers_replicate_and_fail_over_on_a_listener_that_requires_certificates(tmp_path: Path, zookeeper: Ensemble) -> None:
    authority = Certificate.authority()
    trusted = authority.write_trusted(tmp_path / "ca.pem")
    servers = []
    for number in (1, 2):
        (tmp_path / f"{number}.properties").write_text(f"""
broker.id={number}
zookeeper.connect={zookeeper.connect}/tls
zookeeper.session.timeout.ms=4000
listeners=SSL://127.0.0.1:0
security.inter.broker.protocol=SSL
ssl.client.auth=required
ssl.keystore.type=PEM
ssl.keystore.location={authority.issue(f"broker{number}").write_pem(tmp_path / f"{number}.pem")}
ssl.truststore.type=PEM
ssl.truststore.location={trusted}
default.replication.factor=2
min.insync.replicas=2
offsets.topic.replication.factor=2
""")
        servers.append(Serving(tmp_path / f"broker-{number}", arguments=["--config", str(tmp_path / f"{number}.properties")], listen=False))
    settings: dict[str, Any] = {
        "security_protocol": "SSL",
        "ssl_truststore_type": "PEM",
        "ssl_truststore_location": str(trusted),
        "ssl_keystore_type": "PEM",
        "ssl_keystore_location": str(authority.issue("client").write_pem(tmp_path / "client.pem")),
    }
    with servers[0], servers[1]:
        settings["bootstrap_servers"] = ",".join(server.bootstrap for server in servers)
        with ottla.Admin(**settings) as admin:
            admin.create_topic(ottla.NewTopic("t", 4))
            with ottla.Producer(**settings) as producer:
                # acks=all with two in-sync replicas: each record is on both brokers.
                for number in range(1_000):
                    producer.send("t", b"%d" % number, partition=number % 4)
            described = admin.describe_topics(["t"])["t"]
            assert not isinstance(described, Exception)
            assert {partition.leader for partition in described.partitions} == {1, 2}
            assert all(len(partition.isr) == 2 for partition in described.partitions)
            servers[0].stop()
            admin.incremental_alter_config(ottla.Resource(ottla.ResourceType.TOPIC, "t"), {"min.insync.replicas": 1})
        with ottla.Producer(**settings) as producer:
            assert producer.send("t", b"last", partition=0).result(30).offset == 250
