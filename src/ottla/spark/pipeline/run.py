"""The Spark queries of a pipeline (query.py): started, watched, stopped.

After a stop, in order or by power cut, a restart goes on with the batch that had not been finished: Spark keeps in the checkpoint which
offsets each batch has, so it is the same batch again, and sinks that can tell leave out what they have.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.spark.pipeline import checkpoint_compatibility, streaming_checks
from ottla.spark.pipeline.checkpoint import Notes
from ottla.spark.pipeline.config.model import Pipeline, Sink
from ottla.spark.pipeline.delta_sink import DeltaAppend
from ottla.spark.pipeline.parquet_sink import ParquetFiles
from ottla.spark.pipeline.progress import Progress
from ottla.spark.pipeline.progress_groups import done_by, publish
from ottla.spark.pipeline.query import PlannedQuery, RunningQuery, aggregates, planned_queries, start
from ottla.spark.pipeline.rejected_rows import REJECTS, Judged
from ottla.spark.pipeline.retryable_errors import at_length, passes
from ottla.spark.pipeline.sinks import Batch, ConsoleTarget, DeltaTarget, JdbcTarget, ParquetTarget, Target, TopicTarget
from ottla.spark.pipeline.spark_refusals import failure, reason
from ottla.spark.pipeline.views import options_of
from ottla.spark.pipeline.views import views as made_views
from ottla.spark.source import log_client
from ottla.spark.source.offset_ranges import LATEST

if TYPE_CHECKING:
    import pyarrow as pa

    from ottla.base.ids import TopicPartition

Show = Callable[[Sink, Batch, "pa.Table", int], None]
POLL_S = 0.1
#: How long `stop` lets a batch that is being written come to its end.
STOP_GRACE_S = 10.0


class QueryFailed(RuntimeError):
    """A query ended with an error; the message says which one and why, in a sentence where one can be found."""

    def __init__(self, sentence: str, query: RunningQuery | None = None, *, passes: bool = False) -> None:
        super().__init__(sentence)
        #: None where it was not one of them, but Spark.
        self.query = query
        #: Whether it may go well after a while.
        self.passes = passes


class RunningPipeline:
    """A pipeline at work. One Spark session may run several."""

    def __init__(self, pipeline: Pipeline, session: Any, show: Show) -> None:
        self.pipeline = pipeline
        self.session = session
        self.queries: list[RunningQuery] = []
        self.notes = Notes(Path(pipeline.checkpoint))
        #: What has changed since the checkpoint was made, in sentences.
        self.news: list[str] = []
        self._show = show
        self._untold: list[Progress] = []

    def start(self) -> None:
        """Starts every query. Raises: PipelineError when Spark refuses a step or a sink, or a checkpoint does not fit any more."""
        session, pipeline = self.session, self.pipeline
        session.dataSource.register(DeltaAppend)
        session.dataSource.register(ParquetFiles)
        judged: dict[str, Judged] = {}
        views = made_views(pipeline, session, judged)
        queries = planned_queries(pipeline, views, judged)
        for planned in queries:
            if planned.sinks:
                # Spark refuses at the start of a query, without a place; this names the step.
                streaming_checks.check(pipeline, session, views, planned.view, planned.form, planned.sinks[0].key)
        fits = {planned.directory: self._fit(planned) for planned in queries}
        self.news += checkpoint_compatibility.new_queries([planned.directory for planned in queries], self.notes.queries)
        for planned in queries:
            self.notes.begin(planned.directory, fits[planned.directory], [described(sink) for sink in planned.sinks])
            self.queries.append(start(planned, pipeline, self._name(planned), [self._target(sink) for sink in planned.sinks]))
        self.notes.save()

    def _fit(self, planned: PlannedQuery) -> dict[str, Any]:
        """What the query's checkpoint depends on. Raises: PipelineError when it is another's."""
        noted = self.notes.queries.get(planned.directory, {}).get("fit", {})
        return checkpoint_compatibility.of_query(self.pipeline, planned.view, planned.form, planned.frame, noted, self.session.version)

    def _name(self, planned: PlannedQuery) -> str:
        if planned.form == REJECTS:
            return f"{planned.view} (dead letters)"
        return planned.view if len({sink.view for sink in self.pipeline.sinks}) > 1 else self.pipeline.name

    @property
    def active(self) -> bool:
        return any(query.query.isActive for query in self.queries)

    def reports(self) -> list[Progress]:
        """Batches that ended since the last call, oldest first. Raises: QueryFailed, once, when a query did; batches are told next time."""
        self._note()
        for query in self.queries:
            error = None if query.query.isActive or query.failed is query.query else query.query.exception()
            if error is not None:
                query.failed = query.query
                raise QueryFailed(
                    f"{self.pipeline.name}: {query.name} failed: {failure(self.pipeline, error)}", query, passes=passes(at_length(error))
                ) from error
        found, self._untold = self._untold, []
        return sorted(found, key=lambda report: report.at)

    def _note(self) -> None:
        """Notes batches that ended, for `reports` and for `status`."""
        for query in self.queries:
            for report in query.reports():
                self._untold.append(report)
                self.notes.batch(query.planned.directory, asdict(report))
        self.notes.save()

    def caught_up(self, ends: "Mapping[TopicPartition, int]") -> bool:
        """Whether every query has finished a batch that ends at or after `ends`."""
        for query in self.queries:
            last = query.query.lastProgress
            if last is None:
                return False
            done = done_by([last])
            if any(done.get(tp, 0) < end for tp, end in ends.items()):
                return False
        return True

    def ends(self) -> "dict[TopicPartition, int]":
        """The ends of the sources' topics now."""
        from ottla.spark.source.options import SourceOptions
        from ottla.spark.source.starting_offsets import latest_offsets

        ends: dict[TopicPartition, int] = {}
        for source in self.pipeline.sources:
            if source.type == "topic":
                options = SourceOptions.of(options_of(self.pipeline, source), streaming=True)
                ends |= latest_offsets(log_client.open_log_client(options.bootstrap, options.client), options)
        return ends

    def stop(self) -> None:
        """Stops every query: a batch at work may end, for a while; what is cut off is run again at the next start. Then the consumer groups
        of its sources, if they have some, hear of the last batch.
        """
        for running in self.queries:
            before = running.query.lastProgress
            deadline = time.monotonic() + STOP_GRACE_S
            while running.query.isActive and running.query.status["isTriggerActive"] and time.monotonic() < deadline:
                if running.query.lastProgress != before or not running.query.status["isDataAvailable"]:
                    break
                time.sleep(POLL_S)
            running.query.stop()
        # Also where nobody will ask any more, since one of the others has failed.
        self._note()
        publish(self.pipeline, [running.query.lastProgress for running in self.queries])

    def _target(self, sink: Sink) -> Target:
        match sink.type:
            case "delta":
                return DeltaTarget(sink, self.pipeline)
            case "topic":
                return TopicTarget(sink, self.pipeline)
            case "parquet":
                return ParquetTarget(sink, self.pipeline)
            case "jdbc":
                return JdbcTarget(sink, self.pipeline, self.session)
            case "console":
                return ConsoleTarget(sink, self._show)


def described(sink: Sink) -> dict[str, Any]:
    """A sink for `status`: what it is, and where."""
    place = {"path": sink.path, "topic": sink.topic, "url": sink.url, "table": sink.table}
    return {"type": sink.type, **{name: value for name, value in place.items() if value is not None}}


__all__ = ["LATEST", "QueryFailed", "RunningPipeline", "RunningQuery", "aggregates", "reason"]
