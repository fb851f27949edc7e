"""One Spark query of a pipeline: a view in one form, the sinks that take it, and the dead letters that leave it.

    form       what a batch holds                          sinks
    append     rows that will not change any more          delta append, parquet, jdbc append; topic or console of any other view
    update     rows that are new or changed                delta merge, jdbc merge; topic or console of what aggregates or deduplicates
    complete   the whole result                            delta replace
    rejects    the dead letters of a view that no sink takes as rows that do not change (rejects.py)

Sinks of one view in one form share a query. Its checkpoint's directory is named after both, so changing one sink does not disturb the
others.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ottla.spark.pipeline import streaming_checks
from ottla.spark.pipeline.checkpoint import sweep
from ottla.spark.pipeline.config.model import Pipeline, Sink
from ottla.spark.pipeline.progress import Progress, progress_of
from ottla.spark.pipeline.rejected_rows import REJECTS, VERDICT, Judged
from ottla.spark.pipeline.sinks import Batch, LettersTarget, Target, kept_between, write_batch
from ottla.spark.pipeline.spark_refusals import reason, spark_errors, without_code

#: Among the operators of a plan.
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
    #: The view before bad rows left it, where this query writes the dead letters.
    judged: Judged | None = None

    @property
    def directory(self) -> str:
        """Of its checkpoint, in the pipeline's."""
        return f"{self.view}-{self.form}"

    @property
    def key(self) -> str:
        """What errors point at in the file."""
        return f"{self.sinks[0].key}mode" if self.sinks else "dead_letters"


@dataclass
class RunningQuery:
    """A query at work."""

    name: str
    planned: PlannedQuery
    #: Starts it, also again.
    launch: Callable[[], Any]
    query: Any = None
    #: The run of it whose failure was told.
    failed: Any = None
    #: Rows written, and dead letters, by each batch that has ended; filled by the batch, read by whoever reports.
    rows_out: dict[int, int] = field(default_factory=dict)
    dead: dict[int, int] = field(default_factory=dict)
    #: The newest batch that was reported.
    reported: str = ""

    def reports(self) -> Iterator[Progress]:
        """Batches that ended since the last call."""
        for report in self.query.recentProgress:
            if report["timestamp"] > self.reported:
                self.reported = report["timestamp"]
                yield progress_of(self.name, report, self.rows_out, self.dead)


def planned_queries(pipeline: Pipeline, views: Mapping[str, Any], judged: Mapping[str, Judged]) -> list[PlannedQuery]:
    """Every query that the pipeline needs. Raises: PipelineError for a rule on a view whose rows change."""
    groups: dict[tuple[str, str], list[Sink]] = {}
    for sink in pipeline.sinks:
        groups.setdefault((sink.view, form_of(pipeline, sink, views[sink.view])), []).append(sink)
    for rule in pipeline.rules:
        if aggregates(views[rule.view]):
            raise pipeline.error(f"{rule.key}on", f"the rows of {rule.view} are aggregates, which change; put the rule on an earlier view")
        if any(step.name == rule.view and step.deduplicate for step in pipeline.steps):
            raise pipeline.error(f"{rule.key}on", f"{rule.view} deduplicates; put the rule on an earlier view, or on a later one")
    planned, writing = [], letters_of(pipeline, judged)
    for (view, form), sinks in groups.items():
        planned.append(PlannedQuery(view, form, tuple(sinks), views[view], writing.pop(view, None) if form == "append" else None))
    rejects = [PlannedQuery(view, REJECTS, (), whole.frame, whole) for view, whole in writing.items()]
    return [*planned, *rejects]


def letters_of(pipeline: Pipeline, judged: Mapping[str, Judged]) -> dict[str, Judged]:
    """The views whose bad rows become dead letters."""
    sent = {rule.view for rule in pipeline.rules if rule.action == "dead_letter"}
    return {view: whole for view, whole in judged.items() if view in sent or (whole.undecoded and pipeline.dead_letters is not None)}


def form_of(pipeline: Pipeline, sink: Sink, frame: Any) -> str:
    """The form in which a sink wants its view: as it says, else as other sinks of the view do, else what the view can give."""
    if sink.mode is not None:
        return OUTPUT_OF[sink.mode]
    for other in pipeline.sinks:
        if other.view == sink.view and other.mode is not None:
            return OUTPUT_OF[other.mode]
    return "update" if aggregates(frame) or "Deduplicate [" in _analyzed(frame) else "append"


def start(planned: PlannedQuery, pipeline: Pipeline, name: str, targets: Sequence[Target]) -> RunningQuery:
    """Raises: PipelineError when Spark or a sink refuses."""
    for target in targets:
        target.prepare(planned.frame)

    directory = Path(pipeline.checkpoint).absolute() / planned.directory

    def launch() -> Any:
        sweep(directory)
        try:
            return triggered(writer, pipeline.trigger).start()
        except spark_errors() as error:
            raise pipeline.error(planned.key, without_code(reason(error))) from None

    running = RunningQuery(name, planned, launch)
    letters = None
    if planned.judged is not None:
        letters = LettersTarget(pipeline)
        letters.prepare(planned.judged.letters(planned.judged.frame))
    gather = gathered(planned)
    stateful = streaming_checks.keeps_state(planned.frame)

    def batch_ended(frame: Any, number: int) -> None:
        query_id = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        batch = Batch(query_id, number, stateful=stateful)
        if planned.judged is None or letters is None:
            running.rows_out[number] = write_batch(targets, frame, batch, gather=gather)
            return
        with kept_between(frame, True):
            running.dead[number] = letters.write(planned.judged.letters(frame), batch)
            if targets:
                running.rows_out[number] = write_batch(targets, planned.judged.kept(frame), batch, gather=gather)

    frame = planned.frame if planned.judged is None else planned.judged.frame
    if planned.form == REJECTS:
        # Only bad rows are kept between the jobs of a batch.
        frame = frame.where(f"{VERDICT} <> ''")
    writer = frame.writeStream.foreachBatch(batch_ended).outputMode("append" if planned.form == REJECTS else planned.form)
    writer = writer.queryName(f"{pipeline.name}-{planned.directory}")
    writer = writer.option("checkpointLocation", str(directory))
    running.query = launch()
    return running


def triggered(writer: Any, trigger: str) -> Any:
    """A stream's writer with the trigger of a file.

    `continuous` is one batch after the other: Spark's own trigger of that name is refused for sources in Python.
    """
    match trigger:
        case "available-now":
            return writer.trigger(availableNow=True)
        case "once":
            return writer.trigger(once=True)
        case "continuous":
            return writer.trigger(processingTime="0 seconds")
    return writer.trigger(processingTime=trigger)


def gathered(planned: PlannedQuery) -> bool:
    """Whether the results of a batch are put together on the driver: few rows, or rows that are looked for in a table."""
    return planned.form == "complete" or any(sink.mode == "merge" for sink in planned.sinks) or aggregates(planned.frame)


def aggregates(frame: Any) -> bool:
    """Whether a view is made from aggregates, so that its results are few and may change."""
    return AGGREGATES.search(_analyzed(frame)) is not None


def _analyzed(frame: Any) -> str:
    return str(frame._jdf.queryExecution().analyzed().toString())
