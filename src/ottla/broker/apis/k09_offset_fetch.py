"""OffsetFetch: committed offsets of groups.

Behaviour: a missing offset is -1 with epoch -1, empty metadata and no error; an unknown group has no offsets. Null topics mean all topics
of the group. Returned offsets are committed to disk. With require_stable (7), a partition with an offset of an open transaction is
UNSTABLE_OFFSET_COMMIT. A partition that is named again is returned again, up to REPEATED_MAX of them; then its group is INVALID_REQUEST:
each may have 4 KiB of metadata, for 4 bytes of the request. Versions: from 8 on several groups with an error each; 10 names topics by id
and omits deleted ones from "all".

Source: KIP-447, KIP-709, KIP-848.
"""

from collections.abc import Callable, Collection, Iterable, Mapping

from ottla.base.ids import NO_TOPIC_ID, TopicId
from ottla.broker.coordinator import Shard, when_committed
from ottla.broker.events import RequestArrived
from ottla.broker.groups.groups import Groups
from ottla.broker.groups.records import OffsetCommitValue
from ottla.broker.handlers import Deferred, handles
from ottla.broker.node import Node
from ottla.broker.security.requirements import REQUIREMENTS
from ottla.wire import errors
from ottla.wire.errors import GroupIdNotFound, KafkaError
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


def refuse(call: RequestArrived[OffsetFetchRequest], error: KafkaError) -> OffsetFetchResponse:
    return _response(call, [_refused(group, error) for group in _groups(call)])


@handles(OffsetFetchRequest, (1, 10), refuse=refuse, reads_groups=True)
def offset_fetch(node: Node, call: RequestArrived[OffsetFetchRequest]) -> OffsetFetchResponse | Deferred:
    groups = _groups(call)
    answers: list[OffsetFetchResponseGroup] = []
    shards: list[tuple[Shard[Groups], str]] = []
    repeats = Repeats()
    for group in groups:
        try:
            node.context.demand(call, GROUPS, group.group_id)
            shard = node.groups.shard_of(group.group_id)
            repeats.count(group, shard.machine.offsets.by_group.get(group.group_id, {}))
            answers.append(_fetched(node, call, shard.machine, group))
            shards.append((shard, group.group_id))
        except KafkaError as error:
            answers.append(_refused(group, error))
    return when_committed(call, _response(call, answers), shards)


class Repeats:
    """Partitions that a request names again."""

    def __init__(self) -> None:
        #: By group and topic, whether by its name or by its id.
        self._named: dict[tuple[str, str, bytes], set[int]] = {}
        #: Groups of which all partitions were requested.
        self._whole: set[str] = set()
        self._repeated = 0

    def count(self, group: OffsetFetchRequestGroup, known: Mapping[str, Collection[int]]) -> None:
        """Counts a group's partitions; ``known``: all that it has, by topic. Raises: InvalidRequest."""
        if group.topics is None:
            if group.group_id in self._whole:
                self._repeated += sum(map(len, known.values()))
            self._whole.add(group.group_id)
        for topic in group.topics or ():
            named = self._named.setdefault((group.group_id, topic.name, topic.topic_id), set())
            before = len(named)
            named.update(topic.partition_indexes)
            self._repeated += len(topic.partition_indexes) - (len(named) - before)
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
    node: Node, call: RequestArrived[OffsetFetchRequest], groups: "Groups", asked: OffsetFetchRequestGroup
) -> OffsetFetchResponseGroup:
    group = groups.by_id.get(asked.group_id)
    if group is not None:
        try:
            group.check_fetch(asked.member_id, asked.member_epoch)
        except GroupIdNotFound:
            group = None
    elif asked.member_id is not None and asked.member_epoch >= 0:
        raise errors.GroupIdNotFound(f"there is no group {asked.group_id!r}")
    known = groups.offsets.by_group.get(asked.group_id, {}) if group is not None else {}
    answer = OffsetFetchResponseGroup(group_id=asked.group_id)
    by_id = call.api_version >= BY_ID_SINCE
    stable_only = call.body.require_stable

    def unstable(topic: str) -> Callable[[int], bool]:
        return lambda partition: stable_only and groups.offsets.pending.unstable(asked.group_id, topic, partition)

    if asked.topics is None:
        hidden = node.context.refusals(call, ALL_TOPICS, known)
        for name, partitions in known.items():
            if name in hidden:
                continue
            topic = node.context.image.topics.get(name)
            if topic is not None or not by_id:
                topic_id = topic.topic_id if topic is not None else NO_TOPIC_ID
                answer.topics.append(_topic(name, topic_id, partitions, partitions.get, unstable=unstable(name)))
        return answer
    named = [(_name(node, wanted, by_id=by_id), wanted) for wanted in asked.topics]
    refused = node.context.refusals(call, TOPICS, (name for name, _ in named if name is not None))
    for known_name, wanted in named:
        if known_name is None or known_name in refused:
            code = errors.UnknownTopicId.code if known_name is None else refused[known_name].code
            answer.topics.append(_topic(wanted.name, wanted.topic_id, wanted.partition_indexes, _none, code))
            continue
        name = known_name
        values = known.get(name, {}).get
        answer.topics.append(_topic(name, wanted.topic_id, wanted.partition_indexes, values, unstable=unstable(name)))
    return answer


def _name(node: Node, wanted: OffsetFetchRequestTopics, *, by_id: bool) -> str | None:
    if not by_id:
        return wanted.name
    found = node.context.image.topics_by_id.get(TopicId(wanted.topic_id))
    return found.name if found is not None else None


def _none(partition: int) -> OffsetCommitValue | None:
    return None


def _never(partition: int) -> bool:
    return False


def _topic(
    name: str,
    topic_id: bytes,
    partitions: Iterable[int],
    value_of: Callable[[int], OffsetCommitValue | None],
    code: int = 0,
    *,
    unstable: Callable[[int], bool] = _never,
) -> OffsetFetchResponseTopics:
    answers = []
    for partition in partitions:
        pending = unstable(partition)
        value = (None if pending else value_of(partition)) or NO_OFFSET
        answers.append(
            OffsetFetchResponsePartitions(
                partition_index=partition,
                committed_offset=value.offset,
                committed_leader_epoch=value.leader_epoch,
                metadata=value.metadata,
                error_code=errors.UnstableOffsetCommit.code if pending else code,
            )
        )
    return OffsetFetchResponseTopics(name=name, topic_id=topic_id, partitions=answers)


def _refused(group: OffsetFetchRequestGroup, error: KafkaError) -> OffsetFetchResponseGroup:
    topics = [_topic(topic.name, topic.topic_id, topic.partition_indexes, _none, error.code) for topic in group.topics or []]
    return OffsetFetchResponseGroup(group_id=group.group_id, error_code=error.code, topics=topics)


def _response(call: RequestArrived[OffsetFetchRequest], groups: list[OffsetFetchResponseGroup]) -> OffsetFetchResponse:
    """The response in the form of the version: newer versions have no topics for a group with an error."""
    if call.api_version >= SEVERAL_SINCE:
        for group in groups:
            if group.error_code:
                group.topics = []
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
    if one.error_code and call.api_version >= ERROR_OF_GROUP_SINCE:
        old = []
    return OffsetFetchResponse(topics=old, error_code=one.error_code)
