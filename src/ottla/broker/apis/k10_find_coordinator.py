"""FindCoordinator: the broker that leads the partition of a group or of a transactional id.

Behaviour: the first request creates __consumer_offsets or __transaction_state; the error is COORDINATOR_NOT_AVAILABLE meanwhile, and while
the partition has no leader, or this broker leads it and has not opened its log yet. Any id is accepted, also of a group that does not
exist. Versions: 4 and later have several keys with an error each.

Difference from Kafka: keys of share groups are INVALID_REQUEST, as in a Kafka without them. Source: KIP-98, KIP-699.
"""

from collections.abc import Generator
from typing import Any

from ottla.broker import coordinator as coordinators
from ottla.broker.apis.partition_leaders import address_for, partition_view
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import Deferred, handles
from ottla.broker.node import Node
from ottla.broker.security.requirements import REQUIREMENTS
from ottla.wire import errors
from ottla.wire.errors import KafkaError
from ottla.wire.messages.find_coordinator import GROUP, TRANSACTION, Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

SEVERAL_SINCE = 4
NO_NODE = -1
#: What a key weighs in a turn.
WEIGHT = 4
GROUPS = REQUIREMENTS[10].parts["groups"]
TRANSACTIONAL_IDS = REQUIREMENTS[10].parts["transactional ids"]


def refuse(call: RequestArrived[FindCoordinatorRequest], error: KafkaError) -> FindCoordinatorResponse:
    keys = call.body.coordinator_keys if call.api_version >= SEVERAL_SINCE else [call.body.key]
    return _response(call, [_refused(key, error) for key in keys])


@handles(FindCoordinatorRequest, (0, 6), refuse=refuse)
def find_coordinator(node: Node, call: RequestArrived[FindCoordinatorRequest]) -> FindCoordinatorResponse | Deferred:
    request = call.body
    keys = request.coordinator_keys if call.api_version >= SEVERAL_SINCE else [request.key]

    def work() -> Generator[int, None, FindCoordinatorResponse]:
        found = []
        for key in keys:
            found.append(_found(node, call, key))
            yield WEIGHT
        return _response(call, found)

    answer: FindCoordinatorResponse | Deferred = node.context.turns.answer(call, work())
    return answer


def _found(node: Node, call: RequestArrived[FindCoordinatorRequest], key: str) -> Coordinator:
    try:
        return _coordinator(node, call, key)
    except KafkaError as error:
        return _refused(key, error)


def _coordinator(node: Node, call: RequestArrived[FindCoordinatorRequest], key: str) -> Coordinator:
    coordinator: coordinators.Coordinator[Any]
    if call.body.key_type == GROUP:
        node.context.demand(call, GROUPS, key)
        coordinator = node.groups
    elif call.body.key_type == TRANSACTION:
        node.context.demand(call, TRANSACTIONAL_IDS, key)
        coordinator = node.transactions
    else:
        raise errors.InvalidRequest(f"this broker coordinates nothing of type {call.body.key_type}")
    number = coordinator.partition_of(key)
    if number is None:
        try:
            coordinator.create()
        except KafkaError as error:
            raise errors.CoordinatorNotAvailable(f"{coordinator.topic} cannot be created: {error}") from error
        raise errors.CoordinatorNotAvailable(f"{coordinator.topic} is being created; try again")
    leader = node.context.image.brokers.get(partition_view(node, node.context.image.topics[coordinator.topic], number).leader)
    if leader is None:
        raise errors.CoordinatorNotAvailable(f"{coordinator.topic}-{number} has no leader at the moment; try again")
    if leader.broker == node.context.broker_id and coordinator.shard_for(key) is None:
        raise errors.CoordinatorNotAvailable(f"{coordinator.topic}-{number} is being opened; try again")
    address = address_for(node, call, leader)
    if address is None:
        raise errors.CoordinatorNotAvailable(f"broker {leader.broker} has no listener {call.origin.listener}, which this client uses")
    host, port = address
    return Coordinator(key=key, node_id=leader.broker, host=host, port=port, error_message=None)


def _refused(key: str, error: KafkaError) -> Coordinator:
    return Coordinator(key=key, node_id=NO_NODE, host="", port=NO_NODE, error_code=error.code, error_message=str(error))


def _response(call: RequestArrived[FindCoordinatorRequest], found: list[Coordinator]) -> FindCoordinatorResponse:
    if call.api_version >= SEVERAL_SINCE:
        return FindCoordinatorResponse(coordinators=found)
    one = found[0]
    return FindCoordinatorResponse(
        error_code=one.error_code, error_message=one.error_message, node_id=one.node_id, host=one.host, port=one.port
    )
