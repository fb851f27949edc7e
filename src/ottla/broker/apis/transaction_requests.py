"""Functions shared by the handlers of requests about transactions."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from ottla.base.ids import TopicPartition
from ottla.broker import effects
from ottla.broker.delayed import DelayedOperation
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import NO_RESPONSE, PENDING, Deferred
from ottla.broker.node import Node
from ottla.broker.transactions.transaction import Identity
from ottla.broker.transactions.verification import Held, refusal_of_code
from ottla.wire import errors
from ottla.wire.errors import KafkaError

#: First versions of InitProducerId, and of AddPartitionsToTxn, AddOffsetsToTxn and EndTxn, that know PRODUCER_FENCED.
INIT_FENCED_SINCE, FENCED_SINCE = 4, 2


class NamedPartitions(Protocol):
    """Partitions of one topic in a request."""

    name: str
    partitions: list[int]


def partitions_of(topics: Iterable[NamedPartitions]) -> list[TopicPartition]:
    """Each partition once, in the order of the request."""
    return list(dict.fromkeys(TopicPartition(topic.name, number) for topic in topics for number in topic.partitions))


def check_id(transactional_id: str | None) -> str:
    """Raises: InvalidRequest."""
    if not transactional_id:
        raise errors.InvalidRequest("a transactional id has at least one character")
    return transactional_id


def code_for(error: KafkaError, version: int, fenced_since: int) -> int:
    """The code of an error in a version of a request: older ones say INVALID_PRODUCER_EPOCH for PRODUCER_FENCED. Source: KIP-588."""
    if error.code == errors.ProducerFenced.code and version < fenced_since:
        return errors.InvalidProducerEpoch.code
    return error.code


def when_verified(
    node: Node,
    call: RequestArrived[Any],
    transactional_id: str,
    identity: Identity,
    held: Mapping[TopicPartition, Held],
    *,
    add: bool,
    abortable: bool,
    then: Callable[[Mapping[TopicPartition, KafkaError]], Any],
) -> Deferred:
    """Verifies, or adds, the partitions whose batches are held; then answers with ``then(errors of partitions)``, which may wait again.

    A connection that closes meanwhile drops the request.
    """
    context = node.context
    operation = DelayedOperation("verification of a transaction", lambda expired: None)

    def go_on(codes: Mapping[TopicPartition, int]) -> None:
        refused: dict[TopicPartition, KafkaError] = {}
        for partition, each in held.items():
            if codes[partition]:
                refused[partition] = refusal_of_code(codes[partition], abortable=abortable)
            elif node.partitions.leaders.get(partition) is not each.leader:
                refused[partition] = errors.NotLeaderOrFollower(f"{partition} moved while its transaction was verified")
        answer = then(refused)
        if answer is NO_RESPONSE:
            context.effects.append(effects.Release(connection=call.connection, ticket=call.ticket))
        elif answer is not PENDING:
            context.respond(call, answer)

    def done(codes: Mapping[TopicPartition, int]) -> None:
        try:
            if not operation.done:
                context.cancel_delayed(call)
                context.isolation.run(call, go_on, codes)
        finally:
            for each in held.values():
                node.verification.end(each, identity.producer_id)

    context.delay(call, operation, None)
    node.verification.ask(node.transactions, transactional_id, identity, held, add=add, done=done)
    return PENDING
