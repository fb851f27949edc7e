"""`ottla doctor` on partitions and their replicas, in clusters with injected faults."""

from __future__ import annotations

from doctor_facts import a_healthy_cluster, a_partition, found, only

from ottla.base.ids import TopicPartition
from ottla.client.admin.results import Node
from ottla.client.doctor.facts import Facts


def with_partitions(*partitions: object, least: str = "1") -> Facts:
    """A healthy cluster except for these partitions of its topic."""
    facts = a_healthy_cluster()
    facts.topics = {"orders": list(partitions)}  # type: ignore[arg-type]
    facts.topic_settings["orders"]["min.insync.replicas"] = least
    return facts


def test_partitions_without_a_leader_are_one_problem_that_names_the_brokers_to_restart() -> None:
    facts = with_partitions(a_partition(0, -1, (7, 8), isr=[7]), a_partition(1, -1, (7, 8), isr=[7]))
    finding = only(facts, "partitions")
    assert (finding.severity, finding.topic, finding.partitions) == ("problem", "orders", [0, 1])
    assert "Start broker 7" in finding.remedy
    assert finding.command == "ottla cluster elect --unclean --dry-run --topic orders:0,1"


def test_a_leaderless_partition_with_live_brokers_points_to_their_disks() -> None:
    assert "disk" in only(with_partitions(a_partition(0, -1, (1, 2), isr=[1])), "partitions").remedy


def test_fewer_in_sync_than_min_insync_is_a_problem_and_fewer_than_all_a_warning() -> None:
    facts = with_partitions(a_partition(0, 1, isr=[1]), a_partition(1, 1, isr=[1, 2]), a_partition(2), least="2")
    findings = found(facts, "partitions")
    assert [(one.severity, one.partitions) for one in findings] == [("problem", [0]), ("warning", [1])]
    assert "min.insync.replicas is 2" in findings[0].evidence


def test_the_remedy_names_dead_brokers_or_else_slow_ones() -> None:
    facts = with_partitions(a_partition(0, 1, (1, 2), isr=[1]))
    assert "log of broker 2" in only(facts, "partitions").remedy
    facts.nodes = [Node(1, "10.0.0.1", 9092)]
    assert only(facts, "partitions").remedy == "Start broker 2."


def test_replicas_added_by_a_reassignment_are_not_missing() -> None:
    facts = with_partitions(a_partition(0, 1, (1, 2, 3), isr=[1, 2]))
    facts.adding = {TopicPartition("orders", 0): [3]}
    assert found(facts, "partitions") == []


def test_a_topic_without_a_description_is_a_problem() -> None:
    facts = a_healthy_cluster()
    facts.undescribed = {"broken": "the server says: unknown"}
    assert only(facts).topic == "broken"


def test_a_preferred_leader_that_does_not_lead_is_a_warning() -> None:
    facts = with_partitions(*(a_partition(number, 2 if number < 2 else 1) for number in range(10)))
    finding = only(facts, "leaders")
    assert (finding.broker, finding.evidence) == (1, "2 of 10, for example orders-0: 20 %, above 10 %")
    facts.broker_settings[1]["leader.imbalance.per.broker.percentage"] = "20"
    assert found(facts, "leaders") == []


def test_a_preferred_leader_that_is_not_eligible_is_no_warning() -> None:
    assert found(with_partitions(a_partition(0, 2, (1, 2), isr=[2])), "leaders") == []


def test_one_replica_is_a_warning_if_more_are_possible() -> None:
    facts = with_partitions(a_partition(0, 1, [1]), a_partition(1, 2, [2]))
    finding = only(facts, "replication")
    assert (finding.severity, finding.partitions) == ("warning", [0, 1])
    assert finding.command == "ottla cluster reassign plan --topic orders --replicas 3"
    facts.nodes = facts.nodes[:1]
    assert found(facts, "replication") == [], "a single broker cannot hold a second replica"


def test_min_insync_of_all_replicas_is_a_warning_and_more_a_problem() -> None:
    assert only(with_partitions(a_partition(), least="3"), "replication").severity == "warning"
    assert only(with_partitions(a_partition(), least="4"), "replication").severity == "problem"
    facts = with_partitions(a_partition(0, 1, [1]), least="1")
    facts.nodes = facts.nodes[:1]
    assert found(facts, "replication") == []


def test_internal_topics_must_have_the_configured_replicas() -> None:
    facts = a_healthy_cluster()
    facts.topics["__consumer_offsets"] = [a_partition(0), a_partition(1, 1, (1, 2))]
    finding = only(facts, "internal-topics")
    assert (finding.topic, finding.partitions) == ("__consumer_offsets", [1])
    for settings in facts.broker_settings.values():
        settings["offsets.topic.replication.factor"] = "2"
    assert found(facts, "internal-topics") == []


def test_the_configured_factor_must_not_exceed_the_brokers() -> None:
    facts = with_partitions()
    facts.topics["__consumer_offsets"] = [a_partition(0, 1, [1])]
    facts.nodes = facts.nodes[:1]
    assert found(facts, "internal-topics") == []
