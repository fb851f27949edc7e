"""The partitions of a transaction, in parts that keep their bytes.

Each record of ``__transaction_state`` has all partitions of its transaction. With 10,000 of them, sorting and encoding takes 10 ms, and a
transaction has several records. So a set is a sequence of parts, each with at most ``PART_MAX`` partitions and encoded once; a larger set
has the parts of the smaller one, and a record joins their bytes::

    add 0..199    (part of 200)
    add 200..249  (part of 200) (part of 50)
    add 250       (part of 200) (part of 51)          the last part is made again until it is full

Parts are in the order in which they were added, and sorted inside. A topic may be in several parts, and then is in a record several times:
Kafka reads that as one set.
"""

from collections.abc import Collection, Generator, Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from ottla.base.ids import TopicPartition
from ottla.base.readable import numbers_by_topic
from ottla.broker.transactions.records import PartitionsSchema, entries_bytes

#: Partitions of a part: to make one takes about 0.2 ms.
PART_MAX = 200


class Part:
    """Some partitions of a transaction; never changed."""

    __slots__ = ("_encoded", "entries", "partitions")

    def __init__(self, partitions: Iterable[TopicPartition]) -> None:
        self.partitions = frozenset(partitions)
        topics = numbers_by_topic(self.partitions)
        #: Entries of a record.
        self.entries = [PartitionsSchema(topic=topic, partition_ids=numbers) for topic, numbers in topics.items()]
        #: By version.
        self._encoded: dict[int, bytes] = {}

    def __iter__(self) -> Iterator[TopicPartition]:
        """Sorted: the order of a set is another one in each process, and the simulator repeats a history."""
        return (TopicPartition(entry.topic, number) for entry in self.entries for number in entry.partition_ids)

    def encoded(self, version: int) -> bytes:
        """The entries in a version of the record."""
        found = self._encoded.get(version)
        if found is None:
            found = self._encoded[version] = entries_bytes(self.entries, version)
        return found


class Addition(NamedTuple):
    """The result of an addition to ``base``, made in turns."""

    base: "TransactionPartitions"
    result: "TransactionPartitions"


class TransactionPartitions:
    """The partitions of a transaction; never changed."""

    __slots__ = ("_count", "parts")

    def __init__(self, parts: tuple[Part, ...] = ()) -> None:
        """``parts`` have no partition twice."""
        self.parts = parts
        self._count = sum(len(part.partitions) for part in parts)

    @classmethod
    def of(cls, partitions: Iterable[TopicPartition]) -> "TransactionPartitions":
        return NONE.union(partitions)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[TopicPartition]:
        return chain.from_iterable(self.parts)

    def __contains__(self, partition: TopicPartition) -> bool:
        # A loop: of one part, the usual case, it takes half the time of any().
        for part in self.parts:  # noqa: SIM110
            if partition in part.partitions:
                return True
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Collection) and set(self) == set(other)

    def __hash__(self) -> int:
        return hash(frozenset(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}.of({list(self)!r})"

    def union(self, added: "Iterable[TopicPartition] | Addition") -> "TransactionPartitions":
        """With more partitions; itself, if it has all of them."""
        if isinstance(added, Addition):
            if added.base is self:
                return added.result
            added = added.result
        work = self.union_in_turns(added)
        while True:
            try:
                next(work)
            except StopIteration as ended:
                result: TransactionPartitions = ended.value.result
                return result

    def union_in_turns(self, added: Iterable[TopicPartition]) -> Generator[int, None, Addition]:
        """Work of turns: yields after each part what it weighs."""
        new: list[TopicPartition] = []
        parts = list(self.parts)
        if parts and len(parts[-1].partitions) < PART_MAX:
            new += parts[-1]
        known = len(new)
        for looked_at, partition in enumerate(dict.fromkeys(added), 1):
            if partition not in self:
                new.append(partition)
            if looked_at % PART_MAX == 0:
                yield PART_MAX // 2
        if len(new) == known:
            return Addition(self, self)
        if known:
            del parts[-1]
        for first in range(0, len(new), PART_MAX):
            parts.append(Part(new[first : first + PART_MAX]))
            yield len(parts[-1].partitions)
        return Addition(self, TransactionPartitions(tuple(parts)))


NONE = TransactionPartitions()
