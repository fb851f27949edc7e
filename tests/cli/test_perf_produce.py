"""The send loop of `ottla perf produce`, with an in-memory producer and clock."""

from __future__ import annotations

import io
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import pytest

from ottla.cli.perf.display import Display, Goal
from ottla.cli.perf.figures import NS, Figures, latency_document
from ottla.cli.perf.load import Payload, Schedule, numbers, random_payloads
from ottla.cli.perf.sending import LoadSender
from ottla.cli.perf.transactions import TimedTransactions
from ottla.client.producer.batches import BlockingDelivery, ProducerBatch
from ottla.wire.errors import KafkaError, MessageTooLarge

MS = 1_000_000


class Clock:
    """A clock that advances in each sleep."""

    def __init__(self) -> None:
        self.now = NS

    def __call__(self) -> int:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += round(seconds * NS)


class Table(NamedTuple):
    """Rows that are acknowledged at once, except one."""

    rows: int

    def add_batch_callback(self, callback: Callable[[int, KafkaError | None], None]) -> None:
        if self.rows > 1:
            callback(self.rows - 1, None)
        callback(1, MessageTooLarge("it is too large"))


class Producer:
    """Makes batches of `batch` records, each of which takes `takes_ns`. One batch stalls everything."""

    def __init__(self, clock: Clock, *, batch: int = 1, takes_ns: int = MS, stall: tuple[int, int] = (-1, 0)) -> None:
        self.clock, self.size, self.takes_ns, self.stall = clock, batch, takes_ns, stall
        self.values: list[bytes] = []
        self.tables: list[int] = []
        self.open: list[ProducerBatch] = []
        #: Index of the batch that fails.
        self.bad = -1
        self.batches = 0
        #: Number of records before each begin and commit.
        self.begins: list[int] = []
        self.commits: list[int] = []

    def begin(self) -> None:
        self.begins.append(len(self.values))

    def commit(self) -> None:
        self._finish()
        self.commits.append(len(self.values))

    def send(self, topic: str, value: bytes) -> BlockingDelivery:
        number = len(self.values)
        if number == self.stall[0]:
            self.clock.now += self.stall[1]
        self.values.append(value)
        if number % self.size == 0:
            self.open.append(ProducerBatch(topic, 0, None, 0.0))
        made = BlockingDelivery(self.open[-1], number % self.size, 0)
        if number % self.size == self.size - 1 and len(self.open) > 1:
            self._finish()
        return made

    def send_table(self, topic: str, table: Any, *, value: str) -> Table:
        self.values += table[value].to_pylist()
        self.tables.append(table.num_rows)
        return Table(table.num_rows)

    def flush(self, timeout_ms: float | None = None) -> None:
        self._finish()

    def _finish(self) -> None:
        self.clock.now += self.takes_ns
        for batch in self.open:
            batch.finish(error=MessageTooLarge("it is too large") if self.batches == self.bad else None)
            self.batches += 1
            batch.notify()
        self.open.clear()


def sent(
    producer: Producer,
    clock: Clock,
    *,
    warmup: int = 0,
    payload: Payload | None = None,
    tables: bool = False,
    transactions: TimedTransactions | None = None,
    **limits: Any,
) -> Figures:
    schedule = Schedule(**limits)
    schedule.begin(clock())
    figures = Figures(clock(), warmup=warmup)
    display = Display(figures, Goal(limits.get("records"), None), interval_ns=NS, stream=io.StringIO(), terminal=False)
    sending = LoadSender(
        producer,
        "t",
        payload or numbers(),
        schedule,
        figures,
        display,
        clock=clock,
        sleep=clock.sleep,
        transactions=transactions,
    )
    sending.run(tables=tables)
    sending.wait()
    assert sending.sent == len(producer.values)
    return figures


def test_each_record_is_sent_and_counted_once() -> None:
    clock = Clock()
    producer = Producer(clock, batch=7)
    figures = sent(producer, clock, records=1234)
    assert producer.values == [b"%d" % number for number in range(1234)]
    assert (figures.total.records, figures.total.bytes) == (1234, sum(map(len, producer.values)))
    assert figures.failed == 0


def test_the_rate_is_limited() -> None:
    clock = Clock()
    sent(Producer(clock, batch=1000), clock, records=100, rate=50.0)
    assert clock.now - NS == pytest.approx(99 / 50 * NS, abs=2 * MS)


def test_transactions_are_committed_at_an_interval_and_the_last_one_at_the_end() -> None:
    clock = Clock()
    producer = Producer(clock, batch=1, takes_ns=2 * MS)
    transactions = TimedTransactions(producer, duration_ns=100 * MS, clock=clock)
    figures = sent(producer, clock, records=25, rate=100.0, transactions=transactions)
    assert figures.total.records == 25
    # A record every 10 ms, the first at once; an acknowledgement takes 2 ms.
    assert (producer.begins, producer.commits) == ([0, 10, 21], [10, 21, 25])
    found = transactions.document()
    assert (found["committed"], found["duration_ms"], found["commit_ms"]["max"]) == (3, 100, 2.0)


def test_no_transaction_begins_without_a_record() -> None:
    clock = Clock()
    producer = Producer(clock)
    transactions = TimedTransactions(producer, duration_ns=MS, clock=clock)
    transactions.update()
    transactions.commit()
    assert (producer.begins, producer.commits, transactions.document()["commit_ms"]["p50"]) == ([], [], None)


def test_a_stall_shows_in_the_latency_of_all_records_due_meanwhile() -> None:
    clock = Clock()
    # Record 100 of 400 stalls for two seconds, in which another 200 are due.
    figures = sent(Producer(clock, batch=1, takes_ns=0, stall=(100, 2 * NS)), clock, records=400, rate=100.0)
    found = latency_document(figures.total.latencies)
    assert found["p50"] is not None
    assert found["p50"] > 10, "half of all records were due in the stall"
    assert found["max"] == pytest.approx(2000, rel=0.01)
    assert clock.now - NS < 4.1 * NS, "delayed records are sent at once"


def test_failed_records_are_reported_and_have_no_latency() -> None:
    clock = Clock()
    producer = Producer(clock, batch=10)
    producer.bad = 3
    figures = sent(producer, clock, records=100)
    assert (figures.failed, figures.total.records, figures.total.latencies.count) == (10, 90, 90)
    assert "too large" in (figures.error or "")


def test_records_after_the_warm_up_are_reported_separately() -> None:
    clock = Clock()
    figures = sent(Producer(clock, batch=10), clock, records=1000, warmup=730)
    assert figures.steady is not None
    assert (figures.steady.records, figures.total.records) == (270, 1000)


def test_it_ends_at_its_duration() -> None:
    clock = Clock()
    figures = sent(Producer(clock), clock, rate=10.0, duration_ns=2 * NS)
    assert 19 <= figures.total.records <= 21


def test_at_a_rate_tables_hold_the_records_due_in_one_interval() -> None:
    pytest.importorskip("pyarrow")
    clock = Clock()
    producer = Producer(clock)
    figures = sent(producer, clock, records=2050, rate=10_000.0, tables=True, warmup=530)
    assert producer.values == [b"%d" % number for number in range(2050)]
    # The last tables of the run and of the warm-up can be smaller.
    assert producer.tables == [100] * 5 + [30] + [100] * 15 + [20]
    assert (figures.failed, figures.total.records) == (22, 2028)
    assert clock.now - NS == pytest.approx(2050 / 10_000 * NS, rel=0.01)


def test_tables_of_letters_are_slices_of_one_table() -> None:
    pytest.importorskip("pyarrow")
    clock = Clock()
    producer = Producer(clock)
    sent(producer, clock, records=45_000, tables=True, payload=random_payloads(10, Random(0)))
    assert producer.tables == [20_000, 20_000, 5000]
    assert {len(value) for value in producer.values} == {10}
