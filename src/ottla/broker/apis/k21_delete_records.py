"""DeleteRecords: delete all records before an offset, in partitions led here.

Behaviour: offset -1 means the high watermark; one below 0 or above the high watermark is OFFSET_OUT_OF_RANGE. A topic that is only
compacted refuses with POLICY_VIOLATION, an internal one with INVALID_TOPIC_EXCEPTION. An offset at or below the log start deletes nothing.
Waiting readers below the new start are answered at once. The request waits for a flush in progress: ``partition_requests.py``. If a
request names a partition twice, its last offset counts.

The leader deletes at once. The response follows when the low watermark reaches the offset, or with REQUEST_TIMED_OUT after ``timeout_ms``.
The low watermark is the lowest log start of the replicas that are alive or in the ISR, as far as their checkpoints have it::

    delete ──▶ leader: log start moves, is recorded ───────────────────────────┐
                  └─▶ fetch response ──▶ follower: the same ──▶ next fetch ────┴─▶ low watermark ──▶ response

A replica joins the ISR only when its log start is not below the leader's. So no later leader has records below an acknowledged offset,
except after an unclean election, or if an eligible replica (KIP-966) is elected that was down during the deletion.

Differences from Kafka: log starts count when they are on disk; Kafka writes them within a minute. So the timeout is one second at least.
A member of the ISR counts until the controller removes it, also while its broker is down. A replica whose log directory failed does not
count.
Source: KIP-107, KIP-204; Kafka's Partition.lowWatermarkIfLeader.
"""

from collections.abc import Generator
from functools import partial

from ottla.base.ids import BrokerId, TopicPartition
from ottla.broker.apis.partition_requests import when_settled
from ottla.broker.controller.topics import INTERNAL
from ottla.broker.delayed import DelayedOperation
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import Deferred, handles
from ottla.broker.node import Node
from ottla.broker.replica.leader import Leader, low_watermark_of
from ottla.broker.replica.replicas import BROKERS
from ottla.broker.security.requirements import REQUIREMENTS
from ottla.wire import errors
from ottla.wire.errors import KafkaError
from ottla.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

HIGH_WATERMARK = -1
#: The shortest timeout. With Kafka a single replica answers at once, so clients send 0; here the leader's disk takes milliseconds.
TIMEOUT_MIN_MS = 1_000
TOPICS = REQUIREMENTS[21].parts["topics"]
#: What a partition weighs in a turn.
WEIGHT = 4


def refuse(call: RequestArrived[DeleteRecordsRequest], error: KafkaError) -> DeleteRecordsResponse:
    topics = [
        DeleteRecordsTopicResult(name=topic.name, partitions=[_refused(ask, error) for ask in topic.partitions])
        for topic in call.body.topics
    ]
    return DeleteRecordsResponse(topics=topics)


@handles(DeleteRecordsRequest, (0, 2), refuse=refuse)
def delete_records(node: Node, call: RequestArrived[DeleteRecordsRequest]) -> DeleteRecordsResponse | Deferred:
    about = ((topic.name, ask.partition_index) for topic in call.body.topics for ask in topic.partitions)
    return when_settled(node, call, about, partial(_delete_all, node, call))


def _delete_all(node: Node, call: RequestArrived[DeleteRecordsRequest]) -> DeleteRecordsResponse | Deferred:
    deletions = Deletions(node)

    def work() -> Generator[int, None, None]:
        asked: dict[str, dict[int, DeleteRecordsPartition]] = {}
        for named in call.body.topics:
            asked.setdefault(named.name, {}).update((ask.partition_index, ask) for ask in named.partitions)
            yield 1 + len(named.partitions) // 10
        for topic, partitions in asked.items():
            refused = node.context.refusals(call, TOPICS, (topic,)).get(topic)
            for ask in partitions.values():
                if refused is not None:
                    deletions.refuse(topic, ask, refused)
                else:
                    deletions.begin(topic, ask)
                yield WEIGHT

    answer: DeleteRecordsResponse | Deferred = node.context.turns.answer(call, work(), lambda _: _when_done(node, call, deletions))
    return answer


def _when_done(node: Node, call: RequestArrived[DeleteRecordsRequest], deletions: "Deletions") -> DeleteRecordsResponse | Deferred:
    if deletions.done():
        return deletions.response()

    def finish(expired: bool) -> None:
        node.context.answer(call, deletions.response())

    keys = [key for partition in deletions.waiting for key in (partition, low_watermark_of(partition))]
    operation = DelayedOperation("low watermark", finish, keys=[*keys, BROKERS], ready=deletions.done)
    return node.context.delay(call, operation, node.context.now_ms + max(call.body.timeout_ms, TIMEOUT_MIN_MS))


class Deletions:
    """The deletions of one request: carried out on the leader, and waiting for the other replicas."""

    def __init__(self, node: Node) -> None:
        self._node = node
        #: In the order of the request; the result is that of a timeout as long as the partition waits.
        self._results: dict[TopicPartition, DeleteRecordsPartitionResult] = {}
        #: Partitions whose low watermark is below the offset to delete before.
        self.waiting: dict[TopicPartition, int] = {}

    def begin(self, topic: str, ask: DeleteRecordsPartition) -> None:
        """Deletes on the leader."""
        partition = TopicPartition(topic, ask.partition_index)
        try:
            offset = self.waiting[partition] = self._delete(topic, ask)
            self._results[partition] = _refused(ask, errors.RequestTimedOut(""))
            self._look(partition, offset)
        except KafkaError as error:
            self._results[partition] = _refused(ask, error)

    def refuse(self, topic: str, ask: DeleteRecordsPartition, error: KafkaError) -> None:
        """Nothing is deleted."""
        self._results[TopicPartition(topic, ask.partition_index)] = _refused(ask, error)

    def _delete(self, topic: str, ask: DeleteRecordsPartition) -> int:
        """Deletes on the leader; returns the offset that the low watermark must reach. Raises: KafkaError."""
        node, leader = self._node, self._node.partitions.leader(topic, ask.partition_index)
        if topic in INTERNAL:
            raise errors.InvalidTopic(f"records of {topic}, an internal topic, cannot be deleted")
        if "delete" not in leader.options.cleanup_policy:
            raise errors.PolicyViolation(f"{topic} is only compacted; records are deleted where cleanup.policy holds delete")
        offset = leader.high_watermark if ask.offset == HIGH_WATERMARK else ask.offset
        if not 0 <= offset <= leader.high_watermark:
            raise errors.OffsetOutOfRange(
                f"{leader.partition} can be deleted up to its high watermark, {leader.high_watermark}, not {offset}"
            )
        leader.deleted_to = max(leader.deleted_to, offset)
        if offset > leader.log.start_offset:
            node.partitions.delete_before(leader, offset)
        if offset > leader.log.recorded_start:
            # Also if retention moved the log start: its checkpoint is written later.
            node.partitions.record_start(leader)
        return offset

    def done(self) -> bool:
        """Whether no partition waits any more."""
        for partition, offset in list(self.waiting.items()):
            self._look(partition, offset)
        return not self.waiting

    def _look(self, partition: TopicPartition, offset: int) -> None:
        """Completes a partition whose low watermark has reached the offset, or that is not led here any more."""
        result = self._results[partition]
        try:
            leader = self._node.partitions.leader(*partition)
        except KafkaError as error:
            result.error_code, result.low_watermark = error.code, -1
            del self.waiting[partition]
            return
        result.low_watermark = leader.low_watermark(partial(self._counts, leader))
        if result.low_watermark >= offset:
            result.error_code = errors.NONE
            del self.waiting[partition]

    def _counts(self, leader: Leader, broker: int) -> bool:
        """Whether a replica outside of the ISR is alive."""
        registered = self._node.context.image.brokers.get(BrokerId(broker))
        return registered is not None and leader.partition not in registered.offline

    def response(self) -> DeleteRecordsResponse:
        """The results so far: REQUEST_TIMED_OUT for partitions that wait."""
        found: dict[str, DeleteRecordsTopicResult] = {}
        for partition, result in self._results.items():
            topic = found.setdefault(partition.topic, DeleteRecordsTopicResult(name=partition.topic, partitions=[]))
            topic.partitions.append(result)
        return DeleteRecordsResponse(topics=list(found.values()))


def _refused(ask: DeleteRecordsPartition, error: KafkaError) -> DeleteRecordsPartitionResult:
    return DeleteRecordsPartitionResult(partition_index=ask.partition_index, low_watermark=-1, error_code=error.code)
