"""ListTransactions: the transactional ids that this broker coordinates.

Behaviour: filters of states, producer ids, durations (1) and ids (2) must all match. Names that are no states are returned, and match
nothing. A duration is the time since the start of the last transaction; an id that never had one has the longest, as in Kafka. A pattern
has RE2's syntax and must match the whole id. While a shard is being loaded the response is COORDINATOR_LOAD_IN_PROGRESS, because it would
be incomplete.

Source: KIP-664, KIP-994, KIP-1152.
"""

from collections.abc import Iterator

from ottla.broker.coordinator import ShardState
from ottla.broker.events import RequestArrived
from ottla.broker.groups.consumer.topic_patterns import compiled
from ottla.broker.handlers import handles, whole_error
from ottla.broker.node import Node
from ottla.broker.security.requirements import REQUIREMENTS
from ottla.broker.transactions.states import STATES
from ottla.broker.transactions.transaction import Transaction
from ottla.wire import errors
from ottla.wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse, TransactionState

TRANSACTIONAL_IDS = REQUIREMENTS[66].parts["transactional ids"]


@handles(ListTransactionsRequest, (0, 2), refuse=whole_error(ListTransactionsResponse))
def list_transactions(node: Node, call: RequestArrived[ListTransactionsRequest]) -> ListTransactionsResponse:
    request = call.body
    names = {state.value for state in STATES}
    states, producer_ids = set(request.state_filters), set(request.producer_id_filters)
    matches = compiled(request.transactional_id_pattern).fullmatch if request.transactional_id_pattern else None
    response = ListTransactionsResponse(unknown_state_filters=[name for name in request.state_filters if name not in names])
    wall_ms, duration_ms = node.context.wall_ms, request.duration_filter
    for found in _all(node):
        if (
            (not states or found.state.value in states)
            and (not producer_ids or found.producer_id in producer_ids)
            and (duration_ms < 0 or wall_ms - found.start_ms > duration_ms)
            and (matches is None or matches(found.transactional_id))
        ):
            listed = TransactionState(
                transactional_id=found.transactional_id, producer_id=found.producer_id, transaction_state=found.state.value
            )
            response.transaction_states.append(listed)
    hidden = node.context.refusals(call, TRANSACTIONAL_IDS, (each.transactional_id for each in response.transaction_states))
    if hidden:
        response.transaction_states = [each for each in response.transaction_states if each.transactional_id not in hidden]
    return response


def _all(node: Node) -> Iterator[Transaction]:
    """Raises: CoordinatorLoadInProgress."""
    for _, shard in sorted(node.transactions.shards.items()):
        if shard.state is ShardState.LOADING:
            raise errors.CoordinatorLoadInProgress(f"{shard.partition} is being loaded; try again")
        if shard.state is ShardState.ACTIVE:
            yield from (found for _, found in sorted(shard.machine.by_id.items()))
