"""DeleteRecords, key 21: let go of everything before an offset. Version 2 is flexible; offset -1 is the high watermark (KIP-107)."""

from ottla.wire.declare import Int16, Int32, Int64, Struct, message


class DeleteRecordsPartition(Struct):
    """The first offset to keep of one partition."""

    partition_index: Int32 = 0
    offset: Int64 = 0


class DeleteRecordsTopic(Struct):
    """The partitions of one topic."""

    name: str = ""
    partitions: list[DeleteRecordsPartition] = []


@message(key=21, since=0, until=2, flexible_since=2)
class DeleteRecordsRequest(Struct):
    """Sent to the partitions' leader."""

    topics: list[DeleteRecordsTopic] = []
    timeout_ms: Int32 = 0


class DeleteRecordsPartitionResult(Struct):
    """The first offset that is left, on the slowest replica."""

    partition_index: Int32 = 0
    low_watermark: Int64 = 0
    error_code: Int16 = 0


class DeleteRecordsTopicResult(Struct):
    """The answers for one topic."""

    name: str = ""
    partitions: list[DeleteRecordsPartitionResult] = []


@message(key=21, since=0, until=2, flexible_since=2)
class DeleteRecordsResponse(Struct):
    """One answer per partition of the request."""

    throttle_time_ms: Int32 = 0
    topics: list[DeleteRecordsTopicResult] = []
