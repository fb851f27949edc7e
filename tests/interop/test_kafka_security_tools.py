"""Apache Kafka's tools against a listener with SASL: kafka-configs sets passwords, kafka-delegation-tokens makes tokens, and the Java
client authenticates with each mechanism, a token included. All commands run in one JVM.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from kafka_tools import Run

from ottla import Admin
from ottla.results import ScramCredentialInfo, ScramMechanism
from ottla.testing import broker

pytestmark = [pytest.mark.interop, pytest.mark.server, pytest.mark.timeout(240), pytest.mark.usefixtures("own_server_only")]

CONFIGS = "org.apache.kafka.tools.ConfigCommand"
TOKENS = "org.apache.kafka.tools.DelegationTokenCommand"
#: Any request that needs authentication.
BROKER = ("--describe", "--entity-type", "brokers", "--entity-name", "1")
MODULES = {"PLAIN": "plain.PlainLoginModule", "SCRAM-SHA-256": "scram.ScramLoginModule", "SCRAM-SHA-512": "scram.ScramLoginModule"}


def client_file(directory: Path, user: str, password: str, mechanism: str, more: str = "") -> str:
    """A file for --command-config."""
    module = f'org.apache.kafka.common.security.{MODULES[mechanism]} required username="{user}" password="{password}" {more};'
    path = directory / f"{user}-{mechanism}.properties"
    path.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\nsasl.jaas.config={module}\n")
    return str(path)


def test_kafkas_tools_manage_users_and_tokens_over_sasl(tmp_path: Path, run: Run) -> None:
    settings = {"delegation.token.secret.key": "key", "connections.max.reauth.ms": "3600000"}
    with broker(users={"admin": "secret"}, settings=settings) as started:
        at = ("--bootstrap-server", started.bootstrap_servers)
        plain = ("--command-config", client_file(tmp_path, "admin", "secret", "PLAIN"))

        # Users.
        both = "SCRAM-SHA-256=[iterations=8192,password=alice-secret],SCRAM-SHA-512=[password=alice-secret]"
        users = ("--entity-type", "users", "--entity-name", "alice")
        run(CONFIGS, *at, *plain, "--alter", "--add-config", both, *users)
        # The tool's --describe also asks for quotas, which this version does not have.
        with Admin(**started.client_settings("admin")) as admin:
            infos = admin.describe_scram_credentials(["alice"])["alice"]
            assert infos == [ScramCredentialInfo(ScramMechanism.SHA_256, 8192), ScramCredentialInfo(ScramMechanism.SHA_512, 4096)]
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            run(CONFIGS, *at, "--command-config", client_file(tmp_path, "alice", "alice-secret", mechanism), *BROKER)
        refused = run(CONFIGS, *at, "--command-config", client_file(tmp_path, "alice", "wrong", "SCRAM-SHA-512"), *BROKER, code=1)
        assert "Authentication failed during authentication due to invalid credentials with SASL mechanism SCRAM-SHA-512" in refused
        run(CONFIGS, *at, *plain, "--alter", "--delete-config", "SCRAM-SHA-512", *users)
        with Admin(**started.client_settings("admin")) as admin:
            assert admin.describe_scram_credentials(["alice"])["alice"] == [ScramCredentialInfo(ScramMechanism.SHA_256, 8192)]

        # Tokens.
        alice = ("--command-config", client_file(tmp_path, "alice", "alice-secret", "SCRAM-SHA-256"))
        made = run(TOKENS, *at, *alice, "--create", "--max-life-time-period", "-1", "--renewer-principal", "User:admin")
        found = re.search(r"^(\S+)\s+(\S+==)\s+User:alice", made, re.MULTILINE)
        assert found is not None, made
        token_id, hmac = found.groups()
        assert token_id in run(TOKENS, *at, *plain, "--describe", "--owner-principal", "User:alice")
        by_token = ("--command-config", client_file(tmp_path, token_id, hmac, "SCRAM-SHA-256", 'tokenauth="true"'))
        run(CONFIGS, *at, *by_token, *BROKER)
        refused = run(TOKENS, *at, *by_token, "--describe", code=1)
        assert "Delegation Token requests are not allowed" in refused
        run(TOKENS, *at, *plain, "--renew", "--renew-time-period", "-1", "--hmac", hmac)
        run(TOKENS, *at, *alice, "--expire", "--expiry-time-period", "-1", "--hmac", hmac)
        assert token_id not in run(TOKENS, *at, *alice, "--describe", "--owner-principal", "User:alice")
