"""OffsetFetch: committed offsets of groups.

Behaviour: a missing offset is -1 with epoch -1, empty metadata and no error; an unknown group has no offsets. Null topics mean all topics
of the group. Returned offsets are committed to disk. With require_stable (7), a partition with an offset of an open transaction is
UNSTABLE_OFFSET_COMMIT. A partition that is named again is returned again, up to REPEATED_MAX of them; then its group is INVALID_REQUEST:
each may have 4 KiB of metadata, for 4 bytes of the request. Versions: from 8 on several groups with an error each; 10 names topics by id
and omits deleted ones from "all".

A large request is answered in turns (``turns.py``). Each partition is as it is in its turn: UNSTABLE_OFFSET_COMMIT if its transaction is
open then.

Source: KIP-447, KIP-709, KIP-848.
"""

from collections.abc import Collection, Generator, Iterable, Mapping

from ottla.base.ids import NO_TOPIC_ID, TopicId
from ottla.broker.coordinator import Shard, when_committed
from ottla.broker.events import RequestArrived
from ottla.broker.groups.groups import Groups
from ottla.broker.groups.records import OffsetCommitValue
from ottla.broker.handlers import Deferred, handles
from ottla.broker.node import Node
from ottla.broker.security.requirements import REQUIREMENTS
from ottla.wire import errors
from ottla.wire.errors import NONE, GroupIdNotFound, KafkaError
from ottla.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

ERROR_OF_GROUP_SINCE = 2
SEVERAL_SINCE = 8
BY_ID_SINCE = 10
GROUPS = REQUIREMENTS[9].parts["groups"]
TOPICS = REQUIREMENTS[9].parts["topics"]
ALL_TOPICS = REQUIREMENTS[9].parts["all topics"]
NO_OFFSET = OffsetCommitValue(offset=-1)
#: Partitions that a response has although the request named them before.
REPEATED_MAX = 1_000
#: What a group weighs in a turn, and partitions of a topic between two yields.
WEIGHT, SLICE = 3, 250


def refuse(call: RequestArrived[OffsetFetchRequest], error: KafkaError) -> OffsetFetchResponse:
    return _response(call, [_refused(call, group, error) for group in _groups(call)])


@handles(OffsetFetchRequest, (1, 10), refuse=refuse, reads_groups=True)
def offset_fetch(node: Node, call: RequestArrived[OffsetFetchRequest]) -> OffsetFetchResponse | Deferred:
    shards: list[tuple[Shard[Groups], str]] = []

    def work() -> Generator[int, None, OffsetFetchResponse]:
        answers: list[OffsetFetchResponseGroup] = []
        repeats = Repeats()
        for group in _groups(call):
            try:
                node.context.demand(call, GROUPS, group.group_id)
                shard = node.groups.shard_of(group.group_id)
                answers.append((yield from _fetched(node, call, shard, group, repeats)))
                shards.append((shard, group.group_id))
            except KafkaError as error:
                answers.append(_refused(call, group, error))
            yield WEIGHT
        return _response(call, answers)

    answer: OffsetFetchResponse | Deferred = node.context.turns.answer(call, work(), lambda found: when_committed(call, found, shards))
    return answer


class Repeats:
    """Partitions that a request names again."""

    def __init__(self) -> None:
        #: By group and topic, whether by its name or by its id.
        self._named: dict[tuple[str, str, bytes], set[int]] = {}
        #: Groups of which all partitions were requested.
        self._whole: set[str] = set()
        self._repeated = 0

    def count_all(self, group_id: str, known: Mapping[str, Collection[int]]) -> None:
        """Counts all partitions of a group, by topic. Raises: InvalidRequest."""
        if group_id in self._whole:
            self._repeated += sum(map(len, known.values()))
            self._check()
        self._whole.add(group_id)

    def count(self, group_id: str, topic: OffsetFetchRequestTopics) -> None:
        """Counts the partitions of a topic of a group. Raises: InvalidRequest."""
        named = self._named.setdefault((group_id, topic.name, topic.topic_id), set())
        before = len(named)
        named.update(topic.partition_indexes)
        self._repeated += len(topic.partition_indexes) - (len(named) - before)
        self._check()

    def _check(self) -> None:
        if self._repeated > REPEATED_MAX:
            raise errors.InvalidRequest("the answer would have too many partitions that were named before; name each once")


def _groups(call: RequestArrived[OffsetFetchRequest]) -> list[OffsetFetchRequestGroup]:
    request = call.body
    if call.api_version >= SEVERAL_SINCE:
        return request.groups
    topics = None
    if request.topics is not None:
        topics = [OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes) for topic in request.topics]
    return [OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)]


def _fetched(
    node: Node, call: RequestArrived[OffsetFetchRequest], shard: Shard[Groups], asked: OffsetFetchRequestGroup, repeats: Repeats
) -> Generator[int, None, OffsetFetchResponseGroup]:
    """The offsets of a group; each partition is read in its own turn, with whether it is stable. Raises: KafkaError."""
    group_id, by_id, groups = asked.group_id, call.api_version >= BY_ID_SINCE, shard.machine
    group = groups.by_id.get(group_id)
    if group is not None:
        try:
            group.check_fetch(asked.member_id, asked.member_epoch)
        except GroupIdNotFound:
            group = None
    elif asked.member_id is not None and asked.member_epoch >= 0:
        raise errors.GroupIdNotFound(f"there is no group {group_id!r}")
    answer = OffsetFetchResponseGroup(group_id=group_id)
    known = groups.offsets.by_group.get(group_id, {}) if group is not None else {}
    wanted = asked.topics
    if wanted is None:
        repeats.count_all(group_id, known)
        wanted = _all_of(node, call, known, by_id=by_id)
    for topic in wanted:
        if asked.topics is not None:
            repeats.count(group_id, topic)
        name = topic.name if asked.topics is None else _name(node, topic, by_id=by_id)
        code = errors.UnknownTopicId.code if name is None else NONE
        if name is not None and asked.topics is not None and (refused := node.context.refusals(call, TOPICS, (name,))):
            code = refused[name].code
        found = OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id)
        answer.topics.append(found)
        size = min(SLICE, node.context.turns.elements)
        for start in range(0, len(topic.partition_indexes), size):
            numbers = topic.partition_indexes[start : start + size]
            if name is None or code:
                found.partitions += _unknown(numbers, code)
            else:
                found.partitions += _known(node, call, group_id, name, numbers, exists=group is not None)
            yield len(numbers)
        yield 1
    return answer


def _all_of(
    node: Node, call: RequestArrived[OffsetFetchRequest], known: Mapping[str, Collection[int]], *, by_id: bool
) -> list[OffsetFetchRequestTopics]:
    """All partitions of a group with offsets; by id without those of deleted topics."""
    hidden, topics = node.context.refusals(call, ALL_TOPICS, known), node.context.image.topics
    return [
        OffsetFetchRequestTopics(
            name=name, topic_id=topics[name].topic_id if name in topics else NO_TOPIC_ID, partition_indexes=list(partitions)
        )
        for name, partitions in known.items()
        if name not in hidden and (name in topics or not by_id)
    ]


def _name(node: Node, wanted: OffsetFetchRequestTopics, *, by_id: bool) -> str | None:
    if not by_id:
        return wanted.name
    found = node.context.image.topics_by_id.get(TopicId(wanted.topic_id))
    return found.name if found is not None else None


def _known(
    node: Node, call: RequestArrived[OffsetFetchRequest], group_id: str, topic: str, numbers: Iterable[int], *, exists: bool
) -> list[OffsetFetchResponsePartitions]:
    """The present offsets of a group in a topic. Raises: NotCoordinator, if this broker stopped to coordinate it meanwhile."""
    offsets = node.groups.shard_of(group_id).machine.offsets
    value_of = (offsets.by_group.get(group_id, {}).get(topic, {}) if exists else {}).get
    answers = []
    for partition in numbers:
        pending = call.body.require_stable and offsets.pending.unstable(group_id, topic, partition)
        value = (None if pending else value_of(partition)) or NO_OFFSET
        answers.append(
            OffsetFetchResponsePartitions(
                partition_index=partition,
                committed_offset=value.offset,
                committed_leader_epoch=value.leader_epoch,
                metadata=value.metadata,
                error_code=errors.UnstableOffsetCommit.code if pending else NONE,
            )
        )
    return answers


def _unknown(numbers: Iterable[int], code: int) -> list[OffsetFetchResponsePartitions]:
    return [
        OffsetFetchResponsePartitions(
            partition_index=partition, committed_offset=NO_OFFSET.offset, committed_leader_epoch=NO_OFFSET.leader_epoch, error_code=code
        )
        for partition in numbers
    ]


def _refused(call: RequestArrived[OffsetFetchRequest], group: OffsetFetchRequestGroup, error: KafkaError) -> OffsetFetchResponseGroup:
    """Versions without an error of the group have one for each partition."""
    topics = [
        OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id, partitions=_unknown(topic.partition_indexes, error.code))
        for topic in (group.topics or () if call.api_version < ERROR_OF_GROUP_SINCE else ())
    ]
    return OffsetFetchResponseGroup(group_id=group.group_id, error_code=error.code, topics=topics)


def _response(call: RequestArrived[OffsetFetchRequest], groups: list[OffsetFetchResponseGroup]) -> OffsetFetchResponse:
    """The response in the form of the version: newer versions have no topics for a group with an error."""
    if call.api_version >= SEVERAL_SINCE:
        return OffsetFetchResponse(groups=groups)
    [one] = groups
    old = [
        OffsetFetchResponseTopic(
            name=topic.name,
            partitions=[
                OffsetFetchResponsePartition(
                    partition_index=partition.partition_index,
                    committed_offset=partition.committed_offset,
                    committed_leader_epoch=partition.committed_leader_epoch,
                    metadata=partition.metadata,
                    error_code=partition.error_code,
                )
                for partition in topic.partitions
            ],
        )
        for topic in one.topics
    ]
    return OffsetFetchResponse(topics=old, error_code=one.error_code)
