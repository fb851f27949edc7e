"""WriteTxnMarkers, key 27: a transaction coordinator ends transactions in partitions. Sent by brokers.

| version | what is new |
|-|-|
| 1 | flexible |
| 2 | the transaction version, which determines the check of the producer epoch (KIP-890) |
"""

from __future__ import annotations

from typing import Annotated

from ottla.wire.declare import Ignorable, Int8, Int16, Int32, Int64, Since, Struct, message


class WritableTxnMarkerTopic(Struct):
    """Partitions of one topic."""

    name: str = ""
    partition_indexes: list[Int32] = []


class WritableTxnMarker(Struct):
    """The marker of one transaction; ``transaction_result`` is true for a commit."""

    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    transaction_result: bool = False
    topics: list[WritableTxnMarkerTopic] = []
    coordinator_epoch: Int32 = 0
    transaction_version: Annotated[Int8, Since(2), Ignorable] = 0


@message(key=27, since=1, until=2, flexible_since=1)
class WriteTxnMarkersRequest(Struct):
    """Sent to the leader of the partitions."""

    markers: list[WritableTxnMarker] = []


class WritableTxnMarkerPartitionResult(Struct):
    """One marker written, or why not."""

    partition_index: Int32 = 0
    error_code: Int16 = 0


class WritableTxnMarkerTopicResult(Struct):
    """The results for one topic."""

    name: str = ""
    partitions: list[WritableTxnMarkerPartitionResult] = []


class WritableTxnMarkerResult(Struct):
    """The results for one transaction."""

    producer_id: Int64 = 0
    topics: list[WritableTxnMarkerTopicResult] = []


@message(key=27, since=1, until=2, flexible_since=1)
class WriteTxnMarkersResponse(Struct):
    """A result per partition of each transaction."""

    markers: list[WritableTxnMarkerResult] = []
