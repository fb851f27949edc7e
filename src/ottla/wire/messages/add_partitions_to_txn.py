"""AddPartitionsToTxn, key 24: partitions that a transaction writes to.

| version | what is new |
|-|-|
| 2 | PRODUCER_FENCED may be answered |
| 3 | flexible; the last version that clients send |
| 4 | sent by brokers only: several transactions at once, and verification that the partitions were added (KIP-890) |
| 5 | TRANSACTION_ABORTABLE may be answered (KIP-890) |

Versions before 4 have one transaction, in fields of its own.
"""

from __future__ import annotations

from typing import Annotated

from ottla.wire.declare import Ignorable, Int16, Int32, Int64, Since, Struct, Until, message


class AddPartitionsToTxnTopic(Struct):
    """Partitions of one topic."""

    name: str = ""
    partitions: list[Int32] = []


class AddPartitionsToTxnTransaction(Struct):
    """The partitions of one transaction; ``verify_only`` adds none, and fails for a partition that was not added."""

    transactional_id: str = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    verify_only: bool = False
    topics: list[AddPartitionsToTxnTopic] = []


@message(key=24, since=0, until=5, flexible_since=3)
class AddPartitionsToTxnRequest(Struct):
    """Sent to the transaction coordinator."""

    transactions: Annotated[list[AddPartitionsToTxnTransaction], Since(4)] = []
    v3_and_below_transactional_id: Annotated[str, Until(3)] = ""
    v3_and_below_producer_id: Annotated[Int64, Until(3)] = 0
    v3_and_below_producer_epoch: Annotated[Int16, Until(3)] = 0
    v3_and_below_topics: Annotated[list[AddPartitionsToTxnTopic], Until(3)] = []


class AddPartitionsToTxnPartitionResult(Struct):
    """One partition added or verified, or why not."""

    partition_index: Int32 = 0
    partition_error_code: Int16 = 0


class AddPartitionsToTxnTopicResult(Struct):
    """The results for one topic."""

    name: str = ""
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = []


class AddPartitionsToTxnResult(Struct):
    """The results for one transaction."""

    transactional_id: str = ""
    topic_results: list[AddPartitionsToTxnTopicResult] = []


@message(key=24, since=0, until=5, flexible_since=3)
class AddPartitionsToTxnResponse(Struct):
    """A result per partition; the error code of the whole is for errors of the request, such as authorization."""

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, Since(4), Ignorable] = 0
    results_by_transaction: Annotated[list[AddPartitionsToTxnResult], Since(4)] = []
    results_by_topic_v3_and_below: Annotated[list[AddPartitionsToTxnTopicResult], Until(3)] = []
