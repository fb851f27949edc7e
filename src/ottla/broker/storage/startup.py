"""Log directory start-up: which logs earlier processes of this broker had, and whether they are found.

::

    a log that the partition state counts on is not found
        a log directory is new, or a known one is missing         the log may have been there: lost
        a checkpoint names it with records                        lost
        otherwise                                                 it was never on disk: nothing of it was acknowledged

Lost records are copied from other replicas (``registration/replica_health.py``). If there are none, and the missing directory may come
back, the partition is unavailable: no log is created in its place. A directory that comes back has old logs. The newer log of a partition
is used, unless it is empty and no other replica could fill it; the others are set aside under a name that ends in ``-stray``, Kafka's term.

After registration, when the image has all earlier changes, a log whose topic is not in the store belongs to a topic that was deleted while
this broker was down. It is set aside too, for ottla.stray.retention.ms: if the store was restored to an older state, its records are still
there.
"""

from collections.abc import Iterable

from ottla.base.ids import TopicPartition
from ottla.base.log_levels import STORAGE
from ottla.broker.context import BrokerContext
from ottla.broker.metadata.image import Topic
from ottla.broker.replica.replicas import Replicas
from ottla.log.directory import LogDirectory

#: Logs set aside in one step.
SET_ASIDE_AT_ONCE = 500
#: Topics named in a warning.
NAMED_MAX = 5


def newest_first(directories: Iterable[LogDirectory]) -> list[LogDirectory]:
    """A directory that was away comes after those that served meanwhile."""
    return sorted(directories, key=lambda directory: -directory.identity.generation)


def holders(directories: Iterable[LogDirectory], partition: TopicPartition, replicas: int) -> list[LogDirectory]:
    """The directories with a log of a partition, the preferred one first."""
    found = [directory for directory in newest_first(directories) if partition in directory.logs]
    if replicas == 1:
        found.sort(key=lambda directory: directory.logs[partition].end_offset == 0)
    return found


def was_lost(context: BrokerContext, partition: TopicPartition, topic: Topic) -> bool:
    """Whether an earlier process had a log with records that the state counts on and that is not found."""
    state = topic.states.get(partition.partition)
    if context.started or state is None or not state.names(context.broker_id):
        return False
    if any(directory.identity.siblings is None for directory in context.directories) or missing(context.directories):
        return True
    return any(partition in directory.vanished for directory in context.directories)


def missing(directories: Iterable[LogDirectory]) -> set[bytes]:
    """Directories that served together with these and are missing."""
    known = {sibling for directory in directories for sibling in directory.identity.siblings or ()}
    return known - {directory.directory_id for directory in directories}


def out_of_sight(context: BrokerContext, partition: TopicPartition, topic: Topic) -> bool:
    """Whether the only log of a partition may be on a missing directory. A replaced directory is not missing."""
    new = sum(directory.identity.siblings is None for directory in context.directories)
    alone = len(topic.replicas[partition.partition]) == 1
    return alone and len(missing(context.directories)) > new and was_lost(context, partition, topic)


def settle(context: BrokerContext, replicas: Replicas, directories: list[LogDirectory]) -> None:
    """Serves with these directories from now on, with one log per partition. Called after lost records were noted."""
    partitions = {partition for directory in directories for partition in directory.logs}
    for partition in sorted(partitions):
        topic = context.image.topics.get(partition.topic)
        factor = len(topic.replicas.get(partition.partition, ())) if topic is not None else 0
        for directory in holders(directories, partition, factor)[1:]:
            with replicas.guarded(directory):
                path = directory.set_aside(partition)
                context.log.warn(STORAGE, f"an older copy of {partition} in {directory.root} is set aside as {path}")
    if gone := missing(directories):
        waiting = f"{len(replicas.offline)} partitions wait for them, and other records are copied from other replicas"
        context.log.warn(STORAGE, f"broker {context.broker_id}: {len(gone)} of its log directories are missing; {waiting}")
    ids = sorted(directory.directory_id for directory in directories)
    generation = max((directory.identity.generation for directory in directories), default=0)
    if any(list(directory.identity.siblings or ()) != ids for directory in directories):
        generation += 1
    for directory in directories:
        with replicas.guarded(directory):
            directory.set_siblings(ids, generation, context.wall_ms)


def set_aside_strays(context: BrokerContext, replicas: Replicas) -> None:
    """Sets aside logs of deleted topics; of thousands, some per step. Called after registration."""
    found = [(directory, partition) for directory, partition in replicas.hosted() if not context.image.has(*partition)]
    if not found:
        return
    topics = sorted({partition.topic for _, partition in found})
    names = ", ".join(topics[:NAMED_MAX]) + (", ..." if len(topics) > NAMED_MAX else "")
    kept_ms = context.options.stray_retention_ms
    until = f"for {kept_ms} ms (ottla.stray.retention.ms)" if kept_ms >= 0 else "without limit (ottla.stray.retention.ms)"
    message = (
        f"{len(found)} logs are of topics that the store has no more ({names}): they are set aside {until}, under names ending in -stray"
    )
    context.log.warn(STORAGE, message)

    def some() -> None:
        for directory, partition in found[:SET_ASIDE_AT_ONCE]:
            unknown = replicas.registered and not context.image.has(*partition)
            if unknown and directory.failed is None and partition in directory.logs:
                replicas.set_aside(directory, partition)
        del found[:SET_ASIDE_AT_ONCE]
        if found:
            context.delayed.timer("strays", some, context.now_ms)

    some()
