"""ListPartitionReassignments, key 46: which partitions are on their way to other brokers (KIP-455)."""

from ottla.wire.declare import Int16, Int32, Struct, message


class ListPartitionReassignmentsTopics(Struct):
    """The requested partitions."""

    name: str = ""
    partition_indexes: list[Int32] = []


@message(key=46, since=0, until=0, flexible_since=0)
class ListPartitionReassignmentsRequest(Struct):
    """Null asks about all partitions."""

    timeout_ms: Int32 = 60_000
    topics: list[ListPartitionReassignmentsTopics] | None = None


class OngoingPartitionReassignment(Struct):
    """All present replicas, and which of them come and go."""

    partition_index: Int32 = 0
    replicas: list[Int32] = []
    adding_replicas: list[Int32] = []
    removing_replicas: list[Int32] = []


class OngoingTopicReassignment(Struct):
    """The partitions of one topic that move."""

    name: str = ""
    partitions: list[OngoingPartitionReassignment] = []


@message(key=46, since=0, until=0, flexible_since=0)
class ListPartitionReassignmentsResponse(Struct):
    """Only partitions with a reassignment in progress."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    topics: list[OngoingTopicReassignment] = []
