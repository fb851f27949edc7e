"""The loop that sends a load and learns when each record was acknowledged.

    main thread     send send send ... | settle: latency of each | draw | wait until more is due
    sender's        ... acknowledged: only note the moment

Records of one batch are acknowledged at one moment, so they are followed together: what costs time for each record is a look at the clock
and a place in a list. Times are those at which records were due (`perf_load`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from ottla.cli.perf.display import Display
from ottla.cli.perf.figures import NS, Figures
from ottla.cli.perf.load import Payload, Schedule
from ottla.cli.perf.options import TICK_NS

if TYPE_CHECKING:
    from ottla.client.producer.batches import BlockingDelivery
    from ottla.wire.errors import KafkaError

#: Records between two looks at what else is to be done.
PORTION = 500
#: Rows of a table, and its bytes.
TABLE_ROWS, TABLE_BYTES = 20_000, 1 << 20
#: At a rate, a table holds what becomes due in this time: one per row would be a batch per row.
TABLE_S = 0.01


class Producing(Protocol):
    """What is needed of a producer."""

    def send(self, topic: str, value: bytes) -> BlockingDelivery: ...

    def send_table(self, topic: str, table: Any, *, value: str) -> Any: ...

    def flush(self, timeout_ms: float | None = None) -> None: ...


class _Travelling:
    """Records of one batch."""

    __slots__ = ("at_ns", "deliveries", "due_ns", "size", "warm")

    def __init__(self, first: BlockingDelivery, *, warm: bool) -> None:
        self.deliveries = [first]
        self.due_ns: list[int] = []
        self.size = 0
        self.warm = warm
        self.at_ns = 0


class Sending:
    """Sends what the schedule wants to a topic. `clock` gives nanoseconds, `sleep` takes seconds."""

    def __init__(
        self, producer: Producing, topic: str, payload: Payload, schedule: Schedule, figures: Figures, display: Display,
        *, clock: Callable[[], int], sleep: Callable[[float], None],
    ) -> None:  # fmt: skip
        self._producer, self._topic, self._payload = producer, topic, payload
        self._schedule, self._figures, self._display = schedule, figures, display
        self._clock, self._sleep = clock, sleep
        self._current: _Travelling | None = None
        #: Whose outcome is known, put there by the sender's thread.
        self._done: deque[_Travelling] = deque()
        self._tables_done: deque[tuple[int, int, int, int, bool, KafkaError | None]] = deque()
        #: Rows that are sent again and again, and the bytes of their values.
        self._table: Any = None
        self._table_size = 0
        #: How many were handed over.
        self.sent = 0

    def run(self, *, tables: bool = False) -> None:
        """Send everything, and wait until all of it is settled. Ctrl-C interrupts it: `settle` then has the rest.

        Raises: what `send` raises.
        """
        schedule, clock = self._schedule, self._clock
        portion = self._send_table if tables else self._send_each
        most = self._table_rows() if tables else PORTION
        now = clock()
        while not schedule.over(self.sent, now):
            least = self._least(most) if tables else 1
            due = schedule.due(self.sent, now, most)
            if self._figures.warmup:
                due = self._begin_steady(due, now)
            if due >= least:
                portion(due)
            else:
                self._sleep(min(schedule.wait_ns(self.sent + least - 1, now), TICK_NS) / NS)
            self.settle()
            now = clock()
            self._display.update(now)

    def _least(self, most: int) -> int:
        """How many rows the next table is to have, if there are as many left before the end, or that of the warm-up."""
        schedule = self._schedule
        wanted = most if schedule.rate is None else min(most, int(schedule.rate * TABLE_S))
        if schedule.records is not None:
            wanted = min(wanted, schedule.records - self.sent)
        if self.sent < self._figures.warmup:
            wanted = min(wanted, self._figures.warmup - self.sent)
        return max(wanted, 1)

    def _begin_steady(self, due: int, now: int) -> int:
        """No portion is of the warm-up and of what follows it."""
        left = self._figures.warmup - self.sent
        if left <= 0:
            self._figures.steady_from(now)
            return due
        return min(due, left)

    def _send_each(self, count: int) -> None:
        send, payload, topic, clock, due_ns = self._producer.send, self._payload.value, self._topic, self._clock, self._schedule.due_ns
        current, warm = self._current, self._figures.steady is not None
        for number in range(self.sent, self.sent + count):
            value = payload(number)
            due = due_ns(number, clock())
            delivery = send(topic, value)
            if current is not None and current.warm == warm and delivery.travels_with(current.deliveries[0]):
                current.deliveries.append(delivery)
            else:
                self._current = current = _Travelling(delivery, warm=warm)
                delivery.add_done_callback(partial(self._noted, current))
            current.due_ns.append(due)
            current.size += len(value)
            self.sent += 1

    def _noted(self, travelling: _Travelling, first: object) -> None:
        """In the sender's thread: these are acknowledged, or lost."""
        travelling.at_ns = self._clock()
        self._done.append(travelling)

    def _table_rows(self) -> int:
        """How many rows a table has at most."""
        return max(1, min(TABLE_ROWS, TABLE_BYTES // max(len(self._payload.value(0)), 1)))

    def _send_table(self, count: int) -> None:
        values, size = self._column(count)
        due, warm = self._schedule.due_ns(self.sent, self._clock()), self._figures.steady is not None
        delivery = self._producer.send_table(self._topic, values, value="value")

        def noted(rows: int, error: KafkaError | None) -> None:
            self._tables_done.append((rows, due, rows * size // count, self._clock(), warm, error))

        delivery.add_batch_callback(noted)
        self.sent += count

    def _column(self, count: int) -> tuple[Any, int]:
        """A table of so many rows, and the bytes of its values. Raises: ImportError."""
        import pyarrow as pa

        if self._payload.alike:
            if self._table is None:
                made = [self._payload.value(number) for number in range(self._table_rows())]
                self._table, self._table_size = pa.table({"value": pa.array(made, pa.binary())}), sum(map(len, made))
            return self._table.slice(0, count), self._table_size * count // self._table.num_rows
        made = [self._payload.value(number) for number in range(self.sent, self.sent + count)]
        return pa.table({"value": pa.array(made, pa.binary())}), sum(map(len, made))

    def settle(self) -> None:
        """Count what has its outcome by now."""
        from ottla.client.producer.batches import failures

        while self._done:
            one = self._done.popleft()
            failed = failures(one.deliveries)
            if failed:
                self._figures.refused(len(failed), str(failed[0][1]))
                lost = {index for index, _ in failed}
                one.due_ns = [due for index, due in enumerate(one.due_ns) if index not in lost]
                one.size = one.size * len(one.due_ns) // len(one.deliveries)
            self._figures.acknowledged(one.due_ns, one.size, one.at_ns, warm=one.warm)
        while self._tables_done:
            rows, due, size, at_ns, warm, error = self._tables_done.popleft()
            if error is not None:
                self._figures.refused(rows, str(error))
            else:
                self._figures.acknowledged_together(rows, due, size, at_ns, warm=warm)

    def wait(self, timeout_ms: float | None = None) -> None:
        """Wait for what was sent, and show how it goes. Raises: TimeoutError."""
        began = self._clock()
        while True:
            try:
                self._producer.flush(TICK_NS / 1e6)
            except TimeoutError:
                if timeout_ms is not None and self._clock() - began >= timeout_ms * 1e6:
                    raise
                self.settle()
                self._display.update(self._clock())
            else:
                self.settle()
                return
