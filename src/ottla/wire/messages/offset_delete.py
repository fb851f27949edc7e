"""OffsetDelete, key 47: forget how far a group has read in partitions it is not subscribed to. Source: KIP-496."""

from ottla.wire.declare import Int16, Int32, Struct, message


class OffsetDeleteRequestPartition(Struct):
    """A partition whose offset is deleted."""

    partition_index: Int32 = 0


class OffsetDeleteRequestTopic(Struct):
    """The partitions of one topic."""

    name: str = ""
    partitions: list[OffsetDeleteRequestPartition] = []


@message(key=47, since=0, until=0, flexible_since=None)
class OffsetDeleteRequest(Struct):
    """The offsets of one group."""

    group_id: str = ""
    topics: list[OffsetDeleteRequestTopic] = []


class OffsetDeleteResponsePartition(Struct):
    """One offset gone, or why not."""

    partition_index: Int32 = 0
    error_code: Int16 = 0


class OffsetDeleteResponseTopic(Struct):
    """The answers for one topic."""

    name: str = ""
    partitions: list[OffsetDeleteResponsePartition] = []


@message(key=47, since=0, until=0, flexible_since=None)
class OffsetDeleteResponse(Struct):
    """The error stands before the throttle time here, unlike in any other response. With an error there are no topics."""

    error_code: Int16 = 0
    throttle_time_ms: Int32 = 0
    topics: list[OffsetDeleteResponseTopic] = []
