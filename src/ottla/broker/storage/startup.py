"""Which logs earlier lives of this broker had, and whether they are here: looked at when it starts, before anything new is made.

::

    a log that the state counts on is not found
        a log directory is new, or one that served with these is missing     it was there, perhaps: lost
        a checkpoint knows it with records                                   lost
        else                                                                 it never was on disk: nothing of it was acknowledged

What is lost is copied from other replicas (``unfit.py``). Where there are none, and a directory is missing that may come back, the
partition is out of sight: nothing is made in its place. A directory that comes back has old copies. Those made meanwhile are the better
ones, but for an empty one that nobody else could fill; the others are set aside, under a name that ends in ``-stray``, as Kafka calls
what it does not know.

Once it is registered, and so knows all that was written before, a log of a topic that the store has no more is one that was deleted while
this broker was away. It is set aside, too, but for ottla.stray.retention.ms only: should it be the store that was put back to an older
state, its records are still there.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ottla.base.ids import TopicPartition
from ottla.broker import effects
from ottla.broker.delayed import Parked
from ottla.broker.metadata.image import Topic
from ottla.log.directory import LogDirectory

if TYPE_CHECKING:
    from ottla.broker.node import Node

#: Logs set aside in one step of the broker.
SET_ASIDE_AT_ONCE = 500
#: Topics that a warning names.
NAMED_MAX = 5


def newest_first(directories: Iterable[LogDirectory]) -> list[LogDirectory]:
    """A directory that was away stands behind those that served meanwhile."""
    return sorted(directories, key=lambda directory: -directory.identity.generation)


def holders(directories: Iterable[LogDirectory], partition: TopicPartition, replicas: int) -> list[LogDirectory]:
    """The directories that have a log of a partition, the one to be used first."""
    found = [directory for directory in newest_first(directories) if partition in directory.logs]
    if replicas == 1:
        found.sort(key=lambda directory: directory.logs[partition].end_offset == 0)
    return found


def was_lost(node: "Node", partition: TopicPartition, topic: Topic) -> bool:
    """Whether an earlier life of this broker, which the state counts on, had a log with records that is not here."""
    state = topic.states.get(partition.partition)
    if node.started or state is None or not state.names(node.broker_id):
        return False
    if any(directory.identity.siblings is None for directory in node.directories) or missing(node.directories):
        return True
    return any(partition in directory.vanished for directory in node.directories)


def missing(directories: Iterable[LogDirectory]) -> set[bytes]:
    """Directories that served with these and are not among them."""
    known = {sibling for directory in directories for sibling in directory.identity.siblings or ()}
    return known - {directory.directory_id for directory in directories}


def out_of_sight(node: "Node", partition: TopicPartition, topic: Topic) -> bool:
    """Whether the only log of a partition is where this broker does not look today. One directory for another is a disk replaced."""
    new = sum(directory.identity.siblings is None for directory in node.directories)
    alone = len(topic.replicas[partition.partition]) == 1
    return alone and len(missing(node.directories)) > new and was_lost(node, partition, topic)


def settle(node: "Node", directories: list[LogDirectory]) -> None:
    """With these directories this broker serves from now on; of each partition one has a log. To be called once what is lost is noted."""
    partitions = {partition for directory in directories for partition in directory.logs}
    for partition in sorted(partitions):
        topic = node.image.topics.get(partition.topic)
        replicas = len(topic.replicas.get(partition.partition, ())) if topic is not None else 0
        for directory in holders(directories, partition, replicas)[1:]:
            with node.partitions.guarded(directory):
                path = directory.set_aside(partition)
                node.effects.append(effects.Warn(message=f"an older copy of {partition} in {directory.root} is set aside as {path}"))
    if gone := missing(directories):
        waiting = f"{len(node.partitions.offline)} partitions wait for them, and what other replicas have is copied from these"
        node.effects.append(
            effects.Warn(message=f"broker {node.broker_id}: {len(gone)} log directories that it had are missing; {waiting}")
        )
    ids = sorted(directory.directory_id for directory in directories)
    generation = max((directory.identity.generation for directory in directories), default=0)
    if any(list(directory.identity.siblings or ()) != ids for directory in directories):
        generation += 1
    for directory in directories:
        with node.partitions.guarded(directory):
            directory.set_siblings(ids, generation, node.wall_ms)


def set_aside_strays(node: "Node") -> None:
    """Topics of logs here may be gone from the store; of thousands of such logs, some go in each step. To be called once registered."""
    found = [(directory, partition) for directory, partition in node.partitions.hosted() if not node.image.has(*partition)]
    if not found:
        return
    topics = sorted({partition.topic for _, partition in found})
    names = ", ".join(topics[:NAMED_MAX]) + (", ..." if len(topics) > NAMED_MAX else "")
    kept_ms = node.options.stray_retention_ms
    until = f"for {kept_ms} ms (ottla.stray.retention.ms)" if kept_ms >= 0 else "for good (ottla.stray.retention.ms)"
    message = (
        f"{len(found)} logs are of topics that the store has no more ({names}): they are set aside {until}, under names ending in -stray"
    )
    node.effects.append(effects.Warn(message=message))

    def some(expired: bool) -> None:
        for directory, partition in found[:SET_ASIDE_AT_ONCE]:
            unknown = node.partitions.registered and not node.image.has(*partition)
            if unknown and directory.failed is None and partition in directory.logs:
                node.partitions.set_aside(directory, partition)
        del found[:SET_ASIDE_AT_ONCE]
        if found:
            node.purgatory.park(Parked((), lambda: False, some), node.now_ms)

    some(False)
