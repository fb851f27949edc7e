"""DescribeTransactions, key 65: the state of transactional ids (KIP-664). Flexible in its only version, 0.

ListTransactions has another `TransactionState`: import both from their modules.
"""

from __future__ import annotations

from ottla.wire.declare import Int16, Int32, Int64, Struct, message

__all__ = ["DescribeTransactionsRequest", "DescribeTransactionsResponse"]


@message(key=65, since=0, until=0, flexible_since=0)
class DescribeTransactionsRequest(Struct):
    """Sent to the coordinator of the ids."""

    transactional_ids: list[str] = []


class TopicData(Struct):
    """Partitions of one topic that the transaction wrote to, and that have no marker yet."""

    topic: str = ""
    partitions: list[Int32] = []


class TransactionState(Struct):
    """One transactional id; the start time is -1 without a transaction."""

    error_code: Int16 = 0
    transactional_id: str = ""
    transaction_state: str = ""
    transaction_timeout_ms: Int32 = 0
    transaction_start_time_ms: Int64 = 0
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    topics: list[TopicData] = []


@message(key=65, since=0, until=0, flexible_since=0)
class DescribeTransactionsResponse(Struct):
    """One answer per id of the request."""

    throttle_time_ms: Int32 = 0
    transaction_states: list[TransactionState] = []
