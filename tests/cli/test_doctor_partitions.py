"""What the doctor finds about partitions and their replicas, in clusters with planted illnesses."""

from __future__ import annotations

from doctor_facts import a_healthy_cluster, a_partition, found, only

from ottla.base.ids import TopicPartition
from ottla.cli.doctor.facts import Facts
from ottla.client.admin.results import Node


def with_partitions(*partitions: object, least: str = "1") -> Facts:
    """A healthy cluster, but for these partitions of its topic."""
    facts = a_healthy_cluster()
    facts.topics = {"orders": list(partitions)}  # type: ignore[arg-type]
    facts.topic_settings["orders"]["min.insync.replicas"] = least
    return facts


def test_partitions_without_a_leader_are_one_problem_that_says_whom_to_bring_back() -> None:
    facts = with_partitions(a_partition(0, -1, (7, 8), isr=[7]), a_partition(1, -1, (7, 8), isr=[7]))
    finding = only(facts, "partitions")
    assert (finding.severity, finding.topic, finding.partitions) == ("problem", "orders", [0, 1])
    assert "Start broker 7" in finding.remedy
    assert finding.command == "ottla cluster elect --unclean --dry-run --topic orders:0,1"


def test_a_leaderless_partition_whose_brokers_are_there_is_about_their_disks() -> None:
    assert "disk" in only(with_partitions(a_partition(0, -1, (1, 2), isr=[1])), "partitions").remedy


def test_fewer_in_sync_than_writes_need_is_a_problem_and_fewer_than_all_a_warning() -> None:
    facts = with_partitions(a_partition(0, 1, isr=[1]), a_partition(1, 1, isr=[1, 2]), a_partition(2), least="2")
    findings = found(facts, "partitions")
    assert [(one.severity, one.partitions) for one in findings] == [("problem", [0]), ("warning", [1])]
    assert "min.insync.replicas is 2" in findings[0].evidence


def test_the_remedy_names_the_brokers_that_are_gone_or_else_those_that_are_slow() -> None:
    facts = with_partitions(a_partition(0, 1, (1, 2), isr=[1]))
    assert "log of broker 2" in only(facts, "partitions").remedy
    facts.nodes = [Node(1, "10.0.0.1", 9092)]
    assert only(facts, "partitions").remedy == "Start broker 2."


def test_replicas_that_a_reassignment_adds_are_not_missed() -> None:
    facts = with_partitions(a_partition(0, 1, (1, 2, 3), isr=[1, 2]))
    facts.adding = {TopicPartition("orders", 0): [3]}
    assert found(facts, "partitions") == []


def test_a_topic_that_cannot_be_described_is_a_problem() -> None:
    facts = a_healthy_cluster()
    facts.undescribed = {"broken": "the server says: unknown"}
    assert only(facts).topic == "broken"


def test_a_broker_that_does_not_lead_what_it_should_is_a_warning() -> None:
    facts = with_partitions(*(a_partition(number, 2 if number < 2 else 1) for number in range(10)))
    finding = only(facts, "leaders")
    assert (finding.broker, finding.evidence) == (1, "2 of 10, for example orders-0: 20 %, above 10 %")
    facts.broker_settings[1]["leader.imbalance.per.broker.percentage"] = "20"
    assert found(facts, "leaders") == []


def test_a_broker_that_could_not_lead_is_not_missed_as_a_leader() -> None:
    assert found(with_partitions(a_partition(0, 2, (1, 2), isr=[2])), "leaders") == []


def test_one_copy_is_a_warning_where_there_could_be_more() -> None:
    facts = with_partitions(a_partition(0, 1, [1]), a_partition(1, 2, [2]))
    finding = only(facts, "replication")
    assert (finding.severity, finding.partitions) == ("warning", [0, 1])
    assert finding.command == "ottla cluster reassign plan --topic orders --replicas 3"
    facts.nodes = facts.nodes[:1]
    assert found(facts, "replication") == [], "a single broker has no room for a second copy"


def test_writes_that_need_every_replica_are_a_warning_and_more_than_every_a_problem() -> None:
    assert only(with_partitions(a_partition(), least="3"), "replication").severity == "warning"
    assert only(with_partitions(a_partition(), least="4"), "replication").severity == "problem"
    facts = with_partitions(a_partition(0, 1, [1]), least="1")
    facts.nodes = facts.nodes[:1]
    assert found(facts, "replication") == []


def test_internal_topics_have_as_many_copies_as_configured() -> None:
    facts = a_healthy_cluster()
    facts.topics["__consumer_offsets"] = [a_partition(0), a_partition(1, 1, (1, 2))]
    finding = only(facts, "internal-topics")
    assert (finding.topic, finding.partitions) == ("__consumer_offsets", [1])
    for settings in facts.broker_settings.values():
        settings["offsets.topic.replication.factor"] = "2"
    assert found(facts, "internal-topics") == []


def test_no_more_copies_are_configured_than_there_are_brokers() -> None:
    facts = with_partitions()
    facts.topics["__consumer_offsets"] = [a_partition(0, 1, [1])]
    facts.nodes = facts.nodes[:1]
    assert found(facts, "internal-topics") == []
