"""A pipeline as it would run, told without running it: views with their columns, what is kept in state, sinks and what reaches them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ottla.spark.pipeline import checkpoint_compatibility, functions, streaming_checks
from ottla.spark.pipeline.checkpoint import read_notes
from ottla.spark.pipeline.config import spark_settings
from ottla.spark.pipeline.config.model import Pipeline, Sink, Source
from ottla.spark.pipeline.query import form_of, planned_queries
from ottla.spark.pipeline.rejected_rows import Judged
from ottla.spark.pipeline.session import started
from ottla.spark.pipeline.sinks import TopicTarget, refuse_unknown
from ottla.spark.pipeline.views import views as made_views


@contextmanager
def planning_session(pipeline: Pipeline) -> Iterator[Any]:
    """A small Spark session on this machine for the time of the block, whatever master the file names: plans need no executors.

    Raises: NoJava, PipelineError.
    """
    given = {name: value for name, value in pipeline.spark.items() if name.startswith("spark.sql.")}
    with TemporaryDirectory(prefix="ottla-plan-") as directory:
        session = started(pipeline, f"ottla plan {pipeline.name}", given, Path(directory) / "spark.log", cores=1)
        try:
            yield session
        finally:
            session.stop()


def checked(pipeline: Pipeline, session: Any, told: list[str] | None = None) -> dict[str, Any]:
    """Every view by name, after Spark has looked at each step, at how each sink wants its view, and at whether the checkpoint fits: all
    that a run would look at before it asks brokers, databases or tables. `told` gets what is new since the checkpoint was made, and what
    grows for ever.

    Raises: PipelineError.
    """
    spark_settings.check(pipeline, session)
    judged: dict[str, Judged] = {}
    frames = made_views(pipeline, session, judged)
    queries = planned_queries(pipeline, frames, judged)
    for sink in pipeline.sinks:
        frame = frames[sink.view]
        streaming_checks.check(pipeline, session, frames, sink.view, form_of(pipeline, sink, frame), sink.key)
        if sink.type == "topic":
            TopicTarget(sink, pipeline).prepare(frame)
        refuse_unknown(pipeline, sink, frame)
    noted = read_notes(Path(pipeline.checkpoint))
    for query in queries:
        checkpoint_compatibility.of_query(
            pipeline, query.view, query.form, query.frame, noted.get(query.directory, {}).get("fit", {}), session.version
        )
    if told is not None:
        told += [
            *checkpoint_compatibility.new_queries([query.directory for query in queries], noted),
            *streaming_checks.kept_for_ever(frames),
        ]
    return frames


def plan(pipeline: Pipeline, session: Any, *, physical: bool = False, news: Sequence[str] = ()) -> dict[str, Any]:
    """The plan as a document, with `news` and what else is to be told. Raises: PipelineError."""
    told = list(news)
    frames = checked(pipeline, session, told)
    types = functions.register(pipeline, session)
    document = {
        "name": pipeline.name,
        "file": str(pipeline.file),
        "bootstrap": pipeline.bootstrap,
        "checkpoint": pipeline.checkpoint,
        "trigger": pipeline.trigger,
        "master": pipeline.master,
        "notes": told,
        "functions": [{"name": name, "type": kind} for name, kind in types.items()],
        "views": [_view(pipeline, name, frame) for name, frame in frames.items()],
        "sinks": [_sink(pipeline, sink, frames[sink.view]) for sink in pipeline.sinks],
    }
    if physical:
        standing = made_views(pipeline, session, standing=True)
        wanted = dict.fromkeys(sink.view for sink in pipeline.sinks)
        document["physical"] = [{"view": view, "plan": _physical(session, standing[view])} for view in wanted]
    return document


def _view(pipeline: Pipeline, name: str, frame: Any) -> dict[str, Any]:
    source = pipeline.source_of(name)
    step = next((step for step in pipeline.steps if step.name == name), None)
    declared = source or step
    assert declared is not None, "a view is a source or a step"
    watermark = declared.watermark
    return {
        "name": name,
        "kind": source.type if source is not None else "step",
        "reads": streaming_checks.reads(frame) if source is None else [described(source)],
        "stream": bool(frame.isStreaming),
        "decode": source.decode.format if source is not None and source.decode is not None else None,
        "watermark": None if watermark is None else {"column": watermark.column, "delay": watermark.delay},
        "state": [
            {"kind": kept.kind, "by": kept.by, "until": "watermark" if kept.bounded else "never"}
            for kept in (streaming_checks.state_of(frame) if frame.isStreaming else ())
        ],
        "columns": [{"name": column, "type": kind} for column, kind in frame.dtypes],
    }


def described(source: Source) -> str:
    """What a source reads, in a few words."""
    match source.type:
        case "topic":
            return source.options.get("subscribe") or f"topics like {source.options['subscribePattern']}"
        case "files":
            return f"{source.format} {source.path}"
        case "delta":
            return f"delta {source.path}"


def _sink(pipeline: Pipeline, sink: Sink, frame: Any) -> dict[str, Any]:
    return {
        "type": sink.type,
        "from": sink.view,
        "to": sink.topic or sink.path or sink.table,
        "mode": sink.mode,
        "output": form_of(pipeline, sink, frame),
    }


def _physical(session: Any, frame: Any) -> str:
    return str(session._jvm.PythonSQLUtils.explainString(frame._jdf.queryExecution(), "formatted"))
