"""`ottla doctor` on brokers, listeners, controllers and clocks, in clusters with injected faults."""

from __future__ import annotations

import pytest
from doctor_facts import NOW_MS, a_healthy_cluster, a_partition, a_probe, found, only, place

from ottla.base.ids import TopicPartition
from ottla.client.admin.cluster_results import Quorum, QuorumReplica
from ottla.client.admin.results import Node
from ottla.client.doctor.facts import DESCRIBE_QUORUM, Facts

REFUSED = "connection refused by 10.0.0.2:9092"


def test_a_healthy_cluster_has_no_findings() -> None:
    assert found(a_healthy_cluster()) == []


def test_an_unreachable_cluster_is_one_problem_per_address_and_nothing_else() -> None:
    facts = Facts(now_ms=NOW_MS, timeout_ms=5000, bootstrap=[a_probe(place(1), error="refused"), a_probe(place(2), error="refused")])
    findings = found(facts)
    assert [(one.severity, one.check, one.address) for one in findings] == [
        ("problem", "bootstrap", "10.0.0.1:9092"),
        ("problem", "bootstrap", "10.0.0.2:9092"),
    ]


def test_one_unreachable_address_of_several_is_a_warning() -> None:
    facts = a_healthy_cluster()
    facts.bootstrap.append(a_probe(place(9), error="refused"))
    assert (only(facts).severity, only(facts).address) == ("warning", "10.0.0.9:9092")


def test_addresses_of_two_clusters_are_a_problem() -> None:
    facts = a_healthy_cluster()
    facts.bootstrap.append(a_probe(place(9)))
    facts.bootstrap[1].cluster_id = "theirs"
    assert "different clusters" in only(facts, "bootstrap").what


def test_a_slow_broker_is_a_warning() -> None:
    facts = a_healthy_cluster()
    facts.listeners[2].took_ms = 2600
    assert (only(facts).severity, only(facts).broker, only(facts).check) == ("warning", 2, "listeners")


def test_an_unreachable_advertised_address_is_a_problem() -> None:
    facts = a_healthy_cluster()
    facts.listeners[2] = a_probe(place(2), error=REFUSED)
    finding = only(facts)
    assert (finding.severity, finding.check, finding.broker, finding.evidence) == ("problem", "listeners", 2, REFUSED)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1"])
def test_advertising_localhost_is_a_problem_for_remote_clients(host: str) -> None:
    facts = a_healthy_cluster()
    facts.listeners[2] = a_probe((host, 9092))
    finding = only(facts, "listeners")
    assert finding.severity == "problem" and "a client's own machine" in finding.evidence


def test_a_host_name_that_resolves_to_loopback_counts_as_localhost() -> None:
    facts = a_healthy_cluster()
    facts.listeners[2] = a_probe(("broker-two", 9092))
    facts.listeners[2].hosts = ["127.0.1.1"]
    assert only(facts, "listeners").broker == 2


def test_advertising_localhost_is_healthy_for_local_clients() -> None:
    facts = a_healthy_cluster()
    facts.bootstrap = [a_probe(("localhost", 9092))]
    facts.bootstrap[0].hosts = ["127.0.0.1"]
    facts.listeners[1] = a_probe(("127.0.0.1", 9092))
    assert found(facts, "listeners") == []


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_wildcard_address_must_not_be_advertised(host: str) -> None:
    facts = a_healthy_cluster()
    facts.listeners[2] = a_probe((host, 9092))
    assert "listen" in only(facts, "listeners").evidence


def test_an_advertised_address_of_another_cluster_is_a_problem() -> None:
    facts = a_healthy_cluster()
    facts.listeners[2].cluster_id = "theirs"
    assert "another cluster" in only(facts, "listeners").what


def test_two_brokers_at_one_address_are_a_problem() -> None:
    facts = a_healthy_cluster()
    facts.listeners[2] = facts.listeners[1]
    assert only(facts, "listeners").evidence == "brokers 1, 2"


def test_no_controller_is_a_problem_and_different_controllers_a_warning() -> None:
    facts = a_healthy_cluster()
    for probe in facts.listeners.values():
        probe.controller = -1
    assert (only(facts).severity, only(facts).what) == ("problem", "There is no controller")
    facts.listeners[2].controller = 2
    assert only(facts).evidence == "broker 1 knows none, broker 2 knows 2, broker 3 knows none"
    facts.listeners[1].controller = facts.listeners[3].controller = 1
    assert (only(facts).severity, only(facts).check) == ("warning", "controller")


def with_quorum(*, leader: int = 1, ahead_ms: int = 0, voter_behind_ms: int = 100) -> Facts:
    """A cluster with a metadata quorum; its brokers report any of them as the controller."""
    facts = a_healthy_cluster()
    for broker, probe in facts.listeners.items():
        probe.versions = {**probe.versions, DESCRIBE_QUORUM: (0, 2)}
        probe.controller = broker
    clock_ms = NOW_MS + ahead_ms
    voters = [
        QuorumReplica(1, bytes(16), 100, clock_ms, clock_ms),
        QuorumReplica(2, bytes(16), 90, clock_ms, clock_ms - voter_behind_ms),
    ]
    facts.quorum, facts.quorum_at_ms, facts.quorum_took_ms = Quorum(leader, 5, 90, voters, [], {}), NOW_MS, 20
    return facts


def test_brokers_of_a_quorum_can_report_different_controllers() -> None:
    assert found(with_quorum()) == []


def test_a_quorum_without_a_leader_has_no_controller() -> None:
    assert only(with_quorum(leader=-1), "controller").severity == "problem"


def test_a_voter_that_is_behind_is_a_warning() -> None:
    assert "node 2 was last caught up 30s ago" in only(with_quorum(voter_behind_ms=30_000)).evidence


@pytest.mark.parametrize(("ahead_ms", "message"), [(60_000, "1m ahead"), (-60_000, "1m behind")])
def test_the_clock_of_a_quorums_leader_is_compared(ahead_ms: int, message: str) -> None:
    finding = only(with_quorum(ahead_ms=ahead_ms))
    assert (finding.check, finding.broker) == ("clocks", 1) and message in finding.evidence


def test_a_broker_that_replicas_name_and_that_does_not_exist_is_a_problem() -> None:
    facts = a_healthy_cluster()
    facts.topics["old"] = [a_partition(0, 1, (1, 7)), a_partition(1, 1, (1, 7))]
    finding = only(facts, "brokers")
    assert (finding.broker, finding.evidence) == (7, "2 partitions have a replica on it")
    assert finding.command == "ottla cluster reassign plan --all-topics --brokers 1,2,3"


def test_a_fenced_broker_is_a_problem_and_a_broker_with_incomplete_metadata_a_warning() -> None:
    facts = a_healthy_cluster()
    facts.nodes[1] = Node(2, *place(2), is_fenced=True)
    assert (only(facts, "brokers").broker, only(facts, "brokers").severity) == (2, "problem")
    facts = a_healthy_cluster()
    facts.listeners[3].brokers.pop(2)
    assert only(facts).evidence == "broker 3 does not list broker 2; others do"


def test_brokers_of_different_versions_are_a_warning() -> None:
    facts = a_healthy_cluster()
    facts.listeners[3].versions = {0: (3, 13), 1: (4, 17)}
    assert only(facts).evidence == "1 APIs differ, for example key 0: brokers 1, 2: 3 to 11; brokers 3: 3 to 13"
    facts.listeners[3].versions = {1: (4, 17)}
    assert "brokers 3: none" in only(facts).evidence


def test_a_record_with_a_future_broker_timestamp_means_a_clock_that_is_ahead() -> None:
    facts = a_healthy_cluster()
    facts.topic_settings["orders"]["message.timestamp.type"] = "LogAppendTime"
    facts.newest_ms = {TopicPartition("orders", 0): NOW_MS + 1000, TopicPartition("orders", 1): NOW_MS + 30_000}
    finding = only(facts)
    assert (finding.check, finding.broker, finding.partitions) == ("clocks", 2, [1])


def test_timestamps_far_in_the_future_or_in_seconds_are_warnings_about_producers() -> None:
    facts = a_healthy_cluster()
    facts.newest_ms = {TopicPartition("orders", 0): NOW_MS * 1000, TopicPartition("orders", 1): NOW_MS // 1000}
    assert [(one.partitions, one.severity) for one in found(facts, "clocks")] == [([0], "warning"), ([1], "warning")]
    facts.newest_ms = {TopicPartition("orders", 0): NOW_MS + 60_000}
    assert found(facts, "clocks") == [], "producers' clocks can differ slightly"


def test_a_failed_request_is_reported_once_for_all_checks() -> None:
    facts = a_healthy_cluster()
    facts.unavailable = {"quorum": "no answer within 10 s"}
    finding = only(facts)
    assert (finding.severity, finding.evidence) == ("warning", "no answer within 10 s; affected checks: controller, clocks")
    assert finding.command == "ottla doctor --check controller --check clocks --timeout 30s"
    assert found(facts, "partitions") == []


def test_unreachable_brokers_are_reported_before_failed_requests() -> None:
    facts = a_healthy_cluster()
    facts.unavailable = {"groups": REFUSED}
    facts.listeners[2] = a_probe(place(2), error=REFUSED)
    problem, warning = found(facts)
    assert (problem.check, warning.check) == ("listeners", "groups")
    assert warning.remedy == "Make broker 2 reachable, then repeat."


def test_the_worst_finding_is_reported_first() -> None:
    facts = a_healthy_cluster()
    facts.bootstrap.append(a_probe(place(9), error="refused"))
    facts.listeners[2] = a_probe(place(2), error=REFUSED)
    assert [one.severity for one in found(facts)] == ["problem", "warning"]
