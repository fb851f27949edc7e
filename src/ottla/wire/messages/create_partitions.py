"""CreatePartitions, key 37: give topics more partitions (KIP-195). Version 2 is flexible, 3 may be throttled (KIP-599)."""

from ottla.wire.declare import Int16, Int32, Struct, message


class CreatePartitionsAssignment(Struct):
    """The brokers of one new partition, the preferred leader first."""

    broker_ids: list[Int32] = []


class CreatePartitionsTopic(Struct):
    """The number of partitions to have afterwards; null assignments leave the placing to the broker."""

    name: str = ""
    count: Int32 = 0
    assignments: list[CreatePartitionsAssignment] | None = []


@message(key=37, since=0, until=3, flexible_since=2)
class CreatePartitionsRequest(Struct):
    """Validate_only runs every check and creates nothing."""

    topics: list[CreatePartitionsTopic] = []
    timeout_ms: Int32 = 0
    validate_only: bool = False


class CreatePartitionsTopicResult(Struct):
    """The answer for one topic."""

    name: str = ""
    error_code: Int16 = 0
    error_message: str | None = None


@message(key=37, since=0, until=3, flexible_since=2)
class CreatePartitionsResponse(Struct):
    """One answer per topic of the request."""

    throttle_time_ms: Int32 = 0
    results: list[CreatePartitionsTopicResult] = []
