"""DescribeLogDirs: content and free space of each log directory of this broker.

Behaviour: null topics mean all partitions here; partitions that are not here are omitted. A partition's size counts its record batches,
not its indexes. A failed directory is listed with KAFKA_STORAGE_ERROR and nothing else. Bytes of the volume are those of the last
measurement, -1 before the first.

Up to ``PIECE`` partitions are described in the step of the request. More are described in pieces, one per tick of the timing wheel (10 ms),
and other requests are served between them: describing 20,000 partitions takes a tenth of a second of CPU time. So the answer is not of one
moment. Each size is that of the partition's own piece. A partition that is deleted before its piece is omitted, and one that is created
after the first piece may be. A directory that fails before its last piece is listed as failed. A client that closes its connection ends
the work. A broker that stops describes the rest at once.

Topics and partitions are in the order of their opening or creation, not sorted.

Versions: bytes of the volume from 4 on; 5 has cordoned directories, which do not exist here. Replicas do not move between directories, so
there is no future replica, and a leader has no lag. Known damage of a log, and the number of accesses that access rules refused in the last
hour, are in tagged fields of Ottla.

Source: KIP-113, KIP-784, KIP-827, KIP-1066.
"""

from collections.abc import Iterable, Iterator

from ottla.base.ids import TopicPartition
from ottla.broker.delayed import DelayedOperation
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

#: Partitions of one step: about 2 ms.
PIECE = 1_000


@handles(DescribeLogDirsRequest, (1, 5), refuse=whole_error(DescribeLogDirsResponse))
def describe_log_dirs(node: Node, call: RequestArrived[DescribeLogDirsRequest]) -> DescribeLogDirsResponse | Deferred:
    response = DescribeLogDirsResponse()
    pieces = _pieces(node, call.body.topics, response.results)
    if not _is_complete(node, pieces):
        return _wait(node, call, pieces, response)
    _count_denied(node, response)
    return response


def _is_complete(node: Node, pieces: Iterator[None]) -> bool:
    """Describes one piece, or the rest when the broker stops; whether it was the last."""
    return all(node.context.stopping for _ in pieces)


def _wait(node: Node, call: RequestArrived[DescribeLogDirsRequest], pieces: Iterator[None], response: DescribeLogDirsResponse) -> Deferred:
    """Describes the next piece in a later step."""

    def due(expired: bool) -> None:
        if not _is_complete(node, pieces):
            _wait(node, call, pieces, response)
            return
        _count_denied(node, response)
        node.context.answer(call, response)

    # One millisecond later: an operation that is due at once could complete in this step.
    return node.context.delay(call, DelayedOperation("next piece of log directories", due), node.context.now_ms + 1)


def _pieces(node: Node, topics: list[DescribableLogDirTopic] | None, results: list[DescribeLogDirsResult]) -> Iterator[None]:
    """Appends the results of all directories; yields after ``PIECE`` partitions."""
    left = PIECE
    for directory in list(node.context.directories):
        result = DescribeLogDirsResult(log_dir=directory.root)
        results.append(result)
        described: dict[str, DescribeLogDirsTopic] = {}
        for partition in list(directory.logs) if topics is None else _asked(topics):
            if left == 0:
                yield
                left = PIECE
            left -= 1
            if directory.failed is not None:
                break
            _describe(node, directory, partition, described)
        if directory.failed is not None:
            result.error_code = errors.KafkaStorageError.code
            continue
        result.topics = list(described.values())
        space = node.context.space.get(directory.root)
        if space is not None:
            result.total_bytes, result.usable_bytes = space.total_bytes, space.free_bytes


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


def _count_denied(node: Node, response: DescribeLogDirsResponse) -> None:
    if node.context.access is not None:
        denied = node.context.access.denied_last_hour()
        response.denied_accesses = [DeniedAccesses(principal=principal, count=count) for principal, count in sorted(denied.items())]
