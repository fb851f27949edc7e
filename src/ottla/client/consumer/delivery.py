"""Delivery of records from the fetcher to the user: taken, deserialized, intercepted, returned, and processed when the user calls again.

    fetcher --take--> pending --give, each--> given --the next call--> processed
                         ^                      |
                         +------ not_done ------+      the user failed

A record is pending until it is returned, so neither its position nor a commit passes a record that the user has not seen. A record that
cannot be deserialized stays the first pending one, and raises again until the user seeks past it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from ottla.base.ids import TopicPartition
from ottla.client.consumer.record import ConsumerRecord, Deserializers, RecordDeserializationFailed
from ottla.client.fetch.fetcher import Fetcher
from ottla.client.interceptors import ConsumerInterceptors
from ottla.client.options import ConsumerOptions

#: Maximum interval between group checks while iterating: for commits, rebalances and heartbeats.
CHECK_IN_S = 1.0
#: Records taken from the fetcher at once for a loop: the interval limits the time between group checks, and for the blocking consumer
#: each take is a call into another thread.
LOOP_RECORDS = 10_000


class RecordDelivery:
    """Records between the fetcher and the user. Belongs to the thread that polls."""

    def __init__(
        self,
        options: ConsumerOptions,
        deserializers: Deserializers,
        interceptors: ConsumerInterceptors,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._deserialized = deserializers
        self._interceptors = interceptors
        self._clock_s = clock_s
        #: Records are returned unchanged.
        self._plain = deserializers.none and not interceptors
        self._check_in_s = min(CHECK_IN_S, options.auto_commit_interval_ms / 1000) if options.enable_auto_commit else CHECK_IN_S
        #: Taken from the fetcher and not returned yet, in order per partition.
        self.pending: deque[ConsumerRecord] = deque()
        #: Records that the user processes: returned, without a later call.
        self._given: Sequence[ConsumerRecord] = ()

    def take(self, fetcher: Fetcher, limit: int) -> bool:
        """Takes records from the fetcher, unless some are pending; returns whether there are any. Raises: errors of the fetcher."""
        if not self.pending:
            self.pending.extend(fetcher.take(limit))
        return bool(self.pending)

    def give(self, limit: int) -> list[ConsumerRecord]:
        """Pending records, up to one that cannot be deserialized. Raises: RecordDeserializationFailed if that is the first."""
        pending = self.pending
        self._given = given = list[ConsumerRecord]()
        if self._deserialized.none:
            if len(pending) <= limit:
                given.extend(pending)
                pending.clear()
            else:
                given.extend(pending.popleft() for _ in range(limit))
        else:
            self._deserialize(given, limit)
        return self._interceptors.on_consume(list(given)) if given and self._interceptors else list(given)

    def _deserialize(self, given: list[ConsumerRecord], limit: int) -> None:
        pending, deserialized = self.pending, self._deserialized
        while pending and len(given) < limit:
            try:
                given.append(deserialized(pending[0]))
            except RecordDeserializationFailed:
                if given:
                    return
                raise
            del pending[0]

    def each(self) -> Iterator[ConsumerRecord]:
        """Pending records one by one, until the next group check. Raises: RecordDeserializationFailed."""
        pending, clock_s = self.pending, self._clock_s
        until_s = clock_s() + self._check_in_s
        if self._plain:
            while pending:
                record = pending.popleft()
                self._given = (record,)
                yield record
                if clock_s() >= until_s:
                    return
        elif not self._interceptors:
            while pending:
                # The request for the next record means that the previous one was processed.
                self._given = ()
                record = self._deserialized(pending[0])
                del pending[0]
                self._given = (record,)
                yield record
                if clock_s() >= until_s:
                    return
        while pending:
            yield from self.give(1)
            if clock_s() >= until_s:
                return

    def done(self) -> None:
        """The user called again: the last records were processed."""
        self._given = ()

    def not_done(self) -> None:
        """The user failed: the last records must not be committed."""
        given, self._given = self._given, ()
        self.pending.extendleft(reversed(given))

    def drop(self, gone: Callable[[TopicPartition], bool]) -> None:
        """Drops pending records of partitions that were sought or revoked."""
        if self.pending:
            left = [record for record in self.pending if not gone(TopicPartition(record.topic, record.partition))]
            self.pending.clear()
            self.pending.extend(left)

    def first_offsets(self) -> dict[TopicPartition, int]:
        """The first pending offset of each partition."""
        return {TopicPartition(record.topic, record.partition): record.offset for record in reversed(self.pending)}

    def close(self) -> None:
        """No records will be returned any more."""
        self._deserialized.close()
        self._interceptors.close()
