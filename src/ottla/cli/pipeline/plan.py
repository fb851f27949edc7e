"""``ottla pipeline validate`` and ``plan``: check a file and show its plan. Both need no broker and run nothing.

keys of the file, functions' module     always checked, at once
compatibility with the checkpoint       checked as far as possible from the file
SQL, types, streams, state              checked in a local Spark session, within seconds; not with --no-spark
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.common.errors import give_up
from ottla.cli.common.output_formats import OutputFormat, fields, note, output_option
from ottla.cli.common.tables import Column
from ottla.cli.pipeline.commands import EXIT_NO_JAVA, EXIT_USAGE, file_argument, load_pipeline, variables_option

if TYPE_CHECKING:
    from ottla.spark.pipeline.config.model import Pipeline

OUTPUTS = {"append": "final rows", "update": "new or changed rows", "complete": "the whole result"}
VIEWS = (
    Column("VIEW", "name"),
    Column("KIND", lambda view: f"{view['kind']}, {view['decode']}" if view["decode"] else view["kind"]),
    Column("READS", lambda view: ", ".join(view["reads"])),
    Column("COLUMNS", lambda view: ", ".join(f"{column['name']} {column['type']}" for column in view["columns"])),
    Column("WATERMARK", lambda view: f"{view['watermark']['column']}, {view['watermark']['delay']}" if view["watermark"] else ""),
    Column("STATE", lambda view: "; ".join(_state_text(state) for state in view["state"])),
)
SINKS = (
    Column("SINK", "type"),
    Column("FROM", "from"),
    Column("TO", lambda sink: sink["to"] or ""),
    Column("MODE", lambda sink: sink["mode"] or ""),
    Column("OUTPUT", lambda sink: OUTPUTS[sink["output"]]),
    Column("PROMISE", "promise"),
)


@fields(
    name="name of the pipeline",
    file="path of the file",
    sources="number of sources",
    steps="number of steps",
    sinks="number of sinks",
    sql_checked="whether Spark checked the SQL",
    promises="effect of a repeated batch by sink: exactly once, once per key, at least once or none",
    notes="remarks: changes since the checkpoint, and state that never expires",
)
@click.command("validate")
@file_argument
@variables_option
@click.option("--no-spark", is_flag=True, help="Skip checks that need Spark.")
@output_option
def validate(file: Path, variables: tuple[str, ...], no_spark: bool, output: OutputFormat) -> None:
    """Check the keys, the functions and, if Spark is installed, the SQL of a pipeline FILE. Needs no broker."""
    pipeline = load_pipeline(file, variables)
    notes = _checkpoint_notes(pipeline)
    checked = not no_spark and _check_sql(pipeline, notes)
    document: dict[str, Any] = {
        "name": pipeline.name,
        "file": str(file),
        "sources": len(pipeline.sources),
        "steps": len(pipeline.steps),
        "sinks": len(pipeline.sinks),
        "sql_checked": checked,
        "promises": {sink.key.rstrip("."): sink.promise for sink in pipeline.sinks},
        "notes": notes,
    }
    if output.is_structured:
        output.document(document)
        return
    counts = ", ".join(_count_text(document[name], name) for name in ("sources", "steps", "sinks"))
    from ottla.spark.pipeline.config.model import PROMISES

    promises = [promise for promise in document["promises"].values() if promise != "none"]
    weakest = f"; written {min(promises, key=PROMISES.index)}" if promises else ""
    click.echo(f"{file}: pipeline {pipeline.name}: {counts}; SQL {'checked' if checked else 'not checked'}{weakest}")
    for sentence in notes:
        note(sentence)


@fields(
    {
        "functions[].name": "function of the pipeline's module",
        "functions[].type": "return type",
        "views[].name": "name of a source or step",
        "views[].kind": "topic, files, delta or step",
        "views[].reads": "topics, files, table or views that it reads",
        "views[].stream": "whether it is a stream",
        "views[].decode": "format of a topic's values; null: not a topic",
        "views[].watermark": "{column, delay}; null: none",
        "views[].state[].kind": "aggregate, join or deduplicate",
        "views[].state[].by": "key columns",
        "views[].state[].until": "when it expires: watermark, or never",
        "views[].columns[].name": "column",
        "views[].columns[].type": "Spark type",
        "sinks[].type": "type of the sink",
        "sinks[].from": "view that it writes",
        "sinks[].to": "topic or table; null: neither",
        "sinks[].mode": "mode in the file; null: derived from the view",
        "sinks[].output": "append: final rows, update: new or changed rows, complete: the whole result",
        "sinks[].promise": "effect of a repeated batch: exactly once, once per key, at least once or none",
        "physical[].view": "view with a sink",
        "physical[].plan": "Spark's physical plan of one batch",
    },
    name="name of the pipeline",
    file="path of the file",
    bootstrap="bootstrap servers",
    checkpoint="checkpoint directory",
    trigger="trigger",
    master="Spark master",
    notes="remarks: changes since the checkpoint, and state that never expires",
)
@click.command("plan")
@file_argument
@variables_option
@click.option("--physical", is_flag=True, help="Add Spark's physical plan of one batch of each view with a sink.")
@output_option
def plan(file: Path, variables: tuple[str, ...], physical: bool, output: OutputFormat) -> None:
    """Show the views, columns, state and sinks of a pipeline FILE without running it. Needs no broker."""
    pipeline = load_pipeline(file, variables)
    notes = _checkpoint_notes(pipeline)
    with _planning(pipeline) as session:
        from ottla.spark.pipeline.plan import plan

        document = plan(pipeline, session, physical=physical, news=notes)
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


def _checkpoint_notes(pipeline: Pipeline) -> list[str]:
    """Changes since the pipeline's checkpoint. Exits if the checkpoint is incompatible."""
    from importlib.metadata import PackageNotFoundError, version

    from ottla.spark.pipeline.checkpoint_compatibility import require_compatible
    from ottla.spark.pipeline.config.toml_table import PipelineError

    try:
        spark = version("pyspark")
    except PackageNotFoundError:
        spark = None
    try:
        return require_compatible(pipeline, Path(pipeline.checkpoint), spark)
    except PipelineError as error:
        give_up(str(error), EXIT_USAGE)


def _check_sql(pipeline: Pipeline, notes: list[str]) -> bool:
    """Checks the SQL with Spark, and adds remarks to `notes`. Returns False without Spark or Java."""
    from importlib.util import find_spec

    from ottla.spark.java import NoJava, java_home

    if find_spec("pyspark") is None:
        note("The SQL is not checked: it needs pyspark, pip install 'ottla[spark]'.")
        return False
    try:
        java_home()
    except NoJava as error:
        note(f"The SQL is not checked: {error}")
        return False
    with _planning(pipeline) as session:
        from ottla.spark.pipeline.plan import checked

        checked(pipeline, session, notes)
    return True


@contextmanager
def _planning(pipeline: Pipeline) -> Iterator[Any]:
    """A planning session; its errors exit the command."""
    from ottla.spark.java import NoJava
    from ottla.spark.pipeline.config.toml_table import PipelineError

    try:
        from ottla.spark.pipeline.plan import planning_session
    except ModuleNotFoundError as error:
        give_up(f"pipelines need {(error.name or 'pyspark').partition('.')[0]}: pip install 'ottla[spark]'", EXIT_NO_JAVA)
    try:
        with planning_session(pipeline) as session:
            yield session
    except NoJava as error:
        give_up(str(error), EXIT_NO_JAVA)
    except PipelineError as error:
        give_up(str(error), EXIT_USAGE)


def _state_text(state: dict[str, Any]) -> str:
    until = "until the watermark passes" if state["until"] == "watermark" else "never expires"
    return f"{state['kind']} by {state['by']}, {until}" if state["by"] else f"{state['kind']}, one row"


def _count_text(number: int, plural: str) -> str:
    return f"{number} {plural[:-1] if number == 1 else plural}"
