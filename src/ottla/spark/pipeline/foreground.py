"""A pipeline in the foreground: session, queries, progress, until Ctrl-C, SIGTERM, a failure or the end of what there is to read."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ottla.spark.pipeline.model import Pipeline, Sink
from ottla.spark.pipeline.progress import JsonLines, Screen
from ottla.spark.pipeline.run import QueryFailed, RunningPipeline
from ottla.spark.pipeline.sinks import Batch
from ottla.spark.session import start_session

#: How often finished batches are looked for.
LOOK_S = 0.2
#: Spark's own number for clusters; on one machine it would give up with the first Python process that ends.
TASK_TRIES = 4


def run_until_stopped(pipeline: Pipeline, *, output: str = "auto") -> None:
    """Runs a pipeline and reports on standard output: a table for `text`, JSON lines for `json`, by the kind of output for `auto`.

    Raises: PipelineError, QueryFailed, NoJava.
    """
    human = output == "text" or (output == "auto" and sys.stdout.isatty())
    directory = Path(pipeline.checkpoint)
    directory.mkdir(parents=True, exist_ok=True)
    log_file = directory / "spark.log"
    with Screen() if human else JsonLines() as out, stopped_by_signals() as stop:
        out.say("starting", pipeline=pipeline.name, file=str(pipeline.file), log=str(log_file))
        settings = {"spark.master": f"local[*,{TASK_TRIES}]", **pipeline.spark}
        session = start_session(f"ottla {pipeline.name}", settings, log_file=log_file)
        # Spark takes Ctrl-C for itself when it starts.
        with stopped_by_signals(stop), _told_of_spark(pipeline, session, log_file):
            try:
                _work(pipeline, session, out, stop)
            finally:
                session.stop()


def _work(pipeline: Pipeline, session: Any, out: Screen | JsonLines, stop: threading.Event) -> None:
    def show(sink: Sink, batch: Batch, table: Any, total: int | None) -> None:
        out.rows(f"{sink.view}, batch {batch.number}", table, total)

    running = RunningPipeline(pipeline, session, show)
    try:
        running.start()
        out.say("started", pipeline=pipeline.name, checkpoint=pipeline.checkpoint)
        while running.active and not stop.is_set():
            for progress in running.reports():
                out.batch(progress)
            stop.wait(LOOK_S)
        if stop.is_set():
            out.say("stopping", pipeline=pipeline.name)
    finally:
        running.stop()
    for progress in running.reports():
        out.batch(progress)
    out.say("stopped", pipeline=pipeline.name)


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
def stopped_by_signals(stop: threading.Event | None = None) -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set, for the time of the block; a second signal ends the process at once."""
    stop = stop or threading.Event()
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
