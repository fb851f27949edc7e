"""The plan of a pipeline without running it: views with columns and state, sinks and their output."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ottla.spark.pipeline import checkpoint_compatibility, functions, streaming_checks
from ottla.spark.pipeline.checkpoint import read_notes
from ottla.spark.pipeline.config import spark
from ottla.spark.pipeline.config.model import Pipeline, Sink
from ottla.spark.pipeline.query import form_of, planned_queries
from ottla.spark.pipeline.quick_check import described
from ottla.spark.pipeline.rejected_rows import UnfilteredView
from ottla.spark.pipeline.sinks import TopicTarget, require_columns
from ottla.spark.pipeline.views import build_views


def checked(pipeline: Pipeline, session: Any, notes: list[str] | None = None) -> dict[str, Any]:
    """Every view by name, after the checks of a run that need no brokers, databases or tables: steps, sinks, checkpoint compatibility.

    Appends changes since the checkpoint was created and unbounded state to `notes`.

    Raises: PipelineError.
    """
    spark.check_names(pipeline, session)
    unfiltered: dict[str, UnfilteredView] = {}
    frames = build_views(pipeline, session, unfiltered)
    queries = planned_queries(pipeline, frames, unfiltered)
    for sink in pipeline.sinks:
        frame = frames[sink.view]
        streaming_checks.check(pipeline, session, frames, sink.view, form_of(pipeline, sink, frame), sink.key)
        if sink.type == "topic":
            TopicTarget(sink, pipeline).prepare(frame)
        require_columns(pipeline, sink, frame)
    streaming_checks.require_no_state(pipeline, {query.view: query.frame for query in queries})
    noted = read_notes(Path(pipeline.checkpoint)) if not pipeline.checkpoint_is_copy else {}
    for query in queries:
        checkpoint_compatibility.query_dependencies(
            pipeline, query.view, query.form, query.frame, noted.get(query.directory, {}).get("fit", {}), session.version
        )
    if notes is not None:
        notes += [
            *checkpoint_compatibility.new_queries([query.directory for query in queries], noted),
            *streaming_checks.unbounded_state_warnings(frames),
        ]
    return frames


def plan(pipeline: Pipeline, session: Any, *, physical: bool = False, news: Sequence[str] = ()) -> dict[str, Any]:
    """The plan as a JSON object, with `news` among its notes. Raises: PipelineError."""
    notes = list(news)
    frames = checked(pipeline, session, notes)
    types = functions.register(pipeline, session)
    document = {
        "name": pipeline.name,
        "file": str(pipeline.file),
        "bootstrap": pipeline.bootstrap,
        "checkpoint": pipeline.checkpoint_place,
        "trigger": pipeline.trigger,
        "master": pipeline.master,
        "checked_by": "spark",
        "notes": notes,
        "functions": [{"name": name, "type": kind} for name, kind in types.items()],
        "views": [_view(pipeline, name, frame) for name, frame in frames.items()],
        "sinks": [_sink(pipeline, sink, frames[sink.view]) for sink in pipeline.sinks],
    }
    if physical:
        static = build_views(pipeline, session, static=True)
        sunk = dict.fromkeys(sink.view for sink in pipeline.sinks)
        document["physical"] = [{"view": view, "plan": _physical(session, static[view])} for view in sunk]
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
        "function": step.function if step is not None else None,
        "watermark": None if watermark is None else {"column": watermark.column, "delay": watermark.delay},
        "state": [
            {"kind": kept.kind, "by": kept.by, "until": "watermark" if kept.bounded else "never"}
            for kept in (streaming_checks.operator_states(frame) if frame.isStreaming else ())
        ],
        "columns": [{"name": column, "type": kind} for column, kind in frame.dtypes],
    }


def _sink(pipeline: Pipeline, sink: Sink, frame: Any) -> dict[str, Any]:
    return {
        "type": sink.type,
        "from": sink.view,
        "to": sink.target or None,
        "mode": sink.mode,
        "output": form_of(pipeline, sink, frame),
        "promise": sink.promise,
    }


def _physical(session: Any, frame: Any) -> str:
    return str(session._jvm.PythonSQLUtils.explainString(frame._jdf.queryExecution(), "formatted"))
