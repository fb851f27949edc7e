"""The loop of `ottla perf consume`, with an in-memory consumer and clock."""

from __future__ import annotations

import io
from typing import Any

from ottla.base.ids import TopicPartition
from ottla.cli.perf.consume import ReadLoop, RebalanceTime, document
from ottla.cli.perf.display import Display, Goal
from ottla.cli.perf.figures import MB, NS, Figures
from ottla.client.consumer.record import ConsumerRecord

MS = 1_000_000


class Clock:
    """A clock that advances when a poll takes time."""

    now = NS

    def __call__(self) -> int:
        return self.now


class Consumer:
    """Returns `batch` records per poll, each of which takes 10 ms; after the last, each poll takes its whole timeout."""

    def __init__(self, clock: Clock, polls: list[int]) -> None:
        self.clock, self.polls = clock, polls
        self.asked: list[int | None] = []

    def poll(self, timeout_ms: float | None = None, max_records: int | None = None) -> list[ConsumerRecord]:
        self.asked.append(max_records)
        if not self.polls:
            self.clock.now += round((timeout_ms or 0) * MS)
            return []
        self.clock.now += 10 * MS
        count = min(self.polls.pop(0), max_records or 0)
        return [ConsumerRecord("t", 0, offset, 0, 0, b"key" if offset % 2 else None, b"1234567") for offset in range(count)]

    def poll_table(self, timeout_ms: float | None = None, max_records: int | None = None) -> Any:
        raise AssertionError("nobody reads tables here")


def read(consumer: Consumer, clock: Clock, goal: Goal, *, timeout_ms: int = 1000) -> tuple[ReadLoop, Figures]:
    figures = Figures(clock())
    display = Display(figures, goal, interval_ns=NS, stream=io.StringIO(), terminal=False)
    reading = ReadLoop(consumer, figures, display, goal=goal, timeout_ns=timeout_ms * MS, clock=clock)
    reading.run()
    return reading, figures


def test_no_more_records_are_read_than_requested() -> None:
    clock = Clock()
    consumer = Consumer(clock, [6, 6, 6])
    reading, figures = read(consumer, clock, Goal(10, None))
    assert consumer.asked == [10, 4]
    assert (figures.total.records, figures.total.bytes, figures.total.seconds) == (10, 10 * 7 + 5 * 3, 0.02)
    assert not reading.timed_out


def test_it_ends_after_the_idle_timeout_which_is_not_measured() -> None:
    clock = Clock()
    reading, figures = read(Consumer(clock, [5, 5]), clock, Goal(100, None))
    assert reading.timed_out
    assert clock.now == NS + 1020 * MS
    assert figures.total.seconds == 0.02


def test_it_ends_at_its_duration() -> None:
    clock = Clock()
    reading, figures = read(Consumer(clock, [1] * 1000), clock, Goal(None, NS))
    assert (figures.total.records, reading.timed_out) == (100, False)


def test_time_without_an_assignment_is_not_fetch_time() -> None:
    clock = Clock()
    rebalances, figures = RebalanceTime(clock), Figures(clock())
    clock.now += 3 * NS
    rebalances.on_partitions_assigned([TopicPartition("t", 0)])
    clock.now += NS
    rebalances.on_partitions_revoked([TopicPartition("t", 0)])
    clock.now += NS
    rebalances.on_partitions_assigned([])
    clock.now += NS
    figures.add_received(8, 2 * MB, clock())
    found = document(figures, 1000, rebalances.spent_ns(figures.total.ended_ns))
    assert (found["start_ms"], found["end_ms"], found["rebalance_ms"], found["fetch_ms"]) == (1000, 7000, 4000, 2000)
    assert (found["fetch_records_per_s"], found["fetch_mb_per_s"], found["mb_per_s"]) == (4.0, 1.0, 0.333)


def test_a_member_without_an_assignment_has_only_wait_time() -> None:
    clock = Clock()
    rebalances = RebalanceTime(clock)
    assert rebalances.spent_ns(clock() + NS) == NS
