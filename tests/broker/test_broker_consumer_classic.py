"""Classic members in a consumer group, and conversion of groups in both directions."""

from typing import Any

import pytest
from consumer_groups import GroupHarness, ObedientMember, settle, topic_id

from ottla.broker.groups.classic.members import GroupMember
from ottla.broker.groups.consumer.changes import Timer
from ottla.broker.groups.consumer.migration import downgraded, downgrades, upgraded
from ottla.broker.groups.group import GroupClient
from ottla.wire import errors
from ottla.wire.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
    decode_embedded,
    encode_embedded,
)
from ottla.wire.messages.leave_group import MemberIdentity

REBALANCE = errors.RebalanceInProgress.code


def group_harness() -> GroupHarness:
    return GroupHarness({"t": 4}, assignment_interval_ms=0)


def synced(harness: GroupHarness, member_id: str, generation: int) -> dict[str, list[int]]:
    found = decode_embedded(ConsumerProtocolAssignment, harness.classic_sync(member_id, generation).assignment)
    return {each.topic: each.partitions for each in found.assigned_partitions}


def with_classic(harness: GroupHarness) -> tuple[ObedientMember, int]:
    """A member of each kind, two partitions each; the classic one is ``k``, in the generation returned."""
    a = ObedientMember(harness, "a", "t")
    a.beat()
    generation = harness.classic_join("k", "t").generation_id
    assert synced(harness, "k", generation) == {}
    a.beat()
    a.beat()
    assert harness.classic_beat("k", generation).error_code == REBALANCE, "what it waited for is free"
    generation = harness.classic_join("k", "t").generation_id
    assert synced(harness, "k", generation) == {"t": [2, 3]}
    assert a.reads == "t:0,1"
    return a, generation


def test_classic_member_joins_as_a_follower_and_waits_for_its_share() -> None:
    harness = group_harness()
    with_classic(harness)
    assert harness.group.state == "Stable"
    assert harness.group.classic_members == 1


def test_new_member_without_an_id_gets_one_and_no_record_is_written() -> None:
    harness = group_harness()
    ObedientMember(harness, "a", "t").beat()
    written = len(harness.log)
    answer = harness.classic_join("", "t")
    assert (answer.error_code, answer.member_id) == (errors.MemberIdRequired.code, "m1")
    assert len(harness.log) == written


def test_answer_to_a_join_names_no_leader_and_no_members() -> None:
    harness = group_harness()
    ObedientMember(harness, "a", "t").beat()
    answer = harness.classic_join("k", "t")
    assert (answer.leader, answer.members, answer.protocol_type, answer.protocol_name) == ("", [], "consumer", "cooperative-sticky")


def test_a_classic_member_with_partitions_to_revoke_is_answered_to_rejoin() -> None:
    harness = group_harness()
    _, generation = with_classic(harness)
    assert harness.classic_beat("k", generation).error_code == 0
    b = ObedientMember(harness, "b", "t")
    b.beat()
    assert harness.classic_beat("k", generation).error_code == REBALANCE
    with pytest.raises(errors.RebalanceInProgress):
        harness.classic_sync("k", generation)
    again = harness.classic_join("k", "t", owned={"t": [2, 3]}).generation_id
    assert again == generation, "it stays where it is until it has given up"
    assert synced(harness, "k", again) == {"t": [2]}
    assert harness.classic_beat("k", again).error_code == REBALANCE
    last = harness.classic_join("k", "t", owned={"t": [2]}).generation_id
    assert synced(harness, "k", last) == {"t": [2]}
    b.beat()
    assert b.reads == "t:3"
    assert harness.classic_beat("k", last).error_code == 0


def test_classic_member_is_removed_when_it_does_not_join_again_in_time() -> None:
    harness = group_harness()
    a, generation = with_classic(harness)
    b = ObedientMember(harness, "b", "t")
    b.beat()
    harness.classic_beat("k", generation)
    for _ in range(3):
        assert harness.wait(6_000) == []
        harness.classic_beat("k", generation)
    assert harness.wait(3_000) == [("join", "k")]
    settle(harness, a, b)
    assert len(harness.group.members) == 2


def test_classic_member_is_removed_when_it_does_not_sync_in_time() -> None:
    harness = group_harness()
    ObedientMember(harness, "a", "t").beat()
    generation = harness.classic_join("k", "t").generation_id
    for _ in range(3):
        assert harness.wait(6_000) == []
        harness.classic_beat("k", generation)
    assert ("sync", "k") in harness.wait(3_000)


def test_classic_member_is_removed_after_its_own_session() -> None:
    harness = group_harness()
    with_classic(harness)
    assert harness.wait(10_000) == [("session", "k")]


@pytest.mark.parametrize("wrong", [{"protocol_type": "connect"}, {"protocols": ["mine"]}])
def test_classic_member_with_no_common_protocol_is_refused(wrong: dict[str, Any]) -> None:
    harness = group_harness()
    with_classic(harness)
    with pytest.raises(errors.InconsistentGroupProtocol):
        harness.classic_join("x", "t", **wrong)


def test_protocol_that_a_member_names_twice_counts_once() -> None:
    harness = group_harness()
    ObedientMember(harness, "a", "t").beat()
    harness.classic_join("j", "t", protocols=["range", "sticky", "range"])
    harness.classic_join("k", "t", protocols=["sticky"])
    with pytest.raises(errors.InconsistentGroupProtocol):
        harness.classic_join("l", "t", protocols=["range"])


def test_requests_of_the_classic_protocol_name_their_member_and_generation() -> None:
    harness = group_harness()
    a, generation = with_classic(harness)
    with pytest.raises(errors.IllegalGeneration):
        harness.classic_beat("k", generation + 1)
    with pytest.raises(errors.IllegalGeneration):
        harness.classic_sync("k", generation + 1)
    with pytest.raises(errors.UnknownMemberId):
        harness.classic_beat("x", generation)
    with pytest.raises(errors.UnknownMemberId):
        harness.classic_beat("a", a.epoch)
    with pytest.raises(errors.IllegalGeneration):
        harness.group.check_commit("k", generation + 1, 8)
    harness.group.check_commit("k", generation, 8)


def test_classic_members_leave_and_each_is_answered() -> None:
    harness = group_harness()
    a, _ = with_classic(harness)
    answer = harness.classic_leave(MemberIdentity(member_id="k"), MemberIdentity(member_id="k"), MemberIdentity(member_id="x"))
    assert [each.error_code for each in answer.members] == [0, 25, 25]
    a.beat()
    assert a.reads == "t:0,1,2,3"
    assert not any(member_id == "k" for _, member_id in harness.deadlines)


def test_operator_removes_members_of_the_new_protocol_by_member_or_instance_id() -> None:
    harness = group_harness()
    ObedientMember(harness, "b", "t").beat()
    assert [each.error_code for each in harness.classic_leave(MemberIdentity(member_id="b")).members] == [0]
    ObedientMember(harness, "a", "t", instance_id="i").beat()
    answer = harness.classic_leave(MemberIdentity(group_instance_id="i"))
    assert [(each.member_id, each.error_code) for each in answer.members] == [("a", 0)]
    assert harness.group.state == "Empty"


def test_a_static_classic_member_that_rejoins_replaces_its_former_process() -> None:
    harness = group_harness()
    ObedientMember(harness, "a", "t").beat()
    first = harness.classic_join("", "t", group_instance_id="i")
    again = harness.classic_join("", "t", group_instance_id="i")
    assert first.member_id != again.member_id
    assert set(harness.group.members) == {"a", again.member_id}
    assert harness.group.static == {"i": again.member_id}
    with pytest.raises(errors.FencedInstanceId):
        harness.classic_join(first.member_id, "t", group_instance_id="i")


def test_classic_member_that_turns_to_the_new_protocol_keeps_its_place() -> None:
    harness = group_harness()
    _, generation = with_classic(harness)
    epoch = harness.group.epoch
    k = ObedientMember(harness, "k", "t")
    k.beat()
    assert k.reads == "t:2,3"
    assert (harness.group.classic_members, harness.group.epoch, k.epoch) == (0, epoch, generation)
    assert (Timer.SYNC, "k") not in harness.deadlines


def test_a_burst_of_classic_members_shares_a_target_assignment_and_is_answered_when_it_exists() -> None:
    harness = GroupHarness({"t": 8})
    a = ObedientMember(harness, "a", "t")
    a.beat()
    generations = {name: harness.classic_join(name, "t").generation_id for name in "klm"}
    assert set(generations.values()) == {1}
    assert [synced(harness, name, generation) for name, generation in generations.items()] == [{}] * 3
    assert [harness.classic_beat(name, 1).error_code for name in "klm"] == [0] * 3, "a target cannot be made yet"
    harness.wait(1_000)
    assert [harness.classic_beat(name, 1).error_code for name in "klm"] == [REBALANCE] * 3
    assert {harness.classic_join(name, "t").generation_id for name in "klm"} == {4}
    a.beat()
    a.beat()
    assert [harness.classic_beat(name, 4).error_code for name in "klm"] == [REBALANCE] * 3
    assert [synced(harness, name, harness.classic_join(name, "t").generation_id) for name in "klm"] == [
        {"t": [2, 3]},
        {"t": [4, 5]},
        {"t": [6, 7]},
    ]


# From one kind of group to the other.


def classic_member(
    member_id: str,
    partitions: list[int],
    *,
    protocols: tuple[str, ...] = ("range",),
    instance_id: str | None = None,
    owned: list[int] | None = None,
    owned_in: int = -1,
) -> GroupMember:
    owning = [TopicPartition(topic="t", partitions=owned)] if owned else []
    subscription = encode_embedded(ConsumerProtocolSubscription(topics=["t"], owned_partitions=owning, generation_id=owned_in), 2)
    assigned = [TopicPartition(topic="t", partitions=partitions)] if partitions else []
    return GroupMember(
        member_id,
        instance_id=instance_id,
        client=GroupClient("c", "/h"),
        session_timeout_ms=10_000,
        rebalance_timeout_ms=20_000,
        protocols=tuple((name, subscription) for name in protocols),
        assignment=encode_embedded(ConsumerProtocolAssignment(assigned_partitions=assigned), 1),
    )


def test_classic_group_becomes_a_consumer_group_with_the_same_assignments() -> None:
    harness = group_harness()
    harness.group, records = upgraded("g", 7, None, [classic_member("k1", [0, 1]), classic_member("k2", [2, 3])], harness.topics)
    harness.log += records
    harness.check()
    assert harness.describe() == {"k1": (7, "STABLE", "t:0,1"), "k2": (7, "STABLE", "t:2,3")}
    assert (harness.group.state, harness.group.epoch, harness.group.classic_members) == ("Stable", 7, 2)
    a = ObedientMember(harness, "a", "t")
    assert a.beat().member_epoch == 8
    assert [harness.classic_beat(each, 7).error_code for each in ("k1", "k2")] == [REBALANCE] * 2
    assert synced(harness, "k2", harness.classic_join("k2", "t", owned={"t": [2, 3]}, protocols=["range"]).generation_id) == {"t": [2]}


def test_classic_member_keeps_what_it_owned_until_it_joins_without_it_though_its_last_assignment_is_without_it() -> None:
    harness = group_harness()
    cooperative = {"protocols": ("cooperative-sticky",), "owned_in": 9}
    harness.group, records = upgraded(
        "g",
        10,
        None,
        [classic_member("k1", [0], owned=[0, 1, 2, 3], **cooperative), classic_member("k2", [], **cooperative)],  # type: ignore[arg-type]
        harness.topics,
    )
    harness.log += records
    harness.check()
    assert harness.describe()["k1"] == (10, "UNREVOKED_PARTITIONS", "t:0", "t:1,2,3")
    a = ObedientMember(harness, "a", "t")
    a.beat()
    assert a.reads == "", "nothing is free"
    assert harness.classic_beat("k1", 10).error_code == REBALANCE
    assert harness.classic_join("k1", "t", owned={"t": [0, 1]}, protocols=["cooperative-sticky"]).generation_id == 10
    a.beat()
    assert a.reads == "", "it has not given up all"
    generation = harness.classic_join("k1", "t", owned={"t": [0]}, protocols=["cooperative-sticky"]).generation_id
    assert generation == 11
    settled = synced(harness, "k1", generation)["t"]
    a.beat()
    a.beat()
    assert a.reads != "" and not set(a.owned[topic_id("t")]) & set(settled)


def test_partitions_that_a_classic_member_owned_long_ago_do_not_block_their_new_owner() -> None:
    harness = group_harness()
    seats = [
        classic_member("old", [], owned=[0, 1, 3], owned_in=5),
        classic_member("new", [], owned=[1], owned_in=9),
        classic_member("reader", [0], owned=[0], owned_in=9),
    ]
    harness.group, records = upgraded("g", 10, None, seats, harness.topics)
    harness.log += records
    harness.check()
    assert harness.describe() == {
        "old": (10, "UNREVOKED_PARTITIONS", "", "t:3"),
        "new": (10, "UNREVOKED_PARTITIONS", "", "t:1"),
        "reader": (10, "STABLE", "t:0"),
    }


def test_a_removed_classic_member_that_rejoins_with_owned_partitions_is_refused() -> None:
    harness = group_harness()
    with_classic(harness)
    assert ("session", "k") in harness.wait(10_000)
    with pytest.raises(errors.UnknownMemberId):
        harness.classic_join("k", "t", owned={"t": [2, 3]})
    assert "k" not in harness.group.members
    assert harness.classic_join("k2", "t").generation_id > 0, "who owns nothing comes in under any id"


def test_a_member_whose_subscription_ends_after_the_user_data_is_converted() -> None:
    """A Node client writes version 1 without owned partitions."""
    harness = group_harness()
    member = classic_member("k", [0, 1])
    member.protocols = (("range", b"\0\1" + encode_embedded(ConsumerProtocolSubscription(topics=["t"]), 0)[2:]),)
    harness.group, records = upgraded("g", 7, None, [member], harness.topics)
    harness.log += records
    harness.check()
    assert harness.describe() == {"k": (7, "STABLE", "t:0,1")}
    assert harness.group.members["k"].topics == {"t"}


def test_a_classic_group_of_another_protocol_type_is_not_converted() -> None:
    member = classic_member("k", [])
    member.protocols = (("range", b"?"),)
    with pytest.raises(errors.GroupIdNotFound):
        upgraded("g", 7, None, [member], group_harness().topics)


@pytest.mark.parametrize(
    ("policy", "leaving", "members_max", "becomes"),
    [
        ("bidirectional", "a", 9, True),
        ("downgrade", "a", 1, True),
        ("upgrade", "a", 9, False),
        ("disabled", "a", 9, False),
        ("bidirectional", "k", 9, False),
        ("bidirectional", "a", 0, False),
    ],
)
def test_a_group_is_downgraded_when_its_last_consumer_member_leaves(policy: str, leaving: str, members_max: int, becomes: bool) -> None:
    harness = group_harness()
    with_classic(harness)
    assert downgrades(harness.group, [leaving], members_max=members_max, policy=policy) is becomes


def test_group_of_one_that_empties_does_not_become_classic() -> None:
    harness = group_harness()
    ObedientMember(harness, "a", "t").beat()
    assert not downgrades(harness.group, ["a"], members_max=9, policy="bidirectional")


def test_classic_group_that_is_left_has_the_protocol_all_know_and_the_targets_as_assignments() -> None:
    harness = group_harness()
    with_classic(harness)
    harness.classic_join("j", "t", protocols=["range", "cooperative-sticky"])
    harness.classic_join("l", "t", protocols=["range"])
    protocol, seats = downgraded(harness.group, ["a"], harness.topics)
    assert protocol == "range"
    assert [each.member_id for each in seats] == ["k", "j", "l"]
    reported = {each.member_id: decode_embedded(ConsumerProtocolAssignment, each.assignment).assigned_partitions for each in seats}
    assert {member: [p for each in found for p in each.partitions] for member, found in reported.items()} == {
        member: sorted(harness.group.targets[member].get(topic_id("t"), ())) for member in reported
    }
