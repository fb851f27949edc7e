"""DescribeLogDirs: content and free space of each log directory of this broker.

Behaviour: null topics mean all partitions here; partitions that are not here are omitted. A partition's size counts its record batches,
not its indexes. A failed directory is listed with KAFKA_STORAGE_ERROR and nothing else. Bytes of the volume are those of the last
measurement, -1 before the first.

Many partitions are described in turns (``turns.py``): 20,000 of them take a tenth of a second of CPU time. So the answer is not of one
moment. Each size is that of the partition's own turn. A partition that is deleted before its turn is omitted, and one that is created
after the first turn may be. A directory that fails before its last turn is listed as failed.

Topics and partitions are in the order of their opening or creation, not sorted.

Versions: bytes of the volume from 4 on; 5 has cordoned directories, which do not exist here. Replicas do not move between directories, so
there is no future replica, and a leader has no lag. Known damage of a log, and the number of accesses that access rules refused in the last
hour, are in tagged fields of Ottla.

Source: KIP-113, KIP-784, KIP-827, KIP-1066.
"""

from collections.abc import Generator, Iterable, Iterator

from ottla.base.ids import TopicPartition
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import Deferred, handles, whole_error
from ottla.broker.node import Node
from ottla.log.directory import LogDirectory
from ottla.wire import errors
from ottla.wire.messages.describe_log_dirs import (
    DeniedAccesses,
    DescribableLogDirTopic,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)


@handles(DescribeLogDirsRequest, (1, 5), refuse=whole_error(DescribeLogDirsResponse))
def describe_log_dirs(node: Node, call: RequestArrived[DescribeLogDirsRequest]) -> DescribeLogDirsResponse | Deferred:
    answer: DescribeLogDirsResponse | Deferred = node.context.turns.answer(call, _work(node, call.body.topics))
    return answer


def _work(node: Node, topics: list[DescribableLogDirTopic] | None) -> Generator[int, None, DescribeLogDirsResponse]:
    """Describes all directories; yields after each partition."""
    response = DescribeLogDirsResponse()
    for directory in list(node.context.directories):
        result = DescribeLogDirsResult(log_dir=directory.root)
        response.results.append(result)
        described: dict[str, DescribeLogDirsTopic] = {}
        for partition in list(directory.logs) if topics is None else _asked(topics):
            if directory.failed is not None:
                break
            _describe(node, directory, partition, described)
            yield 1
        if directory.failed is not None:
            result.error_code = errors.KafkaStorageError.code
            continue
        result.topics = list(described.values())
        space = node.context.space.get(directory.root)
        if space is not None:
            result.total_bytes, result.usable_bytes = space.total_bytes, space.free_bytes
    if node.context.access is not None:
        denied = node.context.access.denied_last_hour()
        response.denied_accesses = [DeniedAccesses(principal=principal, count=count) for principal, count in sorted(denied.items())]
    return response


def _asked(topics: Iterable[DescribableLogDirTopic]) -> Iterator[TopicPartition]:
    """The partitions of a request, each once."""
    asked: dict[str, set[int]] = {}
    for topic in topics:
        numbers = asked.setdefault(topic.topic, set())
        for number in topic.partitions:
            if number not in numbers:
                numbers.add(number)
                yield TopicPartition(topic.topic, number)


def _describe(node: Node, directory: LogDirectory, partition: TopicPartition, topics: dict[str, DescribeLogDirsTopic]) -> None:
    """Adds a partition to its topic, if its log is in the directory."""
    log = directory.logs.get(partition)
    if log is None:
        return
    topic = topics.get(partition.topic)
    if topic is None:
        topic = topics[partition.topic] = DescribeLogDirsTopic(name=partition.topic)
    described = DescribeLogDirsPartition(partition_index=partition.partition, partition_size=log.size)
    replica = node.partitions.replica(partition)
    if replica is not None and replica.log is log:
        described.damage = node.replica_health.state_of(partition)
    topic.partitions.append(described)
