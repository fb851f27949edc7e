"""AlterReplicaLogDirs, key 34: move replicas between a broker's own log directories (KIP-113). Version 1 is as 2, but not flexible."""

from ottla.wire.declare import Int16, Int32, Struct, message


class AlterReplicaLogDirTopic(Struct):
    """The partitions of one topic."""

    name: str = ""
    partitions: list[Int32] = []


class AlterReplicaLogDir(Struct):
    """A log directory by its absolute path, and the replicas to move to it."""

    path: str = ""
    topics: list[AlterReplicaLogDirTopic] = []


@message(key=34, since=1, until=2, flexible_since=2)
class AlterReplicaLogDirsRequest(Struct):
    """Log directories of the broker that receives the request."""

    dirs: list[AlterReplicaLogDir] = []


class AlterReplicaLogDirPartitionResult(Struct):
    """The move has begun, or why not."""

    partition_index: Int32 = 0
    error_code: Int16 = 0


class AlterReplicaLogDirTopicResult(Struct):
    """The answers for one topic."""

    topic_name: str = ""
    partitions: list[AlterReplicaLogDirPartitionResult] = []


@message(key=34, since=1, until=2, flexible_since=2)
class AlterReplicaLogDirsResponse(Struct):
    """An answer for each partition."""

    throttle_time_ms: Int32 = 0
    results: list[AlterReplicaLogDirTopicResult] = []
