"""`ottla doctor` on access: open listeners, refused clients."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from doctor_facts import a_healthy_cluster, found, only

import ottla as ottla_client
from commands import Ottla
from ottla.base.acls import Operation, ResourceType
from ottla.client.admin.acl_results import Acl
from ottla.client.doctor.facts import Facts
from ottla.errors import TopicAuthorizationFailed
from ottla.testing import broker


def test_listeners_that_other_machines_reach_are_open_to_everyone_without_access_rules() -> None:
    facts = a_healthy_cluster()
    facts.acls = None
    finding = only(facts, "access")
    assert (finding.severity, finding.what) == ("warning", "Everyone who can reach the brokers may do everything")
    assert finding.evidence.endswith("listeners that other machines can reach: broker 1, broker 2, broker 3")


def with_listeners(text: str, protocols: str = "", acls: list[Acl] | None = None, **settings: Any) -> Facts:
    """One broker with these listeners."""
    facts = a_healthy_cluster()
    facts.listeners = {1: facts.listeners[1]}
    named = {name.replace("_", "."): value for name, value in settings.items()}
    facts.broker_settings = {1: {"listeners": text, "listener.security.protocol.map": protocols, **named}}
    facts.acls = acls
    return facts


@pytest.mark.parametrize(
    ("listeners", "protocols", "settings", "what", "named"),
    [
        ("PLAINTEXT://:9092,SASL_SSL://:9093", "", {}, "Everyone who can reach the brokers may do everything", "PLAINTEXT of broker 1"),
        ("client://0.0.0.0:9092", "CLIENT:SSL", {}, "Everyone who can reach the brokers may do everything", "CLIENT of broker 1"),
        (
            "CLIENT://h:9092",
            "CLIENT:SSL",
            {"ssl_client_auth": "required"},
            "Every client that authenticates may do everything",
            "CLIENT of",
        ),
        (
            "PLAINTEXT://127.0.0.1:9092,SASL_SSL://:9093",
            "",
            {},
            "Every client that authenticates may do everything",
            "SASL_SSL of broker 1",
        ),
    ],
)
def test_without_access_rules_the_open_listeners_are_named(
    listeners: str, protocols: str, settings: dict[str, Any], what: str, named: str
) -> None:
    finding = only(with_listeners(listeners, protocols, None, **settings), "access")
    assert (finding.severity, finding.what) == ("warning", what)
    assert finding.evidence.partition("reach: ")[2].startswith(named)


def test_rules_for_all_users_open_listeners_without_authentication() -> None:
    everyone = Acl(principal="User:*", operation=Operation.READ, resource_type=ResourceType.TOPIC, name="t")
    finding = only(with_listeners("PLAINTEXT://:9092", acls=[everyone]), "access")
    assert (finding.severity, finding.what) == ("warning", "Clients without a name may do what access rules allow")
    assert "PLAINTEXT of broker 1" in finding.evidence and "Allow User:*" in finding.evidence
    assert found(with_listeners("PLAINTEXT://127.0.0.1:9092", acls=[everyone]), "access") == []
    assert found(with_listeners("SASL_SSL://:9092", acls=[everyone]), "access") == []
    alice = Acl(principal="User:alice", operation=Operation.READ, resource_type=ResourceType.TOPIC, name="t")
    assert found(with_listeners("PLAINTEXT://:9092", acls=[alice]), "access") == []


def test_settings_that_open_a_guarded_cluster_are_found() -> None:
    lax = only(with_listeners("SASL_SSL://:9092", acls=[], allow_everyone_if_no_acl_found="true"), "access")
    assert lax.what == "Everyone may use every resource that no access rule is about"
    anonymous = only(with_listeners("PLAINTEXT://:9092", acls=[], super_users="User:root;User:ANONYMOUS"), "access")
    assert (anonymous.severity, anonymous.what) == ("problem", "Clients without a name may do everything")
    clear = only(with_listeners("SASL_PLAINTEXT://:9092", acls=[], sasl_enabled_mechanisms="SCRAM-SHA-512,PLAIN"), "access")
    assert clear.what == "Passwords cross the network unencrypted"
    assert found(with_listeners("SASL_PLAINTEXT://:9092", acls=[], sasl_enabled_mechanisms="SCRAM-SHA-512"), "access") == []


def test_users_without_a_rule_are_named() -> None:
    alice = Acl(principal="User:alice", operation=Operation.READ, resource_type=ResourceType.TOPIC, name="t")
    facts = with_listeners("SASL_SSL://:9092", acls=[alice], super_users="User:root; User:admin")
    facts.scram_users = {"alice", "root", "admin", "carol", "bob"}
    finding = only(facts, "access")
    assert (finding.severity, finding.evidence) == ("note", "User:bob, User:carol")


@pytest.mark.server
@pytest.mark.parametrize("tls", [False, True])
def test_a_secured_cluster_is_examined_with_the_credentials_of_a_profile(
    tls: bool, tmp_path: Path, ottla: Ottla, monkeypatch: pytest.MonkeyPatch
) -> None:
    with broker(tls=tls, users={"alice": "wonder"}, acls=[]) as started:
        started.topic("t")
        settings = started.client_settings("alice", "SCRAM-SHA-512")
        with ottla_client.Producer(**settings, max_block_ms=20_000) as producer, pytest.raises(TopicAuthorizationFailed):
            producer.send("t", b"x").result(20)
        profile = tmp_path / "config.toml"
        profile.touch(0o600)
        monkeypatch.setenv("OTTLA_CONFIG", str(profile))

        def report(**changed: str) -> Any:
            lines = [f'{name} = "{value}"' for name, value in {**started.client_settings(), **changed}.items()]
            profile.write_text("\n".join(["[profiles.secured]", *lines]) + "\n")
            result = ottla("doctor", "--profile", "secured", "-o", "json", "--timeout", "60s", "--check", "bootstrap", "--check", "access")
            return json.loads(result.stdout)

        good = report()
        assert good["reachable"], good
        assert [(one["check"], one["evidence"]) for one in good["findings"] if one["severity"] != "note"] == [
            ("access", f"User:alice ({one_or_more(good)} times) in the last hour")
        ]
        assert [one["evidence"] for one in good["findings"] if one["severity"] == "note"] == ["User:alice"]
        wrong = report(sasl_password="wrong")
    assert not wrong["reachable"]
    assert "refused the credentials" in wrong["findings"][0]["evidence"], wrong


def one_or_more(report: Any) -> int:
    """How often alice was refused: a client may ask again."""
    [found] = re.findall(r"User:alice \((\d+) times\)", json.dumps(report))
    return int(found)


def test_loopback_listeners_without_access_rules_are_fine() -> None:
    facts = a_healthy_cluster()
    facts.acls = None
    for probe in facts.listeners.values():
        probe.hosts = ["127.0.0.1", "::1"]
    assert found(facts, "access") == []


def test_a_refused_principal_without_a_rule_is_named() -> None:
    facts = a_healthy_cluster()
    facts.acls = [Acl(principal="User:alice", operation=Operation.READ, resource_type=ResourceType.TOPIC, name="t")]
    facts.denied = {1: {"User:bob": 3, "User:alice": 1}, 2: {"User:bob": 4}}
    missing, refused = found(facts, "access")
    assert (missing.severity, missing.evidence) == ("warning", "User:bob (7 times) in the last hour")
    assert (refused.severity, refused.broker, refused.evidence) == ("note", 1, "User:alice 1 times")


def test_access_rules_without_refusals_are_fine() -> None:
    assert found(a_healthy_cluster(), "access") == []
