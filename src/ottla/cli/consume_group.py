"""`ottla consume --group`: a topic's records as a member of a group, committed once they are printed.

Nothing is committed that was not written to standard output, so that after an interrupt, or a reader that goes away, the next run begins
with what was not seen. Where a partition was begun is committed too: who begins at its end, and sees nothing, begins there the next time,
not at a later end. With `--exit` the member stops at what was the end of each partition when it got it; what came later is left to the
next run.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from typing import Any

from ottla.base.ids import TopicPartition
from ottla.cli.consume import POLL_MS, POLL_RECORDS
from ottla.client.rebalance import RebalanceListener
from ottla.client.record import ConsumerRecord
from ottla.client.sync_consumer import Consumer

#: How often what was printed is committed.
COMMIT_S = 1.0


class _Printed(RebalanceListener):
    """What was printed of the partitions that are read, and where to stop in them."""

    def __init__(self, to_end: bool) -> None:
        self.consumer: Consumer
        self._to_end = to_end
        #: The next offset to print of each partition.
        self.offsets: dict[TopicPartition, int] = {}
        #: Where to stop; None before the first assignment, and for who reads on and on.
        self.ends: dict[TopicPartition, int] | None = None
        self._committed_at = time.monotonic()

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        self.offsets |= {tp: self.consumer.position(tp) for tp in partitions}
        if self._to_end:
            self.ends = (self.ends or {}) | self.consumer.end_offsets(partitions)

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        self.commit()
        self.on_partitions_lost(partitions)

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        for tp in partitions:
            self.offsets.pop(tp, None)
            if self.ends is not None:
                self.ends.pop(tp, None)

    def wanted(self, record: ConsumerRecord) -> bool:
        """Whether the record came before the end."""
        return self.ends is None or record.offset < self.ends.get(TopicPartition(record.topic, record.partition), 0)

    def at_end(self) -> bool:
        """Whether all that is read was read to its end."""
        if self.ends is None:
            return False
        return all(self.consumer.position(tp) >= end for tp, end in self.ends.items())

    def commit(self) -> None:
        """Keep what was printed."""
        self._committed_at = time.monotonic()
        if self.offsets:
            self.consumer.commit(self.offsets.copy())

    def commit_if_due(self) -> None:
        """Keep it now and then, without waiting."""
        if self.offsets and time.monotonic() - self._committed_at > COMMIT_S:
            self._committed_at = time.monotonic()
            self.consumer.commit_async(self.offsets.copy())


def consume(
    topic: str, group: str, render: Callable[[ConsumerRecord], bytes], limit: int | None, to_end: bool, settings: dict[str, Any]
) -> None:
    """Print records until there were enough, or until Ctrl-C. Raises: KafkaError."""
    printed = _Printed(to_end)
    with Consumer(group_id=group, enable_auto_commit=False, **settings) as consumer:
        printed.consumer = consumer
        consumer.subscribe(topic, listener=printed)
        # An interrupt is the usual way to end it; closing commits what was printed.
        with contextlib.suppress(KeyboardInterrupt):
            _print(consumer, topic, printed, render, float("inf") if limit is None else limit)


def _print(consumer: Consumer, topic: str, printed: _Printed, render: Callable[[ConsumerRecord], bytes], left: float) -> None:
    out = sys.stdout.buffer
    while left > 0 and not printed.at_end():
        records = [record for record in consumer.poll(POLL_MS, int(min(left, POLL_RECORDS))) if printed.wanted(record)]
        out.write(b"".join(render(record) for record in records))
        out.flush()
        if not records:
            # Nothing would ever come of a topic that was deleted, which this raises.
            consumer.partitions_for(topic)
        left -= len(records)
        for record in records:
            printed.offsets[TopicPartition(record.topic, record.partition)] = record.offset + 1
        printed.commit_if_due()
