"""What a process that died had written: read from the log, where every batch carries its producer's number and the place of its records.

    offsets   ... 41007 | 41008        41009 ... 41108      41109         the end
    batches             | another's    ours, epoch 0        ours, epoch 0
    sequence            |              40960 ... 41059      41060 ... 41159      -> 200 records of ours since 40960

A partition's numbers have no gaps under one epoch: a batch whose number is behind a missing one is refused. So as many rows of a partition
as were counted are those that came first, and the next one was not written. Under a later epoch there may be a gap, so what is found there
is told, and not relied upon.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ottla.base.ids import TopicPartition
from ottla.lake.load.load_journal import Writer
from ottla.records.batch import headers
from ottla.wire.errors import OffsetOutOfRange

if TYPE_CHECKING:
    from ottla.client.sync.consumer import Consumer

#: What a dead process had handed to its sockets may take a moment to arrive: the log is looked at until there was nothing for so long.
QUIET_S = 1.0
LOOK_S = 0.2
FETCH_BYTES = 8 << 20
_SEQUENCES = 1 << 31


@dataclass(slots=True)
class Tail:
    """What was found."""

    #: By partition: how many of a file's rows were written, the first ones.
    written: dict[int, int] = field(default_factory=dict)
    #: By partition: the end of the log.
    ends: dict[int, int] = field(default_factory=dict)
    #: Records that cannot be told apart from others, and may be there twice when rows are sent again.
    unsure: int = 0
    #: Partitions whose logs were deleted up to behind where the search begins.
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
    """What these writers wrote behind ``offsets``, when nothing has come for `QUIET_S`. Raises: KafkaError."""
    search = _Search(consumer, topic, offsets, writers)
    search.on()
    quiet_at = clock() + QUIET_S
    while clock() < quiet_at:
        sleep(LOOK_S)
        if search.on():
            quiet_at = clock() + QUIET_S
    return search.found()


class _Search:
    def __init__(self, consumer: Consumer, topic: str, offsets: Mapping[int, int], writers: Sequence[Writer]) -> None:
        self._consumer, self._topic, self._writers = consumer, topic, writers
        self._at = dict(offsets)
        self._by_number = {(writer.id, writer.epoch): writer for writer in writers}
        self._ids = {writer.id for writer in writers}
        #: By writer and partition: how many of its records.
        self._counts: dict[tuple[int, int], int] = {}
        self._unsure = 0
        self._gone: set[int] = set()

    def on(self) -> bool:
        """Read to the ends of the logs; whether there was something of the writers."""
        more = False
        for partition in self._at:
            while self._read(partition):
                more = True
        return more

    def _read(self, partition: int) -> bool:
        """Read on; False at the end, or where the rest is somebody else's."""
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

    def found(self) -> Tail:
        written: dict[int, int] = {}
        for (_, partition), count in self._counts.items():
            written[partition] = written.get(partition, 0) + count
        return Tail(written, dict(self._at), self._unsure, self._gone)
