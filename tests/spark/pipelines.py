"""Runs pipelines over the current content of a topic, and reads their results."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from ottla.demo.verification import read_table
from ottla.spark.pipeline.config.file import parse
from ottla.spark.pipeline.progress import BatchProgress
from ottla.spark.pipeline.quick_check import quick_check
from ottla.spark.pipeline.run import QueryFailed, RunningPipeline

RESTARTS_MAX = 8


class Topic(Protocol):
    bootstrap: str
    name: str


def runner(session: Any, directory: Path) -> Callable[..., list[BatchProgress]]:
    """Runs a pipeline over a topic's current records. Returns the reported batches."""

    def run(topic: Topic, text: str, trigger: str = "available-now", **variables: str) -> list[BatchProgress]:
        head = f'bootstrap = "{topic.bootstrap}"\ncheckpoint = "${{dir}}/checkpoint"\ntrigger = "{trigger}"\n'
        source = f'[source]\ntopic = "{topic.name}"\n'
        pipeline = parse(head + source + text, directory / "p.toml", {"dir": str(directory), **variables})
        running = RunningPipeline(pipeline, session, lambda *_: None)
        reports: list[BatchProgress] = []
        try:
            running.start()
            # What Spark accepts is accepted without Spark too.
            quick_check(pipeline)
            for query in running.queries:
                _ended(query.query)
            for _ in range(RESTARTS_MAX):
                try:
                    return reports + running.reports()
                except QueryFailed as failed:
                    # Like a run in the foreground: on a busy machine Spark's Python processes may start slowly.
                    if not failed.retryable or failed.query is None:
                        raise
                    failed.query.query = failed.query.launch()
                    _ended(failed.query.query)
        finally:
            running.stop()
        raise AssertionError("a retryable error does not last")

    return run


def _ended(query: Any) -> None:
    from pyspark.errors import StreamingQueryException

    with suppress(StreamingQueryException):  # `reports` raises it.
        assert query.awaitTermination(120), "the query ends by itself"


def table(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = read_table(path).to_pylist()
    return rows


def records(start: int, end: int) -> list[bytes]:
    return [json.dumps({"user": f"u{n % 3}", "n": n, "at": 1_700_000_000_000 + n}).encode() for n in range(start, end)]
