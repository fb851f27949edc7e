"""`ottla perf produce`: how fast records are written, and how long each takes until it is acknowledged.

The figures are those of kafka-producer-perf-test. They differ in two ways: percentiles are taken from all records, not from samples; and
with --throughput a latency counts from when the record was due (see `perf_load`), so that a stall is seen in full.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.common.errors import terminated, told
from ottla.cli.common.output_formats import Form, fields
from ottla.cli.common.paths import LocalPath
from ottla.cli.common.tables import Column, Row
from ottla.cli.perf.figures import LATENCY, TALLY
from ottla.cli.perf.options import (
    LAST_MS,
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
    from ottla.cli.perf.display import Display
    from ottla.cli.perf.figures import Figures, Tally
    from ottla.cli.perf.load import Payload
    from ottla.cli.perf.sending import Sending

RECORD_SIZE = 100
EPILOG = r"""
\b
Examples:
  ottla perf produce --create --num-records 1000000 --record-size 100
  ottla perf produce orders --duration 30s --throughput 10k -X acks=1
  ottla perf produce orders --num-records 50000 --payload-file lines.json -o json
""".replace(r"\b", "\b")
_LATENCY = {f"latency_ms.{name}": f"{said}" for name, said in LATENCY.items()}
STRETCH = {**TALLY, **_LATENCY}
FIELDS = {
    "topic": "where records went",
    "interrupted": "whether somebody ended it before its time",
    "failed": "records that were not written",
    "error": "what the first of these says; null: there is none",
    **STRETCH,
    "latency_from": "due: from the moment a record was due, with --throughput; sent: from the moment it was handed to the client",
    **{f"steady.{name}": f"{said}, behind the warm-up" for name, said in STRETCH.items()},
    "intervals[].after_s": "when the interval began, in seconds from the start; only with --show-detailed-stats",
    **{f"intervals[].{name}": f"{said}, in the interval" for name, said in STRETCH.items()},
    "metrics.*": "with --print-metrics: the client's own figures by group and name",
}


def _latency(name: str) -> Any:
    return lambda row: None if row["latency_ms"] is None or row["latency_ms"][name] is None else f"{row['latency_ms'][name]:.2f}"


COLUMNS = (
    Column("PART", "part"),
    Column("RECORDS", "records", number=True),
    Column("RECORDS/S", lambda row: f"{row['records_per_s']:.1f}", number=True),
    Column("MB/S", lambda row: f"{row['mb_per_s']:.2f}", number=True),
    Column("AVG MS", _latency("avg"), number=True),
    Column("MAX MS", _latency("max"), number=True),
    Column("P50", _latency("p50"), number=True),
    Column("P95", _latency("p95"), number=True),
    Column("P99", _latency("p99"), number=True),
    Column("P99.9", _latency("p99_9"), number=True),
    Column("SECONDS", "seconds", number=True, wide=True),
    Column("BYTES", "bytes", number=True, wide=True),
)


@fields(FIELDS)
@click.command(name="produce", epilog=EPILOG)
@limit_options("records", "-n", "--num-records")
@click.option(
    "--record-size", type=click.IntRange(min=0), metavar="BYTES", help=f"Size of values of random letters.  [default: {RECORD_SIZE}]"
)
@click.option("--payload-file", type=LocalPath(exists=True, dir_okay=False), help="Values are what stands in this file, in random order.")
@click.option("--payload-delimiter", default="\\n", show_default=True, metavar="TEXT", help="What stands between them.")
@click.option("--payload-monotonic", is_flag=True, help="Values are 0, 1, 2 ...")
@click.option(
    "--throughput", "rate", default="-1", show_default=True, metavar="N",
    help="So many records a second, such as 10k; latencies count from when a record was due. -1: as many as can be.",
)  # fmt: skip
@click.option(
    "--warmup-records", type=click.IntRange(min=0), default=0, show_default=True, help="What follows these is told by itself, too."
)
@click.option("--arrow", is_flag=True, help="Send Arrow tables, not record by record.")
@shared_options
def command(bootstrap: str, output: Form, **asked: Any) -> None:
    """Send records of no meaning to TOPIC, and tell how fast they were written and how long each took."""
    from ottla.cli.perf.display import Display, Goal
    from ottla.cli.perf.figures import Figures
    from ottla.cli.perf.load import Schedule
    from ottla.cli.perf.sending import Sending
    from ottla.client.options import ProducerOptions
    from ottla.client.sync.producer import Producer

    records, duration_ns = limits(asked, "--num-records")
    rate, payload, interval_ns = throughput(asked["rate"]), _payload(asked), time_ns(asked["reporting_interval"], "--reporting-interval")
    settings = settings_of(ProducerOptions, asked, bootstrap)
    schedule = Schedule(rate=rate, records=records, duration_ns=duration_ns)
    with told(), topic_for(asked, settings["bootstrap_servers"]) as topic, terminated():
        producer = Producer(**settings)
        try:
            # What a first record has to wait for is no part of the measurement.
            producer.partitions_for(topic)
            now = time.perf_counter_ns()
            schedule.begin(now)
            figures = Figures(now, warmup=asked["warmup_records"])
            display = Display(figures, Goal(records, duration_ns), interval_ns=interval_ns, detailed=asked["show_detailed_stats"])
            sending = Sending(producer, topic, payload, schedule, figures, display, clock=time.perf_counter_ns, sleep=time.sleep)
            interrupted = _run(sending, figures, tables=asked["arrow"])
            display.end(time.perf_counter_ns())
            metrics = metrics_document(producer.metrics()) if asked["print_metrics"] else None
        finally:
            producer.close(timeout_ms=0)
    found = document(topic, figures, display, interrupted=interrupted, paced=rate is not None, metrics=metrics)
    show(found, output)
    ended(interrupted=interrupted, failed=figures.failed, error=figures.error)


def _run(sending: Sending, figures: Figures, *, tables: bool) -> bool:
    """Send, and wait for the outcome; whether it was interrupted."""
    from ottla.wire.errors import KafkaError

    interrupted = False
    try:
        try:
            sending.run(tables=tables)
        except KafkaError as error:
            # There are figures of what went before; the record that could not be handed over is one that failed.
            figures.refused(1, str(error))
        sending.wait()
    except KeyboardInterrupt:
        interrupted = True
        try:
            sending.wait(LAST_MS)
        except (TimeoutError, KeyboardInterrupt):
            sending.settle()
    return interrupted


def _payload(asked: Mapping[str, Any]) -> Payload:
    """Raises: UsageError."""
    from ottla.cli.common.record_format import unescaped
    from ottla.cli.perf.load import numbers, payloads_of, random_payloads

    rng = Random(0)
    if sum((asked["record_size"] is not None, asked["payload_file"] is not None, asked["payload_monotonic"])) > 1:
        raise click.UsageError("one of --record-size, --payload-file and --payload-monotonic is enough")
    if asked["payload_monotonic"]:
        return numbers()
    if asked["payload_file"] is None:
        return random_payloads(RECORD_SIZE if asked["record_size"] is None else asked["record_size"], rng)
    delimiter = unescaped(asked["payload_delimiter"])
    if not delimiter:
        raise click.UsageError("--payload-delimiter has at least one byte")
    try:
        return payloads_of(Path(asked["payload_file"]).read_bytes(), delimiter, rng)
    except ValueError as error:
        raise click.UsageError(f"{asked['payload_file']}: {error}") from None


def document(
    topic: str, figures: Figures, display: Display, *, interrupted: bool, paced: bool, metrics: dict[str, Any] | None
) -> dict[str, Any]:
    """The result."""
    found = {
        "topic": topic,
        "interrupted": interrupted,
        "failed": figures.failed,
        "error": figures.error,
        **_stretch(figures.total),
        "latency_from": "due" if paced else "sent",
        "steady": None if figures.steady is None else _stretch(figures.steady),
    }
    return {**found, "intervals": display.intervals, **({} if metrics is None else {"metrics": metrics})}


def _stretch(tally: Tally) -> dict[str, Any]:
    from ottla.cli.perf.figures import latency_document

    return {**tally.document(), "latency_ms": latency_document(tally.latencies)}


def show(found: dict[str, Any], output: Form) -> None:
    """Print it."""
    if output.for_programs:
        output.document(found)
        return
    rows: list[Row] = [{"part": f"{one['after_s']:.1f}s", **one} for one in found["intervals"]]
    rows.append({"part": "total", **found})
    if found["steady"] is not None:
        rows.append({"part": "steady", **found["steady"]})
    output.table(rows, COLUMNS)
    show_metrics(found.get("metrics"), output)
