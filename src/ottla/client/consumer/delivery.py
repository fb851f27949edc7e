"""Records on their way from the fetcher to the user: taken, deserialized, intercepted, given, and done with when the user comes back.

    fetcher --take--> pending --give, each--> given --the next call--> done
                         ^                      |
                         +------ not_done ------+      the user failed on them

A record counts as pending until it is given, so that neither its position nor a commit moves past one that the user has not seen. One that
cannot be deserialized stays the first that is pending, and is told again and again, until the user seeks past it.
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

#: So often at least, who iterates sees to the group between two records: for commits, rebalances, and to show that it is alive.
CHECK_IN_S = 1.0
#: So many records are taken out of the fetcher at once for who iterates: it is the clock that says when to see to the group, and each
#: taking is a call into another thread for the blocking consumer.
LOOP_RECORDS = 10_000


class Giving:
    """See the module. Belongs to whoever polls."""

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
        #: Records are given as they came.
        self._plain = deserializers.none and not interceptors
        self._check_in_s = min(CHECK_IN_S, options.auto_commit_interval_ms / 1000) if options.enable_auto_commit else CHECK_IN_S
        #: Taken out of the fetcher and not given to the user yet, each partition's in order.
        self.pending: deque[ConsumerRecord] = deque()
        #: What the user works on: given, and not followed by another call.
        self._given: Sequence[ConsumerRecord] = ()

    def take(self, fetcher: Fetcher, limit: int) -> bool:
        """Take records out of the fetcher, unless some are pending; whether there are any now. Raises: what the fetcher raises."""
        if not self.pending:
            self.pending.extend(fetcher.take(limit))
        return bool(self.pending)

    def give(self, limit: int) -> list[ConsumerRecord]:
        """Records that are there, up to one that cannot be deserialized. Raises: RecordDeserializationFailed when that is the first."""
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
        """Records that are there, one by one, until it is time to see to the group. Raises: RecordDeserializationFailed."""
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
                # Who asks for the next one is done with the one before, whatever becomes of the next.
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
        """The user came back: what it was given is done with."""
        self._given = ()

    def not_done(self) -> None:
        """The user failed on what it was given last: it is not to be committed."""
        given, self._given = self._given, ()
        self.pending.extendleft(reversed(given))

    def drop(self, gone: Callable[[TopicPartition], bool]) -> None:
        """These partitions go on elsewhere, or are read no more: forget what is pending of them."""
        if self.pending:
            left = [record for record in self.pending if not gone(TopicPartition(record.topic, record.partition))]
            self.pending.clear()
            self.pending.extend(left)

    def first_offsets(self) -> dict[TopicPartition, int]:
        """The first offset of each partition that has something pending."""
        return {TopicPartition(record.topic, record.partition): record.offset for record in reversed(self.pending)}

    def close(self) -> None:
        """Nothing will be given any more."""
        self._deserialized.close()
        self._interceptors.close()
