"""Members of consumer groups: join, revocation, assignment, leave, removal, and refused heartbeats."""

from typing import Any

import msgspec
import pytest
from consumer_groups import GroupHarness, ObedientMember, settle, topic_id
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.broker.groups.consumer.changes import Timer
from ottla.broker.groups.consumer.reconciliation import (
    NOTHING,
    STABLE,
    UNRELEASED_PARTITIONS,
    UNREVOKED_PARTITIONS,
    ConsumerGroupMember,
    reconcile,
)
from ottla.broker.groups.consumer.record_schemas import (
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMetadataKey,
)
from ottla.wire import errors
from ottla.wire.messages.consumer_group_heartbeat import TopicPartitions


def group_harness(**terms: Any) -> GroupHarness:
    """A topic of four partitions, and one of two; targets are made at once."""
    return GroupHarness({"t": 4, "u": 2}, **{"assignment_interval_ms": 0, **terms})


def two_settled(harness: GroupHarness) -> tuple[ObedientMember, ObedientMember]:
    a, b = ObedientMember(harness, "a", "t"), ObedientMember(harness, "b", "t")
    settle(harness, a, b)
    return a, b


def test_first_member_reads_everything_in_epoch_one() -> None:
    harness = group_harness()
    a = ObedientMember(harness, "a", "t")
    answer = a.beat()
    assert (answer.member_id, answer.member_epoch, a.reads) == ("a", 1, "t:0,1,2,3")
    assert harness.group.state == "Stable"


def test_a_partition_is_assigned_to_its_new_owner_only_after_it_was_revoked() -> None:
    harness = group_harness()
    a, b = ObedientMember(harness, "a", "t"), ObedientMember(harness, "b", "t")
    a.beat()
    assert b.beat().member_epoch == 2
    assert b.reads == ""
    assert harness.describe()["b"] == (2, "UNRELEASED_PARTITIONS", "")
    assert a.beat().member_epoch == 1, "it stays in its epoch until it has given up"
    assert harness.describe()["a"] == (1, "UNREVOKED_PARTITIONS", "t:0,1", "t:2,3")
    b.beat()
    assert b.reads == ""
    assert a.beat().member_epoch == 2, "it now owns less, and reported it"
    b.beat()
    assert (a.reads, b.reads) == ("t:0,1", "t:2,3")
    assert harness.group.state == "Stable"


def test_heartbeat_that_owns_what_it_should_give_up_changes_nothing() -> None:
    harness = group_harness()
    a, b = ObedientMember(harness, "a", "t"), ObedientMember(harness, "b", "t")
    a.beat()
    b.beat()
    a.beat()
    everything = [TopicPartitions(topic_id=topic_id("t"), partitions=[0, 1, 2, 3])]
    written = len(harness.log)
    assert harness.heartbeat(member_id="a", member_epoch=1, topic_partitions=everything).assignment is None
    assert len(harness.log) == written
    assert harness.describe()["a"][1] == "UNREVOKED_PARTITIONS"


def test_a_waiting_member_gets_partitions_that_are_free_already() -> None:
    harness = GroupHarness({"t": 6}, assignment_interval_ms=0)
    a, b, c = (ObedientMember(harness, name, "t") for name in "abc")
    settle(harness, a, b)
    c.beat()
    a.beat()
    a.beat()
    assert harness.describe()["c"] == (3, "UNRELEASED_PARTITIONS", "")
    c.beat()
    assert harness.describe()["c"][1:] == ("UNRELEASED_PARTITIONS", "t:2")
    settle(harness, a, b, c)
    assert (a.reads, b.reads, c.reads) == ("t:0,1", "t:3,4", "t:2,5")


def test_partitions_of_a_leaving_member_go_to_the_remaining_members() -> None:
    harness = group_harness()
    a, b = two_settled(harness)
    answer = a.leave()
    assert (answer.member_id, answer.member_epoch) == ("a", -1)
    assert harness.group.state == "Assigning"
    b.beat()
    assert b.reads == "t:0,1,2,3"


def test_only_those_whose_target_changed_have_it_written() -> None:
    harness = group_harness()
    members = [ObedientMember(harness, name, "t") for name in "abcd"]
    settle(harness, *members)
    written = len(harness.log)
    ObedientMember(harness, "e", "u").beat()
    targets = [key.member_id for key, _ in harness.log[written:] if isinstance(key, ConsumerGroupTargetAssignmentMemberKey)]
    assert targets == ["e"]


def test_group_without_members_is_empty_and_can_begin_again() -> None:
    harness = group_harness()
    a = ObedientMember(harness, "a", "t")
    a.beat()
    a.leave()
    assert (harness.group.state, harness.group.epoch, harness.group.topics) == ("Empty", 2, {})
    b = ObedientMember(harness, "b", "t")
    assert b.beat().member_epoch == 3
    assert b.reads == "t:0,1,2,3"


def test_member_without_a_heartbeat_for_its_session_timeout_is_removed() -> None:
    harness = group_harness()
    a, b = two_settled(harness)
    harness.wait(44_000)
    b.beat()
    assert harness.wait(1_500) == [("session", "a")]
    b.beat()
    assert b.reads == "t:0,1,2,3"
    with pytest.raises(errors.UnknownMemberId):
        a.beat()


def test_member_that_does_not_give_up_within_its_rebalance_timeout_is_removed() -> None:
    harness = group_harness()
    a, b = ObedientMember(harness, "a", "t"), ObedientMember(harness, "b", "t")
    a.beat()
    b.beat()
    a.beat()
    for _ in range(3):
        assert harness.wait(6_000) == []
        harness.heartbeat(member_id="a", member_epoch=1)
        b.beat()
    assert harness.wait(6_000) == [("rebalance", "a")]
    b.beat()
    assert b.reads == "t:0,1,2,3"


def test_member_that_gave_up_in_time_is_not_removed() -> None:
    harness = group_harness()
    two_settled(harness)
    assert harness.wait(21_000) == []


def test_heartbeat_without_news_writes_nothing_and_only_starts_the_session_anew() -> None:
    harness = group_harness()
    a, _ = two_settled(harness)
    a.beat()
    written = len(harness.log)
    harness.wait(10_000)
    answer = a.beat()
    assert (answer.assignment, answer.heartbeat_interval_ms, len(harness.log)) == (None, 3_500, written)
    assert harness.deadlines[Timer.SESSION, "a"] == (harness.now_ms + 45_000, 0)
    assert harness.deadlines[Timer.SESSION, "b"][0] < harness.now_ms + 45_000


def test_the_heartbeat_interval_is_shorter_during_a_rebalance() -> None:
    harness = group_harness()
    a, b = two_settled(harness)
    harness.wait(6_000)
    assert a.beat().heartbeat_interval_ms == 3_500
    c = ObedientMember(harness, "c", "t")
    assert [each.beat().heartbeat_interval_ms for each in (c, a, b)] == [500] * 3
    settle(harness, a, b, c)
    harness.wait(6_000)
    assert [each.beat().heartbeat_interval_ms for each in (c, a, b)] == [3_500] * 3


def test_a_member_that_missed_the_last_response_may_send_the_previous_epoch() -> None:
    harness = group_harness()
    a, b = two_settled(harness)
    before = a.epoch
    c = ObedientMember(harness, "c", "u", "t")
    c.beat()
    settle(harness, a, b, c)
    assert a.epoch > before
    owned = [TopicPartitions(topic_id=topic, partitions=sorted(numbers)) for topic, numbers in a.owned.items()]
    answer = harness.heartbeat(member_id="a", member_epoch=harness.group.members["a"].previous_epoch, topic_partitions=owned)
    assert answer.member_epoch == a.epoch


def test_epoch_before_is_refused_unless_the_member_owns_no_more_than_it_has_now() -> None:
    """Line 72. It may have been given up meanwhile what it reads."""
    harness = group_harness()
    a, b = two_settled(harness)
    settle(harness, a, b, ObedientMember(harness, "c", "t"))
    before = harness.group.members["a"].previous_epoch
    assert before < a.epoch
    for owned in (None, [TopicPartitions(topic_id=topic_id("t"), partitions=[0, 1, 2, 3])]):
        with pytest.raises(errors.FencedMemberEpoch):
            harness.heartbeat(member_id="a", member_epoch=before, topic_partitions=owned)


@pytest.mark.parametrize("epoch", [1, 99])
def test_member_in_a_wrong_epoch_is_fenced(epoch: int) -> None:
    harness = group_harness()
    a, b = two_settled(harness)
    settle(harness, a, b, ObedientMember(harness, "c", "t"))
    with pytest.raises(errors.FencedMemberEpoch) as caught:
        harness.heartbeat(member_id="a", member_epoch=epoch, topic_partitions=[])
    assert caught.value.code == 110


def test_a_fenced_member_rejoins_with_its_id_and_gets_a_full_response() -> None:
    harness = group_harness()
    a, b = two_settled(harness)
    a.epoch, a.owned = 0, {}
    assert a.beat().member_epoch == harness.group.epoch
    assert (a.reads, b.reads) == ("t:0,1", "t:2,3")
    assert len(harness.group.members) == 2


def test_member_that_has_to_give_up_may_not_begin_anew_before_it_did() -> None:
    """Line 72. Its partitions would have another reader while it reads on."""
    harness = group_harness()
    a = ObedientMember(harness, "a", "t")
    settle(harness, a)
    ObedientMember(harness, "b", "t").beat()
    a.beat()
    assert harness.group.members["a"].revoking
    with pytest.raises(errors.FencedMemberEpoch):
        harness.heartbeat(member_id="a", member_epoch=0, topic_partitions=[], subscribed_topic_names=["t"], rebalance_timeout_ms=1)


def test_member_id_of_another_instance_is_unknown() -> None:
    """Line 72."""
    harness = group_harness()
    settle(harness, ObedientMember(harness, "a", "t"))
    with pytest.raises(errors.UnknownMemberId):
        ObedientMember(harness, "a", "t", instance_id="i").beat()


def test_member_of_no_group_is_unknown_so_that_it_joins_again() -> None:
    with pytest.raises(errors.UnknownMemberId):
        group_harness().heartbeat(member_id="a", member_epoch=3)


def test_broker_names_members_of_the_first_version_and_no_others() -> None:
    harness = group_harness()
    said: dict[str, Any] = {"rebalance_timeout_ms": 1, "subscribed_topic_names": ["t"], "topic_partitions": []}
    assert harness.heartbeat(version=0, **said).member_id == "m1"
    with pytest.raises(errors.InvalidRequest):
        harness.heartbeat(version=1, **said)


@pytest.mark.parametrize(
    "wrong",
    [
        {"member_id": ""},
        {"member_epoch": -3},
        {"member_epoch": -2},
        {"instance_id": " "},
        {"rack_id": ""},
        {"rebalance_timeout_ms": -1},
        {"topic_partitions": None},
        {"topic_partitions": [TopicPartitions(partitions=[1])]},
        {"subscribed_topic_names": []},
        {"subscribed_topic_names": None},
    ],
)
def test_heartbeat_that_no_member_may_send_is_refused(wrong: dict[str, Any]) -> None:
    said = {"member_id": "a", "rebalance_timeout_ms": 1, "subscribed_topic_names": ["t"], "topic_partitions": []}
    harness = group_harness()
    with pytest.raises(errors.InvalidRequest):
        harness.heartbeat(**{**said, **wrong})
    assert harness.log == []


def test_unknown_assignor_is_refused_by_name() -> None:
    with pytest.raises(errors.UnsupportedAssignor) as caught:
        ObedientMember(group_harness(), "a", "t", server_assignor="best").beat()
    assert caught.value.code == 112


def test_group_uses_the_assignor_most_members_ask_for() -> None:
    harness = GroupHarness({"t": 3, "u": 3}, assignment_interval_ms=0)
    members = [ObedientMember(harness, name, "t", "u", server_assignor="range") for name in "ab"]
    settle(harness, *members)
    assert [each.reads for each in members] == ["t:0,1 u:0,1", "t:2 u:2"]


def test_full_consumer_group_accepts_only_its_members() -> None:
    harness = group_harness(members_max=2)
    a, _ = two_settled(harness)
    with pytest.raises(errors.GroupMaxSizeReached):
        ObedientMember(harness, "c", "t").beat()
    a.beat()


def test_a_smaller_subscription_revokes_at_once_and_a_larger_one_assigns() -> None:
    harness = group_harness(assignment_interval_ms=30_000)
    a, b = ObedientMember(harness, "a", "t", "u"), ObedientMember(harness, "b", "t")
    a.beat()
    answer = a.beat(subscribed_topic_names=["t"])
    assert a.reads == "t:0,1,2,3", "though no target was made yet"
    assert answer.member_epoch == 1
    a.beat()
    assert harness.describe()["a"] == (1, "STABLE", "t:0,1,2,3")
    harness.wait(30_000)
    b.beat()
    a.beat()
    a.beat()
    b.beat()
    assert (a.reads, b.reads) == ("t:0,1", "t:2,3")


def test_new_and_growing_topics_are_assigned_without_a_request() -> None:
    harness = group_harness()
    a = ObedientMember(harness, "a", "t", "later")
    a.beat()
    assert a.reads == "t:0,1,2,3"
    harness.topics.become(later=2, t=5)
    a.beat()
    assert a.reads == "later:0,1 t:0,1,2,3,4"
    harness.topics.become(t=0)
    a.beat()
    assert set(a.owned) == {topic_id("later")}


def test_topics_that_are_none_of_its_business_do_not_move_a_group() -> None:
    harness = group_harness()
    a = ObedientMember(harness, "a", "t")
    a.beat()
    epoch, written = harness.group.epoch, len(harness.log)
    harness.topics.become(other=7)
    a.beat()
    assert (harness.group.epoch, len(harness.log)) == (epoch, written)


# Regular expressions.


def test_a_pattern_subscribes_to_whole_matches_among_present_and_later_topics() -> None:
    harness = GroupHarness({"logs-a": 1, "logs-b": 1, "old-logs-a": 1}, assignment_interval_ms=0)
    a = ObedientMember(harness, "a", pattern="logs-.*")
    a.beat()
    assert a.reads == "logs-a:0 logs-b:0"
    harness.wait(1_000)
    harness.topics.become(**{"logs-c": 2})
    a.beat()
    assert a.reads == "logs-a:0 logs-b:0 logs-c:0,1"


def test_patterns_are_matched_anew_once_a_second_however_fast_topics_come() -> None:
    harness = GroupHarness({"logs-a": 1}, assignment_interval_ms=0)
    a = ObedientMember(harness, "a", pattern="logs-.*")
    a.beat()
    harness.topics.become(**{"logs-b": 1})
    a.beat()
    assert a.reads == "logs-a:0"
    harness.wait(1_000)
    a.beat()
    assert a.reads == "logs-a:0 logs-b:0"


def test_pattern_and_names_are_read_together() -> None:
    harness = GroupHarness({"logs-a": 1, "t": 1}, assignment_interval_ms=0)
    a = ObedientMember(harness, "a", "t", pattern="logs-.*")
    a.beat()
    assert a.reads == "logs-a:0 t:0"
    assert harness.group.subscribes_to("logs-a")
    a.beat(subscribed_topic_regex="")
    a.beat()
    assert a.reads == "t:0"
    assert not harness.group.subscribes_to("logs-a")


def test_pattern_is_forgotten_with_the_last_member_that_used_it() -> None:
    harness = GroupHarness({"logs-a": 2}, assignment_interval_ms=0)
    a, b, c = (ObedientMember(harness, name, pattern="logs-.*") for name in ("a", "b", "c"))
    settle(harness, a, b, c)
    a.leave()
    c.beat(subscribed_topic_regex="", subscribed_topic_names=["logs-a"])
    assert set(harness.group.resolved) == {"logs-.*"}
    c.leave()
    b.leave()
    assert harness.group.resolved == {}
    assert (ConsumerGroupRegularExpressionKey(group_id="g", regular_expression="logs-.*"), None) in harness.log


def test_pattern_that_is_none_is_refused_with_128() -> None:
    harness = group_harness()
    with pytest.raises(errors.InvalidRegularExpression) as caught:
        ObedientMember(harness, "a", pattern="(a").beat()
    assert caught.value.code == 128
    assert harness.log == []


# Static members.


def static(harness: GroupHarness, name: str, instance_id: str) -> ObedientMember:
    return ObedientMember(harness, name, "t", instance_id=instance_id)


def test_a_static_member_that_returns_in_time_gets_its_partitions_back() -> None:
    """Line 72."""
    harness = group_harness()
    a, b = static(harness, "a", "i1"), static(harness, "b", "i2")
    settle(harness, a, b)
    had, epoch = a.reads, harness.group.epoch
    assert a.leave(-2).member_epoch == -2
    b.beat()
    assert b.reads != had
    again = static(harness, "a2", "i1")
    assert again.beat().member_epoch == epoch
    assert again.reads == had
    assert harness.group.epoch == epoch, "no other member was affected"
    assert set(harness.group.members) == {"a2", "b"}
    assert harness.group.static == {"i1": "a2", "i2": "b"}


def test_a_static_member_that_leaves_for_a_while_completes_its_revocations() -> None:
    """Line 72."""
    harness = group_harness()
    a = static(harness, "a", "i1")
    settle(harness, a)
    b = ObedientMember(harness, "b", "t")
    b.beat()
    a.beat()
    assert harness.group.members["a"].revoking
    a.leave(-2)
    harness.wait(500)
    b.beat()
    assert len(b.owned[topic_id("t")]) == 2


def test_static_member_may_come_back_under_the_same_member_id() -> None:
    harness = group_harness()
    a = static(harness, "a", "i1")
    a.beat()
    a.leave(-2)
    a.beat()
    assert a.reads == "t:0,1,2,3"
    assert harness.group.static == {"i1": "a"}


def test_a_former_static_member_that_is_removed_late_leaves_the_instance_id_to_its_successor() -> None:
    """A coordinator can have both, if tombstones of the former one were compacted away while it loaded."""
    harness = group_harness()
    static(harness, "a", "i1").beat()
    group = harness.group
    former = msgspec.structs.replace(group.members["a"], member_id="former", assigned={}, revoking={})
    group._replace(None, former)
    group.static["i1"] = "a"
    leaving = msgspec.structs.replace(former, epoch=-1)
    group._replace(former, leaving)
    group._replace(leaving, None)
    assert group.static == {"i1": "a"}


def test_static_member_that_does_not_come_back_within_its_session_is_removed() -> None:
    harness = group_harness()
    a, b = static(harness, "a", "i1"), static(harness, "b", "i2")
    settle(harness, a, b)
    a.leave(-2)
    harness.wait(40_000)
    b.beat()
    assert harness.wait(6_000) == [("session", "a")]
    b.beat()
    assert b.reads == "t:0,1,2,3"


def test_instance_id_in_use_is_refused_with_111() -> None:
    harness = group_harness()
    a = static(harness, "a", "i1")
    a.beat()
    with pytest.raises(errors.UnreleasedInstanceId) as caught:
        static(harness, "b", "i1").beat()
    assert caught.value.code == 111
    a.beat()


def test_member_whose_instance_id_went_to_another_is_fenced_with_82() -> None:
    harness = group_harness()
    a = static(harness, "a", "i1")
    a.beat()
    a.leave(-2)
    static(harness, "a2", "i1").beat()
    with pytest.raises(errors.FencedInstanceId):
        harness.heartbeat(member_id="a", member_epoch=1, instance_id="i1")
    with pytest.raises(errors.UnknownMemberId):
        harness.heartbeat(member_id="a", member_epoch=1, instance_id="i7")


def test_static_member_that_leaves_for_good_is_gone() -> None:
    harness = group_harness()
    a = static(harness, "a", "i1")
    a.beat()
    a.leave(-1)
    assert harness.group.static == {}
    assert harness.group.state == "Empty"


# Offsets.


def test_members_commit_in_their_epoch_and_others_only_while_the_group_is_empty() -> None:
    harness = group_harness()
    harness.group.check_commit("", -1, 9)
    a, _ = two_settled(harness)
    harness.group.check_commit("a", a.epoch, 9)
    harness.group.check_fetch("a", a.epoch)
    harness.group.check_fetch(None, -1)
    for check in (
        lambda: harness.group.check_commit("a", a.epoch + 1, 9),
        lambda: harness.group.check_fetch("a", 7),
    ):
        with pytest.raises(errors.StaleMemberEpoch) as caught:
            check()  # type: ignore[no-untyped-call]
        assert caught.value.code == 113
    with pytest.raises(errors.UnknownMemberId):
        harness.group.check_commit("x", 1, 9)
    with pytest.raises(errors.UnknownMemberId):
        harness.group.check_commit("", -1, 9)
    with pytest.raises(errors.UnsupportedVersion):
        harness.group.check_commit("a", a.epoch, 8)


def refused(harness: GroupHarness, member_id: str, epoch: int, topic: str = "t") -> list[int]:
    """Partitions of four whose offsets are refused in a commit of an epoch."""
    late = harness.group.check_commit(member_id, epoch, 9)
    assert late is not None, "the epoch is older than the member's"
    found = [number for number in range(4) if late.refusal(topic_id(topic), number) is not None]
    assert all(isinstance(late.refusal(topic_id(topic), number), errors.StaleMemberEpoch) for number in found)
    return found


def test_a_member_that_does_not_know_its_new_epoch_commits_what_it_kept() -> None:
    harness = group_harness()
    a, b = ObedientMember(harness, "a", "t"), ObedientMember(harness, "b", "t")
    a.beat()
    b.beat()
    a.beat()
    assert harness.group.check_commit("a", 1, 9) is None, "while it revokes it stays in its epoch"
    a.beat()
    assert (a.reads, a.epoch) == ("t:0,1", 2)
    assert refused(harness, "a", 1) == [2, 3], "what it gave up is refused"
    b.beat()
    assert refused(harness, "b", 1) == [0, 1, 2, 3], "what it did not have yet is refused"


def test_a_partition_that_comes_back_is_not_committed_in_the_epoch_before() -> None:
    harness = group_harness()
    a, b = two_settled(harness)
    b.leave()
    settle(harness, a)
    assert (a.reads, a.epoch) == ("t:0,1,2,3", 3)
    assert [refused(harness, "a", epoch) for epoch in (1, 2)] == [[2, 3], [2, 3]]
    assert harness.group.check_commit("a", 3, 9) is None


def test_records_without_assignment_epochs_allow_only_the_members_epoch() -> None:
    harness = group_harness()
    a, _ = two_settled(harness)
    for key, value in list(harness.log):
        if isinstance(value, ConsumerGroupCurrentMemberAssignmentValue):
            assert all(each.assignment_epochs for each in value.assigned_partitions)
            for each in (*value.assigned_partitions, *value.partitions_pending_revocation):
                each.assignment_epochs = None
            harness.group.apply(key, value)
    assert harness.group.check_commit("a", a.epoch, 9) is None
    assert refused(harness, "a", a.epoch - 1) == [0, 1, 2, 3]


# One step of one member.


def unowned(topic: bytes, partition: int) -> str | None:
    return None


def test_member_in_a_state_of_a_later_version_must_begin_again() -> None:
    member = ConsumerGroupMember(member_id="a", epoch=3, state=9)
    with pytest.raises(errors.FencedMemberEpoch):
        reconcile(member, target_epoch=3, target={}, owner=unowned, owned=None)
    assert reconcile(member, target_epoch=4, target={}, owner=unowned, owned={}).state == STABLE


def test_member_that_has_nothing_to_give_up_moves_at_once() -> None:
    t = topic_id("t")
    member = ConsumerGroupMember(member_id="a", epoch=3, assigned={t: frozenset({0})})
    moved = reconcile(member, target_epoch=5, target={t: frozenset({0, 1})}, owner=unowned, owned=None)
    assert (moved.epoch, moved.previous_epoch, moved.state, moved.assigned) == (5, 3, STABLE, {t: frozenset({0, 1})})


def test_member_that_already_gave_up_moves_at_once() -> None:
    t = topic_id("t")
    member = ConsumerGroupMember(member_id="a", epoch=3, assigned={t: frozenset({0})})
    assert reconcile(member, target_epoch=5, target=NOTHING, owner=unowned, owned={}).state == STABLE
    assert reconcile(member, target_epoch=5, target=NOTHING, owner=unowned, owned=None).state == UNREVOKED_PARTITIONS


def test_member_waits_for_what_others_hold() -> None:
    t = topic_id("t")
    moved = reconcile(
        ConsumerGroupMember(member_id="a"),
        target_epoch=5,
        target={t: frozenset({0, 1})},
        owner=lambda topic, partition: "b" if partition else None,
        owned={},
    )
    assert (moved.state, moved.assigned) == (UNRELEASED_PARTITIONS, {t: frozenset({0})})


# Size.


def test_burst_of_joins_makes_a_few_targets_and_not_one_each() -> None:
    harness = GroupHarness({"t": 1000}, check_replay=False)
    members = [ObedientMember(harness, f"m{index:03}", "t") for index in range(500)]
    for member in members:
        member.beat()
        harness.now_ms += 2
    assert sum(isinstance(key, ConsumerGroupTargetAssignmentMetadataKey) for key, _ in harness.log) <= 2
    assert sum(isinstance(key, ConsumerGroupMetadataKey) for key, _ in harness.log) == 500
    rounds = settle(harness, *members)
    assert rounds <= 5
    assert sum(isinstance(key, ConsumerGroupTargetAssignmentMetadataKey) for key, _ in harness.log) <= 4
    assert {sum(map(len, member.owned.values())) for member in members} == {2}


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["beat", "beat", "beat", "join", "leave", "rest", "lose", "topics", "subscribe", "wait"]), st.integers(0, 5)),
    max_size=60,
)


@pytest.mark.slow
@settings(deadline=None)
@given(OPERATIONS)
def test_a_partition_has_one_owner_and_the_group_becomes_stable_whatever_members_do(operations: list[tuple[str, int]]) -> None:
    harness = GroupHarness({"t": 3, "u": 2, "v1": 1}, assignment_interval_ms=1_500)
    members = {index: _someone(harness, index, 0) for index in range(6)}
    for number, (what, who) in enumerate(operations):
        member = members[who]
        try:
            match what:
                case "beat" | "join":
                    member.beat()
                case "leave" if member.epoch:
                    member.leave()
                case "rest" if member.epoch and member.said["instance_id"]:
                    member.leave(-2)
                    members[who] = _someone(harness, who, number + 1)
                case "lose":
                    epoch, owned, news = member.epoch, member.owned, member.news
                    member.beat()
                    member.epoch, member.owned, member.news = epoch, owned, news or epoch > 0
                case "topics":
                    harness.topics.become(t=who, v2=who % 3)
                case "subscribe":
                    member.beat(subscribed_topic_names=["t"] if who % 2 else ["u", "v1"])
                case "wait":
                    harness.wait(who * 4_000)
        except (errors.FencedMemberEpoch, errors.UnknownMemberId, errors.FencedInstanceId):
            member.epoch, member.owned, member.news = 0, {}, False
        except errors.UnreleasedInstanceId:
            pass
    harness.wait(60_000)
    left = [_someone(harness, 10 + index, 0) for index in range(3)]
    settle(harness, *left)
    given_out = sorted(each for member in left for each in member.reads.replace(":", " ").split())
    assert given_out or not harness.group.topics
    harness.check()


def _someone(harness: GroupHarness, index: int, life: int) -> ObedientMember:
    pattern = "v.*" if index == 3 else None
    return ObedientMember(
        harness, f"m{index}-{life}", *(["t", "u"] if index != 3 else []), pattern=pattern, instance_id="i" if index == 5 else None
    )
