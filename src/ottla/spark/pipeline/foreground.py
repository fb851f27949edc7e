"""A pipeline in the foreground: session, queries, progress, until Ctrl-C, SIGTERM, a failure or the end of what there is to read."""

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ottla.client.sync.waiting import Stop
from ottla.spark.pipeline.checkpoint import Held, held
from ottla.spark.pipeline.checkpoint_compatibility import refuse_unfit
from ottla.spark.pipeline.config.model import Pipeline, Sink
from ottla.spark.pipeline.config.toml_table import PipelineError
from ottla.spark.pipeline.progress import JsonLines, Progress, Screen
from ottla.spark.pipeline.query import RunningQuery
from ottla.spark.pipeline.retryable_errors import GIVE_UP_S, waits_s
from ottla.spark.pipeline.run import QueryFailed, RunningPipeline
from ottla.spark.pipeline.session import started
from ottla.spark.pipeline.sinks import Batch
from ottla.spark.pipeline.spark_exit import note_traceback, spark_exit, spark_words_to
from ottla.spark.pipeline.spark_refusals import reason

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
        log_from = log_file.stat().st_size if log_file.exists() else 0
        session = started(pipeline, f"ottla {pipeline.name}", settings, log_file)
        sums = Sums()
        # Spark takes Ctrl-C for itself when it starts.
        with stopped_by_signals(stop), spark_words_to(log_file), _ended(pipeline, session, out, sums, log_file, log_from):
            _work(pipeline, session, out, stop, lock, sums)


def spark_version() -> str:
    import pyspark

    return str(pyspark.__version__)


def _work(pipeline: Pipeline, session: Any, out: Screen | JsonLines, stop: Stop, lock: Held, sums: "Sums") -> None:
    def show(sink: Sink, batch: Batch, table: Any, total: int) -> None:
        out.rows(f"{sink.view}, batch {batch.number}", table, total)

    running = RunningPipeline(pipeline, session, show)
    trouble = Trouble()

    def tell(batches: list[Progress]) -> None:
        for progress in batches:
            out.batch(progress)
            trouble.over(progress.query)
            sums.add(progress)

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
    sums.reason = "interrupted" if stop.is_set() else "done"


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
class Sums:
    """What this run did, and why it ended."""

    rows_out: int = 0
    dead_letters: int = 0
    reason: str = "done"
    #: Records read, by source and query. Queries that share a source read each record once each, so the most counts.
    _read: dict[str, dict[str, int]] = field(default_factory=dict)

    def add(self, progress: Progress) -> None:
        for source, rows in (progress.rows_in_by_source or {"": progress.rows_in}).items():
            by_query = self._read.setdefault(source, {})
            by_query[progress.query] = by_query.get(progress.query, 0) + rows
        self.rows_out += progress.rows_out
        self.dead_letters += progress.dead_letters

    def figures(self) -> dict[str, int]:
        rows_in = sum(max(by_query.values()) for by_query in self._read.values())
        return {"rows_in": rows_in, "rows_out": self.rows_out, "dead_letters": self.dead_letters}


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
def _ended(pipeline: Pipeline, session: Any, out: Screen | JsonLines, sums: "Sums", log_file: Path, log_from: int) -> Iterator[None]:
    """Stops the session at the end of the block and reports the end, also a failure. Raises: QueryFailed, PipelineError.

    The whole traceback of a failure goes to Spark's log.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        try:
            yield
        finally:
            session.stop()
    except (Py4JError, PySparkException, OSError, QueryFailed, PipelineError) as error:
        note_traceback(log_file, error)
        gone = spark_exit(session.sparkContext._gateway.proc, log_file, log_from=log_from) if _cut_off(error) else None
        if gone is not None:
            said = f"{pipeline.name}: {gone.sentence()}. Start the pipeline again, and it goes on where it stopped"
            how = {"cause": gone.cause, "signal": gone.signal, "exit_code": gone.exit_code}
            out.say("stopped", pipeline=pipeline.name, **sums.figures(), reason="spark_died", **how, error=said, log=str(log_file))
            raise QueryFailed(said) from error
        ours = isinstance(error, QueryFailed | PipelineError | OSError)
        said = str(error) if ours else f"{pipeline.name}: {reason(error)}"
        out.say("stopped", pipeline=pipeline.name, **sums.figures(), reason="failed", error=said, log=str(log_file))
        if ours:
            raise
        raise QueryFailed(f"{said}; the whole of it is in {log_file}") from error
    out.say("stopped", pipeline=pipeline.name, **sums.figures(), reason=sums.reason)


def _cut_off(error: BaseException) -> bool:
    """Whether Spark's process may be gone: the connection to it broke, here or in what was being done when this was raised."""
    from py4j.protocol import Py4JError

    seen: BaseException | None = error
    while seen is not None:
        # An error that Java answered is a Py4JJavaError or becomes a PySparkException; both come from a process that lives.
        if isinstance(seen, OSError) or (isinstance(seen, Py4JError) and not hasattr(seen, "java_exception")):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


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
