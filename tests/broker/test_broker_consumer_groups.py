"""Consumer groups from the view of clients: membership, assignment, restarts, conversion from and to the classic protocol."""

from typing import Any

import pytest
from cluster import Broker, Cluster
from groups import cluster_of_groups, commit, committed, coordinating, join, sync

from ottla.broker.coordinator import Shard
from ottla.broker.groups.consumer.heartbeats import TOGETHER_MAX
from ottla.broker.groups.consumer.service import ConsumerGroupService
from ottla.wire import errors
from ottla.wire.messages import incremental_alter_configs as incremental
from ottla.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest, DescribedGroup
from ottla.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, TopicPartitions
from ottla.wire.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
    decode_embedded,
    encode_embedded,
)
from ottla.wire.messages.delete_groups import DeleteGroupsRequest
from ottla.wire.messages.delete_topics import DeleteTopicsRequest
from ottla.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.wire.messages.describe_groups import DescribeGroupsRequest
from ottla.wire.messages.heartbeat import HeartbeatRequest
from ottla.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from ottla.wire.messages.list_config_resources import ListConfigResourcesRequest
from ottla.wire.messages.list_groups import ListGroupsRequest
from ottla.wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from ottla.wire.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteRequestPartition, OffsetDeleteRequestTopic
from ottla.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup

SUBSCRIPTION = encode_embedded(ConsumerProtocolSubscription(topics=["t"]), 1)


class Member:
    """A member that owns its last assignment."""

    def __init__(self, cluster: Cluster, name: str, *topics: str, **said: Any) -> None:
        self.cluster = cluster
        self.name = name
        self.epoch = 0
        self.owned: list[TopicPartitions] = []
        self.said = {"rebalance_timeout_ms": 30_000, **said}
        if topics:
            self.said["subscribed_topic_names"] = list(topics)

    def beat(self, **fields: Any) -> ConsumerGroupHeartbeatResponse:
        said = {**self.said, **fields} if self.epoch == 0 else fields
        answer = self.send(member_epoch=self.epoch, topic_partitions=self.owned if self.epoch else [], **said)
        assert answer.error_code == 0, answer
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.owned = answer.assignment.topic_partitions
        return answer

    def send(self, version: int = 1, **fields: Any) -> ConsumerGroupHeartbeatResponse:
        request = ConsumerGroupHeartbeatRequest(group_id="g", member_id=self.name, **fields)
        return coordinating(self.cluster).ask(request, version)  # type: ignore[no-any-return]

    @property
    def reads(self) -> list[int]:
        return [partition for topic in self.owned for partition in topic.partitions]


def described(cluster: Cluster, version: int = 1) -> DescribedGroup:
    [group] = coordinating(cluster).ask(ConsumerGroupDescribeRequest(group_ids=["g"]), version).groups
    return group  # type: ignore[no-any-return]


def reported(cluster: Cluster) -> Any:
    group = coordinating(cluster).node.groups.shard_of("g").machine.by_id["g"]
    assert isinstance(group, ConsumerGroupService)
    return group.group


def settle(cluster: Cluster, *members: Member) -> None:
    for _ in range(12):
        cluster.pass_ms(1_000)
        for member in members:
            member.beat()
    assert described(cluster).group_state == "Stable"


def listed(broker: Broker, **fields: Any) -> list[tuple[str, str, str, str]]:
    answer = broker.ask(ListGroupsRequest(**fields), 5)
    return [(each.group_id, each.protocol_type, each.group_state, each.group_type) for each in answer.groups]


def test_two_members_share_a_topic_and_the_one_that_stays_reads_it_all() -> None:
    cluster = cluster_of_groups()
    a, b = Member(cluster, "a", "t"), Member(cluster, "b", "t")
    a.beat()
    assert a.reads == [0, 1, 2, 3]
    settle(cluster, a, b)
    assert (a.reads, b.reads) == ([0, 1], [2, 3])
    assert a.send(member_epoch=-1).member_epoch == -1
    settle(cluster, b)
    assert b.reads == [0, 1, 2, 3]


def test_group_is_described_with_what_members_read_and_shall_read() -> None:
    cluster = cluster_of_groups()
    a, b = Member(cluster, "a", "t"), Member(cluster, "b", "t", instance_id="i", rack_id="r", server_assignor="range")
    a.beat()
    cluster.pass_ms(1_000)
    b.beat()
    group = described(cluster)
    assert (group.error_code, group.group_state, group.group_epoch, group.assignment_epoch, group.assignor_name) == (
        0,
        "Reconciling",
        2,
        2,
        "range",
    )
    first, second = group.members
    a.beat()
    assert described(cluster).members[0].assignment == first.assignment, "it reads what it has not given up yet"
    assert (first.member_id, first.member_epoch, first.member_type, first.client_host) == ("a", 1, 1, "/client")
    assert [(each.topic_name, each.partitions) for each in first.assignment.topic_partitions] == [("t", [0, 1, 2, 3])]
    assert [(each.topic_name, each.partitions) for each in second.target_assignment.topic_partitions] == [("t", [0, 1])]
    assert (second.instance_id, second.rack_id, second.subscribed_topic_names) == ("i", "r", ["t"])
    assert described(cluster, 0).members[0].member_type == -1


def test_group_that_is_not_there_or_classic_cannot_be_described() -> None:
    cluster = cluster_of_groups()
    assert described(cluster).error_code == errors.GroupIdNotFound.code
    join(coordinating(cluster))
    assert described(cluster).error_code == errors.GroupIdNotFound.code
    [group] = coordinating(cluster).ask(DescribeGroupsRequest(groups=["x"]), 5).groups
    assert (group.error_code, group.group_state) == (0, "Dead")


def test_group_is_listed_with_its_type_and_state() -> None:
    cluster = cluster_of_groups()
    a = Member(cluster, "a", "t")
    a.beat()
    broker = coordinating(cluster)
    assert listed(broker) == [("g", "consumer", "Stable", "consumer")]
    assert listed(broker, types_filter=["Consumer"], states_filter=["stable"]) == listed(broker)
    assert listed(broker, types_filter=["classic"]) == []
    a.send(member_epoch=-1)
    assert listed(broker) == [("g", "consumer", "Empty", "consumer")]


def test_group_survives_a_crash_with_everything_in_it() -> None:
    cluster = cluster_of_groups()
    a, b = Member(cluster, "a", "t"), Member(cluster, "b", "t", instance_id="i")
    settle(cluster, a, b)
    before = described(cluster)
    cluster.restart(1)
    assert described(cluster) == before
    assert a.beat().assignment is None
    cluster.pass_ms(44_000)
    b.beat()
    a.beat()
    cluster.pass_ms(44_000)
    a.beat()
    cluster.pass_ms(2_000)
    assert [member.member_id for member in described(cluster).members] == ["a"], "sessions restarted when the group was loaded"


def test_crash_between_giving_up_and_taking_over_loses_no_partition_and_doubles_none() -> None:
    cluster = cluster_of_groups()
    a, b = Member(cluster, "a", "t"), Member(cluster, "b", "t")
    a.beat()
    cluster.pass_ms(1_000)
    b.beat()
    a.beat()
    cluster.restart(1)
    b.beat()
    assert b.reads == []
    a.beat()
    cluster.restart(1)
    settle(cluster, a, b)
    assert (a.reads, b.reads) == ([0, 1], [2, 3])


def test_member_that_does_not_give_up_is_removed_even_after_a_crash() -> None:
    cluster = cluster_of_groups()
    a, b = Member(cluster, "a", "t"), Member(cluster, "b", "t")
    a.beat()
    cluster.pass_ms(1_000)
    b.beat()
    a.beat()
    cluster.restart(1)
    for _ in range(31):
        cluster.pass_ms(1_000)
        a.send(member_epoch=1)
        b.beat()
    assert b.reads == [0, 1, 2, 3]
    assert a.send(member_epoch=1).error_code == errors.UnknownMemberId.code


def test_errors_have_their_codes_and_a_sentence() -> None:
    """Line 72."""
    cluster = cluster_of_groups()
    Member(cluster, "a", "t", instance_id="i").beat()
    for fields, code in (
        ({"member_epoch": 7}, 110),
        ({"member_epoch": 0, "instance_id": "i", **Member(cluster, "", "t").said, "topic_partitions": []}, 111),
        ({"member_epoch": 1, "server_assignor": "x"}, 112),
        ({"member_epoch": 1, "subscribed_topic_regex": "("}, 128),
        ({"member_epoch": -7}, 42),
    ):
        answer = Member(cluster, "b" if code == 111 else "a").send(**fields)
        assert answer.error_code == code
        assert answer.error_message


def test_pattern_is_matched_against_topics_that_come_and_go() -> None:
    cluster = cluster_of_groups()
    a = Member(cluster, "a", subscribed_topic_regex="log.*")
    a.beat()
    assert a.reads == []
    cluster.topic("logs", partitions=2)
    settle(cluster, a)
    assert a.reads == [0, 1]
    coordinating(cluster).ask(DeleteTopicsRequest(topic_names=["logs"], timeout_ms=1_000), 5)
    settle(cluster, a)
    assert a.reads == []


# Offsets.


def commit_as(cluster: Cluster, member: str, epoch: int, version: int = 9) -> int:
    topic = OffsetCommitRequestTopic(name="t", partitions=[OffsetCommitRequestPartition(partition_index=0, committed_offset=5)])
    request = OffsetCommitRequest(group_id="g", member_id=member, generation_id_or_member_epoch=epoch, topics=[topic])
    return int(coordinating(cluster).ask(request, version).topics[0].partitions[0].error_code)


def test_members_commit_and_fetch_in_their_epoch() -> None:
    """Line 72."""
    cluster = cluster_of_groups()
    a = Member(cluster, "a", "t")
    a.beat()
    assert commit_as(cluster, "a", a.epoch) == 0
    assert commit_as(cluster, "a", a.epoch + 1) == 113
    assert commit_as(cluster, "x", a.epoch) == 25
    assert commit_as(cluster, "a", a.epoch, 8) == 35
    assert committed(coordinating(cluster))["t", 0][0] == 5
    stale = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", member_id="a", member_epoch=99, topics=None)])
    assert coordinating(cluster).ask(stale, 9).groups[0].error_code == 113


def test_offsets_of_topics_that_are_read_cannot_be_deleted_and_others_can() -> None:
    cluster = cluster_of_groups()
    cluster.topic("u")
    broker = coordinating(cluster)
    assert commit(broker, "g", "u", 0, 3) == 0
    Member(cluster, "a", "t").beat()
    assert committed(broker)["u", 0][0] == 3, "offsets without a group are kept for a later group"

    def delete(topic: str) -> int:
        requested = OffsetDeleteRequestTopic(name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=0)])
        return int(broker.ask(OffsetDeleteRequest(group_id="g", topics=[requested]), 0).topics[0].partitions[0].error_code)

    assert delete("t") == errors.GroupSubscribedToTopic.code
    assert delete("u") == 0
    assert committed(broker) == {}


def test_group_can_be_deleted_when_it_is_empty() -> None:
    cluster = cluster_of_groups()
    a = Member(cluster, "a", "t")
    a.beat()
    commit_as(cluster, "a", a.epoch)
    broker = coordinating(cluster)

    def delete() -> int:
        return int(broker.ask(DeleteGroupsRequest(groups_names=["g"]), 2).results[0].error_code)

    assert delete() == errors.NonEmptyGroup.code
    a.send(member_epoch=-1)
    assert delete() == 0
    assert listed(broker) == []
    cluster.restart(1)
    assert listed(coordinating(cluster)) == []
    assert committed(coordinating(cluster)) == {}


def test_an_empty_group_uses_the_protocol_of_its_next_member() -> None:
    cluster = cluster_of_groups()
    a = Member(cluster, "a", "t")
    a.beat()
    commit_as(cluster, "a", a.epoch)
    a.send(member_epoch=-1)
    broker = coordinating(cluster)
    waiting = join(broker, protocols=(("range", SUBSCRIPTION),))
    cluster.pass_ms(3_000)
    assert waiting.answer.error_code == 0
    assert [each[3] for each in listed(broker)] == ["classic"]
    assert committed(broker)["t", 0][0] == 5
    broker.ask(LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id=waiting.answer.member_id)]), 5)
    Member(cluster, "b", "t").beat()
    assert [each[3] for each in listed(broker)] == ["consumer"]
    assert committed(broker)["t", 0][0] == 5


# From one protocol to the other.


def classic_pair(cluster: Cluster) -> list[Any]:
    """Two classic members with two partitions each; their JoinGroup answers, the leader first."""
    broker = coordinating(cluster)
    sent = [join(broker, protocols=(("range", SUBSCRIPTION),)) for _ in range(2)]
    cluster.pass_ms(6_000)
    joined = sorted((each.answer for each in sent), key=lambda answer: answer.member_id != answer.leader)
    given = {joined[0].member_id: assignment(0, 1), joined[1].member_id: assignment(2, 3)}
    assert [sync(broker, answer, given=given).answer.error_code for answer in joined] == [0, 0]
    return joined


def assignment(*partitions: int) -> bytes:
    return encode_embedded(ConsumerProtocolAssignment(assigned_partitions=[TopicPartition(topic="t", partitions=list(partitions))]), 1)


def beat(broker: Broker, joined: Any) -> int:
    return int(broker.ask(HeartbeatRequest(group_id="g", generation_id=joined.generation_id, member_id=joined.member_id), 4).error_code)


def rejoined(broker: Broker, joined: Any) -> tuple[Any, list[int]]:
    again = join(broker, member=joined.member_id, protocols=(("range", SUBSCRIPTION),)).answer
    assert again.error_code == 0, again
    answer = sync(broker, again).answer
    assert answer.error_code == 0, answer
    read = decode_embedded(ConsumerProtocolAssignment, answer.assignment).assigned_partitions
    return again, [partition for topic in read for partition in topic.partitions]


def test_classic_group_upgrades_online_and_downgrades_when_the_last_consumer_member_leaves() -> None:
    cluster = cluster_of_groups()
    first, second = classic_pair(cluster)
    broker = coordinating(cluster)
    a = Member(cluster, "a", "t")
    assert a.beat().member_epoch == first.generation_id + 1
    assert [each[3] for each in listed(broker)] == ["consumer"]
    assert sorted(each.member_type for each in described(cluster).members) == [0, 0, 1]
    assert [beat(broker, each) for each in (first, second)] == [27, 27]
    first, one = rejoined(broker, first)
    second, two = rejoined(broker, second)
    a.beat()
    assert sorted(one + two + a.reads) == [0, 1, 2, 3]
    assert [beat(broker, each) for each in (first, second)] == [0, 0]
    assert described(cluster).group_state == "Stable"
    cluster.restart(1)
    broker = coordinating(cluster)
    assert [beat(broker, each) for each in (first, second)] == [0, 0]
    a.send(member_epoch=-1)
    assert listed(broker) == [("g", "consumer", "PreparingRebalance", "classic")]
    assert [beat(broker, each) for each in (first, second)] in ([27, 27], [22, 22])


def test_classic_member_that_only_ever_heartbeats_is_removed_when_its_time_to_join_again_is_over() -> None:
    cluster = cluster_of_groups()
    first, second = classic_pair(cluster)
    broker = coordinating(cluster)
    a = Member(cluster, "a", "t")
    for _ in range(5):
        a.beat()
        assert [beat(broker, each) for each in (first, second)] == [27, 27]
        cluster.pass_ms(5_000)
    rejoined(broker, second)
    for _ in range(8):
        a.beat()
        beat(broker, first)
        cluster.pass_ms(5_000)
    assert first.member_id not in {each.member_id for each in described(cluster).members}, "its rebalance timeout is a minute"


def test_member_whose_removal_could_not_be_written_is_removed_later(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_of_groups()
    Member(cluster, "a", "t").beat()
    refusals = [1, 2]

    def write(shard: Any, of: str, records: Any, **others: Any) -> None:
        if refusals:
            refusals.pop()
            raise errors.CoordinatorNotAvailable("not now")
        kept(shard, of, records, **others)

    kept = Shard.write
    monkeypatch.setattr(Shard, "write", write)
    cluster.pass_ms(46_000)
    assert [each.member_id for each in described(cluster).members] == ["a"]
    cluster.pass_ms(2_000)
    assert described(cluster).members == [] and not refusals


def test_a_group_that_is_not_converted_keeps_its_offsets() -> None:
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    Member(cluster, "a", "t").beat()
    Member(cluster, "a", "t").send(member_epoch=-1)
    commit(broker, "g", "t", 0, 7)
    assert join(broker, member="x", protocols=(("range", SUBSCRIPTION),)).answer.error_code == errors.UnknownMemberId.code
    assert committed(broker) == {("t", 0): (7, -1, "")}
    assert [each[0] for each in listed(broker)] == ["g"], "it is there for as long as they are"


def test_group_that_became_classic_meets_and_its_leader_assigns() -> None:
    cluster = cluster_of_groups()
    first, second = classic_pair(cluster)
    broker = coordinating(cluster)
    a = Member(cluster, "a", "t")
    a.beat()
    first, _ = rejoined(broker, first)
    second, _ = rejoined(broker, second)
    a.send(member_epoch=-1)
    sent = [join(broker, member=each.member_id, protocols=(("range", SUBSCRIPTION),)) for each in (first, second)]
    leader = next(each.answer for each in sent if each.answer.leader == each.answer.member_id)
    assert leader.generation_id > first.generation_id
    assert len(leader.members) == 2
    cluster.restart(1)
    assert listed(coordinating(cluster))[0][3] == "classic"


def test_members_of_a_group_that_became_classic_join_again_although_the_broker_restarted() -> None:
    cluster = cluster_of_groups()
    first, second = classic_pair(cluster)
    broker = coordinating(cluster)
    a = Member(cluster, "a", "t")
    a.beat()
    first, _ = rejoined(broker, first)
    second, _ = rejoined(broker, second)
    a.beat()
    assert a.reads, "its partitions need a new owner"
    a.send(member_epoch=-1)
    assert [beat(broker, each) for each in (first, second)] == [27, 27], "their commits count until they join"
    cluster.restart(1)
    broker = coordinating(cluster)
    assert [beat(broker, each) for each in (first, second)] == [22, 22]
    sent = [join(broker, member=each.member_id, protocols=(("range", SUBSCRIPTION),)) for each in (first, second)]
    assert len({each.answer.generation_id for each in sent}) == 1
    # The answers to these joins are lost, and so is the generation: it was not recorded.
    cluster.restart(1)
    broker = coordinating(cluster)
    assert [beat(broker, each.answer) for each in sent] == [22, 22]


def test_a_member_that_waits_for_partitions_joins_again_when_the_group_becomes_classic() -> None:
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    protocols = (("range", SUBSCRIPTION),)
    a = Member(cluster, "a", "t", instance_id="i")
    settle(cluster, a)
    second = join(broker, instance="j", protocols=protocols).answer
    assert sync(broker, second).answer.error_code == 0
    first = join(broker, instance="i", protocols=protocols).answer
    assert (first.error_code, listed(broker)[0][3]) == (0, "classic")
    assert beat(broker, second) == 27, "the first gave up partitions for it"


def test_a_join_that_waits_during_the_conversion_of_its_group_is_answered_to_rejoin() -> None:
    cluster = cluster_of_groups()
    classic_pair(cluster)
    broker = coordinating(cluster)
    waiting = join(broker, protocols=(("range", SUBSCRIPTION),))
    old = join(broker, version=3, protocols=(("range", SUBSCRIPTION),))
    assert waiting.waits and old.waits
    Member(cluster, "a", "t").beat()
    assert waiting.answer.error_code == errors.MemberIdRequired.code
    assert old.answer.error_code == errors.RebalanceInProgress.code


def test_a_group_is_downgraded_when_its_last_consumer_member_rejoins_as_classic() -> None:
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    a, b = Member(cluster, "a", "t", instance_id="i"), Member(cluster, "b", "t", instance_id="j")
    settle(cluster, a, b)
    protocols = (("range", SUBSCRIPTION),)
    first = join(broker, instance="i", protocols=protocols).answer
    assert (first.error_code, [each[3] for each in listed(broker)]) == (0, ["consumer"])
    assert sync(broker, first).answer.error_code == 0
    second = join(broker, instance="j", protocols=protocols).answer
    assert (second.error_code, listed(broker)) == (0, [("g", "consumer", "Stable", "classic")])
    reported = [decode_embedded(ConsumerProtocolAssignment, sync(broker, each).answer.assignment) for each in (first, second)]
    assert [each.assigned_partitions[0].partitions for each in reported] == [[0, 1], [2, 3]], "other members are not affected"
    assert [beat(broker, each) for each in (first, second)] == [0, 0]
    answer = Member(cluster, "b").send(member_epoch=b.epoch)
    assert answer.error_code == errors.UnknownMemberId.code


def test_classic_members_in_their_first_join_rejoin_a_group_that_was_created_meanwhile() -> None:
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    protocols = (("range", SUBSCRIPTION),)
    waiting = join(broker, protocols=protocols)
    static = join(broker, instance="i", protocols=protocols)
    a = Member(cluster, "a", "t")
    a.beat()
    assert a.reads == [0, 1]
    assert sorted(each.instance_id or each.member_id for each in described(cluster).members) == ["a", "i"], "one is known by its name"
    assert {each.answer.error_code for each in (waiting, static)} == {errors.MemberIdRequired.code}
    again = [
        join(broker, member=waiting.answer.member_id, protocols=protocols).answer,
        join(broker, member=static.answer.member_id, instance="i", protocols=protocols).answer,
    ]
    assert [each.error_code for each in again] == [0, 0]
    assert len(described(cluster).members) == 3


def test_a_classic_group_is_not_converted_when_the_policy_forbids_it() -> None:
    cluster = cluster_of_groups(group_consumer_migration_policy="disabled")
    first, _ = classic_pair(cluster)
    answer = Member(cluster, "a").send(**Member(cluster, "a", "t").said, topic_partitions=[])
    assert answer.error_code == errors.GroupIdNotFound.code
    assert beat(coordinating(cluster), first) == 0


def test_classic_group_stays_classic_when_it_has_more_members_than_one_of_the_new_protocol_may() -> None:
    cluster = cluster_of_groups(group_consumer_max_size="1")
    first, _ = classic_pair(cluster)
    answer = Member(cluster, "a").send(**Member(cluster, "a", "t").said, topic_partitions=[])
    assert answer.error_code == errors.GroupIdNotFound.code
    assert beat(coordinating(cluster), first) == 0


def test_classic_group_that_does_not_fit_into_a_batch_of_the_new_kind_stays_as_it_is() -> None:
    """Whole, and served: the code is Kafka's."""
    cluster = cluster_of_groups(message_max_bytes="1500")
    broker = coordinating(cluster)
    sent = [join(broker, protocols=(("range", SUBSCRIPTION),)) for _ in range(5)]
    cluster.pass_ms(6_000)
    joined = sorted((each.answer for each in sent), key=lambda answer: answer.member_id != answer.leader)
    given = {answer.member_id: assignment(number) for number, answer in enumerate(joined[:4])}
    assert [sync(broker, answer, given=given).answer.error_code for answer in joined] == [0] * 5
    end = broker.node.groups.shard_of("g").leader.log.end_offset
    answer = Member(cluster, "a").send(**Member(cluster, "a", "t").said, topic_partitions=[])
    assert answer.error_code == errors.UnknownServerError.code
    assert broker.node.groups.shard_of("g").leader.log.end_offset == end, "nothing was written"
    assert [beat(broker, each) for each in joined] == [0] * 5


def test_silent_classic_member_of_a_group_that_moved_over_is_removed_after_its_own_session() -> None:
    cluster = cluster_of_groups()
    first, _ = classic_pair(cluster)
    a = Member(cluster, "a", "t")
    a.beat()
    for _ in range(3):
        cluster.pass_ms(4_000)
        beat(coordinating(cluster), first)
        a.beat()
    assert sorted(each.member_id for each in described(cluster).members) == sorted(["a", first.member_id])


def test_target_for_more_members_than_fit_in_a_batch_is_written_in_several() -> None:
    cluster = cluster_of_groups(message_max_bytes="1200")
    members = [Member(cluster, f"m{index:02}", "t", "u") for index in range(30)]
    settle(cluster, *members)
    cluster.topic("u", partitions=60)
    settle(cluster, *members)
    before = described(cluster)
    assert sum(len(topic.partitions) for each in before.members for topic in each.assignment.topic_partitions) == 64
    cluster.restart(1)
    assert described(cluster) == before


@pytest.mark.parametrize("count", [40])
def test_heartbeats_of_a_large_group_write_nothing(count: int) -> None:
    cluster = cluster_of_groups()
    members = [Member(cluster, f"m{index}", "t") for index in range(count)]
    settle(cluster, *members)
    shard = coordinating(cluster).node.groups.shard_of("g")
    end = shard.leader.log.end_offset
    cluster.pass_ms(5_000)
    for member in members:
        member.beat()
    assert shard.leader.log.end_offset == end


def test_members_that_joined_together_get_different_heartbeat_intervals() -> None:
    cluster = cluster_of_groups()
    members = [Member(cluster, f"m{index}", "t") for index in range(TOGETHER_MAX + 20)]
    settle(cluster, *members)
    cluster.pass_ms(5_000)
    intervals = [member.beat().heartbeat_interval_ms for member in members]
    assert min(intervals) > 1_750 and max(intervals) <= 3_500
    assert len(set(intervals)) > len(members) // 2
    cluster.pass_ms(intervals[0])
    assert members[0].beat().heartbeat_interval_ms == 3_500, "who comes at its moment keeps it"


# Settings of one group.


def alter(cluster: Cluster, **texts: str | None) -> int:
    configs = [
        incremental.AlterableConfig(name=name.replace("_", "."), value=text, config_operation=0 if text is not None else 1)
        for name, text in texts.items()
    ]
    requested = incremental.AlterConfigsResource(resource_type=32, resource_name="g", configs=configs)
    return int(cluster[1].ask(incremental.IncrementalAlterConfigsRequest(resources=[requested]), 1).responses[0].error_code)


def settings(cluster: Cluster) -> dict[str, tuple[str | None, int]]:
    asked = DescribeConfigsRequest(resources=[DescribeConfigsResource(resource_type=32, resource_name="g", configuration_keys=None)])
    [found] = cluster[1].ask(asked, 4).results
    assert found.error_code == 0, found
    return {each.name: (each.value, each.config_source) for each in found.configs}


def test_group_has_settings_of_its_own_over_those_of_the_broker() -> None:
    cluster = cluster_of_groups(group_consumer_heartbeat_interval_ms="6000")
    interval = {"consumer.assignment.interval.ms": ("1000", 5)}
    assert settings(cluster) == {"consumer.heartbeat.interval.ms": ("6000", 4), "consumer.session.timeout.ms": ("45000", 5), **interval}
    assert alter(cluster, consumer_heartbeat_interval_ms="7000", consumer_session_timeout_ms="50000") == 0
    assert settings(cluster) == {"consumer.heartbeat.interval.ms": ("7000", 8), "consumer.session.timeout.ms": ("50000", 8), **interval}
    assert alter(cluster, consumer_assignment_interval_ms="15001") == errors.InvalidConfig.code
    listed = cluster[1].ask(ListConfigResourcesRequest(resource_types=[32]), 1).config_resources
    assert [each.resource_name for each in listed] == ["g"]
    a = Member(cluster, "a", "t")
    a.beat()
    cluster.pass_ms(10_000)
    assert a.beat().heartbeat_interval_ms == 4_900, "seven tenths, as everywhere"
    cluster.pass_ms(49_000)
    assert [member.member_id for member in described(cluster).members] == ["a"]
    cluster.pass_ms(2_000)
    assert described(cluster).group_state == "Empty"
    assert alter(cluster, consumer_heartbeat_interval_ms=None, consumer_session_timeout_ms=None) == 0
    assert settings(cluster)["consumer.heartbeat.interval.ms"] == ("6000", 4)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("consumer_heartbeat_interval_ms", "4999"),
        ("consumer_session_timeout_ms", "60001"),
        ("consumer_session_timeout_ms", "x"),
        ("x", "1"),
    ],
)
def test_setting_of_a_group_that_the_broker_does_not_allow_is_refused(name: str, text: str) -> None:
    assert alter(cluster_of_groups(), **{name: text}) == errors.InvalidConfig.code
