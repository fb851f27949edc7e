"""DescribeTransactions, key 65: the state of transactional ids (KIP-664). Flexible in its only version, 0.

ListTransactions has another `TransactionState`: import it from its module.
"""

from typing import Annotated

from ottla.wire.declare import Ignorable, Int16, Int32, Int64, Since, Struct, Tag, message

__all__ = ["DescribeTransactionsRequest", "DescribeTransactionsResponse", "TopicData"]


@message(key=65, since=0, until=0, flexible_since=0)
class DescribeTransactionsRequest(Struct):
    """Sent to the coordinator of the transactional ids."""

    transactional_ids: list[str] = []


class TopicData(Struct):
    """Partitions of one topic."""

    topic: str = ""
    partitions: list[Int32] = []


class TransactionState(Struct):
    """The state of one transactional id.

    The start time is -1 without a transaction. The topics are the partitions of the transaction; once it is prepared, those that do not
    have their marker yet.

    The client is Ottla's own: the one that used the id last, if the coordinator saw it. The tags are far from those that Kafka gives.
    """

    error_code: Int16 = 0
    transactional_id: str = ""
    transaction_state: str = ""
    transaction_timeout_ms: Int32 = 0
    transaction_start_time_ms: Int64 = 0
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    topics: list[TopicData] = []
    client_id: Annotated[str, Since(0), Tag(10_000), Ignorable] = ""
    client_host: Annotated[str, Since(0), Tag(10_001), Ignorable] = ""


@message(key=65, since=0, until=0, flexible_since=0)
class DescribeTransactionsResponse(Struct):
    """One state for each transactional id of the request."""

    throttle_time_ms: Int32 = 0
    transaction_states: list[TransactionState] = []
