"""The Spark queries of a pipeline (query.py): started, watched, stopped.

After a stop, in order or by power cut, a restart goes on with the batch that had not been finished: Spark keeps in the checkpoint which
offsets each batch has, so it is the same batch again, and sinks that can tell leave out what they have.
"""

import json
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ottla.spark import log_access
from ottla.spark.offsets import LATEST, from_json
from ottla.spark.pipeline.delta import DeltaAppend
from ottla.spark.pipeline.model import Pipeline, Sink
from ottla.spark.pipeline.parquet import ParquetFiles
from ottla.spark.pipeline.progress import Progress
from ottla.spark.pipeline.query import REJECTS, RunningQuery, aggregates, planned_queries, start
from ottla.spark.pipeline.refusals import reason
from ottla.spark.pipeline.rejects import Judged
from ottla.spark.pipeline.sinks import Batch, ConsoleTarget, DeltaTarget, JdbcTarget, ParquetTarget, Target, TopicTarget
from ottla.spark.pipeline.views import options_of
from ottla.spark.pipeline.views import views as made_views

if TYPE_CHECKING:
    import pyarrow as pa

    from ottla.base.ids import TopicPartition

Show = Callable[[Sink, Batch, "pa.Table", int | None], None]
POLL_S = 0.1
#: How long `stop` lets a batch that is being written come to its end.
STOP_GRACE_S = 10.0


class QueryFailed(RuntimeError):
    """A query ended with an error; the message says which one and why, in a sentence where one can be found."""


class RunningPipeline:
    """A pipeline at work. One Spark session may run several."""

    def __init__(self, pipeline: Pipeline, session: Any, show: Show) -> None:
        self.pipeline = pipeline
        self.session = session
        self.queries: list[RunningQuery] = []
        self._show = show
        self._stopping = False

    def start(self) -> None:
        """Starts every query. Raises: PipelineError when Spark refuses a step or a sink."""
        session, pipeline = self.session, self.pipeline
        session.dataSource.register(DeltaAppend)
        session.dataSource.register(ParquetFiles)
        judged: dict[str, Judged] = {}
        views = made_views(pipeline, session, judged)
        for planned in planned_queries(pipeline, views, judged):
            name = planned.view if len({sink.view for sink in pipeline.sinks}) > 1 else pipeline.name
            if planned.form == REJECTS:
                name = f"{planned.view} (dead letters)"
            self.queries.append(start(planned, pipeline, name, [self._target(sink) for sink in planned.sinks]))

    @property
    def active(self) -> bool:
        # One that failed is at work until somebody heard of it: `reports` may start it again.
        return any(query.query.isActive or query.query.exception() is not None for query in self.queries)

    def reports(self) -> list[Progress]:
        """Batches that ended since the last call, oldest first. A query that ended because a Python process of Spark is gone is started
        again. Raises: QueryFailed when a query did otherwise.
        """
        found = [report for query in self.queries for report in query.reports()]
        for query in self.queries:
            error = None if query.query.isActive else query.query.exception()
            if error is not None and (self._stopping or not query.went_on_after(error)):
                raise QueryFailed(f"{self.pipeline.name}: {query.name} failed: {reason(error)}")
        return sorted(found, key=lambda report: report.at)

    def caught_up(self, ends: "Mapping[TopicPartition, int]") -> bool:
        """Whether every query has finished a batch that ends at or after `ends`."""
        for query in self.queries:
            last = query.query.lastProgress
            if last is None:
                return False
            done: dict[TopicPartition, int] = {}
            for source in last["sources"]:
                offsets = _offsets_of(source["endOffset"])
                # Those of files are no offsets of partitions.
                if isinstance(offsets, dict) and all(isinstance(one, dict) for one in offsets.values()):
                    done |= from_json(offsets)
            if any(done.get(tp, 0) < end for tp, end in ends.items()):
                return False
        return True

    def ends(self) -> "dict[TopicPartition, int]":
        """The ends of the sources' topics now."""
        from ottla.spark.options import SourceOptions
        from ottla.spark.positions import newest

        ends: dict[TopicPartition, int] = {}
        for source in self.pipeline.sources:
            if source.type == "topic":
                options = SourceOptions.of(options_of(self.pipeline, source), streaming=True)
                ends |= newest(log_access.open_log(options.bootstrap, options.client), options)
        return ends

    def stop(self) -> None:
        """Stops every query: a batch at work may end, for a while; what is cut off is run again at the next start."""
        self._stopping = True
        for running in self.queries:
            before = running.query.lastProgress
            deadline = time.monotonic() + STOP_GRACE_S
            while running.query.isActive and running.query.status["isTriggerActive"] and time.monotonic() < deadline:
                if running.query.lastProgress != before or not running.query.status["isDataAvailable"]:
                    break
                time.sleep(POLL_S)
            running.query.stop()

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


def _offsets_of(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


__all__ = ["LATEST", "QueryFailed", "RunningPipeline", "RunningQuery", "aggregates", "reason"]
