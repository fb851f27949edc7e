"""DescribeLogDirs, key 35: contents of the log directories of a broker.

| version | change |
|-|-|
| 2 | flexible |
| 3 | an error for the whole response (KIP-784) |
| 4 | total and usable bytes of the volume (KIP-827) |
| 5 | cordoned directories, which get no new partitions (KIP-1066) |
"""

from typing import Annotated

from ottla.wire.declare import Ignorable, Int16, Int32, Int64, Since, Struct, Tag, message


class DescribableLogDirTopic(Struct):
    """The partitions of one topic."""

    topic: str = ""
    partitions: list[Int32] = []


@message(key=35, since=1, until=5, flexible_since=2)
class DescribeLogDirsRequest(Struct):
    """Null topics: every partition the broker has."""

    topics: list[DescribableLogDirTopic] | None = []


class DescribeLogDirsPartition(Struct):
    """The size of a replica, and how far it is behind; a future one is being moved here from another directory.

    ``damage`` is Ottla's own: what is wrong with the replica, in words. Its tag is far from those that Kafka gives.
    """

    partition_index: Int32 = 0
    partition_size: Int64 = 0
    offset_lag: Int64 = 0
    is_future_key: bool = False
    damage: Annotated[str, Since(2), Tag(10_000), Ignorable] = ""


class DescribeLogDirsTopic(Struct):
    """The partitions of one topic in one directory."""

    name: str = ""
    partitions: list[DescribeLogDirsPartition] = []


class DescribeLogDirsResult(Struct):
    """One log directory; -1 bytes if the file system does not report its size."""

    error_code: Int16 = 0
    log_dir: str = ""
    topics: list[DescribeLogDirsTopic] = []
    total_bytes: Annotated[Int64, Since(4), Ignorable] = -1
    usable_bytes: Annotated[Int64, Since(4), Ignorable] = -1
    is_cordoned: Annotated[bool, Since(5), Ignorable] = False


class DeniedAccesses(Struct):
    """How often a principal was refused."""

    principal: str = ""
    count: Int32 = 0


@message(key=35, since=1, until=5, flexible_since=2)
class DescribeLogDirsResponse(Struct):
    """One answer per log directory. Ottla's own: accesses that access rules refused in the last hour; null: no rules."""

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, Since(3), Ignorable] = 0
    results: list[DescribeLogDirsResult] = []
    denied_accesses: Annotated[list[DeniedAccesses] | None, Since(2), Tag(10_000), Ignorable] = None
