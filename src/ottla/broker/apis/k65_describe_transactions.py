"""DescribeTransactions: the state of transactional ids.

Behaviour: each id has its own error: TRANSACTIONAL_ID_NOT_FOUND, or NOT_COORDINATOR if another broker coordinates it. Once the outcome is
decided, the partitions are those that do not have their marker yet. The size of the response is limited: all ids of a broker, each named
once, always fit.

Ottla adds the client that used the id last, in tagged fields. The coordinator has it in memory only, so it is empty between a failover and
the client's next request. Source: KIP-664.
"""

from collections.abc import Generator

from ottla.base.readable import numbers_by_topic
from ottla.broker.apis.transaction_requests import check_id
from ottla.broker.coordinator import Shard, when_committed
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import Deferred, handles
from ottla.broker.node import Node
from ottla.broker.security.requirements import REQUIREMENTS
from ottla.broker.transactions.transactions import Transactions, footprint
from ottla.wire import errors
from ottla.wire.errors import KafkaError
from ottla.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)

TRANSACTIONAL_IDS = REQUIREMENTS[65].parts["transactional ids"]
TOPICS = REQUIREMENTS[65].parts["topics"]
#: What an id weighs in a turn.
WEIGHT = 3


def refuse(call: RequestArrived[DescribeTransactionsRequest], error: KafkaError) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(transaction_states=[_refused(each, error) for each in call.body.transactional_ids])


@handles(DescribeTransactionsRequest, (0, 0), refuse=refuse)
def describe_transactions(node: Node, call: RequestArrived[DescribeTransactionsRequest]) -> DescribeTransactionsResponse | Deferred:
    shards: list[tuple[Shard[Transactions], str]] = []
    answer: DescribeTransactionsResponse | Deferred = node.context.turns.answer(
        call, _work(node, call, shards), lambda found: when_committed(call, found, shards)
    )
    return answer


def _work(
    node: Node, call: RequestArrived[DescribeTransactionsRequest], shards: list[tuple[Shard[Transactions], str]]
) -> Generator[int, None, DescribeTransactionsResponse]:
    """``shards`` gets the shard of each id."""
    response = DescribeTransactionsResponse()
    size, limit = 0, node.context.options.transactions_max_bytes
    for transactional_id in call.body.transactional_ids:
        try:
            node.context.demand(call, TRANSACTIONAL_IDS, transactional_id)
            shard = node.transactions.shard_of(check_id(transactional_id))
            shards.append((shard, transactional_id))
            size += footprint(shard.machine.find(transactional_id))
            if size > limit:
                raise errors.InvalidRequest(f"the answer would have more than ottla.transactions.max.bytes, {limit}; name each id once")
            described = yield from _described(shard.machine, transactional_id)
            hidden = node.context.refusals(call, TOPICS, (each.topic for each in described.topics))
            if hidden:
                described.topics = [each for each in described.topics if each.topic not in hidden]
        except KafkaError as error:
            described = _refused(transactional_id, error)
        response.transaction_states.append(described)
        yield WEIGHT + len(described.topics)
    return response


def _described(machine: Transactions, transactional_id: str) -> Generator[int, None, TransactionState]:
    """Raises: KafkaError."""
    found = machine.find(transactional_id)
    missing = machine.markers.missing.get(transactional_id)
    topics: dict[str, list[int]] = {}
    for part in found.partitions.parts:
        for topic, numbers in numbers_by_topic(part if missing is None else part.partitions & missing).items():
            topics.setdefault(topic, []).extend(numbers)
        yield len(part.partitions)
    client_id, host = machine.clients.get(transactional_id, ("", ""))
    return TransactionState(
        transactional_id=transactional_id,
        transaction_state=found.state.value,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.start_ms,
        producer_id=found.producer_id,
        producer_epoch=found.epoch,
        topics=[TopicData(topic=topic, partitions=sorted(topics[topic])) for topic in sorted(topics)],
        client_id=client_id,
        client_host=host,
    )


def _refused(transactional_id: str, error: KafkaError) -> TransactionState:
    return TransactionState(error_code=error.code, transactional_id=transactional_id)
