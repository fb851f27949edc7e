"""`ottla doctor` on consumer groups and disks, in clusters with injected faults."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from doctor_facts import NOW_MS, a_healthy_cluster, found, only

from ottla.base.ids import TopicPartition
from ottla.client.admin.group_lag import GroupLag, PartitionLag
from ottla.client.admin.group_results import GroupDescription, GroupMember, GroupState, GroupType
from ottla.client.admin.results import LogDir, Node, ReplicaLog
from ottla.client.doctor.facts import Facts
from ottla.client.doctor.groups import TIME_LAG_MS, suspicious_groups

COORDINATOR = Node(1, "10.0.0.1", 9092)


def a_member(name: str, partitions: Iterable[int], topics: Iterable[str] = ("orders",)) -> GroupMember:
    return GroupMember(name, None, f"client-{name}", "/10.0.0.9", [TopicPartition("orders", one) for one in partitions], list(topics))


def a_group(*members: GroupMember, state: GroupState = GroupState.STABLE) -> GroupDescription:
    return GroupDescription("billing", GroupType.CLASSIC, state, "consumer", "range", COORDINATOR, list(members))


def a_lag(committed: int = 100, *, start: int = 0, end: int = 100, waits_ms: int = 0, partition: int = 0) -> GroupLag:
    row = PartitionLag("orders", partition, committed, start, end, time_lag_ms=waits_ms)
    return GroupLag("billing", GroupState.STABLE, NOW_MS, [row])


def with_group(group: GroupDescription, first: GroupLag | None = None, second: GroupLag | None = None) -> Facts:
    """A healthy cluster with a group and two measurements of its lag."""
    facts = a_healthy_cluster()
    facts.groups, facts.between_ms = {"billing": group}, 6000
    facts.lags = {"billing": first or a_lag()}
    if second is not None:
        facts.groups_again, facts.lags_again = {"billing": group}, {"billing": second}
    return facts


ALL = a_member("one", (0, 1, 2))


def test_a_group_that_reads_everything_is_healthy() -> None:
    assert found(with_group(a_group(ALL))) == []
    assert suspicious_groups(with_group(a_group(ALL))) == []


def test_a_group_is_suspect_by_the_age_of_its_lag_not_by_the_number_of_records() -> None:
    assert suspicious_groups(with_group(a_group(ALL), a_lag(0, end=10**9, waits_ms=TIME_LAG_MS - 1))) == []
    assert suspicious_groups(with_group(a_group(ALL), a_lag(99, waits_ms=TIME_LAG_MS))) == ["billing"]


def test_a_group_that_commits_nothing_between_two_measurements_is_stuck() -> None:
    waits = a_lag(90, waits_ms=TIME_LAG_MS * 2)
    finding = only(with_group(a_group(ALL), waits, waits))
    assert (finding.severity, finding.check, finding.group, finding.partitions) == ("warning", "groups", "billing", [0])
    assert finding.what == "A group makes no progress"
    assert finding.evidence == "10 unread records, the first for 10m; measured twice within 6.0s"


def test_a_stuck_group_without_members_gets_advice_to_start_some() -> None:
    waits = a_lag(90, waits_ms=TIME_LAG_MS)
    assert "no members" in only(with_group(a_group(state=GroupState.EMPTY), waits, waits)).what


def test_a_shrinking_lag_is_healthy_and_a_growing_one_is_not() -> None:
    first = a_lag(10, waits_ms=TIME_LAG_MS)
    assert found(with_group(a_group(ALL), first, a_lag(50, waits_ms=TIME_LAG_MS))) == []
    assert "lag of a group grows" in only(with_group(a_group(ALL), first, a_lag(20, end=200, waits_ms=TIME_LAG_MS))).what


def test_without_a_second_measurement_progress_is_not_reported() -> None:
    assert found(with_group(a_group(ALL), a_lag(90, waits_ms=TIME_LAG_MS))) == []


@pytest.mark.parametrize("state", [GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE, GroupState.RECONCILING])
def test_a_group_that_rebalances_at_both_measurements_is_unstable(state: GroupState) -> None:
    facts = with_group(a_group(ALL, state=state))
    assert suspicious_groups(facts) == ["billing"]
    assert found(facts) == []
    facts.groups_again = {"billing": a_group(ALL)}
    assert found(facts) == []
    facts.groups_again = {"billing": a_group(ALL, state=GroupState.PREPARING_REBALANCE)}
    assert "rebalance" in only(facts).what


def test_members_without_partitions_are_a_note() -> None:
    finding = only(with_group(a_group(ALL, a_member("two", ()))))
    assert (finding.severity, finding.evidence) == ("note", "1 of 2 members, for example client-two")


def test_partitions_without_a_reader_are_a_warning() -> None:
    finding = only(with_group(a_group(a_member("one", (0,)))))
    assert (finding.severity, finding.topic, finding.partitions) == ("warning", "orders", [1, 2])


def test_a_subscription_to_a_missing_topic_is_a_warning() -> None:
    finding = only(with_group(a_group(a_member("one", (0, 1, 2), topics=("orders", "order")))))
    assert (finding.severity, finding.topic) == ("warning", "order")


def test_a_group_without_a_coordinator_is_a_problem() -> None:
    facts = a_healthy_cluster()
    facts.groups = {"billing": "the coordinator is not available"}
    assert (only(facts).severity, only(facts).group) == ("problem", "billing")


def test_committed_offsets_below_the_log_start_mean_lost_records() -> None:
    finding = only(with_group(a_group(ALL), a_lag(10, start=40)))
    assert (finding.severity, finding.check) == ("problem", "offsets")
    assert finding.evidence == "the committed offset of orders-0 is 10, the log starts at 40; 30 offsets in total"
    assert finding.command == "ottla group reset billing --topic orders --to-current"


def test_committed_offsets_beyond_the_end_are_a_problem() -> None:
    assert "beyond the log end" in only(with_group(a_group(ALL), a_lag(101, end=100))).what


def test_a_group_name_with_spaces_is_quoted_in_commands() -> None:
    facts = with_group(a_group(ALL))
    facts.groups, facts.lags = {}, {"my group; rm": a_lag(10, start=40)}
    assert only(facts).command == "ottla group reset 'my group; rm' --topic orders --to-current"


@pytest.mark.parametrize(("free", "severity"), [(9, "warning"), (2, "problem"), (10, None)])
def test_nearly_full_disks_are_found(free: int, severity: str | None) -> None:
    facts = a_healthy_cluster()
    facts.directories = {2: [LogDir("/data", None, 100, free, [])]}
    assert [(one.severity, one.broker) for one in found(facts)] == ([(severity, 2)] if severity else [])


def test_a_disk_of_unknown_size_is_not_judged() -> None:
    facts = a_healthy_cluster()
    facts.directories = {2: [LogDir("/data", None, -1, -1, [])]}
    assert found(facts) == []


def test_offline_cordoned_and_unreported_log_directories_are_found() -> None:
    facts = a_healthy_cluster()
    facts.directories = {1: [LogDir("/a", "it failed", -1, -1, [])], 2: "no answer", 3: [LogDir("/c", None, 9, 9, [], is_cordoned=True)]}
    assert [(one.severity, one.broker) for one in found(facts)] == [("problem", 1), ("warning", 2), ("note", 3)]


@pytest.mark.parametrize(("damage", "severity", "remedy"), [
    ("offsets 4 to 4: x; it leaves the ISR and copies it from another replica", "warning", "heals the log"),
    ("offsets 4 to 4: x; nothing is deleted", "problem", "records-delete"),
])  # fmt: skip
def test_damaged_logs_are_found_with_a_remedy(damage: str, severity: str, remedy: str) -> None:
    facts = a_healthy_cluster()
    facts.directories = {2: [LogDir("/data", None, 100, 90, [ReplicaLog("t", 1, 9, 0, False, damage)])]}
    finding = only(facts)
    assert (finding.severity, finding.broker, finding.topic, finding.partitions) == (severity, 2, "t", [1])
    assert damage in finding.evidence and remedy in finding.remedy
