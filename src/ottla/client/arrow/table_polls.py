"""How a consumer polls tables: the turns of `poll_table` on the loop, between which the table is made in another thread (`arrow_poll`).

async face     lend --> read beside the loop --> take_back --> table, or once more while there is time
blocking face  lend --> read in the user's thread --> take_back --> ...
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from ottla.base.ids import TopicPartition
from ottla.client.argument_validation import milliseconds
from ottla.client.consumer.delivery import RecordDelivery
from ottla.client.fetch.chunk import Lent
from ottla.client.fetch.fetcher import Fetcher
from ottla.client.options import ConsumerOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from ottla.client.arrow.poll import PolledTable
    from ottla.client.arrow.read import TableForm, Tables

#: What a poll without a limit takes: all that is there.
NO_LIMIT = 1 << 62


class TablePolls:
    """See the module. `turn(limit, timeout_ms, take)` is the consumer's, `several` tells whether it reads more than one topic."""

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
        #: What is out to be read.
        self._out: list[Lent] = []
        #: Where the table that the user works on begins in each partition.
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
        """When a poll that begins now is to end; None: never without records."""
        return None if timeout_ms is None else self._clock_ms() + milliseconds("timeout_ms", timeout_ms)

    def over(self, deadline_ms: float | None) -> bool:
        """Whether that time has come."""
        return deadline_ms is not None and self._clock_ms() >= deadline_ms

    async def lend(self, tables: Tables, max_records: int | None, deadline_ms: float | None) -> PolledTable:
        """Wait for records and take out chunks of them; then `read` makes the table, and `take_back` moves the positions past it. Where it
        does not come to that, the consumer's next turn puts everything back.
        """
        from ottla.client.arrow.poll import PolledTable

        for tp, offset in self._delivery.first_offsets().items():
            # Records of a poll that were not given come first in the table; so it begins with them.
            self._fetcher.seek(tp, offset)
        self._delivery.drop(lambda _: True)
        limit = NO_LIMIT if max_records is None else max_records

        def take() -> bool:
            self._out.extend(self._fetcher.buffer.lend(limit))
            return bool(self._out)

        await self._turn(limit, None if deadline_ms is None else deadline_ms - self._clock_ms(), take)
        return PolledTable(tables, self._out, limit, several=self._several(), check_crcs=self._options.check_crcs)

    def take_back(self, polled: PolledTable) -> None:
        """Positions move past what was read."""
        self._given = {one.tp: one.start_offset for one in reversed(self._out)}
        self._out = []
        polled.take_back(self._fetcher)

    def not_done(self) -> None:
        """The user failed on what it was given last, records or a table: it is not to be committed."""
        self._delivery.not_done()
        for tp, offset in self._given.items():
            if tp in self._fetcher.assignment:
                self._fetcher.seek(tp, offset)

    def put_back(self) -> None:
        """The user came back: the table it was given is done with, and what was lent and not taken back was not read."""
        self._given = {}
        lent, self._out = self._out, []
        for one in reversed(lent):
            self._fetcher.buffer.take_back(one, None)


def tables_of(form: Any) -> Tables:
    """What makes the tables. Raises: ValueError, TypeError, ImportError."""
    from ottla.client.arrow.read import Tables

    return Tables(form)
