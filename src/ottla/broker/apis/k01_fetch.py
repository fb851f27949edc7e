"""Fetch: batches from the partitions led here, sent from the log files as they lie on disk.

Behaviour: answers at once when there is nothing to wait for (max_wait 0, no partitions), when min_bytes are there, or when any partition
has an error or has diverged; else waits up to max_wait_ms. The first partition with records gives at least one whole batch, whatever the
limits; the batch that contains the offset is sent whole. Sessions as in ``fetch_sessions.py``.

A follower, which names its replica id, reads up to the log end, on disk or not; where it reads from tells what it has on disk, which may
raise the high watermark, and bring it into the ISR. It must be a replica, of the registration that its request names, and of the leader's
epoch. Replication throttles (``throttle.py``) may keep records from one that is not in sync.

Versions: topics by id from 13 on. read_committed stops at the last stable offset.

Differences from Kafka: a follower whose offset lies before the log start is told that start with the error. Source: KIP-73, KIP-74,
KIP-227, KIP-320, KIP-516, KIP-903.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ottla.base.ids import BrokerId, TopicId, TopicPartition
from ottla.broker.apis.leaders import endpoints_of, leader_hint
from ottla.broker.events import RequestArrived
from ottla.broker.fetch_sessions import Context, Wanted, rotated
from ottla.broker.handlers import handles
from ottla.broker.leader import Leader
from ottla.broker.purgatory import Parked
from ottla.wire import errors
from ottla.wire.errors import KafkaError
from ottla.wire.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)

if TYPE_CHECKING:
    from ottla.broker.node import Node

BY_ID_SINCE = 13
HINTS_SINCE = 16
SESSIONS_SINCE = 7


def refuse(call: RequestArrived, error: KafkaError) -> FetchResponse:
    """An error for the whole request; before version 7, which has no such field, for each partition."""
    if call.api_version >= SESSIONS_SINCE:
        return FetchResponse(error_code=error.code)
    topics = [
        FetchableTopicResponse(topic=topic.topic, partitions=[_refused(ask.partition, error) for ask in topic.partitions])
        for topic in call.body.topics
    ]
    return FetchResponse(responses=topics)


@handles(FetchRequest, (4, 18), refuse=refuse)
def fetch(node: "Node", call: RequestArrived) -> Any:
    request: FetchRequest = call.body
    if replica_of(request) >= 0:
        _note_follower(node, call)
    by_id = call.api_version >= BY_ID_SINCE
    context = node.sessions.begin(request, by_id=by_id, now_ms=node.now_ms, rng=node.rng)
    found = _read_all(node, request, context)
    if request.max_wait_ms <= 0 or not context.wanted or found.urgent or found.bytes >= _enough(node, request):
        return _response(node, call, context, found)
    return _wait(node, call, context, found)


def replica_of(request: FetchRequest) -> int:
    """The follower that asks; -1 for a consumer."""
    return max(request.replica_id, request.replica_state.replica_id)


def _note_follower(node: "Node", call: RequestArrived) -> None:
    """A follower says what it has. Raises: StaleBrokerEpoch, when it has been registered anew since."""
    request: FetchRequest = call.body
    replica, epoch = replica_of(request), request.replica_state.replica_epoch
    registered = node.image.brokers.get(BrokerId(replica))
    if registered is not None and 0 <= epoch < registered.epoch:
        raise errors.StaleBrokerEpoch(f"broker {replica} is registered under epoch {registered.epoch}, not {epoch}")
    for topic in request.topics:
        name = node.image.topics_by_id.get(TopicId(topic.topic_id)) if call.api_version >= BY_ID_SINCE else None
        for ask in topic.partitions:
            leader = node.partitions.leaders.get(TopicPartition(name.name if name else topic.topic, ask.partition))
            if leader is None or replica not in leader.insync.standings or ask.current_leader_epoch != leader.epoch:
                continue
            if not leader.agrees(ask.fetch_offset, ask.last_fetched_epoch):
                continue
            if leader.fetched(replica, offset=ask.fetch_offset, broker_epoch=epoch, now_ms=node.now_ms):
                node.purgatory.poke(leader.partition)
            if replica not in leader.insync.maximal:
                node.isr_changes.look(leader)


@dataclass(slots=True)
class Found:
    """What the partitions of one fetch have to give now."""

    answers: list[tuple[Wanted, PartitionData]]
    bytes: int
    #: Some partition has an error or has diverged; the client should know at once.
    urgent: bool


def _bytes_max(node: "Node", request: FetchRequest) -> int:
    return min(request.max_bytes, node.options.fetch_max_bytes)


def _enough(node: "Node", request: FetchRequest) -> int:
    """Bytes for which an answer need not wait: never more than an answer can have."""
    return min(request.min_bytes, _bytes_max(node, request))


def _read_all(node: "Node", request: FetchRequest, context: Context) -> Found:
    found = Found([], 0, urgent=False)
    left = _bytes_max(node, request)
    for wanted in context.wanted:
        data = _read(node, request, wanted, left, at_least_one=found.bytes == 0)
        found.answers.append((wanted, data))
        size = len(data.records) if data.records is not None else 0
        found.bytes += size
        left = max(0, left - size)
        found.urgent |= _urgent(data)
    return found


def _urgent(data: PartitionData) -> bool:
    return data.error_code != 0 or data.diverging_epoch.epoch != -1


def _read(node: "Node", request: FetchRequest, wanted: Wanted, left: int, *, at_least_one: bool) -> PartitionData:
    ask = wanted.ask
    try:
        leader = node.partitions.leader(_name(node, wanted.topic), ask.partition)
        leader.check_epoch(ask.current_leader_epoch)
        replica = replica_of(request)
        if replica >= 0 and replica not in leader.insync.standings:
            raise errors.NotLeaderOrFollower(f"broker {replica} is no follower of {leader.partition}")
        held_up = _held_up(node, leader, replica)
        read = leader.read(
            ask.fetch_offset,
            max_bytes=0 if held_up else min(ask.partition_max_bytes, left),
            at_least_one=at_least_one and not held_up,
            isolation_level=request.isolation_level,
            last_fetched_epoch=ask.last_fetched_epoch,
            replica=replica >= 0,
        )
    except errors.OffsetOutOfRange as error:
        refused = _refused(ask.partition, error)
        if replica_of(request) >= 0:
            refused.log_start_offset = leader.log.start_offset
        return refused
    except KafkaError as error:
        return _refused(ask.partition, error)
    data = PartitionData(
        partition_index=ask.partition,
        high_watermark=read.high_watermark,
        last_stable_offset=read.last_stable_offset,
        log_start_offset=read.log_start_offset,
        aborted_transactions=None,
        records=b"" if read.records is None else read.records,
    )
    if read.aborted is not None:
        data.aborted_transactions = [AbortedTransaction(producer_id=pid, first_offset=first) for pid, first in read.aborted]
    if read.diverging is not None:
        data.diverging_epoch = EpochEndOffset(epoch=read.diverging[0], end_offset=read.diverging[1])
    return data


def _held_up(node: "Node", leader: Leader, replica: int) -> bool:
    """Whether a follower gets nothing for now; ``replica`` -1 is a consumer, who always does. Source: KIP-73."""
    if replica < 0 or replica in leader.insync.isr:
        return False
    return node.throttles.sends_at_ms(leader.partition) > node.now_ms


def _name(node: "Node", topic: str | bytes) -> str:
    if isinstance(topic, str):
        return topic
    found = node.image.topics_by_id.get(TopicId(topic))
    if found is None:
        raise errors.UnknownTopicId(f"no topic has the id {topic.hex()}")
    return found.name


def _refused(partition: int, error: KafkaError) -> PartitionData:
    return PartitionData(
        partition_index=partition, error_code=error.code, high_watermark=-1, log_start_offset=-1, aborted_transactions=None, records=b""
    )


def _response(node: "Node", call: RequestArrived, context: Context, found: Found) -> FetchResponse:
    response = FetchResponse(session_id=context.session_id)
    served = []
    by_id = call.api_version >= BY_ID_SINCE
    misled: list[TopicPartition] = []
    for wanted, data in found.answers:
        if context.session is not None and not wanted.news(data) and context.incremental:
            continue
        if call.api_version >= HINTS_SINCE and data.error_code in (errors.NotLeaderOrFollower.code, errors.FencedLeaderEpoch.code):
            partition = TopicPartition(_name(node, wanted.topic), wanted.ask.partition)
            data.current_leader = leader_hint(node, partition)
            misled.append(partition)
        if data.records:
            served.append((wanted.topic, wanted.ask.partition))
            if replica_of(call.body) >= 0:
                node.throttles.sent(TopicPartition(_name(node, wanted.topic), wanted.ask.partition), len(data.records))
        last = response.responses[-1] if response.responses else None
        if last is None or (last.topic_id if by_id else last.topic) != wanted.topic:
            last = FetchableTopicResponse(**{"topic_id" if by_id else "topic": wanted.topic})  # type: ignore[arg-type]
            response.responses.append(last)
        last.partitions.append(data)
    if context.session is not None:
        rotated(context.session, served)
    if misled:
        response.node_endpoints = endpoints_of(node, call, misled)
    return response


# Waiting for bytes.


def _wait(node: "Node", call: RequestArrived, context: Context, found: Found) -> Any:
    """What comes to a partition is added to what the others have: only when that may be enough are all of them read again."""
    request: FetchRequest = call.body
    enough = _enough(node, request)
    asked: dict[TopicPartition, list[Wanted]] = {}
    #: Bytes that each partition has for this answer, as of its last change.
    held: dict[TopicPartition, int] = {}
    for wanted, data in found.answers:
        partition = TopicPartition(_name(node, wanted.topic), wanted.ask.partition)
        asked.setdefault(partition, []).append(wanted)
        held[partition] = held.get(partition, 0) + len(data.records or b"")
    total = found.bytes
    #: Partitions, or (for followers) what was appended to them.
    poked: list[Any] = []
    keys: list[Any] = list(asked)
    if replica_of(request) >= 0:
        keys += [("appended", partition) for partition in asked]

    def ready() -> bool:
        nonlocal total
        key = poked.pop()
        partition = key if isinstance(key, TopicPartition) else key[1]
        if enough <= 1:
            return any(_stirred(node, request, wanted) for wanted in asked[partition])
        now = 0
        for wanted in asked[partition]:
            data = _read(node, request, wanted, _bytes_max(node, request), at_least_one=True)
            if _urgent(data):
                return True
            now += len(data.records or b"")
        total += now - held[partition]
        held[partition] = now
        if total < enough:
            return False
        all_of_it = _read_all(node, request, context)
        return all_of_it.urgent or all_of_it.bytes >= enough

    def finish(expired: bool) -> None:
        node.answer(call, _response(node, call, context, _read_all(node, request, context)))

    return node.park(call, Parked(keys, ready, finish, poked), node.now_ms + request.max_wait_ms)


def _stirred(node: "Node", request: FetchRequest, wanted: Wanted) -> bool:
    """Whether a partition has something to tell: a byte, an error, or another leader."""
    ask: FetchPartition = wanted.ask
    try:
        leader = node.partitions.leader(_name(node, wanted.topic), ask.partition)
        leader.check_epoch(ask.current_leader_epoch)
    except KafkaError:
        return True
    if _held_up(node, leader, replica_of(request)):
        return ask.fetch_offset < leader.log.start_offset
    end = leader.log.end_offset if replica_of(request) >= 0 else leader.readable_end(request.isolation_level)
    return end > ask.fetch_offset or ask.fetch_offset < leader.log.start_offset
