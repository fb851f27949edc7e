"""Members of groups in tests of the broker: a line for each step of a member's life.

broker = coordinating(Cluster())          # __consumer_offsets is there
member = join(broker, "g", "a")           # in its first join; time has to pass
"""

from typing import Any

from cluster import Broker, Cluster, Sent

from ottla.wire.messages.find_coordinator import FindCoordinatorRequest
from ottla.wire.messages.heartbeat import HeartbeatRequest
from ottla.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from ottla.wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from ottla.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from ottla.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

SESSION_MS = 10_000
REBALANCE_MS = 60_000
INITIAL_DELAY_MS = 3_000
#: Few, so that tests are quick.
SETTINGS = {"offsets.topic.num.partitions": "2"}


def cluster_of_groups(brokers: int = 1, **settings: str) -> Cluster:
    """A cluster with topic t of four partitions, that coordinates groups; settings with ``_`` for ``.``."""
    cluster = Cluster(brokers, settings={**SETTINGS, **{name.replace("_", "."): text for name, text in settings.items()}})
    cluster.topic("t", partitions=4)
    coordinating(cluster)
    return cluster


def coordinating(cluster: Cluster) -> Broker:
    """The broker that coordinates group g, once there is one."""
    some = next(iter(cluster.brokers.values()))
    for _ in range(3):
        answer = some.ask(FindCoordinatorRequest(key="g"), 2)
        if not answer.error_code:
            return cluster[answer.node_id]
    raise AssertionError(f"a coordinator is found: {answer}")


def join_request(group: str, member: str = "", *, instance: str | None = None, **fields: Any) -> JoinGroupRequest:
    protocols = fields.pop("protocols", (("range", b"all"),))
    return JoinGroupRequest(
        **{
            "group_id": group,
            "member_id": member,
            "group_instance_id": instance,
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS,
            "protocol_type": "consumer",
            "protocols": [JoinGroupRequestProtocol(name=name, metadata=metadata) for name, metadata in protocols],
            **fields,
        }
    )


def join(broker: Broker, group: str = "g", member: str = "", *, version: int = 9, instance: str | None = None, **fields: Any) -> Sent:
    """A JoinGroup that may wait; a dynamic member without an id gets one first."""
    if version >= 4 and not member and instance is None:
        member = broker.ask(join_request(group, **fields), version).member_id
    return broker.send(join_request(group, member, instance=instance, **fields), version)


def sync(broker: Broker, joined: Any, group: str = "g", *, version: int = 5, given: dict[str, bytes] | None = None, **fields: Any) -> Sent:
    """A SyncGroup of a member that has joined; ``given`` by member id."""
    request = SyncGroupRequest(
        **{
            "group_id": group,
            "generation_id": joined.generation_id,
            "member_id": joined.member_id,
            "assignments": [SyncGroupRequestAssignment(member_id=each, assignment=part) for each, part in (given or {}).items()],
            **fields,
        }
    )
    return broker.send(request, version)


def heartbeat(broker: Broker, joined: Any, group: str = "g", **fields: Any) -> int:
    """The error code."""
    request = HeartbeatRequest(**{"group_id": group, "generation_id": joined.generation_id, "member_id": joined.member_id, **fields})
    return int(broker.ask(request, 4).error_code)


def leave(broker: Broker, *members: str, group: str = "g") -> list[int]:
    answer = broker.ask(LeaveGroupRequest(group_id=group, members=[MemberIdentity(member_id=member) for member in members]), 5)
    return [answer.error_code, *(member.error_code for member in answer.members)]


def commit_request(group: str, topic: str, partition: int, offset: int, *, joined: Any = None, **fields: Any) -> OffsetCommitRequest:
    place = {name: fields.pop(name) for name in ("committed_leader_epoch", "committed_metadata") if name in fields}
    reported = OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset, **place)
    sender = {"generation_id_or_member_epoch": joined.generation_id, "member_id": joined.member_id} if joined is not None else {}
    return OffsetCommitRequest(
        **{"group_id": group, "topics": [OffsetCommitRequestTopic(name=topic, partitions=[reported])], **sender, **fields}
    )


def commit(broker: Broker, group: str, topic: str, partition: int, offset: int, *, version: int = 9, **fields: Any) -> int:
    """The error code of the one partition."""
    answer = broker.ask(commit_request(group, topic, partition, offset, **fields), version)
    return int(answer.topics[0].partitions[0].error_code)


def fetch_request(group: str, topics: dict[str, list[int]] | None = None) -> OffsetFetchRequest:
    asked = None
    if topics is not None:
        asked = [OffsetFetchRequestTopics(name=name, partition_indexes=numbers) for name, numbers in topics.items()]
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=asked)])


def committed(broker: Broker, group: str = "g", topics: dict[str, list[int]] | None = None) -> dict[tuple[str, int], tuple[int, int, str]]:
    """By topic and partition: offset, leader epoch, text."""
    [answer] = broker.ask(fetch_request(group, topics), 9).groups
    assert answer.error_code == 0, answer
    return {
        (topic.name, place.partition_index): (place.committed_offset, place.committed_leader_epoch, place.metadata)
        for topic in answer.topics
        for place in topic.partitions
    }


def stable(cluster: Cluster, members: int, group: str = "g", **fields: Any) -> list[Any]:
    """A group of so many members that have their assignments, the leader first; their JoinGroup responses."""
    broker = coordinating(cluster)
    sent = [join(broker, group, **fields) for _ in range(members)]
    while any(each.waits for each in sent):
        cluster.pass_ms(INITIAL_DELAY_MS)
    joined = sorted((each.answer for each in sent), key=lambda answer: answer.member_id != answer.leader)
    given = {answer.member_id: b"part %d" % number for number, answer in enumerate(joined)}
    synced = [sync(broker, answer, group, given=given) for answer in joined]
    assert [each.answer.error_code for each in synced] == [0] * members
    return joined


def stable_member(cluster: Cluster, group: str) -> str:
    """The one member of a group that has met."""
    return str(stable(cluster, 1, group)[0].member_id)
