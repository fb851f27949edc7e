"""Functions shared by the handlers of requests about transactions."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ottla.base.ids import TopicPartition
from ottla.broker.delayed import DelayedOperation
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import NO_RESPONSE, PENDING, Deferred, Resp
from ottla.broker.node import Node
from ottla.broker.transactions.transaction import ProducerIdentity
from ottla.broker.transactions.transactions import completion
from ottla.broker.transactions.verification import Held, refusal_of_code
from ottla.wire import errors
from ottla.wire.errors import KafkaError

#: First versions of InitProducerId, and of AddPartitionsToTxn, AddOffsetsToTxn and EndTxn, that know PRODUCER_FENCED.
INIT_FENCED_SINCE, FENCED_SINCE = 4, 2


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


def when_completed(
    node: Node, call: RequestArrived[Any], transactional_ids: Iterable[str], then: Callable[[], Resp | Deferred]
) -> Resp | Deferred:
    """The result of ``then()``, once no transaction of these ids is being completed, or after add.partitions.to.txn.retry.backoff.max.ms.

    A client begins its next transaction as soon as the decision about the last one is on disk. The markers follow a few milliseconds
    later, so that waiting for them is quicker than an error and a backoff.
    """
    machines = [(shard.machine, each) for each in transactional_ids if (shard := node.transactions.shard_for(each)) is not None]
    waiting = [(machine, each) for machine, each in machines if machine.decided(each) is not None]
    if not waiting:
        return then()

    def finish(expired: bool) -> None:
        node.context.cancel_delayed(call)
        try:
            answer = then()
        except KafkaError as error:
            answer = node.context.turns.refused(call, error)
        if answer is not PENDING:
            node.context.answer(call, answer)

    def ready() -> bool:
        return all(machine.decided(each) is None for machine, each in waiting)

    operation = DelayedOperation("completion of a transaction", finish, keys=[completion(each) for _, each in waiting], ready=ready)
    return node.context.delay(call, operation, node.context.now_ms + node.context.options.add_partitions_to_txn_retry_backoff_max_ms)


def when_verified(
    node: Node,
    call: RequestArrived[Any],
    transactional_id: str,
    identity: ProducerIdentity,
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
            context.release(call)
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
