"""WriteTxnMarkers, key 27: ends transactions in partitions. The transaction coordinator sends it to the partitions' leaders.

| version | change |
|-|-|
| 2 | the transaction version of a marker, which decides the check of its epoch (KIP-1228) |

Flexible since version 1. Source: KIP-98.
"""

from typing import Annotated

from ottla.wire.declare import Ignorable, Int8, Int16, Int32, Int64, SharedStruct, Since, Struct, Tag, message


class WritableTxnMarkerTopic(Struct):
    """Partitions of one topic. Ottla's own: the epochs of their leaders, as the coordinator knows them."""

    name: str = ""
    partition_indexes: list[Int32] = []
    leader_epochs: Annotated[list[Int32], Since(2), Tag(10_000), Ignorable] = []


class WritableTxnMarker(Struct):
    """The end of one transaction; ``transaction_result`` is True for a commit."""

    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    transaction_result: bool = False
    topics: list[WritableTxnMarkerTopic] = []
    #: Leader epoch of the partition of ``__transaction_state`` whose coordinator sends it.
    coordinator_epoch: Int32 = 0
    transaction_version: Annotated[Int8, Since(2), Ignorable] = 0


class MarkerSequence(SharedStruct, frozen=True):
    """The number of a request: each is above those before of the same partition of ``__transaction_state``, coordinator epoch and epoch of
    the coordinator's broker. The partition is -1 in a request without a number.
    """

    partition: Int32 = -1
    broker_epoch: Int64 = -1
    number: Int64 = -1


@message(key=27, since=1, until=2, flexible_since=1)
class WriteTxnMarkersRequest(Struct):
    """Markers of any number of transactions. Ottla's own: the number of the request."""

    markers: list[WritableTxnMarker] = []
    sequence: Annotated[MarkerSequence, Since(2), Tag(10_000), Ignorable] = MarkerSequence()


class WritableTxnMarkerPartitionResult(Struct):
    """The error of one partition, or 0 if the marker is written."""

    partition_index: Int32 = 0
    error_code: Int16 = 0


class WritableTxnMarkerTopicResult(Struct):
    """The partitions of one topic."""

    name: str = ""
    partitions: list[WritableTxnMarkerPartitionResult] = []


class WritableTxnMarkerResult(Struct):
    """The partitions of one transaction."""

    producer_id: Int64 = 0
    topics: list[WritableTxnMarkerTopicResult] = []


@message(key=27, since=1, until=2, flexible_since=1)
class WriteTxnMarkersResponse(Struct):
    """One result for each marker."""

    markers: list[WritableTxnMarkerResult] = []
