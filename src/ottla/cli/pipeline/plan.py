"""``ottla pipeline validate`` and ``plan``: check files and show their plan. Both need no broker and run nothing.

keys of the file, functions' module     always checked
compatibility with the checkpoint       always checked, as far as the file shows it
SQL: syntax, views, columns             checked by sqlglot, without Java (quick_check.py)
SQL: functions, types, streams, state   checked by Spark with --spark, instead of sqlglot; several files share one session
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from ottla.cli.common.errors import give_up
from ottla.cli.common.output_formats import OutputFormat, fields, note, output_option
from ottla.cli.common.paths import LocalPath
from ottla.cli.common.tables import Column, Row
from ottla.cli.pipeline.commands import EXIT_NO_JAVA, EXIT_USAGE, file_argument, load_pipeline, parse_variables, variables_option

if TYPE_CHECKING:
    from ottla.spark.pipeline.config.model import Pipeline

#: By `checked_by`.
CHECKED = {
    "spark": "checked",
    "names": "checked by names (functions, types and state: --spark)",
    None: "not checked",
}
spark_option = click.option(
    "--spark/--no-spark",
    "spark",
    default=None,
    help="Check the SQL completely with Spark, or not at all. [default: by names, without Java]",
)
OUTPUTS = {"append": "final rows", "update": "new or changed rows", "complete": "the whole result"}
VIEWS = (
    Column("VIEW", "name"),
    Column("KIND", lambda view: ", ".join(filter(None, (view["kind"], view["decode"], view["function"])))),
    Column("READS", lambda view: ", ".join(view["reads"])),
    Column("COLUMNS", lambda view: _columns_text(view)),
    Column("WATERMARK", lambda view: f"{view['watermark']['column']}, {view['watermark']['delay']}" if view["watermark"] else ""),
    Column("STATE", lambda view: "; ".join(_state_text(state) for state in view["state"])),
)
SINKS = (
    Column("SINK", "type"),
    Column("FROM", "from"),
    Column("TO", lambda sink: sink["to"] or ""),
    Column("MODE", lambda sink: sink["mode"] or ""),
    Column("OUTPUT", lambda sink: OUTPUTS.get(sink["output"], "")),
    Column("PROMISE", "promise"),
)


@fields(
    name="name of the pipeline; null: the file is invalid",
    file="path of the file",
    sources="number of sources",
    steps="number of steps",
    sinks="number of sinks",
    sql_checked="whether Spark checked the SQL",
    checked_by="what checked the SQL: spark; names: sqlglot, by the names of columns and views; null: nothing",
    promises="effect of a repeated batch by sink: exactly once, once per key, at least once or none",
    notes="remarks: what was not checked, changes since the checkpoint, and state that never expires",
    error="null, or what is wrong with the file (with several files)",
)
@click.command("validate")
@click.argument("files", metavar="FILE...", type=LocalPath(path_type=Path), nargs=-1, required=True)
@variables_option
@spark_option
@output_option
def validate(files: tuple[Path, ...], variables: tuple[str, ...], spark: bool | None, output: OutputFormat) -> None:
    """Check the keys, the functions and the SQL of pipeline files. Needs no broker and no Java.

    Syntax, views and columns of the SQL are checked; with --spark also functions, types and state. Several files give a list of documents.
    """
    if len(files) == 1:
        pipeline = load_pipeline(files[0], variables)
        notes = _checkpoint_notes(pipeline)
        with exiting():
            checked_by = (
                _check_with_spark([(pipeline, notes)], lambda _, error: _raise(error)) if spark else _check_names(pipeline, notes, spark)
            )
        _show(_document(pipeline, files[0], checked_by, notes), output)
        return
    documents = _validate_many(files, variables, spark)
    if output.is_structured:
        output.document(documents)
    for document in documents:
        if document["error"] is not None:
            click.echo(f"ottla: {document['error']}", err=True)
        elif not output.is_structured:
            _show(document, output)
    if any(document["error"] is not None for document in documents):
        raise SystemExit(EXIT_USAGE)


def _validate_many(files: Sequence[Path], variables: tuple[str, ...], spark: bool | None) -> list[dict[str, Any]]:
    """A document for each file; Spark checks the valid ones in one session."""
    from ottla.spark.pipeline.checkpoint_compatibility import require_compatible_if_local
    from ottla.spark.pipeline.config.file import load
    from ottla.spark.pipeline.config.toml_table import PipelineError

    found: dict[Path, tuple[Pipeline, list[str]]] = {}
    errors: dict[Path, str] = {}
    checked_by: str | None = None
    for file in dict.fromkeys(files):
        try:
            pipeline = load(file, parse_variables(variables))
            found[file] = (pipeline, require_compatible_if_local(pipeline, _spark_version()))
            if not spark:
                checked_by = _check_names(*found[file], spark)
        except PipelineError as error:
            errors[file] = str(error)

    def failed(pipeline: Pipeline, error: Exception) -> None:
        errors[pipeline.file] = str(error)

    valid = [one for file, one in found.items() if file not in errors]
    if spark and valid:
        with exiting():
            checked_by = _check_with_spark(valid, failed)
    nothing: dict[str, Any] = {
        "name": None,
        "sources": None,
        "steps": None,
        "sinks": None,
        "sql_checked": False,
        "checked_by": None,
        "promises": {},
        "notes": [],
    }
    return [
        {**nothing, "file": str(file), "error": errors[file]}
        if file in errors
        else _document(found[file][0], file, checked_by, found[file][1])
        for file in dict.fromkeys(files)
    ]


def _document(pipeline: Pipeline, file: Path, checked_by: str | None, notes: list[str]) -> dict[str, Any]:
    return {
        "name": pipeline.name,
        "file": str(file),
        "sources": len(pipeline.sources),
        "steps": len(pipeline.steps),
        "sinks": len(pipeline.sinks),
        "sql_checked": checked_by == "spark",
        "checked_by": checked_by,
        "promises": {sink.key.rstrip("."): sink.promise for sink in pipeline.sinks},
        "notes": notes,
        "error": None,
    }


def _show(document: dict[str, Any], output: OutputFormat) -> None:
    if output.is_structured:
        output.document(document)
        return
    from ottla.spark.pipeline.config.model import PROMISES

    counts = ", ".join(_count_text(document[name], name) for name in ("sources", "steps", "sinks"))
    promises = [promise for promise in document["promises"].values() if promise != "none"]
    weakest = f"; written {min(promises, key=PROMISES.index)}" if promises else ""
    click.echo(f"{document['file']}: pipeline {document['name']}: {counts}; SQL {CHECKED[document['checked_by']]}{weakest}")
    for sentence in document["notes"]:
        note(sentence)


@fields(
    {
        "functions[].name": "function of the pipeline's module",
        "functions[].type": "return type; BATCHES: for steps; TABLE: a table function; null: only Spark knows",
        "views[].name": "name of a source or step",
        "views[].kind": "topic, files, delta or step",
        "views[].reads": "topics, files, table or views that it reads",
        "views[].stream": "whether it is a stream",
        "views[].decode": "format of a topic's values; null: not a topic",
        "views[].function": "function of record batches that a step calls; null: none",
        "views[].watermark": "{column, delay}; null: none",
        "views[].state[].kind": "aggregate, join or deduplicate",
        "views[].state[].by": "key columns",
        "views[].state[].until": "when it expires: watermark, or never; null: only Spark knows",
        "views[].columns[].name": "column; null: Spark names it after its expression",
        "views[].columns[].type": "Spark type; null: only Spark knows",
        "sinks[].type": "type of the sink",
        "sinks[].from": "view that it writes",
        "sinks[].to": "topic or table; null: neither",
        "sinks[].mode": "mode in the file; null: derived from the view",
        "sinks[].output": "append: final rows, update: new or changed rows, complete: the whole result; null: only Spark knows",
        "sinks[].promise": "effect of a repeated batch: exactly once, once per key, at least once or none",
        "physical[].view": "view with a sink",
        "physical[].plan": "Spark's physical plan of one batch",
    },
    name="name of the pipeline",
    file="path of the file",
    bootstrap="bootstrap servers",
    checkpoint="directory or URL of the checkpoint, or ottla:TOPIC",
    trigger="trigger",
    master="Spark master",
    checked_by="spark; or names: made by sqlglot from the names of columns and views, without Spark",
    notes="remarks: what was not checked, changes since the checkpoint, and state that never expires",
)
@click.command("plan")
@file_argument
@variables_option
@spark_option
@click.option("--physical", is_flag=True, help="Add Spark's physical plan of one batch of each view with a sink; implies --spark.")
@output_option
def plan(file: Path, variables: tuple[str, ...], spark: bool | None, physical: bool, output: OutputFormat) -> None:
    """Show the views, columns, state and sinks of a pipeline FILE without running it. Needs no broker and no Java.

    Only Spark knows all types and when state expires: see them with --spark.
    """
    pipeline = load_pipeline(file, variables)
    notes = _checkpoint_notes(pipeline)
    with exiting():
        if spark or physical:
            from ottla.spark.pipeline.plan import plan
            from ottla.spark.pipeline.session import planning_session

            with planning_session(pipeline) as session:
                document = plan(pipeline, session, physical=physical, news=notes)
        else:
            from ottla.spark.pipeline.quick_check import quick_plan

            document = quick_plan(pipeline, notes)
    if output.is_structured:
        output.document(document)
    else:
        _print(document, output)


def _print(document: dict[str, Any], output: OutputFormat) -> None:
    title = f"{document['name']}: {document['file']}, brokers {document['bootstrap']}, trigger {document['trigger']}, {document['master']}"
    output.table(document["views"], VIEWS, title=title, prefix=("", "view"))
    output.table(document["sinks"], SINKS, title=f"sinks; checkpoint {document['checkpoint']}", prefix=("", "sink"))
    if document["functions"]:
        output.table(document["functions"], (Column("FUNCTION", "name"), Column("RETURNS", "type")), prefix=("", "function"))
    for one in document.get("physical", ()):
        click.echo(f"\nOne batch of {one['view']}:\n{one['plan'].strip()}")
    for sentence in document["notes"]:
        note(sentence)
    if document["checked_by"] == "names":
        note("Made without Spark. All types, and when state expires: --spark")


def _checkpoint_notes(pipeline: Pipeline) -> list[str]:
    """Changes since the pipeline's checkpoint. Exits if the checkpoint is incompatible."""
    from ottla.spark.pipeline.checkpoint_compatibility import require_compatible_if_local
    from ottla.spark.pipeline.config.toml_table import PipelineError

    try:
        return require_compatible_if_local(pipeline, _spark_version())
    except PipelineError as error:
        give_up(str(error), EXIT_USAGE)


def _spark_version() -> str | None:
    """The version of the installed Spark."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("pyspark")
    except PackageNotFoundError:
        return None


def _check_names(pipeline: Pipeline, notes: list[str], spark: bool | None) -> str | None:
    """Checks the SQL by names, unless `spark` is False. Adds remarks to `notes`. Returns what checked it. Raises: PipelineError."""
    if spark is False:
        return None
    try:
        from ottla.spark.pipeline.quick_check import not_judged, quick_check

        notes += not_judged(quick_check(pipeline))
    except ModuleNotFoundError as error:
        notes.append(f"The SQL is not checked: it needs {(error.name or 'sqlglot').partition('.')[0]}, pip install 'ottla[spark]'.")
        return None
    return "names"


def _check_with_spark(pipelines: Sequence[tuple[Pipeline, list[str]]], failed: Callable[[Pipeline, Exception], object]) -> str:
    """Checks pipelines in one Spark session, and adds remarks to their notes. Calls `failed` for an invalid one.

    Raises: NoJava, ModuleNotFoundError; PipelineError if Spark does not start.
    """
    from ottla.spark.pipeline.config.toml_table import PipelineError
    from ottla.spark.pipeline.plan import checked
    from ottla.spark.pipeline.session import planning_session, session_beside

    with planning_session(pipelines[0][0]) as session:
        for number, (pipeline, notes) in enumerate(pipelines):
            try:
                checked(pipeline, session_beside(session, pipeline) if number else session, notes)
            except PipelineError as error:
                failed(pipeline, error)
    return "spark"


def _raise(error: Exception) -> NoReturn:
    raise error


@contextmanager
def exiting() -> Iterator[None]:
    """Exits the command for errors of a file and for missing parts of Spark."""
    from ottla.spark.java import NoJava
    from ottla.spark.pipeline.config.toml_table import PipelineError

    try:
        yield
    except ModuleNotFoundError as error:
        give_up(f"pipelines need {(error.name or 'pyspark').partition('.')[0]}: pip install 'ottla[spark]'", EXIT_NO_JAVA)
    except NoJava as error:
        give_up(str(error), EXIT_NO_JAVA)
    except PipelineError as error:
        give_up(str(error), EXIT_USAGE)


def _state_text(state: dict[str, Any]) -> str:
    until = {"watermark": ", until the watermark passes", "never": ", never expires", None: ""}[state["until"]]
    if state["by"]:
        return f"{state['kind']} by {state['by']}{until}"
    return f"{state['kind']}, one row" if state["kind"] == "aggregate" else f"{state['kind']}{until}"


def _columns_text(view: Row) -> str:
    if view["columns"] is None:
        return "known to Spark only"
    return ", ".join(" ".join(filter(None, (column["name"] or "(expression)", column["type"]))) for column in view["columns"])


def _count_text(number: int, plural: str) -> str:
    return f"{number} {plural[:-1] if number == 1 else plural}"
