"""Starts, monitors and stops the Spark queries of a pipeline (query.py).

After any stop, a power cut included, a restart repeats the unfinished batch. Spark stores the offsets of each batch in the checkpoint, so
the batch has the same records, and sinks that track batches skip what they have.

While a pipeline runs, each source with a group (`kafka.group.id`) commits its progress when the next batch is requested
(`source.progress_group`). The last batch before a stop has no next one, so `stop` commits it: per partition the lowest offset of all
queries, since a query may still have to read the records after it.
"""

import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from ottla.base.ids import TopicPartition
from ottla.spark.pipeline import checkpoint_compatibility, streaming_checks
from ottla.spark.pipeline.checkpoint import CheckpointNotes, HeldCheckpoint
from ottla.spark.pipeline.config.model import Pipeline, Sink
from ottla.spark.pipeline.delta_sink import DeltaAppend
from ottla.spark.pipeline.parquet_sink import ParquetFiles
from ottla.spark.pipeline.progress import BatchProgress
from ottla.spark.pipeline.query import PlannedQuery, RunningQuery, planned_queries, start
from ottla.spark.pipeline.rejected_rows import REJECTED_FORM, UnfilteredView
from ottla.spark.pipeline.retryable_errors import full_text, is_retryable
from ottla.spark.pipeline.sinks import ConsoleTarget, DeltaTarget, JdbcTarget, MicroBatch, ParquetTarget, Target, TopicTarget
from ottla.spark.pipeline.spark_refusals import failure
from ottla.spark.pipeline.views import build_views, options_of
from ottla.spark.source import log_client
from ottla.spark.source.offset_ranges import offsets_in
from ottla.spark.source.options import SourceOptions, Subscription
from ottla.spark.source.progress_group import ProgressGroup
from ottla.spark.source.starting_offsets import Offsets, latest_offsets

Show = Callable[[Sink, MicroBatch, "pa.Table", int], None]
POLL_S = 0.1
#: How long `stop` waits for a running batch.
STOP_GRACE_S = 10.0


class QueryFailed(RuntimeError):
    """A query failed. The message names the query and the cause."""

    def __init__(self, sentence: str, query: RunningQuery | None = None, *, retryable: bool = False) -> None:
        super().__init__(sentence)
        #: None if Spark itself failed.
        self.query = query
        #: Whether a restart of the query may succeed.
        self.retryable = retryable


class RunningPipeline:
    """A running pipeline. One Spark session may run several."""

    def __init__(self, pipeline: Pipeline, session: Any, show: Show, checkpoint: HeldCheckpoint | None = None) -> None:
        self.pipeline = pipeline
        self.session = session
        self.queries: list[RunningQuery] = []
        self.notes = CheckpointNotes(Path(pipeline.checkpoint))
        #: Changes since the checkpoint was created, in sentences.
        self.news: list[str] = []
        self._show = show
        #: The caller holds it.
        self._checkpoint = checkpoint or HeldCheckpoint(pipeline.checkpoint)
        self._unreported: list[BatchProgress] = []

    def start(self) -> None:
        """Starts every query. Raises: PipelineError if Spark rejects a step or a sink, or a checkpoint is incompatible."""
        session, pipeline = self.session, self.pipeline
        session.dataSource.register(DeltaAppend)
        session.dataSource.register(ParquetFiles)
        if any(sink.type == "iceberg" for sink in pipeline.all_sinks):
            from ottla.spark.pipeline.iceberg_append import IcebergAppend

            session.dataSource.register(IcebergAppend)
        unfiltered: dict[str, UnfilteredView] = {}
        views = build_views(pipeline, session, unfiltered)
        queries = planned_queries(pipeline, views, unfiltered)
        streaming_checks.require_no_state(pipeline, {planned.view: planned.frame for planned in queries})
        for planned in queries:
            if planned.sinks:
                # Spark would reject the query at its start without a position; this check names the step.
                streaming_checks.check(pipeline, session, views, planned.view, planned.form, planned.sinks[0].key)
        fits = {planned.directory: self._fit(planned) for planned in queries}
        self.news += checkpoint_compatibility.new_queries([planned.directory for planned in queries], self.notes.queries)
        for planned in queries:
            self.notes.begin(planned.directory, fits[planned.directory], [described(sink) for sink in planned.sinks])
            targets = [self._target(sink) for sink in planned.sinks]
            self.queries.append(start(planned, pipeline, self._name(planned), targets, self._checkpoint))
        self.notes.save()

    def _fit(self, planned: PlannedQuery) -> dict[str, Any]:
        """The query's checkpoint dependencies. Raises: PipelineError if the checkpoint has others."""
        noted = self.notes.queries.get(planned.directory, {}).get("fit", {})
        return checkpoint_compatibility.query_dependencies(
            self.pipeline, planned.view, planned.form, planned.frame, noted, self.session.version
        )

    def _name(self, planned: PlannedQuery) -> str:
        if planned.form == REJECTED_FORM:
            return f"{planned.view} (dead letters)"
        return planned.view if len({sink.view for sink in self.pipeline.sinks}) > 1 else self.pipeline.name

    @property
    def active(self) -> bool:
        return any(query.query.isActive for query in self.queries)

    def reports(self) -> list[BatchProgress]:
        """Batches finished since the last call, oldest first.

        Raises: QueryFailed, once per failure of a query. The next call returns the batches.
        """
        self._note()
        for query in self.queries:
            error = None if query.query.isActive or query.failed is query.query else query.query.exception()
            if error is not None:
                query.failed = query.query
                raise QueryFailed(
                    f"{self.pipeline.name}: {query.name} failed: {failure(self.pipeline, error)}",
                    query,
                    retryable=is_retryable(full_text(error)),
                ) from error
        found, self._unreported = self._unreported, []
        return sorted(found, key=lambda report: report.at)

    def _note(self) -> None:
        """CheckpointNotes batches that ended, for `reports` and for `status`."""
        for query in self.queries:
            for report in query.reports():
                self._unreported.append(report)
                self.notes.batch(query.planned.directory, asdict(report))
        self.notes.save()

    def caught_up(self, ends: Mapping[TopicPartition, int]) -> bool:
        """Whether every query has finished a batch that ends at or after `ends`."""
        for query in self.queries:
            last = query.query.lastProgress
            if last is None:
                return False
            done = lowest_ends([last])
            if any(done.get(tp, 0) < end for tp, end in ends.items()):
                return False
        return True

    def ends(self) -> dict[TopicPartition, int]:
        """The current end offsets of the sources' topics."""
        ends: dict[TopicPartition, int] = {}
        for source in self.pipeline.sources:
            if source.type == "topic":
                options = SourceOptions.of(options_of(self.pipeline, source), streaming=True)
                ends |= latest_offsets(log_client.open_log_client(options.bootstrap, options.client), options)
        return ends

    def stop(self) -> None:
        """Stops every query and commits the progress of the sources' consumer groups.

        A running batch gets `STOP_GRACE_S` to finish; an interrupted one runs again at the next start.
        """
        for running in self.queries:
            before = running.query.lastProgress
            deadline = time.monotonic() + STOP_GRACE_S
            while running.query.isActive and running.query.status["isTriggerActive"] and time.monotonic() < deadline:
                if running.query.lastProgress != before or not running.query.status["isDataAvailable"]:
                    break
                time.sleep(POLL_S)
            running.query.stop()
        # `reports` may not be called again if another query has failed.
        self._note()
        publish_progress(self.pipeline, [running.query.lastProgress for running in self.queries])

    def _target(self, sink: Sink) -> Target:
        match sink.type:
            case "delta":
                return DeltaTarget(sink, self.pipeline)
            case "iceberg":
                from ottla.spark.pipeline.iceberg_sink import IcebergSink

                return IcebergSink(sink, self.pipeline)
            case "topic":
                return TopicTarget(sink, self.pipeline)
            case "parquet":
                return ParquetTarget(sink, self.pipeline)
            case "jdbc":
                return JdbcTarget(sink, self.pipeline, self.session)
            case "console":
                return ConsoleTarget(sink, self._show)


def described(sink: Sink) -> dict[str, Any]:
    """A sink as JSON for `status`."""
    location = {"path": sink.path, "topic": sink.topic, "url": sink.url, "catalog": sink.catalog, "table": sink.table}
    return {"type": sink.type, **{name: value for name, value in location.items() if value is not None}, "promise": sink.promise}


def lowest_ends(reports: Iterable[Mapping[str, Any] | None]) -> Offsets:
    """The lowest end offsets in Spark's reports of the queries' last batches."""
    done: Offsets = {}
    for source in (source for report in reports if report is not None for source in report["sources"]):
        done |= {tp: min(offset, done.get(tp, offset)) for tp, offset in (offsets_in(source["endOffset"]) or {}).items()}
    return done


def is_subscribed(subscription: Subscription, tp: TopicPartition) -> bool:
    match subscription.kind:
        case "assign":
            return tp in subscription.partitions
        case "subscribe":
            return tp.topic in subscription.topics
        case _:
            return re.fullmatch(subscription.pattern, tp.topic) is not None


def publish_progress(pipeline: Pipeline, reports: Iterable[Mapping[str, Any] | None]) -> None:
    """Commits the progress of each group. A failure is a warning."""
    done = lowest_ends(reports)
    for source in pipeline.sources:
        if source.type != "topic":
            continue
        options = SourceOptions.of(options_of(pipeline, source), streaming=True)
        offsets = {tp: offset for tp, offset in done.items() if is_subscribed(options.subscription, tp)}
        if options.commits and options.group and offsets:
            ProgressGroup(options.group).publish(log_client.open_log_client(options.bootstrap, options.client), offsets)
