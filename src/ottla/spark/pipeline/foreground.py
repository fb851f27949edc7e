"""Runs a pipeline in the foreground until Ctrl-C, SIGTERM, a failure, or the end of the input."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyspark
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from ottla.client.sync.waiting import Stop, stopped_by_signals
from ottla.spark.pipeline.checkpoint import CheckpointLock, HeldCheckpoint, InUse, checkpoint_lock
from ottla.spark.pipeline.checkpoint_access import holding
from ottla.spark.pipeline.checkpoint_compatibility import require_compatible, require_compatible_if_local
from ottla.spark.pipeline.checkpoint_errors import CheckpointUnavailable
from ottla.spark.pipeline.config.model import Pipeline, Sink
from ottla.spark.pipeline.config.toml_table import PipelineError
from ottla.spark.pipeline.progress import BatchProgress, JsonLines, Screen
from ottla.spark.pipeline.query import RunningQuery
from ottla.spark.pipeline.retryable_errors import RETRY_TIMEOUT_S, backoffs_s
from ottla.spark.pipeline.run import QueryFailed, RunningPipeline
from ottla.spark.pipeline.session import started
from ottla.spark.pipeline.sinks import MicroBatch
from ottla.spark.pipeline.spark_exit import log_traceback, spark_exit, spark_output_to
from ottla.spark.pipeline.spark_refusals import reason

#: Interval between checks for finished batches.
POLL_INTERVAL_S = 0.2


@dataclass
class Held:
    """The checkpoint, which this process holds."""

    lock: CheckpointLock
    checkpoint: HeldCheckpoint

    def beat(self, pipeline: str) -> None:
        """Writes heartbeats, if due. Raises: QueryFailed if another process has taken the checkpoint over, or it cannot be written."""
        self.lock.beat()
        try:
            self.checkpoint.keep()
        except CheckpointUnavailable as error:
            raise QueryFailed(f"{pipeline}: {error}") from None


def run_until_stopped(pipeline: Pipeline, *, output: str = "auto") -> None:
    """Runs a pipeline and reports on standard output: `text` a table, `json` JSON lines, `auto` a table on a terminal, else JSON lines.

    Retryable errors (retryable_errors.py) are reported, and the query restarts after a backoff.

    Raises: PipelineError, QueryFailed, NoJava, InUse, CheckpointUnavailable.
    """
    human = output == "text" or (output == "auto" and sys.stdout.isatty())
    directory = Path(pipeline.checkpoint)
    log_file = directory / "spark.log"
    require_compatible_if_local(pipeline, spark_version())
    with (
        checkpoint_lock(directory) as lock,
        Screen() if human else JsonLines() as out,
        stopped_by_signals() as stop,
        ExitStack() as stack,
    ):
        held = None
        if pipeline.checkpoint_url is None:
            held = stack.enter_context(_holding(pipeline, None, lock, out, stop))
        out.emit("starting", pipeline=pipeline.name, file=str(pipeline.file), log=str(log_file))
        settings = {**pipeline.spark, "spark.master": pipeline.master}
        log_from = log_file.stat().st_size if log_file.exists() else 0
        session = started(pipeline, f"ottla {pipeline.name}", settings, log_file)
        totals = RunTotals()
        # Spark installs its own signal handlers at its start.
        with (
            stopped_by_signals(stop),
            spark_output_to(log_file),
            _reporting_end(pipeline, session, out, totals, log_file, log_from),
            # Spark's file systems open a checkpoint at a URL.
            _holding(pipeline, session, lock, out, stop) if held is None else nullcontext(held) as held,
        ):
            _run(pipeline, session, out, stop, held, totals)


@contextmanager
def _holding(pipeline: Pipeline, session: Any, lock: CheckpointLock, out: Screen | JsonLines, stop: Stop) -> Iterator[Held]:
    """Holds the checkpoint for the block, after it was compared with the file. Raises: as `holding`, and PipelineError."""

    def note(text: str) -> None:
        out.emit("note", text=text)

    with holding(pipeline, session, tell=note, wait=stop.wait) as checkpoint:
        if checkpoint.is_empty:
            note(f"{pipeline.checkpoint_place} has no checkpoint of {pipeline.name}: it starts new")
        # Checked again under the lock.
        for sentence in require_compatible(pipeline, Path(pipeline.checkpoint), spark_version()):
            note(sentence)
        yield Held(lock, checkpoint)


def spark_version() -> str:
    return str(pyspark.__version__)


def _run(pipeline: Pipeline, session: Any, out: Screen | JsonLines, stop: Stop, held: Held, totals: "RunTotals") -> None:
    def show(sink: Sink, batch: MicroBatch, table: Any, total: int) -> None:
        out.rows(f"{sink.view}, batch {batch.number}", table, total)

    running = RunningPipeline(pipeline, session, show, held.checkpoint)
    retry_state = RetryState()

    def tell(batches: list[BatchProgress]) -> None:
        for progress in batches:
            out.batch(progress)
            retry_state.succeeded(progress.query)
            totals.add(progress)

    try:
        running.start()
        for sentence in running.news:
            out.emit("note", text=sentence)
        out.emit("started", pipeline=pipeline.name, checkpoint=pipeline.checkpoint_place)
        _watch(running, retry_state, tell, out, stop, held)
        if stop.is_set():
            out.emit("stopping", pipeline=pipeline.name)
    finally:
        running.stop()
    tell(running.reports())
    totals.reason = "interrupted" if stop.is_set() else "done"


def _watch(
    running: RunningPipeline,
    retry_state: "RetryState",
    tell: Callable[[list[BatchProgress]], None],
    out: Screen | JsonLines,
    stop: Stop,
    held: Held,
) -> None:
    """Returns after every query has ended or `stop` is set. Raises: QueryFailed for an error that is not retryable."""
    while not stop.is_set():
        held.beat(running.pipeline.name)
        # Evaluated before `reports`, which raises every failure up to this point.
        ended = not (running.active or retry_state.waiting)
        try:
            tell(running.reports())
        except QueryFailed as failed:
            retry_state.failed(failed, out)
            continue
        if ended:
            return
        retry_state.restart_due()
        stop.wait(POLL_INTERVAL_S)


@dataclass
class RunTotals:
    """Row counts of this run, and why it ended."""

    rows_out: int = 0
    dead_letters: int = 0
    reason: str = "done"
    #: Records read, by source and query. Each query of a shared source reads every record, so the maximum counts.
    _read: dict[str, dict[str, int]] = field(default_factory=dict)

    def add(self, progress: BatchProgress) -> None:
        for source, rows in (progress.rows_in_by_source or {"": progress.rows_in}).items():
            by_query = self._read.setdefault(source, {})
            by_query[progress.query] = by_query.get(progress.query, 0) + rows
        self.rows_out += progress.rows_out
        self.dead_letters += progress.dead_letters

    def figures(self) -> dict[str, int]:
        rows_in = sum(max(by_query.values()) for by_query in self._read.values())
        return {"rows_in": rows_in, "rows_out": self.rows_out, "dead_letters": self.dead_letters}


@dataclass
class RetryState:
    """Failed queries that wait for their restart. Backoff and timeout are per query; a successful batch resets them."""

    waiting: dict[str, tuple[RunningQuery, float]] = field(default_factory=dict)
    _waits: dict[str, Iterator[float]] = field(default_factory=dict)
    _since: dict[str, float] = field(default_factory=dict)

    def failed(self, error: QueryFailed, out: Screen | JsonLines) -> None:
        """Schedules a restart. Raises: QueryFailed if the error is not retryable or lasts longer than `RETRY_TIMEOUT_S`."""
        if error.query is None:
            raise error
        name, now = error.query.name, time.monotonic()
        if not error.retryable or now - self._since.setdefault(name, now) > RETRY_TIMEOUT_S:
            raise error
        wait_s = next(self._waits.setdefault(name, backoffs_s()))
        self.waiting[name] = error.query, now + wait_s
        out.emit("retrying", query=name, after_s=wait_s, reason=str(error))

    def succeeded(self, name: str) -> None:
        self._waits.pop(name, None)
        self._since.pop(name, None)

    def restart_due(self) -> None:
        for name, (query, due) in list(self.waiting.items()):
            if time.monotonic() >= due:
                del self.waiting[name]
                query.query = query.launch()


@contextmanager
def _reporting_end(
    pipeline: Pipeline, session: Any, out: Screen | JsonLines, totals: "RunTotals", log_file: Path, log_from: int
) -> Iterator[None]:
    """Stops the session at the end of the block and reports the end or the failure. Raises: QueryFailed, PipelineError.

    The full traceback of a failure is written to Spark's log.
    """
    try:
        try:
            yield
        finally:
            session.stop()
    except (Py4JError, PySparkException, OSError, QueryFailed, PipelineError, InUse, CheckpointUnavailable) as error:
        log_traceback(log_file, error)
        ended = spark_exit(session.sparkContext._gateway.proc, log_file, log_from=log_from) if _is_connection_error(error) else None
        if ended is not None:
            message = f"{pipeline.name}: {ended.sentence()}. Start the pipeline again; it resumes where it stopped"
            details = {"cause": ended.cause, "signal": ended.signal, "exit_code": ended.exit_code}
            out.emit(
                "stopped", pipeline=pipeline.name, **totals.figures(), reason="spark_died", **details, error=message, log=str(log_file)
            )
            raise QueryFailed(message) from error
        ours = isinstance(error, QueryFailed | PipelineError | OSError | InUse | CheckpointUnavailable)
        message = str(error) if ours else f"{pipeline.name}: {reason(error)}"
        out.emit("stopped", pipeline=pipeline.name, **totals.figures(), reason="failed", error=message, log=str(log_file))
        if ours:
            raise
        raise QueryFailed(f"{message}; the full error is in {log_file}") from error
    out.emit("stopped", pipeline=pipeline.name, **totals.figures(), reason=totals.reason)


def _is_connection_error(error: BaseException) -> bool:
    """Whether the connection to Spark's process broke, in this error or its causes, so that the process may have ended."""
    seen: BaseException | None = error
    while seen is not None:
        # Java's errors are a Py4JJavaError or a PySparkException; both come from a live process.
        if isinstance(seen, OSError) or (isinstance(seen, Py4JError) and not hasattr(seen, "java_exception")):
            return True
        seen = seen.__cause__ or seen.__context__
    return False
