"""`ottla doctor` on access: open listeners, refused clients."""

from __future__ import annotations

from doctor_facts import a_healthy_cluster, found, only

from ottla.base.acls import Operation, ResourceType
from ottla.client.admin.acl_results import Acl


def test_listeners_that_other_machines_reach_are_open_to_everyone_without_access_rules() -> None:
    facts = a_healthy_cluster()
    facts.acls = None
    finding = only(facts, "access")
    assert (finding.severity, finding.what) == ("warning", "Everyone who can reach the brokers may do everything")
    assert finding.evidence.endswith("listeners that other machines can reach: 1, 2, 3")


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
