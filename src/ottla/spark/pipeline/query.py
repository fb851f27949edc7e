"""One Spark query of a pipeline: a view in one form, its sinks, and its dead letters.

    form       content of a batch                   sinks
    append     final rows                           delta append, parquet, jdbc append; topic or console of any other view
    update     new or changed rows                  delta merge, jdbc merge; topic or console of a view that aggregates or deduplicates
    complete   the whole result                     delta replace
    rejects    dead letters of a view without a sink of the form append (rejected_rows.py)

Sinks with the same view and form share a query. Its checkpoint directory is named after both, so a change of one sink does not affect the
others.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ottla.spark.pipeline import streaming_checks
from ottla.spark.pipeline.checkpoint import HeldCheckpoint
from ottla.spark.pipeline.config.model import Pipeline, Sink
from ottla.spark.pipeline.dead_letters import DeadLetterTarget
from ottla.spark.pipeline.progress import BatchProgress, progress_of
from ottla.spark.pipeline.rejected_rows import REJECTED_FORM, VERDICT, UnfilteredView
from ottla.spark.pipeline.sinks import MicroBatch, Target, persisted, write_batch
from ottla.spark.pipeline.spark_refusals import reason, spark_errors, without_code

#: Aggregating operators in the text of a plan.
AGGREGATES = re.compile(r"\bAggregate \[|\bDistinct$", re.MULTILINE)
OUTPUT_OF = {"append": "append", "merge": "update", "update": "update", "replace": "complete"}


@dataclass(frozen=True, slots=True)
class PlannedQuery:
    """A query before it runs."""

    view: str
    form: str
    sinks: tuple[Sink, ...]
    #: The view's frame.
    frame: Any
    #: The view with its rejected rows, if this query writes the dead letters.
    unfiltered: UnfilteredView | None = None

    @property
    def directory(self) -> str:
        """Its checkpoint directory inside the pipeline's."""
        return f"{self.view}-{self.form}"

    @property
    def key(self) -> str:
        """The key of the file that errors refer to."""
        return f"{self.sinks[0].key}mode" if self.sinks else "dead_letters"


@dataclass
class RunningQuery:
    """A running query."""

    name: str
    planned: PlannedQuery
    #: Starts or restarts it.
    launch: Callable[[], Any]
    query: Any = None
    #: The run whose failure was reported.
    failed: Any = None
    #: Rows written and dead letters, by finished batch. The batch writes them, `reports` reads them.
    rows_out: dict[int, int] = field(default_factory=dict)
    dead: dict[int, int] = field(default_factory=dict)
    #: Timestamp of the last reported batch.
    reported: str = ""

    def reports(self) -> Iterator[BatchProgress]:
        """Batches finished since the last call."""
        for report in self.query.recentProgress:
            if report["timestamp"] > self.reported:
                self.reported = report["timestamp"]
                yield progress_of(self.name, report, self.rows_out, self.dead)


def planned_queries(pipeline: Pipeline, views: Mapping[str, Any], unfiltered: Mapping[str, UnfilteredView]) -> list[PlannedQuery]:
    """The pipeline's queries. Raises: PipelineError for a rule on a view whose rows change."""
    groups: dict[tuple[str, str], list[Sink]] = {}
    for sink in pipeline.sinks:
        groups.setdefault((sink.view, form_of(pipeline, sink, views[sink.view])), []).append(sink)
    for rule in pipeline.rules:
        if aggregates(views[rule.view]):
            raise pipeline.error(f"{rule.key}on", f"the rows of {rule.view} are aggregates, which change; put the rule on an earlier view")
        if any(step.name == rule.view and step.deduplicate for step in pipeline.steps):
            raise pipeline.error(f"{rule.key}on", f"{rule.view} deduplicates; put the rule on an earlier view, or on a later one")
    planned, writing = [], dead_letter_views(pipeline, unfiltered)
    for (view, form), sinks in groups.items():
        planned.append(PlannedQuery(view, form, tuple(sinks), views[view], writing.pop(view, None) if form == "append" else None))
    rejects = [PlannedQuery(view, REJECTED_FORM, (), whole.frame, whole) for view, whole in writing.items()]
    return [*planned, *rejects]


def dead_letter_views(pipeline: Pipeline, unfiltered: Mapping[str, UnfilteredView]) -> dict[str, UnfilteredView]:
    """The views whose bad rows become dead letters."""
    sent = {rule.view for rule in pipeline.rules if rule.action == "dead_letter"}
    return {view: whole for view, whole in unfiltered.items() if view in sent or (whole.undecoded and pipeline.dead_letters is not None)}


def form_of(pipeline: Pipeline, sink: Sink, frame: Any) -> str:
    """The form for a sink: from its mode, else from other sinks of the view, else from the view's operators."""
    if sink.mode is not None:
        return OUTPUT_OF[sink.mode]
    for other in pipeline.sinks:
        if other.view == sink.view and other.mode is not None:
            return OUTPUT_OF[other.mode]
    return "update" if aggregates(frame) or "Deduplicate [" in _analyzed(frame) else "append"


def start(planned: PlannedQuery, pipeline: Pipeline, name: str, targets: Sequence[Target], checkpoint: HeldCheckpoint) -> RunningQuery:
    """Starts a query. `checkpoint.save` is called when a batch is planned, before any sink writes it.

    Raises: PipelineError if Spark or a sink rejects the query.
    """
    for target in targets:
        target.prepare(planned.frame)

    def launch() -> Any:
        checkpoint.remove_partial_files(planned.directory)
        try:
            return with_trigger(writer, pipeline.trigger).start()
        except spark_errors() as error:
            raise pipeline.error(planned.key, without_code(reason(error))) from None

    running = RunningQuery(name, planned, launch)
    letters = None
    if planned.unfiltered is not None:
        letters = DeadLetterTarget(pipeline)
        letters.prepare(planned.unfiltered.dead_letters(planned.unfiltered.frame))
    gather = gathers(planned)
    stateful = streaming_checks.keeps_state(planned.frame)

    def batch_ended(frame: Any, number: int) -> None:
        context = frame.sparkSession.sparkContext
        query_id, run_id = (context.getLocalProperty(name) for name in ("sql.streaming.queryId", "spark.jobGroup.id"))
        batch = MicroBatch(query_id, number, stateful=stateful, run_id=run_id)
        checkpoint.save()
        if planned.unfiltered is None or letters is None:
            running.rows_out[number] = write_batch(targets, frame, batch, gather=gather)
            return
        with persisted(frame, True):
            running.dead[number] = letters.write(planned.unfiltered.dead_letters(frame), batch)
            if targets:
                running.rows_out[number] = write_batch(targets, planned.unfiltered.good_rows(frame), batch, gather=gather)

    frame = planned.frame if planned.unfiltered is None else planned.unfiltered.frame
    if planned.form == REJECTED_FORM:
        # Persist only rejected rows between the jobs of a batch.
        frame = frame.where(f"{VERDICT} <> ''")
    writer = frame.writeStream.foreachBatch(batch_ended).outputMode("append" if planned.form == REJECTED_FORM else planned.form)
    writer = writer.queryName(f"{pipeline.name}-{planned.directory}")
    writer = writer.option("checkpointLocation", checkpoint.location(planned.directory))
    running.query = launch()
    return running


def with_trigger(writer: Any, trigger: str) -> Any:
    """A stream's writer with the pipeline's trigger.

    `continuous` starts each batch after the last one. Python sources do not support Spark's own continuous trigger.
    """
    match trigger:
        case "available-now":
            return writer.trigger(availableNow=True)
        case "once":
            return writer.trigger(once=True)
        case "continuous":
            return writer.trigger(processingTime="0 seconds")
    return writer.trigger(processingTime=trigger)


def gathers(planned: PlannedQuery) -> bool:
    """Whether a batch's results are gathered on the driver: few rows, or a merge into a table."""
    return planned.form == "complete" or any(sink.mode == "merge" for sink in planned.sinks) or aggregates(planned.frame)


def aggregates(frame: Any) -> bool:
    """Whether a view aggregates, so that its rows are few and may change."""
    return AGGREGATES.search(_analyzed(frame)) is not None


def _analyzed(frame: Any) -> str:
    return str(frame._jdf.queryExecution().analyzed().toString())
