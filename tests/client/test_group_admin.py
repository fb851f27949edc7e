"""The admin client's requests about groups: their destination, their number, and the results."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from administered_groups import AdministeredGroup, GroupCluster, GroupNode
from memory_cluster import CUT

from ottla.aio import Admin
from ottla.base.ids import TopicPartition
from ottla.client.admin.group_lag import GroupLag
from ottla.client.admin.group_results import GroupState, GroupType
from ottla.client.errors import BrokerIncompatible
from ottla.client.group.commits import OffsetAndMetadata
from ottla.wire import messages as m
from ottla.wire.errors import (
    GroupIdNotFound,
    GroupSubscribedToTopic,
    KafkaError,
    NonEmptyGroup,
    UnknownMemberId,
    UnknownTopicOrPartition,
)
from ottla.wire.messages import describe_groups

T, U = TopicPartition("t", 0), TopicPartition("many", 1)


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> GroupCluster:
    """Two nodes; `t` with one partition, `many` with three; groups `a` and `b` on node 1, `c` on node 2."""
    made = GroupCluster(2)
    made.create("t")
    made.create("many", 3)
    made.by_name = {
        "a": AdministeredGroup(1, offsets={T: (5, "note", 0)}),
        "b": AdministeredGroup(1, members={"m1": {"t": [0], "many": [1, 0]}}, offsets={T: (7, "", -1), U: (1, "", -1)}),
        "c": AdministeredGroup(2, type="Consumer", members={"m2": {"many": [0, 1, 2]}}),
    }
    monkeypatch.setattr("ottla.client.transport.network.open_connection", made.connect)
    return made


@pytest.fixture
async def admin(groups: GroupCluster, quick: dict[str, Any]) -> AsyncIterator[Admin]:
    """An admin client with the short timeouts of the command line."""
    async with Admin(retries=3, **quick) as made:
        yield made


# -- coordinators


async def test_a_coordinator_is_looked_up_once(groups: GroupCluster, admin: Admin) -> None:
    await admin.list_consumer_group_offsets(["a", "b", "c"])
    await admin.list_consumer_group_offsets(["a", "c"])
    assert [request.coordinator_keys for request in groups.sent(m.FindCoordinatorRequest)] == [["a", "b", "c"]]


async def test_one_request_per_coordinator_covers_all_its_groups(groups: GroupCluster, admin: Admin) -> None:
    await admin.list_consumer_group_offsets(["a", "b", "c"])
    assert sorted([one.group_id for one in sent.groups] for sent in groups.sent(m.OffsetFetchRequest)) == [["a", "b"], ["c"]]


async def test_a_group_whose_coordinator_moved_is_looked_up_again(groups: GroupCluster, admin: Admin) -> None:
    await admin.describe_consumer_groups(["a"])
    groups.by_name["a"].node_id = 2
    described = (await admin.describe_consumer_groups(["a"]))["a"]
    assert not isinstance(described, KafkaError)
    assert described.coordinator.id == 2


async def test_a_loading_coordinator_is_waited_for_longer_than_a_dead_broker(groups: GroupCluster, admin: Admin) -> None:
    def unavailable(node: Any, request: Any) -> Any:
        return m.FindCoordinatorResponse(coordinators=[m.Coordinator(key="a", node_id=-1, error_code=15)])

    def loading(node: Any, request: Any) -> Any:
        return m.DeleteGroupsResponse(results=[m.DeletableGroupResult(group_id="a", error_code=14)])

    groups.faults["FindCoordinator"] += [unavailable] * 6
    groups.faults["DeleteGroups"] += [loading] * 6
    assert await admin.delete_consumer_groups(["a"]) == {"a": None}
    assert len(groups.sent(m.FindCoordinatorRequest)) == 7


async def test_after_a_lost_connection_the_request_goes_to_the_new_coordinator(groups: GroupCluster, admin: Admin) -> None:
    groups.faults["DeleteGroups"].append(lambda node, request: CUT)
    assert await admin.delete_consumer_groups(["a"]) == {"a": None}
    assert len(groups.sent(m.FindCoordinatorRequest)) == 2


async def test_an_old_broker_gets_one_coordinator_and_one_group_per_request(groups: GroupCluster, admin: Admin) -> None:
    groups.versions = {10: (0, 3), 9: (1, 7)}
    found = await admin.list_consumer_group_offsets({"a": None, "b": [T, ("t", 1)]})
    assert found == {
        "a": {T: OffsetAndMetadata(5, "note", 0)},
        "b": {T: OffsetAndMetadata(7), TopicPartition("t", 1): None},
    }
    assert [request.key for request in groups.sent(m.FindCoordinatorRequest)] == ["a", "b"]
    assert [request.group_id for request in groups.sent(m.OffsetFetchRequest)] == ["a", "b"]


# -- lists and descriptions


async def test_a_list_after_a_coordinator_was_looked_up_asks_all_brokers(groups: GroupCluster, admin: Admin) -> None:
    # The coordinator's address is the first that the client learns.
    await admin.list_consumer_group_offsets(["a"])
    assert {group.group_id for group in await admin.list_groups()} == {"a", "b", "c"}


async def test_a_list_asks_a_broker_that_has_joined_since_the_last_one(groups: GroupCluster, admin: Admin) -> None:
    assert {group.group_id for group in await admin.list_groups()} == {"a", "b", "c"}
    groups.nodes[3] = GroupNode(groups, 3)
    groups.by_name["c"].node_id = 3
    assert {group.group_id for group in await admin.list_groups()} == {"a", "b", "c"}


async def test_a_list_holds_the_groups_of_all_brokers(groups: GroupCluster, admin: Admin) -> None:
    found = await admin.list_groups()
    assert [(one.group_id, one.state, one.type, one.protocol_type) for one in found] == [
        ("a", GroupState.EMPTY, GroupType.CLASSIC, ""),
        ("b", GroupState.STABLE, GroupType.CLASSIC, "consumer"),
        ("c", GroupState.STABLE, GroupType.CONSUMER, "consumer"),
    ]


async def test_a_list_can_be_filtered_by_state_and_type(groups: GroupCluster, admin: Admin) -> None:
    assert [one.group_id for one in await admin.list_groups(states=[GroupState.STABLE], types=[GroupType.CLASSIC])] == ["b"]
    groups.versions[16] = (0, 3)
    async with Admin(bootstrap_servers="boot:1") as other:
        with pytest.raises(BrokerIncompatible, match="ListGroups"):
            await other.list_groups(states=["Empty"])


async def test_a_list_without_the_groups_of_a_broker_is_an_error(groups: GroupCluster, admin: Admin) -> None:
    # Its session is not over yet.
    groups.unnoticed.add(2)
    groups.nodes[2].stop()
    with pytest.raises(KafkaError):
        await admin.list_groups()


async def test_groups_of_both_protocols_have_the_same_description(groups: GroupCluster, admin: Admin) -> None:
    found = await admin.describe_consumer_groups(["b", "c", "nowhere"])
    b, c = found["b"], found["c"]
    assert not isinstance(b, KafkaError)
    assert not isinstance(c, KafkaError)
    assert (b.type, b.state, b.assignor, b.coordinator.id, b.epoch) == (GroupType.CLASSIC, GroupState.STABLE, "range", 1, None)
    assert (c.type, c.state, c.assignor, c.coordinator.id, c.epoch) == (GroupType.CONSUMER, GroupState.STABLE, "uniform", 2, 5)
    assert (b.members[0].instance_id, b.members[0].topics) == ("i-m1", ["many", "t"])
    assert b.members[0].assignment == [("many", 0), ("many", 1), ("t", 0)]
    assert c.members[0].assignment == c.members[0].target_assignment == [("many", 0), ("many", 1), ("many", 2)]
    assert isinstance(found["nowhere"], GroupIdNotFound)


@pytest.mark.parametrize("versions", [{15: (0, 5)}, {69: (0, 0)}])
async def test_a_missing_group_is_missing_for_brokers_of_every_version(groups: GroupCluster, admin: Admin, versions: Any) -> None:
    groups.versions = versions
    assert isinstance((await admin.describe_consumer_groups(["nowhere"]))["nowhere"], GroupIdNotFound)


async def test_unreadable_members_fail_only_their_group(groups: GroupCluster, admin: Admin) -> None:
    def garbled(node: Any, request: Any) -> Any:
        members = [m.DescribedGroupMember(member_id="x", member_assignment=b"\0")]
        bad = describe_groups.DescribedGroup(group_id="a", group_state="Stable", protocol_type="consumer", members=members)
        good = describe_groups.DescribedGroup(group_id="b", group_state="Empty")
        return m.DescribeGroupsResponse(groups=[bad, good])

    groups.faults["DescribeGroups"].append(garbled)
    found = await admin.describe_consumer_groups(["a", "b"])
    assert isinstance(found["a"], KafkaError)
    assert "cannot be read" in str(found["a"])
    assert not isinstance(found["b"], KafkaError)


@pytest.mark.parametrize(("word", "state"), [("stable", GroupState.STABLE), ("Empty", GroupState.EMPTY), ("Zen", GroupState.UNKNOWN)])
def test_a_state_is_parsed_in_any_case_and_a_new_one_is_unknown(word: str, state: GroupState) -> None:
    assert GroupState(word) is state


# -- changes


async def test_offsets_are_committed_with_metadata_and_epoch(groups: GroupCluster, admin: Admin) -> None:
    assert await admin.alter_consumer_group_offsets("new", {("t", 0): 3, U: OffsetAndMetadata(4, "why", 2)}) == {T: None, U: None}
    assert groups.by_name["new"].offsets == {T: (3, "", -1), U: (4, "why", 2)}
    assert await admin.alter_consumer_group_offsets("new", {}) == {}


async def test_a_negative_offset_is_not_sent(groups: GroupCluster, admin: Admin) -> None:
    with pytest.raises(ValueError, match="offsets are 0 or more"):
        await admin.alter_consumer_group_offsets("new", {T: -1})
    assert not groups.sent(m.OffsetCommitRequest)


async def test_each_partition_has_its_own_result(groups: GroupCluster, admin: Admin) -> None:
    outcomes = await admin.alter_consumer_group_offsets("new", {T: 3, ("nope", 0): 4})
    assert outcomes.pop(T) is None
    assert isinstance(outcomes[TopicPartition("nope", 0)], UnknownTopicOrPartition)


async def test_a_group_with_members_refuses_an_admin_commit(groups: GroupCluster, admin: Admin) -> None:
    assert isinstance((await admin.alter_consumer_group_offsets("b", {T: 3}))[T], UnknownMemberId)


async def test_a_commit_refused_by_a_former_coordinator_goes_to_the_new_one(groups: GroupCluster, admin: Admin) -> None:
    await admin.describe_consumer_groups(["a"])
    groups.by_name["a"].node_id = 2
    assert await admin.alter_consumer_group_offsets("a", {T: 9}) == {T: None}
    assert groups.by_name["a"].offsets[T] == (9, "", -1)


async def test_committed_offsets_are_deleted_unless_a_member_reads_them(groups: GroupCluster, admin: Admin) -> None:
    assert await admin.delete_consumer_group_offsets("a", [("t", 0)]) == {T: None}
    assert groups.by_name["a"].offsets == {}
    assert isinstance((await admin.delete_consumer_group_offsets("b", [T]))[T], GroupSubscribedToTopic)
    with pytest.raises(GroupIdNotFound):
        await admin.delete_consumer_group_offsets("nowhere", [T])


async def test_groups_are_deleted_unless_they_have_members(groups: GroupCluster, admin: Admin) -> None:
    outcomes = await admin.delete_consumer_groups(["a", "b", "nowhere"])
    assert outcomes["a"] is None
    assert isinstance(outcomes["b"], NonEmptyGroup)
    assert isinstance(outcomes["nowhere"], GroupIdNotFound)
    assert set(groups.by_name) == {"b", "c"}


async def test_members_are_removed_by_instance_or_all(groups: GroupCluster, admin: Admin) -> None:
    groups.by_name["b"].members["m3"] = {}
    outcomes = await admin.remove_members_from_consumer_group("b", ["i-m1", "i-x"], reason="too slow")
    assert outcomes.pop("i-m1") is None
    assert isinstance(outcomes["i-x"], UnknownMemberId)
    assert [one.reason for one in groups.sent(m.LeaveGroupRequest)[-1].members] == ["too slow", "too slow"]
    assert await admin.remove_members_from_consumer_group("b") == {"m3": None}
    assert await admin.remove_members_from_consumer_group("b") == {}
    with pytest.raises(GroupIdNotFound):
        await admin.remove_members_from_consumer_group("nowhere")


# -- lag


async def lag_of(admin: Admin, name: str, **settings: Any) -> GroupLag:
    """Lag of one group that must exist."""
    found = (await admin.consumer_group_lag([name], **settings))[name]
    assert not isinstance(found, KafkaError)
    return found


async def test_lag_is_in_records_and_in_time(groups: GroupCluster, admin: Admin) -> None:
    now_ms = int(time.time() * 1000)
    groups.write("t", 0, *(now_ms - 60_000 + 1000 * index for index in range(10)))
    lag = await lag_of(admin, "a")
    (row,) = lag.partitions
    assert (row.committed_offset, row.start_offset, row.end_offset, row.lag, lag.lag) == (5, 0, 10, 5, 5)
    assert (row.first_unread_ms, row.last_ms, row.unread_span_ms) == (now_ms - 55_000, now_ms - 51_000, 4000)
    assert row.time_lag_ms is not None
    assert 55_000 <= row.time_lag_ms < 85_000
    assert lag.time_lag_ms == row.time_lag_ms


async def test_a_group_without_lag_needs_no_fetch(groups: GroupCluster, admin: Admin) -> None:
    groups.write("t", 0, *range(5))
    lag = await lag_of(admin, "a")
    assert (lag.lag, lag.time_lag_ms, lag.partitions[0].unread_span_ms) == (0, 0, 0)
    assert not groups.sent(m.FetchRequest)


async def test_an_offset_beyond_the_end_of_a_recreated_topic_is_no_lag(groups: GroupCluster, admin: Admin) -> None:
    groups.write("t", 0, 1)
    assert (await lag_of(admin, "a")).lag == 0


async def test_partitions_of_members_are_listed_before_the_first_commit(groups: GroupCluster, admin: Admin) -> None:
    groups.write("many", 0, 1, 2)
    lag = await lag_of(admin, "b")
    assert [(one.topic, one.partition, one.committed_offset, one.lag) for one in lag.partitions] == [
        ("many", 0, None, None),
        ("many", 1, 1, 0),
        ("t", 0, 7, 0),
    ]
    assert {one.member.client_id for one in lag.partitions if one.member} == {"client-m1"}


async def test_the_lag_without_a_committed_offset_is_unknown(groups: GroupCluster, admin: Admin) -> None:
    groups.write("many", 0, 1, 2)
    lag = await lag_of(admin, "c")
    assert (lag.lag, lag.time_lag_ms, len(lag.partitions)) == (None, None, 3)


async def test_one_fetch_per_broker_finds_the_timestamps_of_all_groups(groups: GroupCluster, admin: Admin) -> None:
    for number in range(3):
        groups.write("many", number, *range(1000, 1010))
    groups.write("t", 0, *range(2000, 2010))
    groups.by_name = {
        f"g{index}": AdministeredGroup(offsets={("many", n): (index, "", -1) for n in range(3)} | {T: (3, "", -1)}) for index in (1, 4)
    }
    found = await admin.consumer_group_lag(groups.by_name)
    times = {name: [one.first_unread_ms for one in lag.partitions] for name, lag in found.items() if isinstance(lag, GroupLag)}
    assert times == {"g1": [1001, 1001, 1001, 2003], "g4": [1004, 1004, 1004, 2003]}
    assert len(groups.sent(m.FetchRequest)) == 2
    assert len(groups.sent(m.OffsetFetchRequest)) == 1


async def test_records_deleted_unread_are_reported_and_the_time_is_of_the_first_remaining(groups: GroupCluster, admin: Admin) -> None:
    groups.write("t", 0, *range(1000, 1010))
    groups.write("t", 0, *range(2000, 2010))
    groups.logs["t"][0].batches.pop(0)
    groups.logs["t"][0].start = 10
    (row,) = (await lag_of(admin, "a")).partitions
    assert (row.lag, row.lost, row.first_unread_ms) == (15, 5, 2000)


async def test_a_partition_without_a_leader_or_topic_is_reported_at_once(groups: GroupCluster, admin: Admin) -> None:
    groups.by_name["a"].offsets |= {("gone", 0): (3, "", -1)}
    groups.leaders[T] = 9
    gone, lost = (await lag_of(admin, "a")).partitions
    assert "gone" in (gone.error or "")
    assert "no leader" in (lost.error or "")
    assert (gone.lag, lost.lag, lost.committed_offset) == (None, None, 5)


async def test_timestamps_can_be_omitted(groups: GroupCluster, admin: Admin) -> None:
    groups.write("t", 0, *range(10))
    (row,) = (await lag_of(admin, "a", times=False)).partitions
    assert (row.lag, row.time_lag_ms, row.first_unread_ms) == (5, None, None)
    assert not groups.sent(m.FetchRequest)


async def test_the_lag_of_a_missing_group_is_an_error(groups: GroupCluster, admin: Admin) -> None:
    found = await admin.consumer_group_lag(["nowhere", "a"])
    assert isinstance(found["nowhere"], GroupIdNotFound)
    assert isinstance(found["a"], GroupLag)
