"""DescribeLogDirs: content and free space of each log directory of this broker.

Behaviour: null topics mean all partitions here; partitions that are not here are omitted. A partition's size counts its record batches,
not its indexes. A failed directory is listed with KAFKA_STORAGE_ERROR and nothing else. Bytes of the volume are those of the last
measurement, -1 before the first.

Versions: bytes of the volume from 4 on; 5 has cordoned directories, which do not exist here. Replicas do not move between directories, so
there is no future replica, and a leader has no lag. Known damage of a log, and the number of accesses that access rules refused in the last
hour, are in tagged fields of Ottla.

Source: KIP-113, KIP-784, KIP-827, KIP-1066.
"""

from ottla.base.ids import TopicPartition
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import handles, whole_error
from ottla.broker.node import Node
from ottla.log.directory import LogDirectory
from ottla.wire import errors
from ottla.wire.messages.describe_log_dirs import (
    DeniedAccesses,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)


@handles(DescribeLogDirsRequest, (1, 5), refuse=whole_error(DescribeLogDirsResponse))
def describe_log_dirs(node: Node, call: RequestArrived[DescribeLogDirsRequest]) -> DescribeLogDirsResponse:
    asked: set[TopicPartition] | None = None
    if call.body.topics is not None:
        asked = {TopicPartition(topic.topic, number) for topic in call.body.topics for number in topic.partitions}
    response = DescribeLogDirsResponse(results=[_described(node, directory, asked) for directory in node.context.directories])
    if node.context.access is not None:
        denied = node.context.access.denied_last_hour()
        response.denied_accesses = [DeniedAccesses(principal=principal, count=count) for principal, count in sorted(denied.items())]
    return response


def _described(node: Node, directory: LogDirectory, asked: set[TopicPartition] | None) -> DescribeLogDirsResult:
    if directory.failed is not None:
        return DescribeLogDirsResult(log_dir=directory.root, error_code=errors.KafkaStorageError.code)
    topics: dict[str, DescribeLogDirsTopic] = {}
    for partition, log in sorted(directory.logs.items()):
        if asked is None or partition in asked:
            topic = topics.setdefault(partition.topic, DescribeLogDirsTopic(name=partition.topic))
            described = DescribeLogDirsPartition(partition_index=partition.partition, partition_size=log.size)
            replica = node.partitions.replica(partition)
            if replica is not None and replica.log is log:
                described.damage = node.replica_health.state_of(partition)
            topic.partitions.append(described)
    result = DescribeLogDirsResult(log_dir=directory.root, topics=list(topics.values()))
    space = node.context.space.get(directory.root)
    if space is not None:
        result.total_bytes, result.usable_bytes = space.total_bytes, space.free_bytes
    return result
