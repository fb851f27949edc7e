"""Java's client over TLS, with the stores that users of Kafka have: a broker with JKS, a client with PEM and PKCS12, versions 1.2 and 1.3;
and certificates changed by `kafka-configs.sh`.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from bench import kafka as apache
from kafka_tools import tools_command

from certificates import Certificate
from serving import Serving

pytestmark = [pytest.mark.interop, pytest.mark.server, pytest.mark.timeout(240), pytest.mark.usefixtures("own_server_only")]

PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
CONFIGS = "org.apache.kafka.tools.ConfigCommand"


def test_java_clients_read_write_and_change_certificates_over_tls(tmp_path: Path, apache_kafka: apache.Distribution) -> None:
    pytest.importorskip("jks")
    if shutil.which("keytool") is None:
        pytest.skip("there is no keytool")
    command = tools_command(apache_kafka)

    def tool(name: str, *arguments: str, text: str = "") -> str:
        done = subprocess.run([*command, name, *arguments], capture_output=True, text=True, timeout=90, check=False, input=text)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    authority = Certificate.authority()
    authority.write_trusted(tmp_path / "ca.pem")
    authority.issue("broker").write_pkcs12(tmp_path / "broker.p12", "storepass")
    subprocess.run(
        ["keytool", "-importkeystore", "-noprompt", "-srckeystore", str(tmp_path / "broker.p12"), "-srcstorepass", "storepass",
         "-destkeystore", str(tmp_path / "broker.jks"), "-deststoretype", "JKS", "-deststorepass", "storepass"],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    (tmp_path / "server.properties").write_text(f"""
listeners=SSL://127.0.0.1:0
security.inter.broker.protocol=SSL
ssl.client.auth=required
ssl.keystore.location={tmp_path / "broker.jks"}
ssl.keystore.password=storepass
ssl.truststore.type=PEM
ssl.truststore.location={tmp_path / "ca.pem"}
""")
    client = authority.issue("client")
    client.write_pem(tmp_path / "client.pem")
    client.write_pkcs12(tmp_path / "client.p12", "storepass")
    shared = f"security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location={tmp_path / 'ca.pem'}\n"
    pem = tmp_path / "pem.properties"
    pem.write_text(f"{shared}ssl.keystore.type=PEM\nssl.keystore.location={tmp_path / 'client.pem'}\nssl.enabled.protocols=TLSv1.3\n")
    p12 = tmp_path / "p12.properties"
    p12.write_text(
        f"{shared}ssl.keystore.type=PKCS12\nssl.keystore.location={tmp_path / 'client.p12'}\nssl.keystore.password=storepass\n"
        "ssl.key.password=storepass\nssl.enabled.protocols=TLSv1.2\nssl.protocol=TLSv1.2\n"
    )
    with Serving(tmp_path / "data", arguments=["--config", str(tmp_path / "server.properties")], listen=False) as server:
        at = ("--bootstrap-server", server.bootstrap)
        records = "".join(f"record {number} {'x' * 200}\n" for number in range(500))
        tool(PRODUCER, *at, "--topic", "t", "--command-config", str(pem), text=records)
        read = ("--topic", "t", "--from-beginning", "--max-messages", "500", "--timeout-ms", "30000")
        assert tool(CONSUMER, *at, *read, "--command-config", str(p12)) == records
        authority.issue("broker").write_pkcs12(tmp_path / "next.p12", "storepass")
        changes = f"listener.name.ssl.ssl.keystore.location={tmp_path / 'next.p12'},listener.name.ssl.ssl.keystore.type=PKCS12"
        entity = ("--entity-type", "brokers", "--entity-name", "1", "--command-config", str(pem))
        assert "Completed" in tool(CONFIGS, *at, *entity, "--alter", "--add-config", changes)
        described = tool(CONFIGS, *at, *entity, "--describe")
        assert f"listener.name.ssl.ssl.keystore.location={tmp_path / 'next.p12'} sensitive=false" in described
        assert tool(CONSUMER, *at, *read, "--command-config", str(p12)) == records
