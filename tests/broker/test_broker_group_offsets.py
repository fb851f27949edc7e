"""Committed offsets and group APIs: permission, fetch, expiry, deletion. Lines are those of docs/semantics.md."""

from typing import Any

import pytest
from cluster import Cluster
from groups import (
    INITIAL_DELAY_MS,
    cluster_of_groups,
    commit,
    commit_request,
    committed,
    coordinating,
    fetch_request,
    join,
    join_request,
    leave,
    stable,
    sync,
)

from ottla.base.units import DAY_MS, MINUTE_MS
from ottla.broker import events
from ottla.broker.apis.k09_offset_fetch import REPEATED_MAX
from ottla.broker.coordinator import LOAD_BYTES
from ottla.broker.groups.groups import Groups
from ottla.records.batch import headers
from ottla.records.compression import Codec
from ottla.wire import errors
from ottla.wire.messages.consumer_protocol import ConsumerProtocolSubscription, encode_embedded
from ottla.wire.messages.delete_groups import DeleteGroupsRequest
from ottla.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.wire.messages.describe_groups import DescribeGroupsRequest
from ottla.wire.messages.list_groups import ListGroupsRequest
from ottla.wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from ottla.wire.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteRequestPartition, OffsetDeleteRequestTopic
from ottla.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)

#: A subscription to topic t.
READS_T = (("range", encode_embedded(ConsumerProtocolSubscription(topics=["t"]))),)
#: The same as a Node client writes it: version 1, without owned partitions.
READS_T_OF_NODE = (("range", b"\0\1" + encode_embedded(ConsumerProtocolSubscription(topics=["t"]), 0)[2:]),)
BOTH_READ_T = pytest.mark.parametrize("reads_t", [READS_T, READS_T_OF_NODE], ids=["complete", "ends after user data"])


def machine(cluster: Cluster, group: str = "g") -> Groups:
    return coordinating(cluster).node.groups.shard_of(group).machine


def delete_groups(cluster: Cluster, *names: str) -> list[int]:
    answer = coordinating(cluster).ask(DeleteGroupsRequest(groups_names=list(names)), 2)
    return [result.error_code for result in answer.results]


def delete_offsets(cluster: Cluster, topic: str, partition: int, group: str = "g") -> int:
    """The error code of the group, or else of the partition."""
    gone = OffsetDeleteRequestTopic(name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=partition)])
    answer = coordinating(cluster).ask(OffsetDeleteRequest(group_id=group, topics=[gone]), 0)
    return int(answer.error_code or answer.topics[0].partitions[0].error_code)


# Who may commit.


def test_without_a_group_anybody_commits_and_the_group_is_listed() -> None:
    """Line 67."""
    cluster = cluster_of_groups()
    assert commit(coordinating(cluster), "g", "t", 0, 7) == 0
    assert committed(coordinating(cluster)) == {("t", 0): (7, -1, "")}
    [listed] = coordinating(cluster).ask(ListGroupsRequest(), 5).groups
    assert (listed.group_id, listed.protocol_type, listed.group_state, listed.group_type) == ("g", "", "Empty", "classic")


def test_in_a_group_with_members_only_they_commit_and_only_in_their_generation() -> None:
    """Line 67."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    [member] = stable(cluster, 1)
    assert commit(broker, "g", "t", 0, 1) == errors.UnknownMemberId.code
    assert commit(broker, "g", "t", 0, 1, generation_id_or_member_epoch=1, member_id="x") == errors.UnknownMemberId.code
    for generation in (0, 9):
        sender = {"generation_id_or_member_epoch": generation, "member_id": member.member_id}
        assert commit(broker, "g", "t", 0, 1, **sender) == errors.IllegalGeneration.code
    assert commit(broker, "g", "t", 0, 1, joined=member) == 0
    assert leave(broker, member.member_id) == [0, 0]
    assert commit(broker, "g", "t", 0, 2, joined=member) == errors.UnknownMemberId.code, "it was a member"
    assert commit(broker, "g", "t", 0, 2) == 0, "the group is empty"


def test_members_commit_while_the_group_meets_but_not_while_it_assigns() -> None:
    """Line 67."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    [member] = stable(cluster, 1)
    newcomer = join(broker)
    assert commit(broker, "g", "t", 0, 1, joined=member) == 0
    again = join(broker, member=member.member_id)
    assert newcomer.answer.generation_id == 2
    assert commit(broker, "g", "t", 0, 2, joined=again.answer) == errors.RebalanceInProgress.code
    assert committed(broker) == {("t", 0): (1, -1, "")}


@pytest.mark.parametrize(("version", "error"), [(8, errors.IllegalGeneration), (9, errors.GroupIdNotFound)])
def test_a_generation_of_a_group_that_is_not_there_is_refused(version: int, error: type[errors.KafkaError]) -> None:
    """Line 67."""
    broker = coordinating(cluster_of_groups())
    assert commit(broker, "g", "t", 0, 1, version=version, generation_id_or_member_epoch=1, member_id="x") == error.code


def test_a_fenced_static_member_commits_no_more() -> None:
    """Line 67."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    first = join(broker, instance="one")
    cluster.pass_ms(INITIAL_DELAY_MS)
    sync(broker, first.answer)
    join(broker, instance="one")
    assert commit(broker, "g", "t", 0, 1, joined=first.answer, group_instance_id="one") == errors.FencedInstanceId.code


def test_one_bad_partition_does_not_keep_the_others_from_being_committed() -> None:
    """Line 67."""
    cluster = cluster_of_groups(offset_metadata_max_bytes="10")
    broker = coordinating(cluster)
    reported = [OffsetCommitRequestPartition(0, 1, 2, "x" * 11), OffsetCommitRequestPartition(1, 5, 3, "y" * 10)]
    reported += [OffsetCommitRequestPartition(number, 1) for number in (-1, 2**31 - 1)]
    topics = [OffsetCommitRequestTopic(name="t", partitions=reported), OffsetCommitRequestTopic(name="none", partitions=reported[1:2])]
    answer = broker.ask(OffsetCommitRequest(group_id="g", topics=topics), 9)
    assert [[place.error_code for place in topic.partitions] for topic in answer.topics] == [
        [errors.OffsetMetadataTooLarge.code, 0, errors.UnknownTopicOrPartition.code, errors.UnknownTopicOrPartition.code],
        [errors.UnknownTopicOrPartition.code],
    ]
    assert committed(broker) == {("t", 1): (5, 3, "y" * 10)}


def test_each_entry_of_a_commit_that_names_a_partition_twice_is_answered_by_itself() -> None:
    broker = coordinating(cluster_of_groups(offset_metadata_max_bytes="10"))
    entries = [OffsetCommitRequestPartition(0, 5, 3, "y"), OffsetCommitRequestPartition(0, 6, 3, "x" * 11)]
    answer = broker.ask(OffsetCommitRequest(group_id="g", topics=[OffsetCommitRequestTopic(name="t", partitions=entries)] * 2), 9)
    assert [[entry.error_code for entry in topic.partitions] for topic in answer.topics] == [[0, errors.OffsetMetadataTooLarge.code]] * 2
    assert committed(broker) == {("t", 0): (5, 3, "y")}


def test_a_commit_is_one_batch_and_is_answered_when_it_is_on_disk() -> None:
    """Line 67."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    log = broker.leader("__consumer_offsets", 1).log
    cluster.flushing = False
    reported = [OffsetCommitRequestPartition(partition, 9) for partition in range(4)]
    request = OffsetCommitRequest(group_id="g", topics=[OffsetCommitRequestTopic(name="t", partitions=reported)])
    sent = broker.send(request, 9)
    assert sent.waits and log.end_offset == 4 and log.size == log.locate(3, max_bytes=1 << 20, upto=4).size  # type: ignore[union-attr]
    reader = broker.send(fetch_request("g"), 9)
    assert reader.waits, "an offset that is not yet durable is not returned"
    other = broker.send(fetch_request("i"), 9)
    assert other.answer is not None, "another group of the same partition need not wait"
    broker.flush()
    assert sent.answer.topics[0].partitions[0].error_code == 0
    assert len(reader.answer.groups[0].topics[0].partitions) == 4


def test_a_commit_that_the_replicas_do_not_have_in_time_is_answered_and_may_be_repeated() -> None:
    cluster = cluster_of_groups(offsets_commit_timeout_ms="2000")
    broker = coordinating(cluster)
    cluster.flushing = False
    sent = broker.send(commit_request("g", "t", 0, 9), 9)
    cluster.pass_ms(1_900)
    assert sent.waits
    cluster.pass_ms(200)
    assert sent.answer.topics[0].partitions[0].error_code == errors.CoordinatorNotAvailable.code
    cluster.flushing = True
    broker.flush()
    assert commit(broker, "g", "t", 0, 9) == 0
    assert committed(broker)["t", 0][0] == 9


def test_offsets_are_compressed_with_the_configured_codec_and_are_loaded_again() -> None:
    cluster = cluster_of_groups(offsets_topic_compression_codec="4")
    broker = coordinating(cluster)
    assert commit(broker, "g", "t", 0, 9) == 0
    log = broker.leader("__consumer_offsets", 1).log
    found = log.locate(log.end_offset - 1, max_bytes=1 << 20, upto=log.end_offset)
    assert found is not None and [header.codec for _, header in headers(memoryview(found.read()))] == [Codec.ZSTD]
    cluster.restart(1)
    assert committed(coordinating(cluster))["t", 0][0] == 9


# What is found again.


def test_the_offset_of_a_partition_without_a_commit_is_minus_one() -> None:
    """Line 68."""
    broker = coordinating(cluster_of_groups())
    assert committed(broker, topics={"t": [0, 3], "none": [1]}) == {
        ("t", 0): (-1, -1, ""), ("t", 3): (-1, -1, ""), ("none", 1): (-1, -1, ""),
    }  # fmt: skip
    assert committed(broker) == {}


@pytest.mark.parametrize("text", ["", "plain", "Ωμέγα 🜂", "x" * 4096])
def test_offset_epoch_and_text_come_back_as_they_were(text: str) -> None:
    """Line 68."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    assert commit(broker, "g", "t", 2, 2**62, committed_leader_epoch=5, committed_metadata=text) == 0
    assert committed(broker, topics={"t": [2]}) == {("t", 2): (2**62, 5, text)}
    assert committed(cluster.restart(1)) == {("t", 2): (2**62, 5, text)}


def test_several_groups_are_fetched_together_each_with_its_error() -> None:
    """Line 68."""
    cluster = cluster_of_groups(brokers=2)
    broker = coordinating(cluster)
    here = next(name for name in ("h", "i", "j") if broker.node.groups.partition_of(name) == broker.node.groups.partition_of("g"))
    away = next(name for name in ("h", "i", "j") if broker.node.groups.partition_of(name) != broker.node.groups.partition_of("g"))
    commit(broker, "g", "t", 0, 1)
    commit(broker, here, "t", 0, 2)
    groups = [OffsetFetchRequestGroup(group_id=name, topics=None) for name in ("g", here, away)]
    answers = broker.ask(OffsetFetchRequest(groups=groups), 8).groups
    assert [answer.topics[0].partitions[0].committed_offset for answer in answers[:2]] == [1, 2]
    assert (answers[2].error_code, answers[2].topics) == (errors.NotCoordinator.code, [])


def test_a_request_that_names_partitions_again_and_again_is_refused() -> None:
    """Otherwise a request that names one partition 100,000 times gets its metadata 100,000 times."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    commit(broker, "g", "t", 0, 5)
    commit(broker, "g", "t", 1, 6)

    def places(*numbers: int) -> Any:
        topics = [OffsetFetchRequestTopic(name="t", partition_indexes=[number] * (REPEATED_MAX // 2)) for number in numbers]
        return broker.ask(OffsetFetchRequest(group_id="g", topics=topics), 7)

    assert [len(topic.partitions) for topic in places(0, 1).topics] == [REPEATED_MAX // 2] * 2
    assert places(0, 1, 0).error_code == errors.InvalidRequest.code

    groups = [OffsetFetchRequestGroup(group_id="g", topics=None)] * (REPEATED_MAX // 2 + 2)
    answers = broker.ask(OffsetFetchRequest(groups=groups), 8).groups
    assert [answer.error_code for answer in answers] == [0] * (REPEATED_MAX // 2 + 1) + [errors.InvalidRequest.code]
    assert answers[-1].topics == []


@pytest.mark.parametrize("version", range(1, 8))
def test_old_clients_fetch_one_group(version: int) -> None:
    """Line 68."""
    cluster = cluster_of_groups(brokers=2)
    broker = coordinating(cluster)
    commit(broker, "g", "t", 0, 1, committed_leader_epoch=4)
    request = OffsetFetchRequest(group_id="g", topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])])
    places = broker.ask(request, version).topics[0].partitions
    assert [place.committed_offset for place in places] == [1, -1]
    assert places[0].committed_leader_epoch == (4 if version >= 5 else -1)
    other = next(each for each in cluster.brokers.values() if each is not broker)
    refused = other.ask(request, version)
    if version == 1:
        assert {place.error_code for place in refused.topics[0].partitions} == {errors.NotCoordinator.code}
    else:
        assert refused.error_code == errors.NotCoordinator.code


def test_commit_to_a_missing_partition_is_answered_with_an_error() -> None:
    """Line 67. Kafka looks whether it is there before it asks the group anything."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    stable(cluster, 1)
    assert commit(broker, "g", "t", 99, 1) == errors.UnknownTopicOrPartition.code
    assert commit(broker, "g", "none", 0, 1) == errors.UnknownTopicOrPartition.code
    reported = [OffsetCommitRequestPartition(number, 1) for number in (0, 99)]
    answer = broker.ask(OffsetCommitRequest(group_id="g", topics=[OffsetCommitRequestTopic(name="t", partitions=reported)]), 9)
    assert [place.error_code for place in answer.topics[0].partitions] == [
        errors.UnknownMemberId.code, errors.UnknownTopicOrPartition.code,
    ]  # fmt: skip


def test_offsets_of_topics_by_id() -> None:
    """Line 68."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    topic_id, unknown = broker.node.context.image.topics["t"].topic_id, b"u" * 16
    reported = [OffsetCommitRequestPartition(1, 8)]
    topics = [OffsetCommitRequestTopic(topic_id=which, partitions=reported) for which in (topic_id, unknown)]
    answer = broker.ask(OffsetCommitRequest(group_id="g", topics=topics), 10)
    assert [(topic.topic_id, topic.partitions[0].error_code) for topic in answer.topics] == [
        (topic_id, 0), (unknown, errors.UnknownTopicId.code),
    ]  # fmt: skip
    asked = [OffsetFetchRequestTopics(topic_id=which, partition_indexes=[1]) for which in (topic_id, unknown)]
    [found] = broker.ask(OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=asked)]), 10).groups
    assert [(topic.topic_id, topic.partitions[0].committed_offset, topic.partitions[0].error_code) for topic in found.topics] == [
        (topic_id, 8, 0), (unknown, -1, errors.UnknownTopicId.code),
    ]  # fmt: skip
    [everything] = broker.ask(OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)]), 10).groups
    assert [topic.topic_id for topic in everything.topics] == [topic_id]


# When offsets go.


def test_offsets_go_a_week_after_the_group_became_empty() -> None:
    """Line 69."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    [member] = stable(cluster, 1, protocols=READS_T, session_timeout_ms=1_800_000)
    commit(broker, "g", "t", 0, 1, joined=member)
    cluster.jump_ms(29 * MINUTE_MS)
    leave(broker, member.member_id)
    cluster.jump_ms(7 * DAY_MS - 11 * MINUTE_MS)
    assert committed(broker) == {("t", 0): (1, -1, "")}
    cluster.pass_ms(22 * MINUTE_MS)
    assert committed(broker) == {} and "g" not in machine(cluster).by_id, "and with the last of them goes the group"
    assert "g" not in cluster.restart(1).node.groups.shard_of("g").machine.by_id


def test_groups_without_offsets_members_or_pending_joins_are_removed() -> None:
    """Line 69."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    stable(cluster, 1, "stays", session_timeout_ms=1_800_000)
    [gone] = stable(cluster, 1, "awaited")
    leave(broker, gone.member_id, group="awaited")
    [gone] = stable(cluster, 1, "left")
    leave(broker, gone.member_id, group="left")
    pending = broker.ask(join_request("awaited", session_timeout_ms=1_800_000), 9).member_id
    cluster.jump_ms(11 * MINUTE_MS)
    assert sorted(machine(cluster, "stays").by_id.keys() | machine(cluster, "awaited").by_id.keys()) == ["awaited", "stays"]
    assert broker.ask(join_request("left", "x"), 9).error_code == errors.UnknownMemberId.code
    again = join(broker, "awaited", pending)
    cluster.pass_ms(INITIAL_DELAY_MS)
    assert again.answer.error_code == 0


def test_many_offsets_are_looked_at_a_portion_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Line 69."""
    monkeypatch.setattr("ottla.broker.groups.groups.LOOKED_AT_ONCE", 10)
    cluster = cluster_of_groups(offsets_topic_num_partitions="1", offsets_retention_minutes="1")
    broker = coordinating(cluster)
    for number in range(25):
        commit(broker, f"g{number}", "t", 0, 1)
    groups = machine(cluster)
    left = []
    while groups.by_id:
        cluster.jump_ms(10 * MINUTE_MS if len(groups.by_id) in (25, 1) else 10)
        left.append(len(groups.by_id))
        if len(left) == 1:
            commit(broker, "g20", "t", 0, 2)
    assert left[:5] == [20, 15, 10, 5, 1], "each group and each offset counts; the one that has committed meanwhile is not forgotten yet"


def test_offsets_of_nobodys_group_go_a_week_after_the_commit() -> None:
    """Line 69."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    commit(broker, "g", "t", 0, 1)
    cluster.jump_ms(6 * DAY_MS)
    commit(broker, "g", "t", 1, 2)
    cluster.jump_ms(DAY_MS + 11 * MINUTE_MS)
    assert committed(broker) == {("t", 1): (2, -1, "")}


@BOTH_READ_T
def test_a_stable_group_keeps_offsets_of_subscribed_topics_and_expires_others(reads_t: tuple[tuple[str, bytes]]) -> None:
    """Line 69."""
    cluster = cluster_of_groups(offsets_retention_minutes="20")
    cluster.topic("u")
    broker = coordinating(cluster)
    [member] = stable(cluster, 1, protocols=reads_t, session_timeout_ms=1_800_000)
    for topic in ("t", "u"):
        commit(broker, "g", topic, 0, 1, joined=member)
    cluster.jump_ms(29 * MINUTE_MS)
    assert committed(broker) == {("t", 0): (1, -1, "")}


@pytest.mark.parametrize("version", [2, 3, 4])
def test_old_clients_choose_how_long_their_offsets_are_kept(version: int) -> None:
    """Line 69."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    commit(broker, "g", "t", 0, 1, version=version, retention_time_ms=60 * MINUTE_MS)
    commit(broker, "h", "t", 0, 1, version=version, retention_time_ms=30 * DAY_MS)
    cluster.jump_ms(59 * MINUTE_MS)
    broker = cluster.restart(1)
    assert committed(broker, "g") == committed(broker, "h") == {("t", 0): (1, -1, "")}
    cluster.jump_ms(11 * MINUTE_MS)
    assert committed(broker, "g") == {}
    cluster.jump_ms(8 * DAY_MS)
    assert committed(broker, "h") == {("t", 0): (1, -1, "")}


def test_deleting_a_topic_deletes_its_offsets() -> None:
    """Line 69."""
    cluster = cluster_of_groups()
    cluster.topic("u")
    for topic in ("t", "u"):
        commit(coordinating(cluster), "g", topic, 0, 1)
    cluster.controller.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=1000), 6)
    cluster.topic("t")
    assert committed(coordinating(cluster)) == {("u", 0): (1, -1, "")}
    assert committed(cluster.restart(1)) == {("u", 0): (1, -1, "")}


def test_offsets_of_a_topic_deleted_while_the_coordinator_was_down_are_deleted() -> None:
    """Line 69."""
    cluster = cluster_of_groups(brokers=2, offsets_topic_replication_factor="1")
    broker = coordinating(cluster)
    for number in range(4):
        cluster.topic(f"u{number}")
        commit(broker, "g", f"u{number}", 0, 1)
    gone = cluster.kill(broker.broker_id)
    [other] = cluster.brokers.values()
    names = [DeleteTopicState(name=name) for name in ("u0", "u1")]
    other.ask(DeleteTopicsRequest(topics=names, timeout_ms=1000), 6)
    back = cluster.start(gone.broker_id, gone.texts, [disk.restart() for disk in gone.disks.values()])
    assert {topic for topic, _ in committed(back)} == {"u2", "u3"}


# Groups as a whole.


def describe(cluster: Cluster, group: str, version: int = 6) -> tuple[int, str, str]:
    """Error, state and protocol."""
    [found] = coordinating(cluster).ask(DescribeGroupsRequest(groups=[group]), version).groups
    return found.error_code, found.group_state, found.protocol_data


def test_a_group_is_described_as_it_is_and_dead_when_it_is_not() -> None:
    """Line 70."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    assert describe(cluster, "g", 5) == (0, "Dead", "")
    assert describe(cluster, "g", 6) == (errors.GroupIdNotFound.code, "Dead", "")
    sent = join(broker, instance="one", protocols=(("range", b"reads"),))
    assert describe(cluster, "g") == (0, "PreparingRebalance", "")
    cluster.pass_ms(INITIAL_DELAY_MS)
    assert describe(cluster, "g") == (0, "CompletingRebalance", "")
    sync(broker, sent.answer, given={sent.answer.member_id: b"all"})
    assert describe(cluster, "g") == (0, "Stable", "range")
    [group] = broker.ask(DescribeGroupsRequest(groups=["g"], include_authorized_operations=True), 6).groups
    [member] = group.members
    assert (member.client_id, member.client_host, member.group_instance_id) == ("test", "/client", "one")
    assert (member.member_metadata, member.member_assignment, group.protocol_type) == (b"reads", b"all", "consumer")
    assert group.authorized_operations == 0b1101_0100_1000
    leave(broker, sent.answer.member_id)
    assert describe(cluster, "g") == (0, "Empty", "")


def test_operations_of_a_missing_group_are_described_where_it_is_no_error() -> None:
    """Line 70. Clients of that time read the number that stands for "not asked" as a set of operations, and fail."""
    broker = coordinating(cluster_of_groups())

    def reported(version: int) -> tuple[int, int]:
        [group] = broker.ask(DescribeGroupsRequest(groups=["no"], include_authorized_operations=True), version).groups
        return group.error_code, group.authorized_operations

    assert reported(5) == (0, 0b1101_0100_1000)
    assert reported(6) == (errors.GroupIdNotFound.code, -(2**31))


def test_only_empty_groups_are_deleted_and_their_offsets_with_them() -> None:
    """Line 70."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    [member] = stable(cluster, 1)
    commit(broker, "g", "t", 0, 1, joined=member)
    commit(broker, "h", "t", 0, 1)
    commit(broker, "", "t", 0, 1)
    assert delete_groups(cluster, "g", "h", "none", "") == [errors.NonEmptyGroup.code, 0, errors.GroupIdNotFound.code, 0]
    leave(broker, member.member_id)
    assert delete_groups(cluster, "g") == [0]
    assert committed(broker) == {} and describe(cluster, "g", 5)[1] == "Dead"
    broker = cluster.restart(1)
    assert committed(broker) == {} and describe(cluster, "g", 5)[1] == "Dead"


def test_a_group_is_deleted_whose_offsets_do_not_fit_in_one_batch() -> None:
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    group_id = "g" * 30_000
    cluster.topic("wide", partitions=40)
    for partition in range(40):
        assert commit(broker, group_id, "wide", partition, 1) == 0
    assert delete_groups(cluster, group_id) == [0]
    assert committed(broker, group_id) == {}
    broker = cluster.restart(1)
    assert committed(broker, group_id) == {}


@BOTH_READ_T
def test_offsets_of_a_topic_that_is_read_are_not_deleted(reads_t: tuple[tuple[str, bytes]]) -> None:
    """Line 70."""
    cluster = cluster_of_groups()
    cluster.topic("u")
    broker = coordinating(cluster)
    [member] = stable(cluster, 1, protocols=reads_t)
    for topic in ("t", "u"):
        commit(broker, "g", topic, 0, 1, joined=member)
    assert delete_offsets(cluster, "t", 0) == errors.GroupSubscribedToTopic.code
    assert delete_offsets(cluster, "u", 0) == 0
    end = broker.node.groups.shard_of("g").leader.log.end_offset
    assert delete_offsets(cluster, "u", 0) == delete_offsets(cluster, "u", 3) == 0
    assert broker.node.groups.shard_of("g").leader.log.end_offset == end, "where there was none nothing is written"
    assert delete_offsets(cluster, "none", 0) == errors.UnknownTopicOrPartition.code
    assert delete_offsets(cluster, "t", 0, group="none") == errors.GroupIdNotFound.code
    assert committed(broker) == committed(cluster.restart(1)) == {("t", 0): (1, -1, "")}


def test_subscriptions_of_members_of_other_protocol_types_are_unknown() -> None:
    """Line 70."""
    cluster = cluster_of_groups()
    stable(cluster, 1, protocol_type="connect")
    assert delete_offsets(cluster, "t", 0) == errors.NonEmptyGroup.code


def test_groups_are_listed_by_state_and_type() -> None:
    """Line 71."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    stable(cluster, 1, "g")
    commit(broker, "h", "t", 0, 1)
    broker.send(join_request("i", instance="one"), 9)

    def listed(states: list[str], types: list[str] = []) -> dict[str, str]:  # noqa: B006
        answer = broker.ask(ListGroupsRequest(states_filter=states, types_filter=types), 5)
        return {group.group_id: group.group_state for group in answer.groups}

    assert listed([]) == {"g": "Stable", "h": "Empty", "i": "PreparingRebalance"}
    assert listed(["Stable", "preparingrebalance"]) == {"g": "Stable", "i": "PreparingRebalance"}
    assert listed(["Nonsense"]) == {} == listed([], ["share"])
    assert listed(["Empty"], ["Classic"]) == {"h": "Empty"}
    cluster.pass_ms(INITIAL_DELAY_MS)
    assert listed(["CompletingRebalance"]) == {"i": "CompletingRebalance"}


def test_a_list_without_the_groups_that_are_still_loaded_is_not_given() -> None:
    """Line 71."""
    cluster = cluster_of_groups()
    commit(coordinating(cluster), "g", "t", 0, 1)
    cluster.reading = False
    broker = cluster.restart(1)
    assert broker.ask(ListGroupsRequest(), 5).error_code == errors.CoordinatorLoadInProgress.code
    broker.read_logs()
    assert [group.group_id for group in broker.ask(ListGroupsRequest(), 5).groups] == ["g"]


def test_groups_are_loaded_in_chunks() -> None:
    """Line 73."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    for round_ in range(30):
        commit(broker, "g", "t", round_ % 4, round_, committed_metadata="x" * 4000)
    cluster.reading = False
    broker = cluster.restart(1)
    chunks = 0
    while broker.reads:
        effect = broker.reads.pop()
        assert len(effect.slice) <= LOAD_BYTES
        broker.handle(events.LogRead(ticket=effect.ticket, data=effect.slice.read()))
        cluster.run()
        chunks += 1
    assert chunks >= 2
    assert {place: offset for place, (offset, _, _) in committed(broker).items()} == {
        ("t", 0): 28, ("t", 1): 29, ("t", 2): 26, ("t", 3): 27,
    }  # fmt: skip


def test_a_commit_above_max_message_bytes_is_refused_as_a_whole() -> None:
    """Line 67."""
    cluster = cluster_of_groups(message_max_bytes="2000")
    broker = coordinating(cluster)
    assert commit(broker, "g", "t", 0, 1, committed_metadata="x" * 3000) == errors.InvalidCommitOffsetSize.code
    assert committed(broker) == {}


def test_a_commit_that_too_few_replicas_would_have_is_refused() -> None:
    """Line 67."""
    cluster = cluster_of_groups(brokers=2, min_insync_replicas="2")
    broker = coordinating(cluster)
    assert commit(broker, "g", "t", 0, 1) == 0
    cluster.kill(3 - broker.broker_id)
    cluster.pass_ms(60_000)
    assert commit(broker, "g", "t", 0, 2) == errors.CoordinatorNotAvailable.code
    assert committed(broker, topics={"t": [0]}) == {("t", 0): (1, -1, "")}


def test_a_commit_is_kept_although_its_client_disconnects() -> None:
    """Line 67."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    cluster.flushing = False
    broker.hang_up(broker.send(commit_request("g", "t", 0, 4), 9))
    broker.flush()
    assert broker.node.context.delayed.count == len(broker.node.groups.shards), "the checks for expired offsets alone"
    assert committed(broker) == {("t", 0): (4, -1, "")}
