"""Fetch: batches of the partitions led here, sent from the log files.

Behaviour: answered at once if max_wait is 0, if there are no partitions, if min_bytes are there, or if any partition has an error, has
diverged, or ends at a closed segment; otherwise after up to max_wait_ms. With max_wait 0, a consumer at the high watermark of a single
replica waits for a flush in progress, to get what was acknowledged with acks=1. The first partition with records returns at least one whole
batch, whatever the limits; the batch that contains the offset is returned whole. Sessions: ``fetch_sessions.py``.

A follower, which sends its replica id, reads up to the log end. Only the address of a registered broker may do that; others get
CLUSTER_AUTHORIZATION_FAILED (``registration/peers.py``). With access rules it needs ClusterAction on the cluster instead, and others get
TOPIC_AUTHORIZATION_FAILED for each partition. Its fetch offset tells what it has on disk, which may raise the high watermark and add it to
the ISR. It must be a replica, under the registration in its request, and of the leader's epoch. In a session this
applies to each awake partition; of a sleeping one it has everything. Replication throttles (``throttle.py``) may withhold records from
replicas that are not in sync.

An empty request of a follower, without a session, recalls its waiting fetches: they are answered at once, so that it can send a new one.
Otherwise the first record of a partition after an election could wait as long as they do.

A consumer that sends its rack (from version 11 on) may read from a follower, up to the high watermark known there; an offset beyond its
log is OFFSET_NOT_AVAILABLE. The same applies to replica id -2 in every version. With RackAwareReplicaSelector a leader sends a consumer to
a follower in its rack (``replica_selector.py``), without records. Followers then learn a new high watermark at once, and always the log
start of a DeleteRecords, which they report in their next fetch.

Versions: topics by id from 13 on. read_committed stops at the last stable offset.

Differences from Kafka: a follower refuses a consumer without a rack, which no leader can have sent to it. A follower whose offset is before
the log start gets the log start with the error.

Source: KIP-73, KIP-74, KIP-227, KIP-320, KIP-392, KIP-516, KIP-903.
"""

from collections.abc import Callable, Generator
from typing import Any, NamedTuple, Self

import msgspec

from ottla.base.ids import BrokerId, TopicId, TopicPartition
from ottla.broker import effects
from ottla.broker.apis.partition_leaders import endpoints_of, leader_hint
from ottla.broker.apis.partition_requests import wait_for_flush
from ottla.broker.delayed import DelayedOperation
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import PENDING, Deferred, handles
from ottla.broker.node import Node
from ottla.broker.replica.fetch_sessions import SLICE, Context, Wanted, wanted_in_turns
from ottla.broker.replica.follower import Follower
from ottla.broker.replica.leader import Leader, low_watermark_of
from ottla.broker.replica.reads import Read
from ottla.broker.replica.replica_selector import RACK_AWARE, replica_near
from ottla.broker.security.access import Permits
from ottla.broker.security.requirements import REQUIREMENTS
from ottla.broker.turns import portions
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

BY_ID_SINCE = 13
HINTS_SINCE = 16
SESSIONS_SINCE = 7
RACKS_SINCE = 11
DIVERGENCE_SINCE = 12
#: Replica id of a tool that compares replicas, such as kafka-replica-verification: a consumer that reads from any of them.
DEBUGGING = -2
#: Epoch of a request without a session.
FINAL_EPOCH = -1
#: After this many fetches from the same offset a follower may have got damaged bytes: they are scrubbed; and every so many fetches again.
STUCK_AT, STUCK_EVERY = 3, 16
#: What a partition weighs in a turn.
WEIGHT = 4
TOPICS, FOLLOWER = REQUIREMENTS[1].parts["topics"], REQUIREMENTS[1].parts["follower"]


def refuse(call: RequestArrived[FetchRequest], error: KafkaError) -> FetchResponse:
    """An error for the whole request; for each partition before version 7, which has no such field."""
    if call.api_version >= SESSIONS_SINCE:
        return FetchResponse(error_code=error.code)
    topics = [
        FetchableTopicResponse(topic=topic.topic, partitions=[_refused(ask.partition, error) for ask in topic.partitions])
        for topic in call.body.topics
    ]
    return FetchResponse(responses=topics)


class Reader(msgspec.Struct, gc=False):
    """The sender: a follower, or a consumer (replica -1)."""

    replica: int
    epoch: int
    isolation_level: int
    #: A consumer that may read from a follower, because it sent its rack or compares replicas. Others must look up the leader.
    roams: bool
    #: Whether the response has a field for the diverging epoch. A session may have an epoch from a newer version.
    tells_divergence: bool
    #: The rack for a preferred read replica; empty if the broker does not select one.
    rack: str
    #: Whether the client may read a topic; None: it may read all, because it is a follower or there are no access rules.
    permits: Permits | None
    #: Maximum size of the response.
    bytes_max: int

    @classmethod
    def of(cls, node: Node, call: RequestArrived[FetchRequest]) -> Self:
        context, request, version = node.context, call.body, call.api_version
        state, options = request.replica_state, context.options
        replica = max(request.replica_id, state.replica_id)
        in_rack = replica < 0 and request.rack_id != "" and version >= RACKS_SINCE
        bytes_max = min(request.max_bytes, options.fetch_max_bytes)
        if context.quotas.active:
            bytes_max = min(bytes_max, context.quotas.fetch_bytes_max(call))
        return cls(
            replica,
            state.replica_epoch,
            request.isolation_level,
            in_rack or DEBUGGING in (request.replica_id, state.replica_id),
            version >= DIVERGENCE_SINCE,
            request.rack_id if in_rack and options.replica_selector_class in RACK_AWARE else "",
            Permits(context.access, call, TOPICS) if context.access is not None and replica < 0 else None,
            bytes_max,
        )


class FetchedPartitions(msgspec.Struct, gc=False):
    """What the partitions of one fetch return now."""

    answers: list[tuple[Wanted, PartitionData]]
    bytes: int
    #: Some partition has an error or has diverged; the client must know at once.
    urgent: bool
    #: Whether a client gets them, and not a follower.
    to_client: bool
    #: Whether some partition returns the rest of a closed segment; None: not looked up yet.
    complete: bool | None = None


@handles(FetchRequest, (4, 18), refuse=refuse)
def fetch(node: Node, call: RequestArrived[FetchRequest]) -> FetchResponse | Deferred:
    request, broker = call.body, node.context
    reader = Reader.of(node, call)
    if reader.replica >= 0:
        if broker.access is None:
            broker.check_peer(call)
        elif not broker.access.permits(call, FOLLOWER):
            return _refused_follower(call)
        _check_registration(node, reader)
        if not request.topics and (request.session_id, request.session_epoch) == (0, FINAL_EPOCH):
            broker.delayed.release(("copies", reader.replica))
            return FetchResponse()
    by_id = call.api_version >= BY_ID_SINCE
    if reader.replica < 0 and (call.size > broker.turns.large_bytes or node.sessions.awake(request.session_id) > broker.turns.elements):
        large: FetchResponse | Deferred = broker.turns.answer(call, _begin_in_turns(node, call, reader), _then(node, call, reader))
        return large
    context = node.sessions.begin(
        request, by_id=by_id, now_ms=broker.now_ms, rng=broker.rng, replica=reader.replica, replica_epoch=reader.epoch
    )
    active = context.active()
    if reader.replica >= 0:
        for wanted in active:
            _note_follower(node, reader, wanted)
    return _answer(node, call, reader, context, _read_all(node, reader, context, active))


def _answer(
    node: Node,
    call: RequestArrived[FetchRequest],
    reader: Reader,
    context: Context,
    found: FetchedPartitions,
    changed: dict[TopicPartition, None] | None = None,
) -> FetchResponse | Deferred:
    """Responds, or waits for more. ``changed``: partitions that may have been read before their last event."""
    request = call.body
    waits = bool(found.answers) if context.session is None else True
    if request.max_wait_ms <= 0 or not waits or found.urgent or found.bytes >= _enough(request, reader) or _catches_up(node, reader, found):
        missed = [] if request.max_wait_ms > 0 or found.urgent or reader.replica >= 0 else _unflushed(node, context)
        if missed:
            return wait_for_flush(node, call, missed, lambda: _read_again(node, call, reader, context))
        return _respond(node, call, context, found)
    return _wait(node, call, reader, context, found, {} if changed is None else changed)


def _unflushed(node: Node, context: Context) -> list[tuple[Leader, int]]:
    """Partitions of a consumer's fetch, with their log ends, from which it would get nothing because a flush is in progress."""
    leaders = {leader.partition: leader for leader in node.partitions.unsettled()}
    if not leaders:
        return []
    if context.session is not None and context.incremental:
        # Also partitions that sleep.
        found = [(node.sessions.watched(context.session, partition), leader) for partition, leader in leaders.items()]
    else:
        named = ((wanted, _partition(node, wanted)) for wanted in context.wanted)
        found = [(wanted, leaders[partition]) for wanted, partition in named if partition in leaders]
    return [(one, one.log.end_offset) for wanted, one in found if wanted is not None and wanted.ask.fetch_offset == one.high_watermark]


def _read_again(node: Node, call: RequestArrived[FetchRequest], reader: Reader, context: Context) -> FetchResponse | Deferred:
    """The response to a fetch that does not wait any more."""
    active = context.active()
    if not call.in_turns:
        return _response(node, call, context, _read_all(node, reader, context, active))
    work = _read_in_turns(node, reader, context, active)
    answer: FetchResponse | Deferred = node.context.turns.answer(call, work, lambda found: _respond(node, call, context, found))
    return answer


# In turns: large fetches of consumers. Those of followers are one step: they are not in a client's hands, and read records above the high
# watermark, which a later leader may truncate between two turns.


class Begun(NamedTuple):
    """What a fetch in turns has read."""

    context: Context
    found: FetchedPartitions
    #: Partitions with events since it began.
    changed: dict[TopicPartition, None]


def _begin_in_turns(node: Node, call: RequestArrived[FetchRequest], reader: Reader) -> Generator[int, None, Begun]:
    request, broker, by_id = call.body, node.context, call.api_version >= BY_ID_SINCE
    wanted = (yield from wanted_in_turns(request, by_id=by_id)) if request.session_epoch <= 0 else None
    context = node.sessions.begin(request, by_id=by_id, now_ms=broker.now_ms, rng=broker.rng, wanted=wanted)
    changed: dict[TopicPartition, None] = {}
    node.sessions.changes.append(changed)
    try:
        return Begun(context, (yield from _read_in_turns(node, reader, context, context.active())), changed)
    finally:
        node.sessions.changes = [other for other in node.sessions.changes if other is not changed]


def _then(node: Node, call: RequestArrived[FetchRequest], reader: Reader) -> Callable[[Begun], FetchResponse | Deferred]:
    def then(begun: Begun) -> FetchResponse | Deferred:
        return _answer(node, call, reader, begun.context, begun.found, begun.changed)

    return then


def _read_in_turns(node: Node, reader: Reader, context: Context, active: list[Wanted]) -> Generator[int, None, FetchedPartitions]:
    found, complete = FetchedPartitions([], 0, False, True), False
    size = min(SLICE, node.context.turns.elements)
    for start in range(0, len(active), size):
        found = _read_all(node, reader, context, active[start : start + size], found)
        complete = complete or _completes(node, reader, found.answers[start:])
        yield WEIGHT * size
    found.complete = complete
    return found


def _respond(node: Node, call: RequestArrived[FetchRequest], context: Context, found: FetchedPartitions) -> FetchResponse | Deferred:
    if not call.in_turns:
        return _response(node, call, context, found)
    answer: FetchResponse | Deferred = node.context.turns.answer(call, _response_in_turns(node, call, context, found))
    return answer


def _response_in_turns(
    node: Node, call: RequestArrived[FetchRequest], context: Context, found: FetchedPartitions
) -> Generator[int, None, FetchResponse]:
    quotas = node.context.quotas
    if quotas.active and (throttle_ms := quotas.fetched(call, found.bytes)):
        return _throttled(node, context, throttle_ms)
    response, size = FetchResponse(session_id=context.session_id), min(SLICE, node.context.turns.elements)
    for start in range(0, len(found.answers), size):
        some = FetchedPartitions(found.answers[start : start + size], 0, False, found.to_client)
        part, responses = _told(node, call, context, some), response.responses
        if responses and part.responses and _same_topic(responses[-1], part.responses[0]):
            responses[-1].partitions += part.responses.pop(0).partitions
        responses += part.responses
        response.node_endpoints += [one for one in part.node_endpoints if one not in response.node_endpoints]
        yield WEIGHT * size // 2
    node.context.effects.append(effects.Free(objects=[found.answers, context.wanted]))
    return response


def _same_topic(one: FetchableTopicResponse, other: FetchableTopicResponse) -> bool:
    return (one.topic, one.topic_id) == (other.topic, other.topic_id)


def _check_registration(node: Node, reader: Reader) -> None:
    """Raises: StaleBrokerEpoch if the follower has registered again since."""
    registered = node.context.image.brokers.get(BrokerId(reader.replica))
    if registered is not None and 0 <= reader.epoch < registered.epoch:
        raise errors.StaleBrokerEpoch(f"broker {reader.replica} is registered under epoch {registered.epoch}, not {reader.epoch}")


def _note_follower(node: Node, reader: Reader, wanted: Wanted) -> None:
    """Records a follower's progress."""
    ask, replica = wanted.ask, reader.replica
    partition = wanted.partition or _partition(node, wanted)
    leader = node.partitions.leaders.get(partition) if partition is not None else None
    if leader is None or replica not in leader.isr_state.progress or ask.current_leader_epoch != leader.epoch:
        return
    if not isinstance(wanted.topic, str) and wanted.topic != leader.log.topic_id:
        # It follows an earlier topic with this name.
        return
    if not leader.agrees(ask.fetch_offset, ask.last_fetched_epoch):
        return
    if leader.isr_state.reports_start(replica, ask.log_start_offset):
        node.context.delayed.poke(low_watermark_of(leader.partition))
    if leader.fetched(replica, offset=ask.fetch_offset, broker_epoch=reader.epoch, now_ms=node.context.now_ms):
        node.context.delayed.poke(leader.partition)
    progress = leader.isr_state.progress[replica]
    if progress.stuck % STUCK_EVERY == STUCK_AT and not _held_up(node, leader, replica):
        node.scrubs.look_at(leader, ask.fetch_offset, whole=False)
    if replica not in leader.isr_state.maximal or progress.lost_records:
        node.isr_changes.look(leader)


def _partition(node: Node, wanted: Wanted) -> TopicPartition | None:
    """The requested partition; None while its topic is unknown."""
    if isinstance(wanted.topic, str):
        return TopicPartition(wanted.topic, wanted.ask.partition)
    found = node.context.image.topics_by_id.get(TopicId(wanted.topic))
    return TopicPartition(found.name, wanted.ask.partition) if found is not None else None


def _enough(request: FetchRequest, reader: Reader) -> int:
    """Bytes for which a response need not wait: at most its maximum size."""
    return min(request.min_bytes, reader.bytes_max)


def _read_all(
    node: Node, reader: Reader, context: Context, active: list[Wanted], before: FetchedPartitions | None = None
) -> FetchedPartitions:
    """Reads partitions, ``before`` which others were read in earlier turns."""
    answers: list[tuple[Wanted, PartitionData]] = []
    session, to_client = context.session, reader.replica < 0
    total, left, urgent = 0, reader.bytes_max, False
    if before is not None:
        answers, total, urgent = before.answers, before.bytes, before.urgent
        left = max(0, left - total)
    for wanted in active:
        if session is not None and wanted.partition is None and (partition := _partition(node, wanted)) is not None:
            node.sessions.watch(session, wanted, partition)
        data = _read(node, reader, wanted, left, at_least_one=total == 0)
        answers.append((wanted, data))
        size = _size(data)
        total += size
        left = max(0, left - size)
        if _urgent(data) or _awaits_marks(node, reader, wanted, data.high_watermark, data.log_start_offset):
            urgent = True
    return FetchedPartitions(answers, total, urgent, to_client)


def _size(data: PartitionData) -> int:
    """Bytes of the records."""
    return 0 if data.records is None else len(data.records)


def _urgent(data: PartitionData) -> bool:
    return data.error_code != 0 or data.diverging_epoch.epoch != -1 or data.preferred_read_replica >= 0


def _awaits_marks(node: Node, reader: Reader, wanted: Wanted, high_watermark: int, log_start: int) -> bool:
    """Whether a follower does not know the log start yet, for which DeleteRecords may wait; or the high watermark, for which its consumers
    may wait.
    """
    if reader.replica < 0:
        return False
    if log_start > max(wanted.log_start_offset, wanted.ask.log_start_offset) and wanted.ask.log_start_offset >= 0:
        return True
    return high_watermark > wanted.high_watermark >= 0 and node.context.options.replica_selector_class in RACK_AWARE


def _catches_up(node: Node, reader: Reader, found: FetchedPartitions) -> bool:
    if found.complete is None:
        found.complete = _completes(node, reader, found.answers)
    return found.complete


def _completes(node: Node, reader: Reader, answers: list[tuple[Wanted, PartitionData]]) -> bool:
    return any(_is_complete(node, reader, wanted, data) for wanted, data in answers)


def _is_complete(node: Node, reader: Reader, wanted: Wanted, data: PartitionData) -> bool:
    """Whether a partition returns the rest of a closed segment: waiting brings no more of it."""
    if not data.records:
        return False
    held = _held(node, reader, wanted)
    return held.log.segment_of(wanted.ask.fetch_offset) < held.log.segment_of(_end(held, reader))


def _held(node: Node, reader: Reader, wanted: Wanted) -> Leader | Follower:
    """The replica to read from. Raises: KafkaError."""
    ask, topic = wanted.ask, wanted.topic
    name, number = topic if isinstance(topic, str) else _name(node, topic), ask.partition
    if reader.permits is not None and not reader.permits(name):
        raise reader.permits.refusal(name)
    held = node.partitions.readable(name, number) if reader.roams else node.partitions.leader(name, number)
    held.check_epoch(ask.current_leader_epoch)
    if reader.replica >= 0 and isinstance(held, Leader) and reader.replica not in held.isr_state.progress:
        raise errors.NotLeaderOrFollower(f"broker {reader.replica} is no follower of {held.partition}")
    return held


def _read(node: Node, reader: Reader, wanted: Wanted, left: int, *, at_least_one: bool) -> PartitionData:
    ask = wanted.ask
    wanted.quiet = False
    try:
        held = _held(node, reader, wanted)
        near = -1
        if reader.rack and isinstance(held, Leader):
            near = replica_near(node.context.image, held, node.context.broker_id, reader.rack, ask.fetch_offset)
        # Records come from the preferred read replica.
        nothing = near >= 0 or _held_up(node, held, reader.replica)
        read = held.read(
            ask.fetch_offset,
            max_bytes=0 if nothing else min(ask.partition_max_bytes, left),
            at_least_one=at_least_one and not nothing,
            isolation_level=reader.isolation_level,
            last_fetched_epoch=ask.last_fetched_epoch if reader.tells_divergence else -1,
            replica=reader.replica >= 0,
        )
    except errors.OffsetOutOfRange as error:
        refused = _refused(ask.partition, error)
        if reader.replica >= 0:
            refused.log_start_offset = held.log.start_offset
        return refused
    except KafkaError as error:
        if isinstance(error, errors.CorruptMessage):
            node.scrubs.look_at(held, ask.fetch_offset, whole=False)
        return _refused(ask.partition, error)
    wanted.quiet = read.records is None and read.diverging is None and near < 0 and ask.fetch_offset >= _end(held, reader)
    return _data(ask.partition, read, near)


def _end(held: Leader | Follower, reader: Reader) -> int:
    """The offset at which there is nothing for this reader."""
    return held.log.end_offset if reader.replica >= 0 else held.readable_end(reader.isolation_level)


def _data(partition: int, read: Read, near: int) -> PartitionData:
    data = PartitionData(
        partition_index=partition,
        high_watermark=read.high_watermark,
        last_stable_offset=read.last_stable_offset,
        log_start_offset=read.log_start_offset,
        aborted_transactions=None,
        preferred_read_replica=near,
        records=b"" if read.records is None else read.records,
    )
    if read.aborted is not None:
        data.aborted_transactions = [AbortedTransaction(producer_id=pid, first_offset=first) for pid, first in read.aborted]
    if read.diverging is not None:
        data.diverging_epoch = EpochEndOffset(epoch=read.diverging[0], end_offset=read.diverging[1])
    return data


def _held_up(node: Node, leader: Leader | Follower, replica: int) -> bool:
    """Whether a follower is throttled; ``replica`` -1 is a consumer, which never is. Source: KIP-73."""
    if replica < 0 or not isinstance(leader, Leader) or replica in leader.isr_state.isr:
        return False
    return node.throttles.sends_at_ms(leader.partition) > node.context.now_ms


def _name(node: Node, topic: str | bytes) -> str:
    if isinstance(topic, str):
        return topic
    found = node.context.image.topics_by_id.get(TopicId(topic))
    if found is None:
        raise errors.UnknownTopicId(f"no topic has the id {topic.hex()}")
    return found.name


def _refused_follower(call: RequestArrived[FetchRequest]) -> FetchResponse:
    """The response to a sender that names a replica and may not act for the cluster, in Kafka's form: an error of each partition."""
    error = errors.TopicAuthorizationFailed(f"{call.origin.principal} may not fetch as a follower")
    if not call.body.topics:
        return refuse(call, error)
    by_id = call.api_version >= BY_ID_SINCE
    topics = [
        FetchableTopicResponse(
            **{"topic_id": topic.topic_id} if by_id else {"topic": topic.topic},
            partitions=[_refused(ask.partition, error) for ask in topic.partitions],
        )
        for topic in call.body.topics
    ]
    return FetchResponse(responses=topics)


def _refused(partition: int, error: KafkaError) -> PartitionData:
    return PartitionData(
        partition_index=partition, error_code=error.code, high_watermark=-1, log_start_offset=-1, aborted_transactions=None, records=b""
    )


def _response(node: Node, call: RequestArrived[FetchRequest], context: Context, found: FetchedPartitions) -> FetchResponse:
    quotas = node.context.quotas
    if quotas.active and (throttle_ms := quotas.fetched(call, found.bytes)):
        return _throttled(node, context, throttle_ms)
    return _told(node, call, context, found)


def _told(node: Node, call: RequestArrived[FetchRequest], context: Context, found: FetchedPartitions) -> FetchResponse:
    """The response with these partitions."""
    response = FetchResponse(session_id=context.session_id)
    session = context.session
    by_id = call.api_version >= BY_ID_SINCE
    misled: list[TopicPartition] = []
    last: FetchableTopicResponse | None = None
    to_client = found.to_client
    for wanted, data in found.answers:
        if to_client or data.error_code or data.records:
            _count(node, wanted, data, to_client=to_client)
        quiet = session is not None and not wanted.news(data) and context.incremental
        if session is not None:
            session.told(wanted, served=bool(data.records))
        if not to_client and data.records:
            node.throttles.sent(TopicPartition(_name(node, wanted.topic), wanted.ask.partition), len(data.records))
        if quiet:
            continue
        if call.api_version >= HINTS_SINCE and data.error_code in (errors.NotLeaderOrFollower.code, errors.FencedLeaderEpoch.code):
            partition = TopicPartition(_name(node, wanted.topic), wanted.ask.partition)
            data.current_leader = leader_hint(node, partition)
            misled.append(partition)
        topic = wanted.topic
        if last is None or (last.topic_id if by_id else last.topic) != topic:
            last = FetchableTopicResponse(topic_id=topic) if by_id else FetchableTopicResponse(topic=topic)  # type: ignore[arg-type]
            response.responses.append(last)
        last.partitions.append(data)
    if misled:
        response.node_endpoints = endpoints_of(node, call, misled)
    return response


def _count(node: Node, wanted: Wanted, data: PartitionData, *, to_client: bool) -> None:
    """Counts a partition of a response."""
    topic, traffic = wanted.topic, node.context.traffic
    counters = traffic.named(topic if isinstance(topic, str) else wanted.partition.topic if wanted.partition is not None else None)
    if counters is traffic.others and not isinstance(topic, str):
        found = node.context.image.topics_by_id.get(TopicId(topic))
        counters = traffic.named(None if found is None else found.name)
    if not to_client:
        counters.replication_bytes_out += _size(data)
        return
    counters.fetch_requests += 1
    if data.error_code:
        counters.failed_fetch_requests += 1
    else:
        counters.bytes_out += _size(data)


def _throttled(node: Node, context: Context, throttle_ms: int) -> FetchResponse:
    """An empty response. A new session is closed: its client does not know the partitions' state, and opens another one."""
    if context.session is not None and not context.incremental:
        node.sessions.close(context.session)
        return FetchResponse(throttle_time_ms=throttle_ms)
    return FetchResponse(session_id=context.session_id, throttle_time_ms=throttle_ms)


# Waiting for bytes.


def _wait(
    node: Node,
    call: RequestArrived[FetchRequest],
    reader: Reader,
    context: Context,
    found: FetchedPartitions,
    changed: dict[TopicPartition, None],
) -> FetchResponse | Deferred:
    """Adds new bytes of a partition to those of the others; reads all partitions again only if that may be enough."""
    if context.session is None and reader.replica < 0 and not node.sessions.waiting.admit(call.connection, len(found.answers)):
        return _respond(node, call, context, found)
    waiting = Waiting(node, call, reader, context, found)

    def wait(operation: DelayedOperation) -> FetchResponse | Deferred:
        pending = node.context.delay(call, operation, node.context.now_ms + call.body.max_wait_ms)
        for partition in changed:
            node.context.delayed.poke(partition)
        return pending

    if context.session is not None:
        waiting.hold(found.answers)
        context.session.stirred = {}
        keys = (context.session, *waiting.copies)
        return wait(DelayedOperation("fetch", waiting.finish, keys=keys, ready=waiting.ready))
    if not call.in_turns:
        keys = tuple(waiting.hold(found.answers))
        return wait(DelayedOperation("fetch", waiting.finish, keys=keys, ready=waiting.ready, poked=waiting.poked))
    answer: FetchResponse | Deferred = node.context.turns.answer(call, _watch_in_turns(node, waiting, found, changed), wait)
    return answer


def _watch_in_turns(
    node: Node, waiting: "Waiting", found: FetchedPartitions, changed: dict[TopicPartition, None]
) -> Generator[int, None, DelayedOperation]:
    """An operation that watches all partitions. Events until then are in ``changed``."""
    operation, delayed = DelayedOperation("fetch", waiting.finish), node.context.delayed
    node.sessions.changes.append(changed)
    try:
        for some in portions(found.answers, lambda each: 1):
            delayed.watch(operation, waiting.hold(some))
            yield WEIGHT * len(some)
    except BaseException:
        # The connection is closed, or a topic is gone.
        delayed.forget(operation)
        raise
    finally:
        node.sessions.changes = [other for other in node.sessions.changes if other is not changed]
    operation.ready, operation.poked = waiting.ready, waiting.poked
    return operation


class Waiting:
    """A waiting fetch: its data so far by partition, and the partitions with events since it last looked."""

    __slots__ = ("_asked", "_call", "_context", "_held", "_node", "_reader", "_request", "_total", "poked")

    def __init__(self, node: Node, call: RequestArrived[FetchRequest], reader: Reader, context: Context, found: FetchedPartitions) -> None:
        self._node, self._call, self._reader, self._context = node, call, reader, context
        self._request = call.body
        #: Bytes of each partition in this response.
        self._held: dict[Wanted, int] = {}
        self._total = found.bytes
        #: Without a session: requested partitions by partition, and poked keys: partitions, or (for followers) their appends.
        self._asked: dict[TopicPartition, list[Wanted]] = {}
        self.poked: list[Any] = []

    @property
    def copies(self) -> list[Any]:
        """Key for the recall of a follower's fetches."""
        return [("copies", self._reader.replica)] if self._reader.replica >= 0 else []

    def hold(self, answers: list[tuple[Wanted, PartitionData]]) -> list[Any]:
        """Waits for more of these partitions, too. Returns what to watch for that. Raises: UnknownTopicId."""
        self._held |= {wanted: len(data.records or b"") for wanted, data in answers}
        if self._context.session is not None:
            return []
        partitions = []
        for wanted, _ in answers:
            partition = TopicPartition(_name(self._node, wanted.topic), wanted.ask.partition)
            self._asked.setdefault(partition, []).append(wanted)
            partitions.append(partition)
        appended = [("appended", partition) for partition in partitions] if self._reader.replica >= 0 else []
        return [*partitions, *appended, *self.copies]

    def ready(self) -> bool:
        node, reader, request = self._node, self._reader, self._request
        stirred = self._stirred()
        enough = _enough(request, reader)
        if enough <= 1:
            return any(_has_news(node, reader, wanted) for wanted in stirred)
        for wanted in stirred:
            data = _read(node, reader, wanted, reader.bytes_max, at_least_one=True)
            if _urgent(data) or _is_complete(node, reader, wanted, data):
                return True
            now = len(data.records or b"")
            self._total += now - self._held.get(wanted, 0)
            self._held[wanted] = now
        if self._total < enough:
            return False
        all_of_it = self._read_all()
        return all_of_it.urgent or all_of_it.bytes >= enough

    def finish(self, expired: bool) -> None:
        self._node.sessions.waiting.leave(self._call.connection)
        response = _read_again(self._node, self._call, self._reader, self._context)
        if response is not PENDING:
            self._node.context.answer(self._call, response)

    def _read_all(self) -> FetchedPartitions:
        return _read_all(self._node, self._reader, self._context, self._context.active())

    def _stirred(self) -> list[Wanted]:
        session = self._context.session
        if session is not None:
            stirred, session.stirred = session.stirred, {}
            return list(stirred)
        key = self.poked.pop()
        return self._asked[key if isinstance(key, TopicPartition) else key[1]]


def _has_news(node: Node, reader: Reader, wanted: Wanted) -> bool:
    """Whether a partition has data, an error, or another leader."""
    ask: FetchPartition = wanted.ask
    try:
        held = _held(node, reader, wanted)
    except KafkaError:
        return True
    if _awaits_marks(node, reader, wanted, held.high_watermark, held.deleted_to if isinstance(held, Leader) else 0):
        return True
    if _held_up(node, held, reader.replica):
        return ask.fetch_offset < held.log.start_offset
    return _end(held, reader) > ask.fetch_offset or ask.fetch_offset < held.log.start_offset
