"""A pipeline as it would run, told without running it: views with their columns, what is kept in state, sinks and what reaches them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ottla.spark.pipeline import functions, settings, streams
from ottla.spark.pipeline.model import Pipeline, Sink, Source
from ottla.spark.pipeline.query import form_of
from ottla.spark.pipeline.refusals import no_column
from ottla.spark.pipeline.session import started
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


def checked(pipeline: Pipeline, session: Any) -> dict[str, Any]:
    """Every view by name, after Spark has looked at each step and at how each sink wants its view. Raises: PipelineError."""
    settings.check(pipeline, session)
    frames = made_views(pipeline, session)
    for sink in pipeline.sinks:
        streams.check(pipeline, session, frames, sink.view, form_of(pipeline, sink, frames[sink.view]), sink.key)
        for name in sink.keys:
            if name not in frames[sink.view].columns:
                raise pipeline.error(f"{sink.key}keys", no_column(name, {sink.view: frames[sink.view].columns}))
    return frames


def plan(pipeline: Pipeline, session: Any, *, physical: bool = False) -> dict[str, Any]:
    """The plan as a document. Raises: PipelineError."""
    frames = checked(pipeline, session)
    types = functions.register(pipeline, session)
    document = {
        "name": pipeline.name,
        "file": str(pipeline.file),
        "bootstrap": pipeline.bootstrap,
        "checkpoint": pipeline.checkpoint,
        "trigger": pipeline.trigger,
        "master": pipeline.master,
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
        "reads": streams.reads(frame) if source is None else [described(source)],
        "stream": bool(frame.isStreaming),
        "decode": source.decode.format if source is not None and source.decode is not None else None,
        "watermark": None if watermark is None else {"column": watermark.column, "delay": watermark.delay},
        "state": [
            {"kind": kept.kind, "by": kept.by, "until": "watermark" if kept.bounded else "never"}
            for kept in (streams.state_of(frame) if frame.isStreaming else ())
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
