"""`ottla perf latency`: latency from a producer to a consumer, one record at a time.

    send ----------------- acknowledged
      '------------------------- received ---- the next

The figures are those of kafka-e2e-latency, and the latency of the acknowledgement. Kafka's tool polls only after the acknowledgement; here
the consumer polls all the time, as consumers do. With --throughput a latency counts from when the record was due (`perf.load`), so that it
includes the wait for slow records before it.

Other clients can use the topic: records with other values are skipped.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import click

import ottla
from ottla.cli.common.errors import reporting_errors, sigterm_as_interrupt
from ottla.cli.common.output_formats import OutputFormat, fields
from ottla.cli.common.tables import Column, Row
from ottla.cli.perf import options as common
from ottla.cli.perf.display import Display, Goal
from ottla.cli.perf.figures import COMMON_FIELDS, INTERVAL, LATENCY, NS, Figures, latency_document
from ottla.cli.perf.histogram import Histogram
from ottla.cli.perf.load import Schedule, random_letters
from ottla.client.options import ConsumerOptions, ProducerOptions

if TYPE_CHECKING:
    from ottla.client.consumer.record import ConsumerRecord
    from ottla.client.producer.batches import BlockingDelivery

RECORD_SIZE = 100
EPILOG = r"""
\b
Examples:
  ottla perf latency --create --num-records 10000
  ottla perf latency orders-test --duration 30s --throughput 200 --producer-acks 1 -o json
""".replace(r"\b", "\b")
FIELDS = {
    "topic": "topic",
    "interrupted": "whether Ctrl-C or SIGTERM ended it",
    "error": "error that ended it; null: none",
    **INTERVAL,
    **{f"acknowledged_ms.{name}": f"{help}, until the acknowledgement" for name, help in LATENCY.items()},
    **COMMON_FIELDS,
}


def _latency_cell(name: str) -> Callable[[Row], object]:
    return lambda row: None if row["latency_ms"][name] is None else f"{row['latency_ms'][name]:.3f}"


COLUMNS = (
    Column("PART", "part"),
    Column("RECORDS", "records", number=True),
    Column("AVG-MS", _latency_cell("avg"), number=True),
    Column("P50", _latency_cell("p50"), number=True),
    Column("P95", _latency_cell("p95"), number=True),
    Column("P99", _latency_cell("p99"), number=True),
    Column("P99.9", _latency_cell("p99_9"), number=True),
    Column("MAX-MS", _latency_cell("max"), number=True),
    Column("SECONDS", "seconds", number=True, wide=True),
)


class OutgoingRecord(NamedTuple):
    """The arguments of `send`."""

    topic: str
    value: bytes
    key: bytes | None
    headers: list[tuple[str, bytes]]


class Producing(Protocol):
    """The method of a producer that is used."""

    def send(self, topic: str, value: bytes, key: bytes | None, headers: list[tuple[str, bytes]]) -> BlockingDelivery: ...


class Polling(Protocol):
    """The method of a consumer that is used."""

    def poll(self, timeout_ms: float | None = None) -> list[ConsumerRecord]: ...


class RecordLost(Exception):
    """A record was not written, or did not arrive in time."""


class RoundTrips:
    """Sends records and waits for each. `clock` returns nanoseconds, `sleep` takes seconds."""

    def __init__(
        self, producer: Producing, consumer: Polling, record: Callable[[], OutgoingRecord], *,
        timeout_ns: int, clock: Callable[[], int], sleep: Callable[[float], None],
    ) -> None:  # fmt: skip
        self._producer, self._consumer, self._record = producer, consumer, record
        self._timeout_ns, self._clock, self._sleep = timeout_ns, clock, sleep
        #: Latency from the due time to the acknowledgement.
        self.acknowledged = Histogram()

    def warm_up(self, records: int) -> None:
        """Sends records that are not counted. Raises: RecordLost, KafkaError."""
        for _ in range(records):
            self._trip(self._record())

    def run(self, schedule: Schedule, figures: Figures, display: Display) -> None:
        """Sends all records of the schedule. Raises: RecordLost, KafkaError."""
        sent, now = 0, self._clock()
        while not schedule.over(sent, now):
            if schedule.due(sent, now, 1):
                due, record = schedule.due_ns(sent, now), self._record()
                acknowledged_ns, received_ns = self._trip(record)
                self.acknowledged.add(max(acknowledged_ns - due, 0))
                figures.add_acknowledged([due], len(record.value) + len(record.key or b""), received_ns, warm=False)
                sent += 1
            else:
                self._sleep(min(schedule.wait_ns(sent, now), common.TICK_NS) / NS)
            now = self._clock()
            display.update(now)

    def _trip(self, sent: OutgoingRecord) -> tuple[int, int]:
        """The times when the record was acknowledged and received. Raises: RecordLost."""
        moments: list[int] = []
        began = self._clock()
        delivery = self._producer.send(*sent)
        delivery.add_done_callback(lambda _: moments.append(self._clock()))
        while not any(record.value == sent.value for record in self._consumer.poll(common.TICK_NS / 1e6)):
            if moments and (error := delivery.exception()) is not None:
                raise RecordLost(f"a record was not written: {error}")
            if self._clock() - began >= self._timeout_ns:
                raise RecordLost(f"a record did not arrive within {self._timeout_ns / NS:g} s")
        received_ns = self._clock()
        error = delivery.exception()
        if error is not None:
            raise RecordLost(f"a record was not written: {error}")
        # `exception` can return shortly before the callback runs.
        return moments[0] if moments else self._clock(), received_ns


@fields(FIELDS)
@click.command(name="latency", epilog=EPILOG)
@common.limit_options("records", "-n", "--num-records")
@click.option(
    "--producer-acks", "acks", type=click.Choice(["all", "1"]), default="all", show_default=True,
    help="Acknowledgement: by all in-sync replicas, or by the leader.",
)  # fmt: skip
@click.option("--record-size", type=click.IntRange(min=1), default=RECORD_SIZE, show_default=True, metavar="BYTES", help="Size of values.")
@click.option(
    "--record-key-size", type=click.IntRange(min=0), default=0, show_default=True, metavar="BYTES", help="Size of keys; 0: no key."
)
@click.option("--num-headers", type=click.IntRange(min=0), default=0, show_default=True, metavar="N", help="Headers per record.")
@click.option(
    "--record-header-key-size", type=click.IntRange(min=1), default=1, show_default=True, metavar="BYTES", help="Size of header names."
)
@click.option(
    "--record-header-size", type=click.IntRange(min=0), default=0, show_default=True, metavar="BYTES", help="Size of header values."
)
@click.option(
    "--throughput", "rate", default="-1", show_default=True, metavar="N",
    help="Records per second; latencies count from when a record was due. -1: send each after the previous one arrived.",
)  # fmt: skip
@click.option(
    "--warmup-records", type=click.IntRange(min=0), default=1, show_default=True, help="Send N records first that are not counted."
)
@click.option("--timeout", default="60s", show_default=True, metavar="TIME", help="Timeout of a record.")
@common.shared_options
def command(bootstrap: str, output: OutputFormat, **options: Any) -> None:
    """Send records to TOPIC one at a time and report the latency until each is received."""

    records, duration_ns = common.limits(options, "--num-records")
    rate, timeout_ns = common.throughput(options["rate"]), common.time_ns(options["timeout"], "--timeout")
    interval_ns = common.time_ns(options["reporting_interval"], "--reporting-interval")
    settings = common.client_options(ProducerOptions, options, bootstrap, beside=ConsumerOptions, acks=options["acks"], linger_ms=0)
    theirs = common.client_options(ConsumerOptions, options, bootstrap, beside=ProducerOptions)
    clock, schedule = time.perf_counter_ns, Schedule(rate=rate, records=records, duration_ns=duration_ns)
    with reporting_errors(), common.benchmark_topic(options, settings["bootstrap_servers"]) as topic, sigterm_as_interrupt():
        consumer = ottla.Consumer(**theirs)
        producer = ottla.Producer(**settings)
        figures = Figures(clock())
        display, trips = None, RoundTrips(producer, consumer, _record(topic, options), timeout_ns=timeout_ns, clock=clock, sleep=time.sleep)
        interrupted, error = False, None
        try:
            _seek_to_end(consumer, topic)
            trips.warm_up(options["warmup_records"])
            schedule.begin(clock())
            figures = Figures(schedule.began_ns)
            display = Display(figures, Goal(records, duration_ns), interval_ns=interval_ns, detailed=options["show_detailed_stats"])
            trips.run(schedule, figures, display)
        except KeyboardInterrupt:
            interrupted = True
        except RecordLost as lost:
            error = str(lost)
        finally:
            if display is not None:
                display.end(clock())
            metrics = common.metrics_document({**producer.metrics(), **consumer.metrics()}) if options["print_metrics"] else None
            producer.close(timeout_ms=0)
            consumer.close()
    result = {"topic": topic, "interrupted": interrupted, "error": error, "latency_from": "sent" if rate is None else "due"}
    result |= {**figures.total.document(), "latency_ms": latency_document(figures.total.latencies)}
    result |= {"acknowledged_ms": latency_document(trips.acknowledged), "intervals": [] if display is None else display.intervals}
    common.show_result(result, metrics, output, (_rows(result), COLUMNS))
    if error is not None:
        raise click.ClickException(error)
    common.exit_status(interrupted=interrupted)


def _record(topic: str, options: dict[str, Any]) -> Callable[[], OutgoingRecord]:
    """A function that creates records with distinct values, by which they are recognized."""
    rng = Random()
    key = random_letters(options["record_key_size"], rng) or None
    name = random_letters(options["record_header_key_size"], rng).decode()
    headers = [(name, random_letters(options["record_header_size"], rng)) for _ in range(options["num_headers"])]
    size = options["record_size"]
    return lambda: OutgoingRecord(topic, random_letters(size, rng), key, headers)


def _seek_to_end(consumer: ottla.Consumer, topic: str) -> None:
    """Assigns all partitions at their log end, and waits until these offsets are known."""
    partitions = consumer.partitions_for(topic)
    consumer.assign(partitions)
    consumer.seek_to_end(*partitions)
    for partition in partitions:
        consumer.position(partition)


def _rows(result: dict[str, Any]) -> list[Row]:
    """The intervals, and the whole measurement until a record is received and until it is acknowledged."""
    rows: list[Row] = [{"part": f"{one['after_s']:.1f}s", **one} for one in result["intervals"]]
    return [*rows, {**result, "part": "end to end"}, {**result, "part": "acknowledged", "latency_ms": result["acknowledged_ms"]}]
