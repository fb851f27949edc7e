"""The hardened configuration of docs/security.md works as it is printed."""

import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import ottla
from ottla.cli.main import main
from ottla.errors import KafkaError
from ottla.results import Acl, AclOperation, AclResourceType, ScramMechanism
from serving import SOURCE, Serving

pytestmark = pytest.mark.server

PAGE = SOURCE.parent / "docs" / "security.md"


def printed(directory: Path) -> str:
    """The settings of the page, with files in ``directory`` and free ports of this machine."""
    found = re.search(r"```properties\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    lines = [line for line in found[1].splitlines() if not line.startswith("advertised.listeners")]
    text = "\n".join(lines).replace("/etc/ottla", str(directory))
    return text.replace("CLIENT://:9093,BROKER://:9094", "CLIENT://127.0.0.1:0,BROKER://127.0.0.1:0")


def test_the_hardened_configuration_lets_in_who_belongs_and_nobody_else(tmp_path: Path) -> None:
    made = CliRunner().invoke(main, ["tls", "init", "kafka1.example", "--dir", str(tmp_path / "tls")])
    assert made.exit_code == 0, made.output
    (tmp_path / "server.properties").write_text(printed(tmp_path))
    (tmp_path / "admin-password").write_text("correct horse\n")
    first = f"SCRAM-SHA-512=[name=admin,password-file={tmp_path / 'admin-password'}]"
    arguments = ["--config", str(tmp_path / "server.properties"), "--init-scram", first]
    with Serving(tmp_path / "data", arguments=arguments, listen=False) as server:
        tls: dict[str, Any] = {
            "bootstrap_servers": server.bootstrap,
            "ssl_truststore_type": "PEM",
            "ssl_truststore_location": str(tmp_path / "tls" / "ca.pem"),
            "sasl_mechanism": "SCRAM-SHA-512",
        }
        secured = {**tls, "security_protocol": "SASL_SSL"}
        with ottla.Admin(**secured, sasl_username="admin", sasl_password="correct horse") as admin:
            admin.create_topic(ottla.NewTopic("orders", 1))
            admin.set_scram_credential("alice", ScramMechanism.SHA_512, "battery staple")
            rules = [
                Acl(principal="User:alice", operation=operation, resource_type=AclResourceType.TOPIC, name="orders")
                for operation in (AclOperation.WRITE, AclOperation.DESCRIBE)
            ]
            admin.create_acls(rules)
        with ottla.Producer(**secured, sasl_username="alice", sasl_password="battery staple") as producer:
            assert producer.send("orders", b"one").result(20).offset == 0
            with pytest.raises(KafkaError) as refused:
                producer.send("invoices", b"one").result(20)
        assert "orders" not in str(refused.value)
        for wrong in (
            {**secured, "sasl_username": "alice", "sasl_password": "wrong"},
            {"bootstrap_servers": server.bootstrap},
        ):
            with pytest.raises(KafkaError), ottla.Admin(**wrong) as admin:
                admin.list_topics(timeout_ms=3_000)
    assert '"principal":"User:alice"' in (tmp_path / "audit.log").read_text()
