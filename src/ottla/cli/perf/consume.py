"""`ottla perf consume`: how fast records are read.

The figures are those of kafka-consumer-perf-test. The clock runs from the first poll. Time in which the member had no partitions, since its
group was sharing them out, is rebalance time, and the rest is fetch time, so that a first join does not make fetching look slow. MB are
2**20 bytes of keys and values.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import click

from ottla.cli.common.arguments import time_text
from ottla.cli.common.complete import group_names
from ottla.cli.common.connection import admin as connected
from ottla.cli.common.errors import terminated, told
from ottla.cli.common.output_formats import Form, fields, note
from ottla.cli.common.tables import Column, Row
from ottla.cli.perf.display import Display, Goal
from ottla.cli.perf.figures import MB, NS, TALLY, Figures
from ottla.cli.perf.options import (
    LAST_MS,
    TICK_NS,
    ended,
    fresh_name,
    limit_options,
    limits,
    metrics_document,
    settings_of,
    shared_options,
    show_metrics,
    time_ns,
    topic_for,
)
from ottla.client.consumer.rebalance import RebalanceListener

if TYPE_CHECKING:
    from ottla.base.ids import TopicPartition
    from ottla.client.consumer.record import ConsumerRecord

#: Records of one poll, at most.
POLLED_MAX = 2000
EPILOG = r"""
\b
Examples:
  ottla perf consume orders --messages 1000000
  ottla perf consume orders --messages 1000000 --arrow --fetch-size 4194304
  ottla perf consume orders --from-latest --duration 1m -o json
""".replace(r"\b", "\b")
FIELDS = {
    "topic": "where records came from",
    "group": "the group that read",
    "interrupted": "whether somebody ended it before its time",
    "timed_out": "whether it ended because no record came for --timeout",
    "start_ms": "when it began",
    "end_ms": "when the last record came, or when it was ended if none did",
    **TALLY,
    "mb": "MB (2**20 bytes) in all",
    "rebalance_ms": "time without partitions, since the group was sharing them out",
    "fetch_ms": "the rest of the time",
    "fetch_mb_per_s": "MB a second of fetch time",
    "fetch_records_per_s": "records a second of fetch time",
    "intervals[].after_s": "when the interval began, in seconds from the start; only with --show-detailed-stats",
    **{f"intervals[].{name}": f"{said}, in the interval" for name, said in TALLY.items()},
    "intervals[].latency_ms": "null: what is read has no latency",
    "metrics.*": "with --print-metrics: the client's own figures by group and name",
}
COLUMNS = (
    Column("START", lambda row: time_text(row["start_ms"])),
    Column("END", lambda row: time_text(row["end_ms"])),
    Column("MB", lambda row: f"{row['mb']:.4f}", number=True),
    Column("MB/S", lambda row: f"{row['mb_per_s']:.4f}", number=True),
    Column("RECORDS", "records", number=True),
    Column("RECORDS/S", lambda row: f"{row['records_per_s']:.1f}", number=True),
    Column("REBALANCE MS", "rebalance_ms", number=True),
    Column("FETCH MS", "fetch_ms", number=True),
    Column("FETCH MB/S", lambda row: f"{row['fetch_mb_per_s']:.4f}", number=True),
    Column("FETCH RECORDS/S", lambda row: f"{row['fetch_records_per_s']:.1f}", number=True),
)
INTERVALS = (
    Column("AFTER S", lambda row: f"{row['after_s']:.1f}", number=True),
    Column("MB", lambda row: f"{row['bytes'] / MB:.4f}", number=True),
    Column("MB/S", lambda row: f"{row['mb_per_s']:.4f}", number=True),
    Column("RECORDS", "records", number=True),
    Column("RECORDS/S", lambda row: f"{row['records_per_s']:.1f}", number=True),
)


class Polling(Protocol):
    """What is needed of a consumer."""

    def poll(self, timeout_ms: float | None = None, max_records: int | None = None) -> list[ConsumerRecord]: ...

    def poll_table(self, timeout_ms: float | None = None, max_records: int | None = None) -> Any: ...


class Rebalances(RebalanceListener):
    """Adds up the time without partitions. `begin`: the member has none yet."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._since_ns: int | None = clock()
        self._spent_ns = 0

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        """The group has shared them out."""
        if self._since_ns is not None:
            self._spent_ns += self._clock() - self._since_ns
            self._since_ns = None

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        """Another sharing out has begun; in a cooperative one the member keeps some, and loses only what these cost."""
        if self._since_ns is None:
            self._since_ns = self._clock()

    def spent_ns(self, now_ns: int) -> int:
        """In all, until then."""
        return self._spent_ns + (max(now_ns - self._since_ns, 0) if self._since_ns is not None else 0)


class Reading:
    """Reads until there is enough. `clock` gives nanoseconds."""

    def __init__(
        self, consumer: Polling, figures: Figures, display: Display, *, goal: Goal, timeout_ns: int, clock: Callable[[], int]
    ) -> None:
        self._consumer, self._figures, self._display = consumer, figures, display
        self._goal, self._timeout_ns, self._clock = goal, timeout_ns, clock
        self.timed_out = False

    def run(self, *, tables: bool = False) -> None:
        """Poll until all is read, the time is over, or nothing came for too long. Raises: what polling raises."""
        began = last = now = self._clock()
        total, goal = self._figures.total, self._goal
        polled = self._table if tables else self._records
        while goal.records is None or total.records < goal.records:
            left = None if goal.records is None else goal.records - total.records
            count, size = polled(left)
            now = self._clock()
            if count:
                last = now
                self._figures.received(count, size, now)
            self._display.update(now)
            if goal.duration_ns is not None and now - began >= goal.duration_ns:
                break
            if now - last >= self._timeout_ns:
                self.timed_out = True
                break

    def _records(self, left: int | None) -> tuple[int, int]:
        size = 0
        found = self._consumer.poll(TICK_NS / 1e6, POLLED_MAX if left is None else min(left, POLLED_MAX))
        for record in found:
            size += len(record.value or b"") + len(record.key or b"")
        return len(found), size

    def _table(self, left: int | None) -> tuple[int, int]:
        import pyarrow.compute as pc

        found = self._consumer.poll_table(TICK_NS / 1e6, left)
        return found.num_rows, sum(pc.sum(pc.binary_length(found[name])).as_py() or 0 for name in ("key", "value"))


@fields(FIELDS)
@click.command(name="consume", epilog=EPILOG)
@limit_options("records", "-n", "--messages", "--num-records")
@click.option("--group", shell_complete=group_names, help="Read in this group, and commit; otherwise in one made for it.")
@click.option("--from-latest", is_flag=True, help="Where the group has no offset yet, begin at the end.")
@click.option(
    "--timeout", default="10s", show_default=True, metavar="TIME", help="Stop when no record came for so long; also milliseconds."
)
@click.option(
    "--fetch-size", type=click.IntRange(min=1), default=1 << 20, show_default=True, metavar="BYTES", help="Of one partition, in one answer."
)
@click.option(
    "--socket-buffer-size", type=click.IntRange(min=-1), default=2 << 20, show_default=True, metavar="BYTES",
    help="Size of the socket's receive buffer.",
)  # fmt: skip
@click.option("--arrow", is_flag=True, help="Read Arrow tables, not record by record.")
@shared_options
def command(bootstrap: str, output: Form, **asked: Any) -> None:
    """Read records of TOPIC, and tell how fast they came."""
    from ottla.client.options import ConsumerOptions
    from ottla.client.sync.consumer import Consumer

    goal = Goal(*limits(asked, "--messages"))
    interval_ns, timeout_ns = time_ns(asked["reporting_interval"], "--reporting-interval"), time_ns(asked["timeout"], "--timeout")
    group = asked["group"] or fresh_name("perf-consumer")
    settings = settings_of(
        ConsumerOptions, asked, bootstrap, group_id=group, auto_offset_reset="latest" if asked["from_latest"] else "earliest",
        enable_auto_commit=asked["group"] is not None, max_partition_fetch_bytes=asked["fetch_size"],
        receive_buffer_bytes=asked["socket_buffer_size"],
    )  # fmt: skip
    clock = time.perf_counter_ns
    with told(), topic_for(asked, settings["bootstrap_servers"]) as topic, terminated():
        rebalances = Rebalances(clock)
        consumer = Consumer(topic, listener=rebalances, **settings)
        interrupted = True
        try:
            figures, start_ms = Figures(clock()), time.time_ns() // 1_000_000
            display = Display(figures, goal, interval_ns=interval_ns, detailed=asked["show_detailed_stats"])
            reading = Reading(consumer, figures, display, goal=goal, timeout_ns=timeout_ns, clock=clock)
            interrupted = _run(reading, tables=asked["arrow"])
            now = clock()
            display.end(now)
            if not figures.total.records:
                figures.total.ended_ns = now
            # Before it leaves the group: that is no part of the measurement.
            rebalance_ns = rebalances.spent_ns(figures.total.ended_ns)
            metrics = metrics_document(consumer.metrics()) if asked["print_metrics"] else None
        finally:
            consumer.close(timeout_ms=LAST_MS if interrupted else None)
            if asked["group"] is None:
                _forget(settings["bootstrap_servers"], group)
    found = {"topic": topic, "group": group, "interrupted": interrupted, "timed_out": reading.timed_out}
    found |= document(figures, start_ms, rebalance_ns)
    show({**found, "intervals": display.intervals, **({} if metrics is None else {"metrics": metrics})}, output)
    if reading.timed_out and goal.records is not None:
        note(f"Warning: {figures.total.records:,} of {goal.records:,} records came, and then none for {asked['timeout']}")
    ended(interrupted=interrupted)


def _run(reading: Reading, *, tables: bool) -> bool:
    """Read; whether it was interrupted."""
    try:
        reading.run(tables=tables)
    except KeyboardInterrupt:
        return True
    return False


def _forget(bootstrap: str, group: str) -> None:
    """A group that was made for this has no offsets, and nobody will ask for it again."""
    from ottla.wire.errors import KafkaError

    with contextlib.suppress(KafkaError), connected(bootstrap) as admin:
        admin.delete_consumer_group(group)


def document(figures: Figures, start_ms: int, rebalance_ns: int) -> dict[str, Any]:
    """The figures of the result."""
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


def show(found: Mapping[str, Any], output: Form) -> None:
    """Print it."""
    if output.for_programs:
        output.document(found)
        return
    rows: list[Row] = [found]
    if found["intervals"]:
        output.table(found["intervals"], INTERVALS)
    output.table(rows, COLUMNS)
    show_metrics(found.get("metrics"), output)
