"""The loop that sends a load and measures when each record is acknowledged.

    main thread     send send send ... | collect_results: latencies | draw | wait until more is due
    sender thread   ... acknowledged: only store the time

The records of a batch are acknowledged together and tracked together: the cost per record is one clock reading and one list entry.
Latencies count from the due times (`perf.load`).
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
from ottla.cli.perf.transactions import TimedTransactions
from ottla.wire.errors import KafkaError

if TYPE_CHECKING:
    from ottla.client.producer.batches import BlockingDelivery

#: Maximum records between two checks for results and reports.
CHUNK_RECORDS = 500
#: Maximum rows and bytes of a table.
TABLE_ROWS, TABLE_BYTES = 20_000, 1 << 20
#: At a rate, a table holds the records of this time: smaller tables would make a batch per row.
TABLE_S = 0.01


class Producing(Protocol):
    """The methods of a producer that are used."""

    def send(self, topic: str, value: bytes) -> BlockingDelivery: ...

    def send_table(self, topic: str, table: Any, *, value: str) -> Any: ...

    def flush(self, timeout_ms: float | None = None) -> None: ...


class _BatchInFlight:
    """Records of one batch that are not acknowledged yet."""

    __slots__ = ("at_ns", "deliveries", "due_ns", "size", "warm")

    def __init__(self, first: BlockingDelivery, *, warm: bool) -> None:
        self.deliveries = [first]
        self.due_ns: list[int] = []
        self.size = 0
        self.warm = warm
        self.at_ns = 0


class LoadSender:
    """Sends the records of a schedule to a topic. `clock` returns nanoseconds, `sleep` takes seconds."""

    def __init__(
        self, producer: Producing, topic: str, payload: Payload, schedule: Schedule, figures: Figures, display: Display,
        *, clock: Callable[[], int], sleep: Callable[[float], None], transactions: TimedTransactions | None = None,
    ) -> None:  # fmt: skip
        self._producer, self._topic, self._payload = producer, topic, payload
        self._schedule, self._figures, self._display = schedule, figures, display
        self._clock, self._sleep, self._transactions = clock, sleep, transactions
        self._current: _BatchInFlight | None = None
        #: Acknowledged or failed batches, added by the sender thread.
        self._done: deque[_BatchInFlight] = deque()
        self._tables_done: deque[tuple[int, int, int, int, bool, KafkaError | None]] = deque()
        #: Rows that are sent repeatedly, and the size of their values in bytes.
        self._table: Any = None
        self._table_size = 0
        #: Number of records sent.
        self.sent = 0

    def run(self, *, tables: bool = False) -> None:
        """Sends all records of the schedule. Raises: KafkaError; KeyboardInterrupt."""
        schedule, clock = self._schedule, self._clock
        send = self._send_table if tables else self._send_each
        most = self._table_rows() if tables else CHUNK_RECORDS
        now = clock()
        while not schedule.over(self.sent, now):
            least = self._least(most) if tables else 1
            due = schedule.due(self.sent, now, most)
            if self._figures.warmup:
                due = self._begin_steady(due, now)
            if due >= least:
                if self._transactions is not None:
                    self._transactions.begin()
                send(due)
            else:
                self._sleep(min(schedule.wait_ns(self.sent + least - 1, now), TICK_NS) / NS)
            if self._transactions is not None:
                self._transactions.update()
            self.collect_results()
            now = clock()
            self._display.update(now)

    def _least(self, most: int) -> int:
        """Minimum rows of the next table, limited by the records left and by those left in the warm-up."""
        schedule = self._schedule
        rows = most if schedule.rate is None else min(most, int(schedule.rate * TABLE_S))
        if schedule.records is not None:
            rows = min(rows, schedule.records - self.sent)
        if self.sent < self._figures.warmup:
            rows = min(rows, self._figures.warmup - self.sent)
        return max(rows, 1)

    def _begin_steady(self, due: int, now: int) -> int:
        """Limits `due` to the warm-up, so that no chunk has records of both parts."""
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
                self._current = current = _BatchInFlight(delivery, warm=warm)
                delivery.add_done_callback(partial(self._on_done, current))
            current.due_ns.append(due)
            current.size += len(value)
            self.sent += 1

    def _on_done(self, batch: _BatchInFlight, first: object) -> None:
        """Called in the sender thread when the batch is acknowledged or failed."""
        batch.at_ns = self._clock()
        self._done.append(batch)

    def _table_rows(self) -> int:
        return max(1, min(TABLE_ROWS, TABLE_BYTES // max(len(self._payload.value(0)), 1)))

    def _send_table(self, count: int) -> None:
        values, size = self._column(count)
        due, warm = self._schedule.due_ns(self.sent, self._clock()), self._figures.steady is not None
        delivery = self._producer.send_table(self._topic, values, value="value")

        def on_done(rows: int, error: KafkaError | None) -> None:
            self._tables_done.append((rows, due, rows * size // count, self._clock(), warm, error))

        delivery.add_batch_callback(on_done)
        self.sent += count

    def _column(self, count: int) -> tuple[Any, int]:
        """A table of `count` rows, and the size of its values in bytes. Raises: ImportError."""
        import pyarrow as pa

        if self._payload.repeatable:
            if self._table is None:
                made = [self._payload.value(number) for number in range(self._table_rows())]
                self._table, self._table_size = pa.table({"value": pa.array(made, pa.binary())}), sum(map(len, made))
            return self._table.slice(0, count), self._table_size * count // self._table.num_rows
        made = [self._payload.value(number) for number in range(self.sent, self.sent + count)]
        return pa.table({"value": pa.array(made, pa.binary())}), sum(map(len, made))

    def collect_results(self) -> None:
        """Counts the records that are acknowledged or failed by now."""
        from ottla.client.producer.batches import failures

        while self._done:
            one = self._done.popleft()
            failed = failures(one.deliveries)
            if failed:
                self._figures.add_failed(len(failed), str(failed[0][1]))
                failed_at = {index for index, _ in failed}
                one.due_ns = [due for index, due in enumerate(one.due_ns) if index not in failed_at]
                one.size = one.size * len(one.due_ns) // len(one.deliveries)
            self._figures.add_acknowledged(one.due_ns, one.size, one.at_ns, warm=one.warm)
        while self._tables_done:
            rows, due, size, at_ns, warm, error = self._tables_done.popleft()
            if error is not None:
                self._figures.add_failed(rows, str(error))
            else:
                self._figures.add_acknowledged_together(rows, due, size, at_ns, warm=warm)

    def abandon(self) -> None:
        """Waits for acknowledgements, and leaves the last transaction uncommitted: the producer aborts it when it closes."""
        self._transactions = None
        self.wait()

    def wait(self, timeout_ms: float | None = None) -> None:
        """Waits for acknowledgements, updates the display, and commits the last transaction. Raises: TimeoutError, KafkaError."""
        began = self._clock()
        while True:
            try:
                self._producer.flush(TICK_NS / 1e6)
            except TimeoutError:
                if timeout_ms is not None and self._clock() - began >= timeout_ms * 1e6:
                    raise
                self.collect_results()
                self._display.update(self._clock())
            else:
                break
        if self._transactions is not None:
            self._transactions.commit()
        self.collect_results()
