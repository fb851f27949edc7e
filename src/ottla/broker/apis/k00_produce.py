"""Produce: append batches to the partitions led here.

Behaviour: exactly one batch of format 2 per partition. acks=1 is answered when the batch is in the page cache; acks=-1 when it is on the
disks of all in-sync replicas, or with NOT_ENOUGH_REPLICAS_AFTER_APPEND if there are too few of them; acks=0 is not answered, and an error
closes the connection. Each partition succeeds or fails alone. If a request names a partition twice, only its last batch counts. Below the
disk reserve every append is refused with KAFKA_STORAGE_ERROR and a message with the free bytes. Clients cannot write to internal topics
(INVALID_TOPIC_EXCEPTION).

Versions: 0 to 2 are advertised, because librdkafka before 2.11 otherwise does not compress (KAFKA-18659), and refused as in Kafka 4.

Transactions: before the first batch of a transaction is appended, its coordinator confirms that the transaction has the partition, and
from version 12 on adds it (``transactions/verification.py``). If the coordinator cannot be asked, the error is NOT_ENOUGH_REPLICAS, which
every producer retries. Below version 11 INVALID_TXN_STATE takes the place of TRANSACTION_ABORTABLE.

Difference from Kafka: a damaged batch of an idempotent producer is answered, then the connection is closed, and batches that the producer
has sent behind it are not appended. A partition that does not know the producer would take one of them as the first (decision 70).

Schemas: batches for topics with ``ottla.value.schema.validation`` or ``ottla.key.schema.validation`` are validated first
(``schema_validation.py``). If a topic gets such a setting, or is created with it, while a request waits, its batch was not validated and is
refused with NOT_ENOUGH_REPLICAS, which every producer retries.

Access: topics to which the client may not write are refused, the others are written.

Source: KIP-98, KIP-467, KIP-516, KIP-890, KIP-951.
"""

from collections.abc import Container, Iterator, Mapping
from typing import NamedTuple, NoReturn

from ottla.base.ids import TopicId, TopicPartition
from ottla.broker import effects
from ottla.broker.apis.partition_leaders import endpoints_of, leader_hint
from ottla.broker.apis.partition_requests import by_topic
from ottla.broker.apis.schema_validation import Refused, when_schemas_known
from ottla.broker.apis.transaction_requests import when_verified
from ottla.broker.controller.topics import INTERNAL
from ottla.broker.delayed import DelayedOperation
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import NO_RESPONSE, PENDING, Deferred, handles
from ottla.broker.node import Node
from ottla.broker.replica.leader import Accepted, Leader
from ottla.broker.security.requirements import REQUIREMENTS
from ottla.broker.transactions.transaction import ProducerIdentity
from ottla.broker.transactions.verification import Held
from ottla.records.batch import TRANSACTIONAL_BIT, BatchHeader, crc_ok, parse_header
from ottla.records.errors import InvalidBatch, RecordsError
from ottla.wire import errors
from ottla.wire.errors import KafkaError
from ottla.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

#: First version that allows zstd. Source: KIP-110.
ZSTD_SINCE = 7
ZSTD = 4
HINTS_SINCE = 10
#: First versions whose client knows TRANSACTION_ABORTABLE, and does not add partitions to its transaction itself. Source: KIP-890.
ABORTABLE_SINCE, ADDS_PARTITIONS_SINCE = 11, 12
BY_ID_SINCE = 13
#: Connections closed after damage that are remembered: until the requests that have arrived are handled, far fewer than these.
CLOSED_AFTER_DAMAGE_MAX = 1_000
#: Position of the producer id in a batch, and its bytes in a batch without one.
PRODUCER_ID_AT, NO_PRODUCER_ID = slice(43, 51), b"\xff" * 8
TRANSACTIONAL_IDS, TOPICS = REQUIREMENTS[0].parts["transactional id"], REQUIREMENTS[0].parts["topics"]

#: A batch, its leader, and the producer's identity.
TransactionalBatch = tuple[Leader, BatchHeader, ProducerIdentity]


class InTransaction(NamedTuple):
    """Verification of the batches of a request with a transactional id."""

    #: Batches that were verified.
    held: Mapping[TopicPartition, Held]
    #: Errors of those whose verification failed.
    refused: Mapping[TopicPartition, KafkaError]
    #: Whether the first batch of a transaction needs a verification.
    verify: bool


#: The partition's response, its leader, and the offset after the batch.
Written = tuple[PartitionProduceResponse, Leader, int]


def refuse(call: RequestArrived[ProduceRequest], error: KafkaError) -> ProduceResponse:
    """The same error for every partition."""
    return ProduceResponse(responses=[_refused_topic(topic, error) for topic in call.body.topic_data])


@handles(ProduceRequest, (0, 13), refuse=refuse)
def produce(node: Node, call: RequestArrived[ProduceRequest]) -> ProduceResponse | Deferred:
    request = call.body
    if request.acks not in (-1, 0, 1):
        return refuse(call, errors.InvalidRequiredAcks(f"acks is {request.acks}; it must be -1, 0 or 1"))
    topics = request.topic_data
    if len(topics) != 1 or len(topics[0].partition_data) != 1:
        topics = _distinct(topics)
    refused: list[TopicProduceResponse] = []
    if node.context.access is not None:
        topics, refused = _permitted(node, call, topics)
    if node.schemas.topics:
        return _validated(node, call, topics, refused)
    return _accepted(node, call, topics, refused, frozenset())


def _accepted(
    node: Node,
    call: RequestArrived[ProduceRequest],
    topics: list[TopicProduceData],
    refused: list[TopicProduceResponse],
    validated: Container[TopicPartition],
) -> ProduceResponse | Deferred:
    """``validated``: partitions whose batches have valid schemas."""
    transactional_id = call.body.transactional_id
    if transactional_id is not None:
        return _produce_in_transaction(node, call, transactional_id, topics, refused, validated)
    return _appended(node, call, topics, None, refused, validated)


def _validated(
    node: Node, call: RequestArrived[ProduceRequest], topics: list[TopicProduceData], refused: list[TopicProduceResponse]
) -> ProduceResponse | Deferred:
    """Appends the batches whose schemas are registered, and refuses the others of topics with validation."""
    batches: list[tuple[Leader, memoryview]] = []
    for topic in topics:
        name = topic.name if call.api_version < BY_ID_SINCE else _name(node, topic)
        if name in node.schemas.topics and name not in INTERNAL:
            for data in topic.partition_data:
                leader = node.partitions.leaders.get(TopicPartition(name, data.index))
                # Without a leader or records, the batch is refused when it would be appended.
                if leader is not None and isinstance(data.records, memoryview) and len(data.records):
                    batches.append((leader, data.records))

    validated = {leader.partition for leader, _ in batches}
    rules = _rules(node)

    def then(wrong: Refused) -> ProduceResponse | Deferred:
        left = _still_permitted(node, call, topics, refused, rules)
        return _accepted(node, call, _without(node, call, left, wrong, refused) if wrong else left, refused, validated)

    if not batches and call.connection not in node.schemas.waiting:
        return _accepted(node, call, topics, refused, validated)
    answer: ProduceResponse | Deferred = when_schemas_known(node, call, batches, keep=lambda: _keep(topics), then=then)
    return answer


def _without(
    node: Node,
    call: RequestArrived[ProduceRequest],
    topics: list[TopicProduceData],
    wrong: Refused,
    refused: list[TopicProduceResponse],
) -> list[TopicProduceData]:
    """The topics without the batches in ``wrong``, whose refusals are added to ``refused``."""
    left: list[TopicProduceData] = []
    for topic in topics:
        name = topic.name if call.api_version < BY_ID_SINCE else _name(node, topic)
        good: list[PartitionProduceData] = []
        bad: list[PartitionProduceResponse] = []
        for data in topic.partition_data:
            error = None if name is None else wrong.get(TopicPartition(name, data.index))
            if error is None:
                good.append(data)
            else:
                _count_failed(node, name, data, error)
                bad.append(_refused(data.index, error))
        if bad:
            refused.append(TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=bad))
        if good or not bad:
            left.append(TopicProduceData(name=topic.name, topic_id=topic.topic_id, partition_data=good))
    return left


def _keep(topics: list[TopicProduceData]) -> None:
    """Copies the records: the buffer of the request is used again after this step."""
    for topic in topics:
        for data in topic.partition_data:
            data.records = memoryview(bytearray(data.records)) if isinstance(data.records, memoryview) else data.records


def _permitted(
    node: Node, call: RequestArrived[ProduceRequest], topics: list[TopicProduceData]
) -> tuple[list[TopicProduceData], list[TopicProduceResponse]]:
    """The topics to which the client may write, and refusals of the others."""
    context, transactional_id = node.context, call.body.transactional_id
    if transactional_id is not None:
        wrong = context.refusals(call, TRANSACTIONAL_IDS, (transactional_id,))
        if wrong:
            return [], [_refused_topic(topic, wrong[transactional_id]) for topic in topics]
    names = [topic.name if call.api_version < BY_ID_SINCE else _name(node, topic) for topic in topics]
    refused = context.refusals(call, TOPICS, (name for name in names if name is not None))
    if not refused:
        return topics, []
    named = list(zip(names, topics, strict=True))
    return (
        [topic for name, topic in named if name not in refused],
        [_refused_topic(topic, refused[name]) for name, topic in named if name is not None and name in refused],
    )


def _rules(node: Node) -> int:
    """A number that changes with the access rules."""
    return 0 if node.context.access is None else node.context.access.changes


def _still_permitted(
    node: Node, call: RequestArrived[ProduceRequest], topics: list[TopicProduceData], refused: list[TopicProduceResponse], rules: int
) -> list[TopicProduceData]:
    """After a wait: the topics to which the client may write. Refusals of the others are added to ``refused``."""
    if rules == _rules(node):
        return topics
    left, no_more = _permitted(node, call, topics)
    refused += no_more
    return left


def _refused_topic(topic: TopicProduceData, error: KafkaError) -> TopicProduceResponse:
    answers = [_refused(data.index, error) for data in topic.partition_data]
    return TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=answers)


def _produce_in_transaction(
    node: Node,
    call: RequestArrived[ProduceRequest],
    transactional_id: str,
    topics: list[TopicProduceData],
    refused: list[TopicProduceResponse],
    validated: Container[TopicPartition],
) -> ProduceResponse | Deferred:
    """Appends batches of a transaction; waits for the coordinator before the first one of a partition."""
    batches = list(_transactional(node, call, topics))
    identities = {identity for _, _, identity in batches}
    if len(identities) > 1:
        if call.body.acks == 0:
            return _closed(node, call, "batches of several producers")
        raise errors.InvalidProducerIdMapping("a produce request has batches of one producer")
    add = call.api_version >= ADDS_PARTITIONS_SINCE
    verify = add or node.context.options.transaction_partition_verification_enable
    held = _held(node, batches, add=add) if verify else {}
    if not held:
        return _appended(node, call, topics, InTransaction({}, {}, verify), refused, validated)
    _keep(topics)
    [identity] = identities
    rules = _rules(node)

    def then(unverified: Mapping[TopicPartition, KafkaError]) -> ProduceResponse | Deferred:
        left = _still_permitted(node, call, topics, refused, rules)
        return _appended(node, call, left, InTransaction(held, unverified, verify), refused, validated)

    return when_verified(
        node,
        call,
        transactional_id,
        identity,
        held,
        add=add,
        abortable=call.api_version >= ABORTABLE_SINCE,
        then=then,
    )


def _held(node: Node, batches: list[TransactionalBatch], *, add: bool) -> dict[TopicPartition, Held]:
    """Batches that must be verified first, and then all others of the request: they wait with it, and later ones must not overtake them."""
    found: dict[TopicPartition, Held] = {}
    others: list[TransactionalBatch] = []
    for batch in batches:
        leader, header, identity = batch
        try:
            held = node.verification.begin(leader, identity, header.base_sequence, add=add)
        except errors.InvalidProducerEpoch:
            # Refused when it is appended.
            continue
        if held is None:
            others.append(batch)
        else:
            found[leader.partition] = held
    if found:
        found |= {leader.partition: node.verification.wait(leader, identity) for leader, _, identity in others}
    return found


def _transactional(node: Node, call: RequestArrived[ProduceRequest], topics: list[TopicProduceData]) -> Iterator[TransactionalBatch]:
    """Transactional batches whose partition is led here, and which are not damaged; others are refused when they are appended."""
    for topic in topics:
        name = topic.name if call.api_version < BY_ID_SINCE else _name(node, topic)
        for data in topic.partition_data:
            leader = node.partitions.leaders.get(TopicPartition(name, data.index)) if name is not None else None
            if leader is None or not isinstance(data.records, memoryview):
                continue
            try:
                header = parse_header(data.records)
            except RecordsError:
                continue
            if not (header.is_transactional and header.has_producer) or name in INTERNAL:
                continue
            # A damaged header must not begin a verification. Each batch is checked once more when it is appended.
            if leader.in_transaction(header.producer_id, header.producer_epoch) or crc_ok(data.records):
                yield leader, header, ProducerIdentity(header.producer_id, header.producer_epoch)


def _appended(
    node: Node,
    call: RequestArrived[ProduceRequest],
    topics: list[TopicProduceData],
    transaction: InTransaction | None,
    refused: list[TopicProduceResponse],
    validated: Container[TopicPartition],
) -> ProduceResponse | Deferred:
    """Appends the batches and answers; ``transaction`` is None without a transactional id.

    ``refused``: refusals of topics to which the client may not write, and of batches whose schemas are not valid. ``validated``: partitions
    whose batches have valid schemas.
    """
    if node.closed_after_damage and call.connection in node.closed_after_damage:
        return PENDING
    request = call.body
    written: list[Written] = []
    failed: list[TopicPartition] = []
    responses = refused
    partly_refused = {(one.name, one.topic_id): one for one in refused} if refused else {}
    for topic_refused in refused:
        failed += [TopicPartition(topic_refused.name, answer.index) for answer in topic_refused.partition_responses]
    for topic in topics:
        name = topic.name if call.api_version < BY_ID_SINCE else _name(node, topic)
        answers = [_append(node, call, name, topic, data, written, transaction, validated) for data in topic.partition_data]
        failed += [TopicPartition(name or "", answer.index) for answer in answers if answer.error_code]
        begun = partly_refused.get((topic.name, topic.topic_id)) if partly_refused else None
        if begun is None:
            responses.append(TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=answers))
        else:
            begun.partition_responses = [*begun.partition_responses, *answers]
    response = ProduceResponse(responses=responses)
    if failed and node.closed_after_damage and call.connection in node.closed_after_damage:
        return _closed_after_damage(node, call, response if request.acks == 1 or (request.acks == -1 and _committed(written)) else None)
    if request.acks == 0:
        if failed:
            return _closed(node, call, str(failed[0]))
        return NO_RESPONSE
    if failed and call.api_version >= HINTS_SINCE:
        response.node_endpoints = endpoints_of(node, call, failed)
    if request.acks == -1 and not _committed(written):
        return _wait(node, call, response, written)
    return response


def _closed(node: Node, call: RequestArrived[ProduceRequest], what: str) -> Deferred:
    """Closes the connection after an error of acks=0."""
    node.context.effects.append(effects.Close(connection=call.connection, reason=f"produce with acks=0 failed for {what}"))
    return PENDING


def _closed_after_damage(node: Node, call: RequestArrived[ProduceRequest], response: ProduceResponse | None) -> Deferred:
    """Answers, unless other partitions of the request must be waited for, and closes the connection."""
    if response is not None:
        node.context.respond(call, response)
    reason = "a batch of an idempotent producer arrived damaged, and none behind it must take its place; the producer sends all again"
    node.context.effects.append(effects.Close(connection=call.connection, reason=reason))
    return PENDING


def _distinct(topics: list[TopicProduceData]) -> list[TopicProduceData]:
    """The topics with each partition once."""
    last = by_topic(((topic.name, topic.topic_id), data.index, data) for topic in topics for data in topic.partition_data)
    return [TopicProduceData(name=name, topic_id=topic_id, partition_data=list(data.values())) for (name, topic_id), data in last.items()]


def _append(
    node: Node,
    call: RequestArrived[ProduceRequest],
    name: str | None,
    topic: TopicProduceData,
    data: PartitionProduceData,
    written: list[Written],
    transaction: InTransaction | None,
    validated: Container[TopicPartition],
) -> PartitionProduceResponse:
    context, shutdown = node.context, node.controlled_shutdown
    try:
        if name is None:
            raise errors.UnknownTopicId(f"no topic has the id {topic.topic_id.hex()}")
        leader = node.partitions.leaders.get((name, data.index)) or node.partitions.leader(name, data.index)  # type: ignore[call-overload]
        if name in INTERNAL:
            raise errors.InvalidTopic(f"{name} is an internal topic; only brokers write to it")
        if shutdown.begun and shutdown.refuses(leader, call.body.acks):
            raise errors.NotLeaderOrFollower(f"broker {context.broker_id} is about to stop, and hands {leader.partition} over")
        space = context.space.get(leader.directory.root)
        if space is not None and space.free_bytes < context.options.disk_reserve_bytes:
            _refuse_space(node, leader)
        records = _records(node, call, leader, data, validated)
        size = len(records)
        try:
            if transaction is not None:
                accepted = _append_in_transaction(node, call, leader, records, transaction)
            elif size > 22 and records[22] & TRANSACTIONAL_BIT:
                raise errors.TransactionalIdAuthorizationFailed("a batch of a transaction needs the transactional id in its request")
            else:
                accepted = leader.append(records, acks=call.body.acks, wall_ms=context.wall_ms)
        except OSError as error:
            raise node.partitions.append_failed(leader, error) from error
    except KafkaError as error:
        _count_failed(node, name, data, error)
        answer = _refused(data.index, error)
        if isinstance(error, errors.CorruptMessage) and _is_idempotent(call, data):
            _close_after_damage(node, call)
        if name is not None and call.api_version >= HINTS_SINCE and isinstance(error, errors.NotLeaderOrFollower):
            answer.current_leader = leader_hint(node, TopicPartition(name, data.index))
        return answer
    traffic = leader.traffic
    traffic.produce_requests += 1
    if accepted.appended:
        traffic.messages_in += accepted.end_offset - accepted.base_offset
        traffic.bytes_in += size
        if space is not None:
            space.free_bytes -= size
        node.partitions.wrote(leader)
    answer = PartitionProduceResponse(
        index=data.index,
        base_offset=accepted.base_offset,
        log_append_time_ms=accepted.log_append_time_ms,
        log_start_offset=leader.log.start_offset,
    )
    written.append((answer, leader, accepted.end_offset))
    return answer


def _records(
    node: Node, call: RequestArrived[ProduceRequest], leader: Leader, data: PartitionProduceData, validated: Container[TopicPartition]
) -> memoryview:
    """The batch. Raises: KafkaError for one that cannot be appended whatever it has."""
    records = data.records
    if records is None or len(records) == 0:
        raise errors.InvalidRecord("a produce request carries exactly one record batch per partition")
    assert isinstance(records, memoryview), "a decoded request carries its records as a memoryview"
    if leader.partition.topic in node.schemas.topics and leader.partition not in validated:
        raise errors.NotEnoughReplicas(f"the validation of schemas of {leader.partition} began while the request waited, try again")
    if call.api_version < ZSTD_SINCE and len(records) > 22 and records[22] & 7 == ZSTD:
        raise errors.UnsupportedCompressionType(f"zstd needs Produce version {ZSTD_SINCE}; this request has {call.api_version}")
    return records


def _is_idempotent(call: RequestArrived[ProduceRequest], data: PartitionProduceData) -> bool:
    """Whether a damaged batch seems to be that of a producer with sequence numbers."""
    records = data.records
    numbered = isinstance(records, memoryview) and bytes(records[PRODUCER_ID_AT]) not in (b"", NO_PRODUCER_ID)
    return numbered or call.body.transactional_id is not None


def _close_after_damage(node: Node, call: RequestArrived[ProduceRequest]) -> None:
    node.closed_after_damage[call.connection] = None
    if len(node.closed_after_damage) > CLOSED_AFTER_DAMAGE_MAX:
        del node.closed_after_damage[next(iter(node.closed_after_damage))]


def _count_failed(node: Node, name: str | None, data: PartitionProduceData, error: KafkaError) -> None:
    traffic = node.context.traffic.named(name)
    traffic.produce_requests += 1
    traffic.failed_produce_requests += 1
    if isinstance(error, errors.MessageTooLarge):
        traffic.bytes_rejected += len(data.records or b"")


def _append_in_transaction(
    node: Node, call: RequestArrived[ProduceRequest], leader: Leader, records: memoryview, transaction: InTransaction
) -> Accepted:
    """Raises: as ``Leader.append``, and the error of the verification."""
    refused = transaction.refused.get(leader.partition)
    if refused is not None:
        raise refused
    held = transaction.held.get(leader.partition)
    guard = None if held is None else held.guard
    return leader.append(records, acks=call.body.acks, wall_ms=node.context.wall_ms, guard=guard, verify=transaction.verify)


def _name(node: Node, topic: TopicProduceData) -> str | None:
    found = node.context.image.topics_by_id.get(TopicId(topic.topic_id))
    return found.name if found else None


def _refuse_space(node: Node, leader: Leader) -> NoReturn:
    root = leader.directory.root
    raise errors.KafkaStorageError(
        f"{node.context.space[root].free_bytes} bytes are free on the disk of {root}, below the reserve of "
        f"{node.context.options.disk_reserve_bytes} (ottla.disk.reserve.bytes); delete topics or records, or lower retention"
    )


def _refused(index: int, error: KafkaError) -> PartitionProduceResponse:
    cause = error.__cause__
    faults = cause.record_errors if isinstance(cause, InvalidBatch) else ()
    return PartitionProduceResponse(
        index=index,
        error_code=error.code,
        base_offset=-1,
        log_append_time_ms=-1,
        log_start_offset=-1,
        record_errors=[BatchIndexAndErrorMessage(batch_index=place, batch_index_error_message=text) for place, text in faults],
        error_message=str(error),
    )


# Waiting for the in-sync replicas.


def _committed(written: list[Written]) -> bool:
    return all(leader.high_watermark >= end_offset for _, leader, end_offset in written)


class WaitingProduce:
    """A request with acks=all whose batches are appended and not committed yet."""

    __slots__ = ("_call", "_node", "_response", "_written")

    def __init__(self, node: Node, call: RequestArrived[ProduceRequest], response: ProduceResponse, written: list[Written]) -> None:
        self._node = node
        self._call = call
        self._response = response
        self._written = written

    def ready(self) -> bool:
        """Whether each batch is committed, or cannot be any more."""
        leaders = self._node.partitions.leaders
        for _, leader, end_offset in self._written:
            if leader.high_watermark < end_offset and leader.enough_in_sync and leaders.get(leader.partition) is leader:
                return False
        return True

    def finish(self, expired: bool) -> None:
        """Answers, with an error for each batch that is not committed."""
        node, call = self._node, self._call
        for answer, leader, end_offset in self._written:
            if leader.high_watermark >= end_offset:
                continue
            try:
                node.partitions.leader(*leader.partition)
                error = _not_committed(leader, call.body.timeout_ms)
            except KafkaError as gone:
                error = gone
            answer.error_code, answer.error_message, answer.base_offset = error.code, str(error), -1
        node.context.answer(call, self._response)


def _wait(node: Node, call: RequestArrived[ProduceRequest], response: ProduceResponse, written: list[Written]) -> Deferred:
    waiting = WaitingProduce(node, call, response, written)
    operation = DelayedOperation("produce", waiting.finish, keys=[leader.partition for _, leader, _ in written], ready=waiting.ready)
    return node.context.delay(call, operation, node.context.now_ms + max(call.body.timeout_ms, 0))


def _not_committed(leader: Leader, timeout_ms: int) -> KafkaError:
    if not leader.enough_in_sync:
        return errors.NotEnoughReplicasAfterAppend(f"{leader.partition} was written, but has {len(leader.isr)} in-sync replicas now")
    return errors.RequestTimedOut(f"{leader.partition} was not on the disk of every in-sync replica within {timeout_ms} ms")
