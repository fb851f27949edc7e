"""Polls tables: the calls of `poll_table` on the event loop, between which another thread makes the table (`poll`).

asyncio    lend --> read in a worker thread --> take_back --> table, or again while there is time
blocking   lend --> read in the user's thread --> take_back --> ...
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from ottla.base.ids import TopicPartition
from ottla.client.argument_validation import milliseconds
from ottla.client.arrow.optional import pa
from ottla.client.arrow.poll import PolledTable
from ottla.client.arrow.read import TableForm, Tables
from ottla.client.consumer.delivery import RecordDelivery
from ottla.client.fetch.chunk import Lent
from ottla.client.fetch.fetcher import Fetcher
from ottla.client.options import ConsumerOptions

#: Limit of a poll without a limit.
NO_LIMIT = 1 << 62


class TablePolls:
    """Table polls of a consumer. `turn(limit, timeout_ms, take)` is the consumer's; `several` is true if it reads more than one topic."""

    def __init__(
        self,
        options: ConsumerOptions,
        fetcher: Fetcher,
        delivery: RecordDelivery,
        turn: Callable[[int, float | None, Callable[[], bool]], Awaitable[None]],
        several: Callable[[], bool],
        clock_ms: Callable[[], float],
    ) -> None:
        self._options = options
        self._fetcher = fetcher
        self._delivery = delivery
        self._turn = turn
        self._several = several
        self._clock_ms = clock_ms
        #: Chunks that are being read.
        self._out: list[Lent] = []
        #: Start of the user's current table in each partition.
        self._given: dict[TopicPartition, int] = {}

    async def poll(self, timeout_ms: float | None, max_records: int | None, form: TableForm) -> pa.Table:
        """See `Consumer.poll_table`."""
        tables = tables_of(form)
        deadline_ms = self.deadline_ms(timeout_ms)
        while True:
            polled = await self.lend(tables, max_records, deadline_ms)
            await asyncio.to_thread(polled.read)
            self.take_back(polled)
            if polled.table.num_rows or self.over(deadline_ms):
                return polled.table

    def deadline_ms(self, timeout_ms: float | None) -> float | None:
        """Deadline of a poll that begins now; None: wait for records without limit."""
        return None if timeout_ms is None else self._clock_ms() + milliseconds("timeout_ms", timeout_ms)

    def over(self, deadline_ms: float | None) -> bool:
        """Whether the deadline has passed."""
        return deadline_ms is not None and self._clock_ms() >= deadline_ms

    async def lend(self, tables: Tables, max_records: int | None, deadline_ms: float | None) -> PolledTable:
        """Waits for records and takes chunks of them; then `read` makes the table, and `take_back` moves the positions past it. Otherwise
        the consumer's next call puts the chunks back.
        """
        for tp, offset in self._delivery.first_offsets().items():
            # Undelivered records of a record poll are the start of the table.
            self._fetcher.seek(tp, offset)
        self._delivery.drop(lambda _: True)
        limit = NO_LIMIT if max_records is None else max_records

        def take() -> bool:
            self._out.extend(self._fetcher.buffer.lend(limit))
            return bool(self._out)

        await self._turn(limit, None if deadline_ms is None else deadline_ms - self._clock_ms(), take)
        return PolledTable(tables, self._out, limit, several=self._several(), check_crcs=self._options.check_crcs)

    def take_back(self, polled: PolledTable) -> None:
        """Moves the positions past what was read."""
        self._given = {one.tp: one.start_offset for one in reversed(self._out)}
        self._out = []
        polled.take_back(self._fetcher)

    def not_done(self) -> None:
        """The user's code failed on the last records or table: they are not committed."""
        self._delivery.not_done()
        for tp, offset in self._given.items():
            if tp in self._fetcher.assignment:
                self._fetcher.seek(tp, offset)

    def put_back(self) -> None:
        """The user has called again: the last table is processed, and chunks that were not taken back were not read."""
        self._given = {}
        lent, self._out = self._out, []
        for one in reversed(lent):
            self._fetcher.buffer.take_back(one, None)


def tables_of(form: Any) -> Tables:
    """The table maker of these options. Raises: ValueError, TypeError, ImportError."""
    return Tables(form)
