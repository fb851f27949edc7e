"""The Spark queries of a pipeline: started, watched, stopped.

Sinks of one view that want results in the same form share one query and its checkpoint; others have their own. A checkpoint's directory is
named after view and form, so changing one sink does not disturb the others.

    form       what a batch holds                          sinks
    append     rows that will not change any more          delta append, and topic or console where the view does not aggregate
    update     rows that are new or changed                delta merge, and topic or console where it does
    complete   the whole result                            delta replace

After a stop, in order or by power cut, a restart goes on with the batch that had not been finished: Spark keeps in the checkpoint which
offsets each batch has, so it is the same batch again, and sinks that can tell leave out what they have.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.spark import log_access
from ottla.spark.offsets import LATEST, from_json
from ottla.spark.pipeline.delta import DeltaAppend
from ottla.spark.pipeline.model import Pipeline, Sink
from ottla.spark.pipeline.progress import Progress, progress_of
from ottla.spark.pipeline.refusals import reason, spark_errors
from ottla.spark.pipeline.sinks import Batch, ConsoleTarget, DeltaTarget, Target, TopicTarget, write_batch
from ottla.spark.pipeline.views import options_of
from ottla.spark.pipeline.views import views as made_views

if TYPE_CHECKING:
    import pyarrow as pa

    from ottla.base.ids import TopicPartition

Show = Callable[[Sink, Batch, "pa.Table", int | None], None]
OUTPUT_OF = {"append": "append", "merge": "update", "update": "update", "replace": "complete"}
POLL_S = 0.1
#: How long `stop` lets a batch that is being written come to its end.
STOP_GRACE_S = 10.0


class QueryFailed(RuntimeError):
    """A query ended with an error; the message says which one and why, in a sentence where one can be found."""


@dataclass
class RunningQuery:
    """One Spark query: a view in one form, and its sinks."""

    name: str
    query: Any
    #: Rows written by each batch that has ended; filled by the batch, read by whoever reports.
    rows_out: dict[int, int] = field(default_factory=dict)
    #: The newest batch that was reported.
    reported: str = ""

    def reports(self) -> Iterator[Progress]:
        """Batches that ended since the last call."""
        for report in self.query.recentProgress:
            if report["timestamp"] > self.reported:
                self.reported = report["timestamp"]
                yield progress_of(self.name, report, self.rows_out)


class RunningPipeline:
    """A pipeline at work. One Spark session may run several."""

    def __init__(self, pipeline: Pipeline, session: Any, show: Show) -> None:
        self.pipeline = pipeline
        self.session = session
        self.queries: list[RunningQuery] = []
        self._show = show

    def start(self) -> None:
        """Starts every query. Raises: PipelineError when Spark refuses a step or a sink."""
        session = self.session
        session.dataSource.register(DeltaAppend)
        views = made_views(self.pipeline, session)
        groups: dict[tuple[str, str], list[Sink]] = {}
        for sink in self.pipeline.sinks:
            groups.setdefault((sink.view, form_of(self.pipeline, sink, views[sink.view])), []).append(sink)
        for (view, output), sinks in groups.items():
            self.queries.append(self._start_query(views[view], view, output, sinks))

    @property
    def active(self) -> bool:
        return any(query.query.isActive for query in self.queries)

    def reports(self) -> list[Progress]:
        """Batches that ended since the last call, oldest first. Raises: QueryFailed when a query did."""
        found = [report for query in self.queries for report in query.reports()]
        for query in self.queries:
            error = None if query.query.isActive else query.query.exception()
            if error is not None:
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
        for running in self.queries:
            before = running.query.lastProgress
            deadline = time.monotonic() + STOP_GRACE_S
            while running.query.isActive and running.query.status["isTriggerActive"] and time.monotonic() < deadline:
                if running.query.lastProgress != before or not running.query.status["isDataAvailable"]:
                    break
                time.sleep(POLL_S)
            running.query.stop()

    def _start_query(self, frame: Any, view: str, output: str, sinks: list[Sink]) -> RunningQuery:
        pipeline = self.pipeline
        targets = [self._target(sink) for sink in sinks]
        for target in targets:
            for sql in target.extras.values():
                try:
                    frame.selectExpr(sql)
                except spark_errors() as error:
                    raise pipeline.error(f"{target.sink.key}key", reason(error)) from None
        gather = output != "append" or aggregates(frame)
        running = RunningQuery(view if len({sink.view for sink in pipeline.sinks}) > 1 else pipeline.name, None)

        def batch_ended(batch_frame: Any, number: int) -> None:
            query_id = batch_frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
            running.rows_out[number] = write_batch(targets, batch_frame, Batch(query_id, number), gather=gather)

        writer = frame.writeStream.foreachBatch(batch_ended).outputMode(output).queryName(f"{pipeline.name}-{view}-{output}")
        writer = writer.option("checkpointLocation", str(Path(pipeline.checkpoint).absolute() / f"{view}-{output}"))
        if pipeline.trigger == "available-now":
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=pipeline.trigger)
        try:
            running.query = writer.start()
        except spark_errors() as error:
            raise pipeline.error(f"{sinks[0].key}mode", reason(error)) from None
        return running

    def _target(self, sink: Sink) -> Target:
        match sink.type:
            case "delta":
                return DeltaTarget(sink, self.pipeline)
            case "topic":
                return TopicTarget(sink, self.pipeline)
            case "console":
                return ConsoleTarget(sink, self._show)


def form_of(pipeline: Pipeline, sink: Sink, frame: Any) -> str:
    """The form in which a sink wants its view: as it says, else as other sinks of the view do, else what the view can give."""
    if sink.mode is not None:
        return OUTPUT_OF[sink.mode]
    for other in pipeline.sinks:
        if other.view == sink.view and other.mode is not None:
            return OUTPUT_OF[other.mode]
    return "update" if aggregates(frame) else "append"


def aggregates(frame: Any) -> bool:
    """Whether a view groups or deduplicates, so that its results are few and may change."""
    plan = frame._jdf.queryExecution().analyzed().toString()
    return any(f"{node} [" in plan for node in ("Aggregate", "Deduplicate", "Distinct"))


def _offsets_of(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


__all__ = ["LATEST", "QueryFailed", "RunningPipeline", "RunningQuery", "aggregates", "reason"]
