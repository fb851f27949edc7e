"""AlterPartitionReassignments: on the controller; starts or cancels reassignments.

Behaviour: each partition succeeds or fails alone. Answered when the store has the request; the reassignment completes later, when all new
replicas are in sync (``controller/reassignment.py``). More partitions of one topic than its node has room for are refused with
POLICY_VIOLATION. Null replicas cancel, NO_REASSIGNMENT_IN_PROGRESS without one. Only live brokers can be added. A partition named twice is
INVALID_REQUEST.

Versions: from 1 on a request can forbid a change of the replication factor (INVALID_REPLICATION_FACTOR).

Differences from Kafka: Kafka takes the last of two entries for one partition. A second request starts from the replicas before the first,
as with ZooKeeper, not from those of both. Source: KIP-455, KIP-860.
"""

from collections.abc import Generator

from ottla.base.ids import TopicPartition
from ottla.base.ports import Op
from ottla.broker.apis.store_writes import Writes
from ottla.broker.controller.reassignment import Move, begun, cancelled, has_room, writes
from ottla.broker.controller.reassignment_driver import MOVES_AT_ONCE, taken_out
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import Deferred, handles, whole_error
from ottla.broker.node import Node
from ottla.broker.turns import counted, free_counted
from ottla.wire import errors
from ottla.wire.errors import KafkaError
from ottla.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)

NO_ROOM = "so many partitions of the topic are on their way that its node would be larger than the store takes; wait until some are done"
#: Of a partition in a turn.
WEIGHT = 9
#: The request and result of one partition.
Asked = tuple[ReassignablePartition, ReassignablePartitionResponse]


@handles(AlterPartitionReassignmentsRequest, (0, 1), refuse=whole_error(AlterPartitionReassignmentsResponse), at_controller=True)
def alter_partition_reassignments(
    node: Node, call: RequestArrived[AlterPartitionReassignmentsRequest]
) -> AlterPartitionReassignmentsResponse | Deferred:
    pending = Writes(node, call)
    return pending.answer_in_turns(_work(node, call, pending), call.body.timeout_ms)


def _work(
    node: Node, call: RequestArrived[AlterPartitionReassignmentsRequest], pending: Writes
) -> Generator[int, None, AlterPartitionReassignmentsResponse]:
    request = call.body
    may_change = request.allow_replication_factor_change
    response = AlterPartitionReassignmentsResponse(allow_replication_factor_change=may_change)
    times = yield from counted((topic.name, requested.partition_index) for topic in request.topics for requested in topic.partitions)
    for topic in request.topics:
        answers = [ReassignablePartitionResponse(partition_index=requested.partition_index) for requested in topic.partitions]
        response.responses.append(ReassignableTopicResponse(name=topic.name, partitions=answers))
        once: list[Asked] = []
        for requested, answer in zip(topic.partitions, answers, strict=True):
            if times[topic.name, requested.partition_index] > 1:
                _note(answer, errors.InvalidRequest(f"{topic.name}-{requested.partition_index} is named more than once in this request"))
            else:
                once.append((requested, answer))
        yield len(answers)
        for first in range(0, len(once), MOVES_AT_ONCE):
            some = once[first : first + MOVES_AT_ONCE]
            _write(node, pending, topic.name, some, may_change=may_change)
            yield WEIGHT * len(some)
    free_counted(node.context, times)
    return response


def _write(node: Node, pending: Writes, name: str, asked: list[Asked], *, may_change: bool) -> None:
    """Writes partitions of one topic together, because they share a store node."""

    def plan() -> list[Op]:
        moves: dict[int, Move] = {}
        for requested, answer in asked:
            _note(answer, None)
            try:
                move = _moved(node, name, requested, may_change=may_change)
            except KafkaError as error:
                _note(answer, error)
                continue
            if move is not None:
                moves[requested.partition_index] = move
        changed = writes(node.context.image.topics[name], moves, by_request=True) if moves else []
        if any(move.begins for move in moves.values()) and not has_room(changed):
            for requested, answer in asked:
                if not answer.error_code and requested.partition_index in moves and moves[requested.partition_index].begins:
                    del moves[requested.partition_index]
                    _note(answer, errors.PolicyViolation(NO_ROOM))
            changed = writes(node.context.image.topics[name], moves, by_request=True) if moves else []
        told = [TopicPartition(name, requested.partition_index) for requested, answer in asked if not answer.error_code]
        # In this order, so that no broker sees the change while the store still has another request.
        return (taken_out(node.context.image, told) if node.context.image.requested_moves else []) + changed

    def done(error: KafkaError | None) -> None:
        for _, answer in asked:
            if error is not None and not answer.error_code:
                _note(answer, error)

    ops = plan()
    if ops:
        pending.add(ops, done, again=plan)


def _moved(node: Node, name: str, requested: ReassignablePartition, *, may_change: bool) -> Move | None:
    topic = node.context.image.topics.get(name)
    if topic is None:
        raise errors.UnknownTopicOrPartition(f"there is no topic {name!r}")
    number = requested.partition_index
    if requested.replicas is None:
        return cancelled(node.context.image, topic, number, options=node.context.topic_options)
    return begun(node.context.image, topic, number, requested.replicas, factor_may_change=may_change)


def _note(answer: ReassignablePartitionResponse, error: KafkaError | None) -> None:
    answer.error_code, answer.error_message = (errors.NONE, None) if error is None else (error.code, str(error))
