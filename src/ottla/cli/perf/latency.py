"""`ottla perf latency`: how long a record takes from a producer to a consumer, one at a time.

    send ----------------- acknowledged
      '------------------------- received ---- the next

The figures are those of kafka-e2e-latency, and how long the acknowledgement took besides. Kafka's tool asks for the record only once it is
acknowledged; here the consumer waits for it all the time, as consumers do. With --throughput a latency counts from when the record was due
(`perf_load`), so that a slow one is seen in those that had to wait for it.

The topic may be used by others: records that are not ours are skipped.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import click

from ottla.cli.common.errors import terminated, told
from ottla.cli.common.output_formats import Form, fields
from ottla.cli.common.tables import Column, Row
from ottla.cli.perf.display import Display, Goal
from ottla.cli.perf.figures import LATENCY, NS, TALLY, Figures, latency_document
from ottla.cli.perf.histogram import Histogram
from ottla.cli.perf.load import Schedule, letters
from ottla.cli.perf.options import (
    TICK_NS,
    ended,
    limit_options,
    limits,
    metrics_document,
    settings_of,
    shared_options,
    show_metrics,
    throughput,
    time_ns,
    topic_for,
)

if TYPE_CHECKING:
    from ottla.client.consumer.record import ConsumerRecord
    from ottla.client.producer.batches import BlockingDelivery
    from ottla.client.sync.consumer import Consumer

RECORD_SIZE = 100
EPILOG = r"""
\b
Examples:
  ottla perf latency --create --num-records 10000
  ottla perf latency orders-test --duration 30s --throughput 200 --producer-acks 1 -o json
""".replace(r"\b", "\b")
_STRETCH = {**TALLY, **{f"latency_ms.{name}": said for name, said in LATENCY.items()}}
FIELDS = {
    "topic": "where records went and came from",
    "interrupted": "whether somebody ended it before its time",
    "error": "why it ended before its time otherwise; null: it did not",
    **_STRETCH,
    **{f"acknowledged_ms.{name}": f"{said}, until the producer knew that it was written" for name, said in LATENCY.items()},
    "latency_from": "due: from the moment a record was due, with --throughput; sent: from the moment it was handed to the client",
    "intervals[].after_s": "when the interval began, in seconds from the start; only with --show-detailed-stats",
    **{f"intervals[].{name}": f"{said}, in the interval" for name, said in _STRETCH.items()},
    "metrics.*": "with --print-metrics: the figures of both clients by group and name",
}


def _of(name: str) -> Callable[[Row], object]:
    return lambda row: None if row["latency_ms"][name] is None else f"{row['latency_ms'][name]:.3f}"


COLUMNS = (
    Column("PART", "part"),
    Column("RECORDS", "records", number=True),
    Column("AVG MS", _of("avg"), number=True),
    Column("P50", _of("p50"), number=True),
    Column("P95", _of("p95"), number=True),
    Column("P99", _of("p99"), number=True),
    Column("P99.9", _of("p99_9"), number=True),
    Column("MAX MS", _of("max"), number=True),
    Column("SECONDS", "seconds", number=True, wide=True),
)


class Sent(NamedTuple):
    """What `send` takes."""

    topic: str
    value: bytes
    key: bytes | None
    headers: list[tuple[str, bytes]]


class Producing(Protocol):
    """What is needed of a producer."""

    def send(self, topic: str, value: bytes, key: bytes | None, headers: list[tuple[str, bytes]]) -> BlockingDelivery: ...


class Polling(Protocol):
    """What is needed of a consumer."""

    def poll(self, timeout_ms: float | None = None) -> list[ConsumerRecord]: ...


class Lost(Exception):
    """A record was not written, or did not come in time."""


class Trips:
    """Sends records and waits for each. `clock` gives nanoseconds, `sleep` takes seconds."""

    def __init__(
        self, producer: Producing, consumer: Polling, record: Callable[[], Sent], *,
        timeout_ns: int, clock: Callable[[], int], sleep: Callable[[float], None],
    ) -> None:  # fmt: skip
        self._producer, self._consumer, self._record = producer, consumer, record
        self._timeout_ns, self._clock, self._sleep = timeout_ns, clock, sleep
        #: From when a record was due until the producer knew that it was written.
        self.acknowledged = Histogram()

    def warm_up(self, records: int) -> None:
        """Some that are not counted. Raises: Lost; what the clients raise."""
        for _ in range(records):
            self._trip(self._record())

    def run(self, schedule: Schedule, figures: Figures, display: Display) -> None:
        """All that the schedule wants. Raises: Lost; what the clients raise."""
        sent, now = 0, self._clock()
        while not schedule.over(sent, now):
            if schedule.due(sent, now, 1):
                due, record = schedule.due_ns(sent, now), self._record()
                acknowledged_ns, received_ns = self._trip(record)
                self.acknowledged.add(max(acknowledged_ns - due, 0))
                figures.acknowledged([due], len(record.value) + len(record.key or b""), received_ns, warm=False)
                sent += 1
            else:
                self._sleep(min(schedule.wait_ns(sent, now), TICK_NS) / NS)
            now = self._clock()
            display.update(now)

    def _trip(self, sent: Sent) -> tuple[int, int]:
        """When the record was acknowledged, and when it came. Raises: Lost."""
        moments: list[int] = []
        began = self._clock()
        delivery = self._producer.send(*sent)
        delivery.add_done_callback(lambda _: moments.append(self._clock()))
        while not any(record.value == sent.value for record in self._consumer.poll(TICK_NS / 1e6)):
            if moments and (error := delivery.exception()) is not None:
                raise Lost(f"a record was not written: {error}")
            if self._clock() - began >= self._timeout_ns:
                raise Lost(f"a record did not come within {self._timeout_ns / NS:g} s")
        received_ns = self._clock()
        error = delivery.exception()
        if error is not None:
            raise Lost(f"a record was not written: {error}")
        # Who waits for the outcome may know it a moment before those are called who want to hear of it.
        return moments[0] if moments else self._clock(), received_ns


@fields(FIELDS)
@click.command(name="latency", epilog=EPILOG)
@limit_options("records", "-n", "--num-records")
@click.option(
    "--producer-acks", "acks", type=click.Choice(["all", "1"]), default="all", show_default=True,
    help="Who must have a record: all in-sync replicas, or the leader.",
)  # fmt: skip
@click.option("--record-size", type=click.IntRange(min=1), default=RECORD_SIZE, show_default=True, metavar="BYTES", help="Size of values.")
@click.option(
    "--record-key-size", type=click.IntRange(min=0), default=0, show_default=True, metavar="BYTES", help="Size of the key; 0: none."
)
@click.option("--num-headers", type=click.IntRange(min=0), default=0, show_default=True, metavar="N", help="Headers of each record.")
@click.option(
    "--record-header-key-size", type=click.IntRange(min=1), default=1, show_default=True, metavar="BYTES", help="Size of their names."
)
@click.option(
    "--record-header-size", type=click.IntRange(min=0), default=0, show_default=True, metavar="BYTES", help="Size of their values."
)
@click.option(
    "--throughput", "rate", default="-1", show_default=True, metavar="N",
    help="So many records a second; latencies count from when a record was due. -1: each when the one before came.",
)  # fmt: skip
@click.option(
    "--warmup-records", type=click.IntRange(min=0), default=1, show_default=True, help="Send so many first, which are not counted."
)
@click.option("--timeout", default="60s", show_default=True, metavar="TIME", help="How long a record may take.")
@shared_options
def command(bootstrap: str, output: Form, **asked: Any) -> None:
    """Send records to TOPIC, one at a time, and tell how long each took to come back."""
    from ottla.client.options import ConsumerOptions, ProducerOptions
    from ottla.client.sync.consumer import Consumer
    from ottla.client.sync.producer import Producer

    records, duration_ns = limits(asked, "--num-records")
    rate, timeout_ns, interval_ns = (
        throughput(asked["rate"]), time_ns(asked["timeout"], "--timeout"), time_ns(asked["reporting_interval"], "--reporting-interval")
    )  # fmt: skip
    settings = settings_of(ProducerOptions, asked, bootstrap, beside=ConsumerOptions, acks=asked["acks"], linger_ms=0)
    theirs = settings_of(ConsumerOptions, asked, bootstrap, beside=ProducerOptions)
    clock, schedule = time.perf_counter_ns, Schedule(rate=rate, records=records, duration_ns=duration_ns)
    with told(), topic_for(asked, settings["bootstrap_servers"]) as topic, terminated():
        consumer = Consumer(**theirs)
        producer = Producer(**settings)
        figures = Figures(clock())
        display, trips = None, Trips(producer, consumer, _record(topic, asked), timeout_ns=timeout_ns, clock=clock, sleep=time.sleep)
        interrupted, error = False, None
        try:
            _go_to_end(consumer, topic)
            trips.warm_up(asked["warmup_records"])
            schedule.begin(clock())
            figures = Figures(schedule.began_ns)
            display = Display(figures, Goal(records, duration_ns), interval_ns=interval_ns, detailed=asked["show_detailed_stats"])
            trips.run(schedule, figures, display)
        except KeyboardInterrupt:
            interrupted = True
        except Lost as lost:
            error = str(lost)
        finally:
            if display is not None:
                display.end(clock())
            metrics = metrics_document({**producer.metrics(), **consumer.metrics()}) if asked["print_metrics"] else None
            producer.close(timeout_ms=0)
            consumer.close()
    found = {"topic": topic, "interrupted": interrupted, "error": error, "latency_from": "sent" if rate is None else "due"}
    found |= {**_stretch(figures), "acknowledged_ms": latency_document(trips.acknowledged)}
    found["intervals"] = [] if display is None else display.intervals
    show({**found, **({} if metrics is None else {"metrics": metrics})}, output)
    if error is not None:
        raise click.ClickException(error)
    ended(interrupted=interrupted)


def _record(topic: str, asked: dict[str, Any]) -> Callable[[], Sent]:
    """Makes records; each has a value of its own, by which it is known again."""
    rng = Random()
    key = letters(asked["record_key_size"], rng) or None
    name = letters(asked["record_header_key_size"], rng).decode()
    headers = [(name, letters(asked["record_header_size"], rng)) for _ in range(asked["num_headers"])]
    size = asked["record_size"]
    return lambda: Sent(topic, letters(size, rng), key, headers)


def _go_to_end(consumer: Consumer, topic: str) -> None:
    """Read all partitions from their ends on, and know where these are."""
    partitions = consumer.partitions_for(topic)
    consumer.assign(partitions)
    consumer.seek_to_end(*partitions)
    for partition in partitions:
        consumer.position(partition)


def _stretch(figures: Figures) -> dict[str, Any]:
    return {**figures.total.document(), "latency_ms": latency_document(figures.total.latencies)}


def show(found: dict[str, Any], output: Form) -> None:
    """Print it."""
    if output.for_programs:
        output.document(found)
        return
    rows: list[Row] = [{"part": f"{one['after_s']:.1f}s", **one} for one in found["intervals"]]
    rows += [{**found, "part": "end to end"}, {**found, "part": "acknowledged", "latency_ms": found["acknowledged_ms"]}]
    output.table(rows, COLUMNS)
    show_metrics(found.get("metrics"), output)
