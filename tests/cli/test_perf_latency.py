"""The loop of `ottla perf latency`, with in-memory clients and clock."""

from __future__ import annotations

import io
from typing import Any

import pytest

from ottla.cli.perf.display import Display, Goal
from ottla.cli.perf.figures import NS, Figures, latency_document
from ottla.cli.perf.latency import OutgoingRecord, RecordLost, RoundTrips
from ottla.cli.perf.load import Schedule
from ottla.client.consumer.record import ConsumerRecord
from ottla.client.producer.batches import BlockingDelivery, ProducerBatch
from ottla.wire.errors import KafkaError, NotEnoughReplicas

MS = 1_000_000


class SimulatedClients:
    """A producer and a consumer: records are acknowledged after 2 ms and received after 5, some of them late or never."""

    def __init__(self) -> None:
        self.now = NS
        self.sent: list[OutgoingRecord] = []
        self.late: dict[int, int] = {}
        self.lost: set[int] = set()
        self.error: KafkaError | None = None
        self.strangers = False
        self._batch = ProducerBatch("t", 0, None, 0.0)

    def clock(self) -> int:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += round(seconds * NS)

    def send(self, topic: str, value: bytes, key: bytes | None, headers: list[tuple[str, bytes]]) -> BlockingDelivery:
        self.sent.append(OutgoingRecord(topic, value, key, headers))
        self._batch = ProducerBatch(topic, 0, None, 0.0)
        return BlockingDelivery(self._batch, 0, 0)

    def poll(self, timeout_ms: float | None = None) -> list[ConsumerRecord]:
        number = len(self.sent) - 1
        self.now += 2 * MS
        if not self._batch.done:
            self._batch.finish(base_offset=number, error=self.error)
            self._batch.notify()
        if self.error is not None or number in self.lost:
            self.now += round((timeout_ms or 0) * MS)
            return []
        self.now += 3 * MS + self.late.pop(number, 0)
        stranger = ConsumerRecord("t", 0, 0, 0, 0, None, b"another's")
        if self.strangers:
            self.strangers = False
            return [stranger]
        return [stranger, ConsumerRecord("t", 0, number, 0, 0, None, self.sent[-1].value)]


def went(world: SimulatedClients, *, warmup: int = 0, **limits: Any) -> tuple[RoundTrips, Figures]:
    values = iter(range(10**6))
    trips = RoundTrips(
        world, world, lambda: OutgoingRecord("t", b"%03d" % next(values), b"k", []), timeout_ns=NS, clock=world.clock, sleep=world.sleep
    )
    trips.warm_up(warmup)
    schedule = Schedule(**limits)
    schedule.begin(world.clock())
    figures = Figures(world.clock())
    trips.run(schedule, figures, Display(figures, Goal(None, None), interval_ns=NS, stream=io.StringIO(), terminal=False))
    return trips, figures


def test_end_to_end_latency_ends_at_receipt_and_produce_latency_at_the_acknowledgement() -> None:
    trips, figures = went(SimulatedClients(), records=10)
    assert (figures.total.records, figures.total.bytes, figures.total.seconds) == (10, 40, 0.05)
    assert latency_document(figures.total.latencies)["avg"] == 5.0
    assert latency_document(trips.acknowledged)["avg"] == 2.0


def test_the_warm_up_is_sent_but_not_measured() -> None:
    world = SimulatedClients()
    _, figures = went(world, warmup=3, records=4)
    assert (len(world.sent), figures.total.records, figures.total.seconds) == (7, 4, 0.02)


def test_foreign_records_are_skipped() -> None:
    world = SimulatedClients()
    world.strangers = True
    _, figures = went(world, records=2)
    assert (figures.total.records, latency_document(figures.total.latencies)["max"]) == (2, 10.0)


def test_at_a_rate_a_slow_record_delays_the_records_behind_it() -> None:
    world = SimulatedClients()
    world.late = {0: 95 * MS}
    _, figures = went(world, records=20, rate=100.0)
    # Due every 10 ms and done every 5: the first took 100, the second was sent 95 late, the third 90 ...
    assert figures.total.latencies.total // MS == sum(range(5, 101, 5)), "down to 5 ms each"
    assert world.now - NS == 195 * MS


def test_a_missing_record_ends_it_with_the_figures_so_far() -> None:
    world = SimulatedClients()
    world.lost = {3}
    with pytest.raises(RecordLost, match="did not arrive within 1 s"):
        went(world, records=10)
    assert len(world.sent) == 4


def test_a_failed_write_ends_it() -> None:
    world = SimulatedClients()
    world.error = NotEnoughReplicas()
    with pytest.raises(RecordLost, match="was not written"):
        went(world, records=10)
