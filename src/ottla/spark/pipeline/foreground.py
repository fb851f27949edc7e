"""A pipeline in the foreground: session, queries, progress, until Ctrl-C, SIGTERM, a failure or the end of what there is to read."""

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ottla.client.waiting import Stop
from ottla.spark.pipeline.checkpoint import Held, held
from ottla.spark.pipeline.fit import refuse_unfit
from ottla.spark.pipeline.model import Pipeline, Sink
from ottla.spark.pipeline.progress import JsonLines, Progress, Screen
from ottla.spark.pipeline.query import RunningQuery
from ottla.spark.pipeline.run import QueryFailed, RunningPipeline
from ottla.spark.pipeline.session import started
from ottla.spark.pipeline.sinks import Batch
from ottla.spark.pipeline.trouble import GIVE_UP_S, waits_s

#: How often finished batches are looked for.
LOOK_S = 0.2


def run_until_stopped(pipeline: Pipeline, *, output: str = "auto") -> None:
    """Runs a pipeline and reports on standard output: a table for `text`, JSON lines for `json`, by the kind of output for `auto`.

    Trouble that passes (trouble.py) is told and waited for.

    Raises: PipelineError, QueryFailed, NoJava, InUse.
    """
    human = output == "text" or (output == "auto" and sys.stdout.isatty())
    directory = Path(pipeline.checkpoint)
    log_file = directory / "spark.log"
    refuse_unfit(pipeline, directory, spark_version())
    with held(directory) as lock, Screen() if human else JsonLines() as out, stopped_by_signals() as stop:
        # Once more, now that nobody else changes the checkpoint.
        for sentence in refuse_unfit(pipeline, directory, spark_version()):
            out.say("note", text=sentence)
        out.say("starting", pipeline=pipeline.name, file=str(pipeline.file), log=str(log_file))
        settings = {**pipeline.spark, "spark.master": pipeline.master}
        session = started(pipeline, f"ottla {pipeline.name}", settings, log_file)
        # Spark takes Ctrl-C for itself when it starts.
        with stopped_by_signals(stop), _told_of_spark(pipeline, session, log_file):
            try:
                _work(pipeline, session, out, stop, lock)
            finally:
                session.stop()


def spark_version() -> str:
    import pyspark

    return str(pyspark.__version__)


def _work(pipeline: Pipeline, session: Any, out: Screen | JsonLines, stop: Stop, lock: Held) -> None:
    def show(sink: Sink, batch: Batch, table: Any, total: int) -> None:
        out.rows(f"{sink.view}, batch {batch.number}", table, total)

    running = RunningPipeline(pipeline, session, show)
    trouble = Trouble()
    sums = dict.fromkeys(("rows_in", "rows_out", "dead_letters"), 0)

    def tell(batches: list[Progress]) -> None:
        for progress in batches:
            out.batch(progress)
            trouble.over(progress.query)
            for figure in sums:
                sums[figure] += getattr(progress, figure)

    try:
        running.start()
        for sentence in running.news:
            out.say("note", text=sentence)
        out.say("started", pipeline=pipeline.name, checkpoint=pipeline.checkpoint)
        _watch(running, trouble, tell, out, stop, lock)
        if stop.is_set():
            out.say("stopping", pipeline=pipeline.name)
    finally:
        running.stop()
    tell(running.reports())
    out.say("stopped", pipeline=pipeline.name, **sums)


def _watch(
    running: RunningPipeline,
    trouble: "Trouble",
    tell: Callable[[list[Progress]], None],
    out: Screen | JsonLines,
    stop: Stop,
    lock: Held,
) -> None:
    """Until every query has ended, or `stop`. Raises: QueryFailed for trouble that does not pass."""
    while not stop.is_set():
        lock.beat()
        # Before the look at what was reported: that tells of every failure up to here.
        ended = not (running.active or trouble.waiting)
        try:
            tell(running.reports())
        except QueryFailed as failed:
            trouble.met(failed, out)
            continue
        if ended:
            return
        trouble.restart_due()
        stop.wait(LOOK_S)


@dataclass
class Trouble:
    """Queries that wait to be started again, after trouble that passes."""

    waiting: dict[str, tuple[RunningQuery, float]] = field(default_factory=dict)
    _waits: dict[str, Iterator[float]] = field(default_factory=dict)
    _since: dict[str, float] = field(default_factory=dict)

    def met(self, failed: QueryFailed, out: Screen | JsonLines) -> None:
        """Raises: QueryFailed when it does not pass, or has not passed for long."""
        if failed.query is None:
            raise failed
        name, now = failed.query.name, time.monotonic()
        if not failed.passes or now - self._since.setdefault(name, now) > GIVE_UP_S:
            raise failed
        wait_s = next(self._waits.setdefault(name, waits_s()))
        self.waiting[name] = failed.query, now + wait_s
        out.say("retrying", query=name, after_s=wait_s, reason=str(failed))

    def over(self, name: str) -> None:
        """A batch of the query has ended well."""
        self._waits.pop(name, None)
        self._since.pop(name, None)

    def restart_due(self) -> None:
        for name, (query, due) in list(self.waiting.items()):
            if time.monotonic() >= due:
                del self.waiting[name]
                query.query = query.launch()


@contextmanager
def _told_of_spark(pipeline: Pipeline, session: Any, log_file: Path) -> Iterator[None]:
    """What breaks because Spark's own process is gone is told as just that. Raises: QueryFailed."""
    from py4j.protocol import Py4JError

    try:
        yield
    except (Py4JError, OSError) as error:
        code = session.sparkContext._gateway.proc.poll()
        if code is None:
            raise
        raise QueryFailed(
            f"{pipeline.name}: Spark has ended in the middle of it (exit code {code}); what it said is in {log_file}. "
            "Start the pipeline again, and it goes on where it stopped"
        ) from error


@contextmanager
def stopped_by_signals(stop: Stop | None = None) -> Iterator[Stop]:
    """An event that SIGINT and SIGTERM set, for the time of the block; a second signal ends the process at once."""
    stop = stop or Stop()
    chosen = stop

    def on_signal(number: int, frame: object) -> None:
        if chosen.is_set():
            raise KeyboardInterrupt
        chosen.set()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield chosen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
