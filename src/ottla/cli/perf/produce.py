"""`ottla perf produce`: throughput of writes, and latency until acknowledgement.

The figures are those of kafka-producer-perf-test, with two differences. Percentiles include all records, not samples. With --throughput a
latency counts from when the record was due (see `perf.load`), so that it includes stalls. With transactions a latency counts until the
record is acknowledged, not until it is committed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import click

import ottla
from ottla.cli.common.errors import reporting_errors, sigterm_as_interrupt
from ottla.cli.common.output_formats import OutputFormat, fields
from ottla.cli.common.paths import LocalPath
from ottla.cli.common.tables import Column, Row
from ottla.cli.perf import options as common
from ottla.cli.perf import transactions
from ottla.cli.perf.figures import COMMON_FIELDS, INTERVAL, Figures, Tally, latency_document
from ottla.cli.perf.load import Payload, Schedule, file_payloads, numbers, random_payloads
from ottla.cli.perf.transactions import TimedTransactions
from ottla.client.options import ProducerOptions
from ottla.wire.errors import KafkaError

if TYPE_CHECKING:
    from ottla.cli.perf.display import Display
    from ottla.cli.perf.sending import LoadSender

RECORD_SIZE = 100
EPILOG = r"""
\b
Examples:
  ottla perf produce --create --num-records 1000000 --record-size 100
  ottla perf produce orders --duration 30s --throughput 10k -X acks=1
  ottla perf produce orders --num-records 50000 --payload-file lines.json -o json
  ottla perf produce orders --duration 30s --transaction-duration-ms 100
""".replace(r"\b", "\b")
FIELDS = {
    "topic": "topic",
    "interrupted": "whether Ctrl-C or SIGTERM ended it",
    "failed": "number of records that were not written",
    "error": "error of the first failed record; null: none",
    **INTERVAL,
    **{f"steady.{name}": f"{help}, after the warm-up" for name, help in INTERVAL.items()},
    **transactions.FIELDS,
    **COMMON_FIELDS,
}


def _latency(name: str) -> Any:
    return lambda row: None if row["latency_ms"] is None or row["latency_ms"][name] is None else f"{row['latency_ms'][name]:.2f}"


COLUMNS = (
    Column("PART", "part"),
    Column("RECORDS", "records", number=True),
    Column("RECORDS/S", lambda row: f"{row['records_per_s']:.1f}", number=True),
    Column("MB/S", lambda row: f"{row['mb_per_s']:.2f}", number=True),
    Column("AVG-MS", _latency("avg"), number=True),
    Column("MAX-MS", _latency("max"), number=True),
    Column("P50", _latency("p50"), number=True),
    Column("P95", _latency("p95"), number=True),
    Column("P99", _latency("p99"), number=True),
    Column("P99.9", _latency("p99_9"), number=True),
    Column("SECONDS", "seconds", number=True, wide=True),
    Column("BYTES", "bytes", number=True, wide=True),
)


@fields(FIELDS)
@click.command(name="produce", epilog=EPILOG)
@common.limit_options("records", "-n", "--num-records")
@click.option("--record-size", type=click.IntRange(min=0), metavar="BYTES", help=f"Size of random values. [default: {RECORD_SIZE}]")
@click.option("--payload-file", type=LocalPath(exists=True, dir_okay=False), help="File of values, which are sent in random order.")
@click.option("--payload-delimiter", default="\\n", show_default=True, metavar="TEXT", help="Delimiter of the values in the file.")
@click.option("--payload-monotonic", is_flag=True, help="Send the values 0, 1, 2 ...")
@click.option(
    "--throughput", "rate", default="-1", show_default=True, metavar="N",
    help="Records per second, such as 10k; latencies count from when a record was due. -1: unlimited.",
)  # fmt: skip
@click.option(
    "--warmup-records",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Report the records after the first N separately, too.",
)
@click.option("--transactional-id", metavar="ID", help="Send in transactions. [default with --transaction-duration-ms: random]")
@click.option(
    "--transaction-duration-ms", "duration_ms", metavar="TIME",
    help=f"Commit after this time, in ms or such as 1s. [default with a transactional id: {transactions.DURATION_MS}]",
)  # fmt: skip
@click.option("--arrow", is_flag=True, help="Send Arrow tables.")
@common.shared_options
def command(bootstrap: str, output: OutputFormat, **options: Any) -> None:
    """Send random records to TOPIC and report throughput and latency."""
    from ottla.cli.perf.display import Display, Goal
    from ottla.cli.perf.sending import LoadSender

    records, duration_ns = common.limits(options, "--num-records")
    rate, payload, interval_ns = (
        common.throughput(options["rate"]),
        _payload(options),
        common.time_ns(options["reporting_interval"], "--reporting-interval"),
    )
    settings = common.client_options(ProducerOptions, _with_transactional_id(options), bootstrap)
    schedule = Schedule(rate=rate, records=records, duration_ns=duration_ns)
    with reporting_errors(), common.benchmark_topic(options, settings["bootstrap_servers"]) as topic, sigterm_as_interrupt():
        producer = ottla.Producer(**settings)
        try:
            # Fetches metadata, so that the measurement does not include it.
            producer.partitions_for(topic)
            committing = _transactions(producer, options, settings)
            now = time.perf_counter_ns()
            schedule.begin(now)
            figures = Figures(now, warmup=options["warmup_records"])
            display = Display(figures, Goal(records, duration_ns), interval_ns=interval_ns, detailed=options["show_detailed_stats"])
            sending = LoadSender(
                producer, topic, payload, schedule, figures, display, clock=time.perf_counter_ns, sleep=time.sleep, transactions=committing
            )
            interrupted = _run(sending, figures, tables=options["arrow"])
            display.end(time.perf_counter_ns())
            metrics = common.metrics_document(producer.metrics()) if options["print_metrics"] else None
        finally:
            producer.close(timeout_ms=0)
    committed = None if committing is None else committing.document()
    result = {**document(topic, figures, display, interrupted=interrupted, paced=rate is not None), "transactions": committed}
    common.show_result(result, metrics, output, (_rows(result), COLUMNS), ([committed] if committed else [], transactions.COLUMNS))
    common.exit_status(interrupted=interrupted, failed=figures.failed, error=figures.error)


def _run(sending: LoadSender, figures: Figures, *, tables: bool) -> bool:
    """Sends and waits for acknowledgements; returns whether it was interrupted."""
    interrupted = False
    try:
        try:
            sending.run(tables=tables)
            sending.wait()
        except KafkaError as error:
            # The record that could not be sent, or the commit, counts as failed; the figures of the others are reported.
            figures.add_failed(1, str(error))
            sending.abandon()
    except KeyboardInterrupt:
        interrupted = True
        try:
            sending.wait(common.INTERRUPT_TIMEOUT_MS)
        except (TimeoutError, KafkaError, KeyboardInterrupt):
            sending.collect_results()
    return interrupted


def _with_transactional_id(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with the transactional id as a setting, which overrides -X."""
    name = options["transactional_id"]
    if name is None and options["duration_ms"] is not None and not any(pair.startswith("transactional") for pair in options["settings"]):
        name = common.random_name("perf-producer")
    return dict(options) if name is None else {**options, "settings": (*options["settings"], f"transactional.id={name}")}


def _transactions(producer: ottla.Producer, options: Mapping[str, Any], settings: Mapping[str, Any]) -> TimedTransactions | None:
    """The transactions of the measurement, if the producer has a transactional id. Raises: UsageError, KafkaError."""
    if not settings.get("transactional_id"):
        return None
    text = str(transactions.DURATION_MS) if options["duration_ms"] is None else options["duration_ms"]
    duration_ns = common.time_ns(text, "--transaction-duration-ms")
    producer.init_transactions()
    return TimedTransactions(producer, duration_ns=duration_ns, clock=time.perf_counter_ns)


def _payload(options: Mapping[str, Any]) -> Payload:
    """Raises: UsageError."""
    from ottla.cli.common.record_format import unescaped

    rng = Random(0)
    if sum((options["record_size"] is not None, options["payload_file"] is not None, options["payload_monotonic"])) > 1:
        raise click.UsageError("--record-size, --payload-file and --payload-monotonic exclude each other")
    if options["payload_monotonic"]:
        return numbers()
    if options["payload_file"] is None:
        return random_payloads(RECORD_SIZE if options["record_size"] is None else options["record_size"], rng)
    delimiter = unescaped(options["payload_delimiter"])
    if not delimiter:
        raise click.UsageError("--payload-delimiter needs at least one byte")
    try:
        return file_payloads(Path(options["payload_file"]).read_bytes(), delimiter, rng)
    except ValueError as error:
        raise click.UsageError(f"{options['payload_file']}: {error}") from None


def document(topic: str, figures: Figures, display: Display, *, interrupted: bool, paced: bool) -> dict[str, Any]:
    """The result."""
    return {
        "topic": topic,
        "interrupted": interrupted,
        "failed": figures.failed,
        "error": figures.error,
        **_tally_document(figures.total),
        "latency_from": "due" if paced else "sent",
        "steady": None if figures.steady is None else _tally_document(figures.steady),
        "intervals": display.intervals,
    }


def _tally_document(tally: Tally) -> dict[str, Any]:
    return {**tally.document(), "latency_ms": latency_document(tally.latencies)}


def _rows(result: dict[str, Any]) -> list[Row]:
    """The intervals, the total, and the part after the warm-up."""
    rows: list[Row] = [{"part": f"{one['after_s']:.1f}s", **one} for one in result["intervals"]]
    rows.append({"part": "total", **result})
    if result["steady"] is not None:
        rows.append({"part": "steady", **result["steady"]})
    return rows
