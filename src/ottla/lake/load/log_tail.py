"""Finds the records that a crashed load had written. Each batch in the log has its producer id and sequence number.

    offsets   ... 41007 | 41008        41009 ... 41108      41109         the end
    batches             | another's    ours, epoch 0        ours, epoch 0
    sequence            |              40960 ... 41059      41060 ... 41159      -> 200 records of ours since 40960

Within one producer epoch the sequence numbers of a partition have no gaps, because brokers refuse a batch behind a gap. So the counted
records are the first rows of the partition. A later epoch may have a gap, so its records are only reported (`Tail.unsure`).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ottla.base.ids import TopicPartition
from ottla.client.sync.consumer import Consumer
from ottla.lake.load.load_journal import Writer
from ottla.records.batch import headers
from ottla.wire.errors import OffsetOutOfRange

#: Data in the sockets of a crashed process may still arrive: the search ends after this time without new records.
QUIET_S = 1.0
LOOK_S = 0.2
FETCH_BYTES = 8 << 20
_SEQUENCES = 1 << 31


@dataclass(slots=True)
class Tail:
    """Result of the search."""

    #: By partition: how many rows of the file were written.
    written: dict[int, int] = field(default_factory=dict)
    #: By partition: the end of the log.
    ends: dict[int, int] = field(default_factory=dict)
    #: Records of a later epoch, which may be duplicated when rows are sent again.
    unsure: int = 0
    #: Partitions whose log start is behind the beginning of the search.
    gone: set[int] = field(default_factory=set)


def tail(
    consumer: Consumer,
    topic: str,
    offsets: Mapping[int, int],
    writers: Sequence[Writer],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Tail:
    """Records of these writers from ``offsets`` on, once none has arrived for `QUIET_S`. Raises: KafkaError."""
    search = _TailReader(consumer, topic, offsets, writers)
    search.read()
    quiet_at = clock() + QUIET_S
    while clock() < quiet_at:
        sleep(LOOK_S)
        if search.read():
            quiet_at = clock() + QUIET_S
    return search.result()


class _TailReader:
    def __init__(self, consumer: Consumer, topic: str, offsets: Mapping[int, int], writers: Sequence[Writer]) -> None:
        self._consumer, self._topic, self._writers = consumer, topic, writers
        self._at = dict(offsets)
        self._by_number = {(writer.id, writer.epoch): writer for writer in writers}
        self._ids = {writer.id for writer in writers}
        #: Records by producer id and partition.
        self._counts: dict[tuple[int, int], int] = {}
        self._unsure = 0
        self._gone: set[int] = set()

    def read(self) -> bool:
        """Read to the ends of the logs; True if records of the writers were found."""
        more = False
        for partition in self._at:
            while self._read_partition(partition):
                more = True
        return more

    def _read_partition(self, partition: int) -> bool:
        """Read to the end of a partition; True if records of the writers were found."""
        tp = TopicPartition(self._topic, partition)
        ours = False
        while True:
            try:
                raw = self._consumer.fetch_raw(tp, self._at[partition], FETCH_BYTES, max_wait_ms=0)
            except OffsetOutOfRange:
                beginning = self._consumer.beginning_offsets([tp])[tp]
                if beginning <= self._at[partition]:
                    raise
                self._gone.add(partition)
                self._at[partition] = beginning
                continue
            before = self._at[partition]
            for _, header in headers(raw.records):
                if header.base_offset >= before and header.producer_id in self._ids:
                    ours = True
                    self._count(partition, header.producer_id, header.producer_epoch, header.last_sequence, header.count)
                self._at[partition] = max(self._at[partition], header.last_offset + 1)
            if self._at[partition] == before:
                return ours

    def _count(self, partition: int, number: int, epoch: int, last_sequence: int, count: int) -> None:
        writer = self._by_number.get((number, epoch))
        if writer is None:
            self._unsure += count
            return
        since = writer.since.get(str(partition), 0)
        self._counts[number, partition] = (last_sequence + 1 - since) % _SEQUENCES

    def result(self) -> Tail:
        written: dict[int, int] = {}
        for (_, partition), count in self._counts.items():
            written[partition] = written.get(partition, 0) + count
        return Tail(written, dict(self._at), self._unsure, self._gone)
