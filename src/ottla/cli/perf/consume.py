"""`ottla perf consume`: throughput of reads.

The figures are those of kafka-consumer-perf-test. The time begins with the first poll. Rebalance time is the time without partitions; fetch
time is the rest, so it does not include joining the group. MB are 2**20 bytes of keys and values.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import click

import ottla
from ottla.base.ids import TopicPartition
from ottla.cli.common.arguments import time_text
from ottla.cli.common.complete import group_names
from ottla.cli.common.connection import admin as connected
from ottla.cli.common.errors import reporting_errors, sigterm_as_interrupt
from ottla.cli.common.output_formats import OutputFormat, fields, note
from ottla.cli.common.tables import Column
from ottla.cli.perf import options as common
from ottla.cli.perf.display import Display, Goal
from ottla.cli.perf.figures import MB, NS, TALLY, Figures
from ottla.client.consumer.rebalance import RebalanceListener
from ottla.client.options import ConsumerOptions
from ottla.wire.errors import KafkaError

if TYPE_CHECKING:
    from ottla.client.consumer.record import ConsumerRecord

#: Maximum records of a poll.
POLLED_MAX = 2000
EPILOG = r"""
\b
Examples:
  ottla perf consume orders --messages 1000000
  ottla perf consume orders --messages 1000000 --arrow --fetch-size 4194304
  ottla perf consume orders --from-latest --duration 1m -o json
""".replace(r"\b", "\b")
FIELDS = {
    "topic": "topic",
    "group": "group id",
    "interrupted": "whether Ctrl-C or SIGTERM ended it",
    "timed_out": "whether it ended because no record arrived within --timeout",
    "start_ms": "time of the start",
    "end_ms": "time of the last record, or of the end without records",
    **TALLY,
    "mb": "size of keys and values in MB (2**20 bytes)",
    "rebalance_ms": "time without partitions during rebalances",
    "fetch_ms": "the other time",
    "fetch_mb_per_s": "MB per second of fetch time",
    "fetch_records_per_s": "records per second of fetch time",
    "intervals[].after_s": "start of the interval in seconds; only with --show-detailed-stats",
    **{f"intervals[].{name}": f"{help}, in the interval" for name, help in TALLY.items()},
    "intervals[].latency_ms": "null: reads have no latency",
    "metrics.*": "with --print-metrics: the client's metrics by group and name",
}
COLUMNS = (
    Column("START", lambda row: time_text(row["start_ms"])),
    Column("END", lambda row: time_text(row["end_ms"])),
    Column("MB", lambda row: f"{row['mb']:.4f}", number=True),
    Column("MB/S", lambda row: f"{row['mb_per_s']:.4f}", number=True),
    Column("RECORDS", "records", number=True),
    Column("RECORDS/S", lambda row: f"{row['records_per_s']:.1f}", number=True),
    Column("REBALANCE-MS", "rebalance_ms", number=True),
    Column("FETCH-MS", "fetch_ms", number=True),
    Column("FETCH-MB/S", lambda row: f"{row['fetch_mb_per_s']:.4f}", number=True),
    Column("FETCH-RECORDS/S", lambda row: f"{row['fetch_records_per_s']:.1f}", number=True),
)
INTERVALS = (
    Column("AFTER-S", lambda row: f"{row['after_s']:.1f}", number=True),
    Column("MB", lambda row: f"{row['bytes'] / MB:.4f}", number=True),
    Column("MB/S", lambda row: f"{row['mb_per_s']:.4f}", number=True),
    Column("RECORDS", "records", number=True),
    Column("RECORDS/S", lambda row: f"{row['records_per_s']:.1f}", number=True),
)


class Polling(Protocol):
    """The methods of a consumer that are used."""

    def poll(self, timeout_ms: float | None = None, max_records: int | None = None) -> list[ConsumerRecord]: ...

    def poll_table(self, timeout_ms: float | None = None, max_records: int | None = None) -> Any: ...


class RebalanceTime(RebalanceListener):
    """Sums up the time without partitions; it starts without any."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._since_ns: int | None = clock()
        self._spent_ns = 0

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        if self._since_ns is not None:
            self._spent_ns += self._clock() - self._since_ns
            self._since_ns = None

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        if self._since_ns is None:
            self._since_ns = self._clock()

    def spent_ns(self, now_ns: int) -> int:
        """The sum until `now_ns`."""
        return self._spent_ns + (max(now_ns - self._since_ns, 0) if self._since_ns is not None else 0)


class ReadLoop:
    """Reads until a limit is reached. `clock` returns nanoseconds."""

    def __init__(
        self, consumer: Polling, figures: Figures, display: Display, *, goal: Goal, timeout_ns: int, clock: Callable[[], int]
    ) -> None:
        self._consumer, self._figures, self._display = consumer, figures, display
        self._goal, self._timeout_ns, self._clock = goal, timeout_ns, clock
        self.timed_out = False

    def run(self, *, tables: bool = False) -> None:
        """Polls until a limit is reached, or no record arrives within the timeout. Raises: KafkaError."""
        began = last = now = self._clock()
        total, goal = self._figures.total, self._goal
        poll = self._poll_table if tables else self._poll_records
        while goal.records is None or total.records < goal.records:
            left = None if goal.records is None else goal.records - total.records
            count, size = poll(left)
            now = self._clock()
            if count:
                last = now
                self._figures.add_received(count, size, now)
            self._display.update(now)
            if goal.duration_ns is not None and now - began >= goal.duration_ns:
                break
            if now - last >= self._timeout_ns:
                self.timed_out = True
                break

    def _poll_records(self, left: int | None) -> tuple[int, int]:
        size = 0
        records = self._consumer.poll(common.TICK_NS / 1e6, POLLED_MAX if left is None else min(left, POLLED_MAX))
        for record in records:
            size += len(record.value or b"") + len(record.key or b"")
        return len(records), size

    def _poll_table(self, left: int | None) -> tuple[int, int]:
        import pyarrow.compute as pc

        table = self._consumer.poll_table(common.TICK_NS / 1e6, left)
        return table.num_rows, sum(pc.sum(pc.binary_length(table[name])).as_py() or 0 for name in ("key", "value"))


@fields(FIELDS)
@click.command(name="consume", epilog=EPILOG)
@common.limit_options("records", "-n", "--messages", "--num-records")
@click.option("--group", shell_complete=group_names, help="Read and commit in this group. [default: a temporary group]")
@click.option("--read-committed", is_flag=True, help="Omit records of open and aborted transactions.")
@click.option("--from-latest", is_flag=True, help="Begin at the end of partitions without committed offset.")
@click.option("--timeout", default="10s", show_default=True, metavar="TIME", help="Stop if no record arrives for this time; or in ms.")
@click.option(
    "--fetch-size",
    type=click.IntRange(min=1),
    default=1 << 20,
    show_default=True,
    metavar="BYTES",
    help="Maximum size fetched of a partition.",
)
@click.option(
    "--socket-buffer-size", type=click.IntRange(min=-1), default=2 << 20, show_default=True, metavar="BYTES",
    help="Size of the socket's receive buffer.",
)  # fmt: skip
@click.option("--arrow", is_flag=True, help="Read Arrow tables.")
@common.shared_options
def command(bootstrap: str, output: OutputFormat, **options: Any) -> None:
    """Read records of TOPIC and report throughput."""

    goal = Goal(*common.limits(options, "--messages"))
    interval_ns, timeout_ns = (
        common.time_ns(options["reporting_interval"], "--reporting-interval"),
        common.time_ns(options["timeout"], "--timeout"),
    )
    group = options["group"] or common.random_name("perf-consumer")
    settings = common.client_options(
        ConsumerOptions, options, bootstrap, group_id=group, auto_offset_reset="latest" if options["from_latest"] else "earliest",
        enable_auto_commit=options["group"] is not None, max_partition_fetch_bytes=options["fetch_size"],
        receive_buffer_bytes=options["socket_buffer_size"],
        isolation_level="read_committed" if options["read_committed"] else "read_uncommitted",
    )  # fmt: skip
    clock = time.perf_counter_ns
    with reporting_errors(), common.benchmark_topic(options, settings["bootstrap_servers"]) as topic, sigterm_as_interrupt():
        rebalances = RebalanceTime(clock)
        consumer = ottla.Consumer(topic, listener=rebalances, **settings)
        interrupted = True
        try:
            figures, start_ms = Figures(clock()), time.time_ns() // 1_000_000
            display = Display(figures, goal, interval_ns=interval_ns, detailed=options["show_detailed_stats"])
            reading = ReadLoop(consumer, figures, display, goal=goal, timeout_ns=timeout_ns, clock=clock)
            interrupted = _run(reading, tables=options["arrow"])
            now = clock()
            display.end(now)
            if not figures.total.records:
                figures.total.ended_ns = now
            # Before the consumer leaves the group, so that the measurement does not include it.
            rebalance_ns = rebalances.spent_ns(figures.total.ended_ns)
            metrics = common.metrics_document(consumer.metrics()) if options["print_metrics"] else None
        finally:
            consumer.close(timeout_ms=common.INTERRUPT_TIMEOUT_MS if interrupted else None)
            if options["group"] is None:
                _delete_group(settings["bootstrap_servers"], group)
    result = {"topic": topic, "group": group, "interrupted": interrupted, "timed_out": reading.timed_out}
    result |= document(figures, start_ms, rebalance_ns)
    tables = (display.intervals, INTERVALS), ([result], COLUMNS)
    common.show_result({**result, "intervals": display.intervals}, metrics, output, *tables)
    if reading.timed_out and goal.records is not None:
        note(f"Warning: {figures.total.records:,} of {goal.records:,} records arrived, then none for {options['timeout']}")
    common.exit_status(interrupted=interrupted)


def _run(reading: ReadLoop, *, tables: bool) -> bool:
    """Reads; returns whether it was interrupted."""
    try:
        reading.run(tables=tables)
    except KeyboardInterrupt:
        return True
    return False


def _delete_group(bootstrap: str, group: str) -> None:
    """Deletes the temporary group."""
    with contextlib.suppress(KafkaError), connected(bootstrap) as admin:
        admin.delete_consumer_group(group)


def document(figures: Figures, start_ms: int, rebalance_ns: int) -> dict[str, Any]:
    """The result's figures."""
    total = figures.total
    took_ns = total.ended_ns - total.began_ns
    fetch_ns = max(took_ns - rebalance_ns, 0)
    return {
        "start_ms": start_ms,
        "end_ms": start_ms + took_ns // 1_000_000,
        **total.document(),
        "mb": round(total.bytes / MB, 4),
        "rebalance_ms": min(rebalance_ns, took_ns) // 1_000_000,
        "fetch_ms": fetch_ns // 1_000_000,
        "fetch_mb_per_s": round(total.bytes / MB * NS / fetch_ns, 3) if fetch_ns else 0.0,
        "fetch_records_per_s": round(total.records * NS / fetch_ns, 1) if fetch_ns else 0.0,
    }
