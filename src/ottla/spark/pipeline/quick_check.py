"""Checks the SQL of a pipeline by names, without Spark and Java, within a second or two.

    checked        syntax of steps; views and columns in steps, rules, expressions of topic sinks; columns of watermarks, `deduplicate`,
                   `keys` and `partition_by`; columns that a table or file would have twice
    left to Spark  functions, types, what a stream can do, state; everything that depends on columns that only Spark knows

An error is one that Spark would raise too. What sqlglot cannot judge is not refused (sql_names.py): `quick_check` lists these views.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ottla.base.options import suggestion
from ottla.spark.pipeline import functions
from ottla.spark.pipeline.config.model import Pipeline, Sink, Source, Step, Watermark
from ottla.spark.pipeline.config.toml_table import PipelineError
from ottla.spark.pipeline.source_columns import source_columns
from ottla.spark.pipeline.spark_refusals import no_column
from ottla.spark.pipeline.sql_names import Columns, Finding, QueryNames, ddl_columns, resolve, resolve_expression
from ottla.spark.pipeline.streaming_checks import STATE_IN_TOPIC

#: Settings with which a session may have tables besides the pipeline's views.
CATALOGS = ("spark.sql.catalog", "spark.sql.warehouse", "spark.sql.extensions", "spark.sql.defaultCatalog")
#: Sinks that cannot have two columns of one name.
ONE_OF_A_NAME = ("delta", "iceberg", "parquet", "jdbc")
OUTPUT_OF = {"append": "append", "merge": "update", "update": "update", "replace": "complete"}


@dataclass(frozen=True, slots=True)
class CheckedView:
    """A view after the check."""

    name: str
    columns: Columns
    #: Of a step.
    names: QueryNames | None = None
    is_stream: bool = True
    #: Whether its rows, or those of a view that it reads, are aggregated or deduplicated, so that they change; None: not known.
    changes: bool | None = False


def quick_check(pipeline: Pipeline) -> dict[str, CheckedView]:
    """Every view by name, in the order of the file. Raises: PipelineError; ImportError without sqlglot or what a source needs."""
    own = functions.names(pipeline.functions) if pipeline.functions is not None else ()
    views: dict[str, CheckedView] = {}
    for source in pipeline.sources:
        columns = source_columns(pipeline, source)
        _check_watermark(pipeline, source.name, source.key, source.watermark, columns)
        views[source.name] = CheckedView(source.name, columns, is_stream=source.type == "topic" or source.stream)
    for step in pipeline.steps:
        views[step.name] = _step(pipeline, step, views, own)
    if pipeline.checkpoint_topic is not None:
        _refuse_state_in_topic(pipeline, views)
    for rule in pipeline.rules:
        _check_expression(pipeline, f"{rule.key}check", rule.check, rule.view, views[rule.view].columns)
    for sink in pipeline.sinks:
        _check_sink(pipeline, sink, views[sink.view])
    return views


def not_judged(views: Mapping[str, CheckedView]) -> list[str]:
    """What the check could not see, in sentences."""
    unseen = [view.name for view in views.values() if view.names is None and view.columns is None]
    sentences = [f"only Spark knows the columns of {', '.join(unseen)}"] if unseen else []
    unparsed = [f"{view.name} ({view.names.unparsed})" for view in views.values() if view.names is not None and view.names.unparsed]
    return sentences + ([f"not judged: {', '.join(unparsed)}"] if unparsed else [])


def _step(pipeline: Pipeline, step: Step, views: Mapping[str, CheckedView], own: Sequence[str]) -> CheckedView:
    known = {name: view.columns for name, view in views.items()}
    names = resolve(step.sql, known, open_catalog=any(name.startswith(CATALOGS) for name in pipeline.spark), scalar=own)
    if names.finding is not None:
        raise _refused(pipeline, step, names.finding, views)
    prefix = step.prefix
    columns = names.columns if step.columns is None else ddl_columns(step.columns)
    _check_watermark(pipeline, step.name, prefix, step.watermark, columns)
    for name in step.deduplicate:
        if not _has(columns, name):
            raise pipeline.error(f"{prefix}deduplicate", no_column(name, {step.name: _listed(columns)}))
    read = [views[name] for name in names.reads]
    changing = [bool(step.deduplicate) or names.aggregates, *(view.changes for view in read)]
    changes = True if True in changing else None if None in changing or names.unparsed else False
    return CheckedView(step.name, columns, names, any(view.is_stream for view in read) or bool(names.unparsed), changes)


def _refuse_state_in_topic(pipeline: Pipeline, views: Mapping[str, CheckedView]) -> None:
    """Raises: PipelineError if a sink reads a step that certainly keeps state.

    In doubt, as for a step that reads static tables too, Spark's plan decides (`streaming_checks.require_no_state`).
    """
    pending, written = [sink.view for sink in pipeline.sinks], set()
    while pending:
        name = pending.pop()
        names = views[name].names
        if name not in written and names is not None:
            pending += names.reads
        written.add(name)
    for step in pipeline.steps:
        names = views[step.name].names
        if step.name not in written or names is None or not names.reads:
            continue
        streams = [views[name].is_stream for name in names.reads]
        kinds = {
            "aggregate": all(streams) and names.aggregates is True,
            "join": all(streams) and names.joins and len(streams) > 1,
            "deduplicate": any(streams) and bool(step.deduplicate),
        }
        if found := [kind for kind, certain in kinds.items() if certain]:
            raise pipeline.error("checkpoint", STATE_IN_TOPIC.format(view=step.name, kinds=" and ".join(found)))


def _refused(pipeline: Pipeline, step: Step, finding: Finding, views: Mapping[str, CheckedView]) -> PipelineError:
    return _error_at(pipeline, step, finding.index, _message(pipeline, step, finding, views))


def _message(pipeline: Pipeline, step: Step, finding: Finding, views: Mapping[str, CheckedView]) -> str:
    if finding.kind == "syntax":
        return f"{finding.name} (checked without Spark; if Spark should accept it, check with --spark)"
    if finding.kind == "column":
        return no_column(finding.name, finding.tables)
    name = finding.name
    if name in pipeline.views:
        return f"the view {name} is made by {'this step itself' if name == step.name else 'a later step; put that one first'}"
    return f"there is no view {name}{suggestion(name, views)}; before this step there are {', '.join(views)}"


def _error_at(pipeline: Pipeline, step: Step, index: int, problem: str) -> PipelineError:
    """An error with the line and, if the file has the line of the SQL as it is, the column of a character of the SQL."""
    line = step.line_at(index)
    error = pipeline.error(step.key, problem, line=line)
    if line is None:
        return error
    begin = step.sql.rfind("\n", 0, index) + 1
    end = step.sql.find("\n", begin)
    shown, written = step.sql[begin : end if end >= 0 else None], pipeline.text.replace("\r\n", "\n").split("\n")[line - 1]
    column = written.find(shown)
    return error if column < 0 else PipelineError(f"{error.where}:{column + index - begin + 1}", error.key, problem)


def _check_expression(pipeline: Pipeline, key: str, sql: str, view: str, columns: Columns) -> None:
    finding = resolve_expression(sql, view, columns)
    if finding is not None and finding.kind == "column":
        raise pipeline.error(key, no_column(finding.name, {view: _listed(columns)}))


def _check_watermark(pipeline: Pipeline, view: str, prefix: str, watermark: Watermark | None, columns: Columns) -> None:
    if watermark is None or columns is None:
        return
    kinds = {one.name: one.type for one in columns if one.name is not None}
    kind = next((kind for name, kind in kinds.items() if name.lower() == watermark.column.lower()), None)
    if not _has(columns, watermark.column):
        problem = f"is not among {', '.join(kinds)}"
    elif kind in ("string", "int", "bigint", "double", "boolean", "date", "binary"):
        problem = f"is {kind}"
    else:
        return
    raise pipeline.error(f"{prefix}watermark.column", f"column {watermark.column} {problem}; a watermark needs a column of type timestamp")


def _check_sink(pipeline: Pipeline, sink: Sink, view: CheckedView) -> None:
    columns = view.columns
    for key, names in (("keys", sink.keys), ("partition_by", sink.partition_columns)):
        for name in names:
            if columns is not None and not _has(columns, name):
                known = _listed(columns)
                raise pipeline.error(
                    f"{sink.key}{key}", f"{sink.view} has no column {name}{suggestion(name, known)}; it has {', '.join(known)}"
                )
    if sink.type in ONE_OF_A_NAME and columns is not None:
        _refuse_repeated(pipeline, sink, _listed(columns))
    expressions = {"key": sink.key_sql, "value": sink.value_sql, "partition": sink.partition_sql}
    expressions |= {f"headers.{name}": sql for name, sql in sink.headers_sql.items()}
    for key, sql in expressions.items():
        if sql is not None:
            _check_expression(pipeline, f"{sink.key}{key}", sql, sink.view, columns)
    if not view.is_stream:
        problem = (
            f"the view {sink.view} reads only static tables and files, so it is not a stream; "
            "read at least one topic in it, or files with stream = true"
        )
        raise pipeline.error(f"{sink.key}from", problem)


def _refuse_repeated(pipeline: Pipeline, sink: Sink, names: Sequence[str]) -> None:
    lower = [name.lower() for name in names]
    repeated = next((name for name in names if lower.count(name.lower()) > 1), None)
    if repeated is None:
        return
    step = next((one for one in pipeline.steps if one.name == sink.view), None)
    problem = f"{sink.view} has two columns {repeated}, and a sink of type {sink.type} needs one: name one of them with AS"
    raise pipeline.error(f"{sink.key}from" if step is None else step.key, problem)


def _has(columns: Columns, name: str) -> bool:
    """Whether a view has a column, or may have it."""
    if columns is None or any((one.name or "").lower() == name.lower() for one in columns):
        return True
    return not name.replace("_", "a").isalnum() and any(one.name is None for one in columns)


def _listed(columns: Columns) -> list[str]:
    return [one.name for one in columns or () if one.name is not None]


# -- plan


def quick_plan(pipeline: Pipeline, notes: Sequence[str]) -> dict[str, Any]:
    """The plan as far as it is known without Spark; unknown fields are null. Raises: PipelineError, ImportError."""
    views = quick_check(pipeline)
    return {
        "name": pipeline.name,
        "file": str(pipeline.file),
        "bootstrap": pipeline.bootstrap,
        "checkpoint": pipeline.checkpoint_place,
        "trigger": pipeline.trigger,
        "master": pipeline.master,
        "checked_by": "names",
        "notes": [*notes, *not_judged(views)],
        "functions": [
            {"name": name, "type": "BATCHES" if kind == "batches" else None}
            for name, kind in (functions.kinds(pipeline.functions) if pipeline.functions else {}).items()
        ],
        "views": [
            *(_source_document(source, views[source.name]) for source in pipeline.sources),
            *(_step_document(step, views[step.name], views) for step in pipeline.steps),
        ],
        "sinks": [
            {
                "type": sink.type,
                "from": sink.view,
                "to": sink.target or None,
                "mode": sink.mode,
                "output": output_form(pipeline, sink, views[sink.view]),
                "promise": sink.promise,
            }
            for sink in pipeline.sinks
        ],
    }


def described(source: Source) -> str:
    """A short description of what a source reads."""
    match source.type:
        case "topic":
            return source.options.get("subscribe") or f"topics like {source.options['subscribePattern']}"
        case "files":
            return f"{source.format} {source.path}"
        case "delta":
            return f"delta {source.path}"


def output_form(pipeline: Pipeline, sink: Sink, view: CheckedView) -> str | None:
    """append, update or complete, as `query.form_of`; None if only Spark knows."""
    modes = [sink.mode, *(other.mode for other in pipeline.sinks if other.view == sink.view)]
    mode = next((one for one in modes if one is not None), None)
    if mode is not None:
        return OUTPUT_OF[mode]
    return None if view.changes is None else "update" if view.changes else "append"


def _source_document(source: Source, view: CheckedView) -> dict[str, Any]:
    return {
        "name": source.name,
        "kind": source.type,
        "reads": [described(source)],
        "stream": view.is_stream,
        "decode": source.decode.format if source.decode is not None else None,
        "function": None,
        "watermark": _watermark(source.watermark),
        "state": [],
        "columns": _columns(view.columns),
    }


def _step_document(step: Step, view: CheckedView, views: Mapping[str, CheckedView]) -> dict[str, Any]:
    names = view.names
    assert names is not None, "a step has a query"
    streams = sum(views[name].is_stream for name in names.reads)
    state = [{"kind": "aggregate", "by": names.groups_by, "until": None}] if names.aggregates and streams else []
    if names.joins and streams > 1:
        state.append({"kind": "join", "by": "", "until": None})
    if step.deduplicate:
        until = "watermark" if step.within_watermark else None
        state.append({"kind": "deduplicate", "by": ", ".join(step.deduplicate), "until": until})
    return {
        "name": step.name,
        "kind": "step",
        "reads": list(names.reads),
        "stream": view.is_stream,
        "decode": None,
        "function": step.function,
        "watermark": _watermark(step.watermark),
        "state": state,
        "columns": _columns(view.columns),
    }


def _watermark(watermark: Watermark | None) -> dict[str, str] | None:
    return None if watermark is None else {"column": watermark.column, "delay": watermark.delay}


def _columns(columns: Columns) -> list[dict[str, str | None]] | None:
    return None if columns is None else [{"name": one.name, "type": one.type} for one in columns]
