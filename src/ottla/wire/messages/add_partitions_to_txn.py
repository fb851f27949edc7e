"""AddPartitionsToTxn, key 24: adds partitions to a transaction before records are written to them.

| version | change |
|-|-|
| 2 | PRODUCER_FENCED may be answered |
| 3 | flexible; the last version of clients |
| 4 | from brokers: several transactions, to add partitions or only to verify that they were added (KIP-890) |
| 5 | TRANSACTION_ABORTABLE may be answered (KIP-890) |

Source: KIP-98, KIP-890.
"""

from typing import Annotated

from ottla.wire.declare import Ignorable, Int16, Int32, Int64, Since, Struct, Until, message


class AddPartitionsToTxnTopic(Struct):
    """Partitions of one topic."""

    name: str = ""
    partitions: list[Int32] = []


class AddPartitionsToTxnTransaction(Struct):
    """Partitions of one transaction; with ``verify_only`` nothing is added."""

    transactional_id: str = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    verify_only: bool = False
    topics: list[AddPartitionsToTxnTopic] = []


@message(key=24, since=0, until=5, flexible_since=3)
class AddPartitionsToTxnRequest(Struct):
    """One transaction of a client, up to version 3; any number of transactions of a broker since version 4."""

    transactions: Annotated[list[AddPartitionsToTxnTransaction], Since(4)] = []
    v3_and_below_transactional_id: Annotated[str, Until(3)] = ""
    v3_and_below_producer_id: Annotated[Int64, Until(3)] = 0
    v3_and_below_producer_epoch: Annotated[Int16, Until(3)] = 0
    v3_and_below_topics: Annotated[list[AddPartitionsToTxnTopic], Until(3)] = []


class AddPartitionsToTxnPartitionResult(Struct):
    """The error of one partition, or 0."""

    partition_index: Int32 = 0
    partition_error_code: Int16 = 0


class AddPartitionsToTxnTopicResult(Struct):
    """The partitions of one topic."""

    name: str = ""
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = []


class AddPartitionsToTxnResult(Struct):
    """The partitions of one transaction."""

    transactional_id: str = ""
    topic_results: list[AddPartitionsToTxnTopicResult] = []


@message(key=24, since=0, until=5, flexible_since=3)
class AddPartitionsToTxnResponse(Struct):
    """An error for each partition; since version 4 also one for the whole request."""

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, Since(4), Ignorable] = 0
    results_by_transaction: Annotated[list[AddPartitionsToTxnResult], Since(4)] = []
    results_by_topic_v3_and_below: Annotated[list[AddPartitionsToTxnTopicResult], Until(3)] = []
