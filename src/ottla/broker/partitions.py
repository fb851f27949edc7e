"""The partitions this broker holds: begun and ended as the image says, flushed, and taken offline with their log directory.

A partition is led here when the image names this broker as its leader; its log is opened or created then. A topic that leaves the image
takes its logs with it: their directories are renamed at once and removed off the loop. Logs that the store does not know are left alone.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from errno import ENOSPC
from typing import TYPE_CHECKING

from ottla.base.ids import Offset, TopicPartition
from ottla.broker import effects
from ottla.broker.leader import Leader
from ottla.log.directory import LogDirectory
from ottla.wire import errors

if TYPE_CHECKING:
    from ottla.broker.node import Node


class Partitions:
    """See the module's theory."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        #: Partitions led here, whose log directory works.
        self.leaders: dict[TopicPartition, Leader] = {}
        #: Partitions whose log directory failed, with the reason.
        self.offline: dict[TopicPartition, str] = {}
        #: Partitions written to since the last step's flushes were begun.
        self._dirty: dict[TopicPartition, Leader] = {}

    def leader(self, topic: str, partition: int) -> Leader:
        """The partition as its leader sees it.

        Raises: UnknownTopicOrPartition, NotLeaderOrFollower, KafkaStorageError.
        """
        found = self.leaders.get((topic, partition))  # type: ignore[call-overload]
        if found is not None:
            return found  # type: ignore[no-any-return]
        if (topic, partition) in self.offline:
            reason = self.offline[TopicPartition(topic, partition)]
            raise errors.KafkaStorageError(f"the log directory of {topic}-{partition} failed: {reason}")
        if not self._node.image.has(topic, partition):
            raise errors.UnknownTopicOrPartition(f"there is no partition {partition} of topic {topic}")
        raise errors.NotLeaderOrFollower(f"broker {self._node.broker_id} does not lead {topic}-{partition}")

    def hosted(self) -> Iterator[tuple[LogDirectory, TopicPartition]]:
        """Every log on a working directory, led or not."""
        for directory in self._node.directories:
            if directory.failed is None:
                for partition in directory.logs:
                    yield directory, partition

    # What the image says.

    def topic_changed(self, name: str) -> None:
        """A topic was created, grew, or went away."""
        topic = self._node.image.topics.get(name)
        if topic is None:
            for directory, partition in list(self.hosted()):
                if partition.topic == name:
                    self._drop(directory, partition)
            for partition in [gone for gone in self.offline if gone.topic == name]:
                del self.offline[partition]

    def state_changed(self, partition: TopicPartition) -> None:
        """The controller wrote who leads a partition."""
        state = self._node.image.state(partition)
        if state is None or state.leader != self._node.broker_id:
            leader = self.leaders.pop(partition, None)
            if leader is not None:
                self._node.purgatory.poke(partition)
            return
        if partition in self.leaders:
            self.leaders[partition].follow_state(state)
        elif partition not in self.offline:
            self._lead(partition)

    def options_changed(self, topic: str) -> None:
        """The overrides of a topic changed."""
        options = self._node.topic_options(topic)
        for partition, leader in self.leaders.items():
            if partition.topic == topic:
                leader.options = options
                leader.log.set_options(options)

    def defaults_changed(self) -> None:
        """Broker settings that topics inherit may have changed."""
        for topic in dict.fromkeys(partition.topic for partition in self.leaders):
            self.options_changed(topic)

    def _lead(self, partition: TopicPartition) -> None:
        node = self._node
        topic, state = node.image.topics[partition.topic], node.image.state(partition)
        assert state is not None, f"{partition} has a state when it is led"
        options = node.topic_options(partition.topic)
        for directory in node.directories:
            log = directory.logs.get(partition)
            if log is not None and log.topic_id not in (topic.topic_id, bytes(16)):
                # What an earlier topic of this name left behind.
                self._drop(directory, partition)
                log = None
            if log is not None:
                break
        else:
            directory = min((d for d in node.directories if d.failed is None), key=lambda d: len(d.logs))
            with self.guarded(directory):
                log = directory.create(partition, topic.topic_id, options, now_ms=node.wall_ms)
        if directory.failed is None and log is not None:
            log.set_options(options)
            leader = Leader(partition, log, directory, options, state, node.options.max_decompressed_ratio)
            self.leaders[partition] = self._dirty[partition] = leader
            node.purgatory.poke(("led", partition))

    def _drop(self, directory: LogDirectory, partition: TopicPartition) -> None:
        self.leaders.pop(partition, None)
        with self.guarded(directory):
            path = directory.remove(partition)
            self._node.effects.append(effects.Remove(directory=directory.root, paths=(path,)))
        self._node.purgatory.poke(partition)

    # Durability.

    def wrote(self, leader: Leader) -> None:
        """A batch was appended: a flush, or early write-back, may be due at the end of this step."""
        self._dirty[leader.partition] = leader
        if leader.options.write_caching:
            self._node.purgatory.poke(leader.partition)

    def delete_before(self, leader: Leader, offset: int) -> None:
        """A client lets go of all records before ``offset``; durable with the directory's next checkpoint.

        Raises: KafkaStorageError.
        """
        try:
            dropped = leader.log.delete_before(offset, self._node.wall_ms)
        except OSError as error:
            raise self.append_failed(leader, error) from error
        self._node.upkeep.remove_later(leader.directory.root, dropped, leader.options.file_delete_delay_ms)
        self._dirty[leader.partition] = leader
        self._node.purgatory.poke(leader.partition)

    def begin_flushes(self) -> None:
        """Ask for the flushes that this step made necessary; one per partition is under way at most."""
        if not self._dirty:
            return
        for leader in self._dirty.values():
            if leader.wants_flush():
                plan = leader.log.flush_plan()
                if plan is not None:
                    leader.flushing = True
                    root = leader.directory.root
                    self._node.effects.append(effects.Flush(partition=leader.partition, directory=root, plan=plan))
            elif leader.options.write_caching:
                due = leader.writeback_due()
                if due is not None:
                    file, position, size = due
                    root = leader.directory.root
                    self._node.effects.append(effects.StartWriteback(directory=root, file=file, position=position, size=size))
        self._dirty = {}

    def flushed(self, partition: TopicPartition, upto: Offset) -> None:
        """What was appended below ``upto`` is on disk."""
        leader = self.leaders.get(partition)
        if leader is not None:
            if leader.flushed(upto):
                self._node.purgatory.poke(partition)
            self._dirty[partition] = leader

    @contextmanager
    def guarded(self, directory: LogDirectory) -> Iterator[None]:
        """Do file work in a log directory; an OSError takes its partitions offline."""
        try:
            yield
        except OSError as error:
            self.directory_failed(directory.root, str(error))

    def append_failed(self, leader: Leader, error: OSError) -> errors.KafkaError:
        """What to answer when an append met the disk's refusal: full is not broken, all else is."""
        if error.errno == ENOSPC:
            return errors.KafkaStorageError(f"the disk of {leader.directory.root} is full; nothing was written")
        self.directory_failed(leader.directory.root, str(error))
        return errors.KafkaStorageError(f"the log directory of {leader.partition} failed: {error}")

    def directory_failed(self, root: str, reason: str) -> None:
        """Trust nothing in this directory any more: its partitions go offline; without any directory left, the broker stops."""
        node = self._node
        directory = next(directory for directory in node.directories if directory.root == root)
        if directory.failed is not None:
            return
        directory.failed = reason
        for partition in directory.logs:
            self.leaders.pop(partition, None)
            self._dirty.pop(partition, None)
            self.offline[partition] = reason
        for partition in directory.logs:
            node.purgatory.poke(partition)
        if all(directory.failed is not None for directory in node.directories):
            node.effects.append(effects.Halt(reason=f"no log directory is left; {root} failed last: {reason}"))
