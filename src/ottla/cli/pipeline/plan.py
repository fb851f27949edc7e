"""``ottla pipeline validate`` and ``plan``: what is wrong with a file, and what it would do. Neither needs a broker, and nothing is run.

the file's words, functions' module     checked always, in a blink
whether the checkpoint still fits       as far as the file tells
SQL, types, streams, state              checked by a small Spark session on this machine, some seconds; not with --no-spark
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.common.output_formats import Form, fields, note, output_option
from ottla.cli.common.tables import Column
from ottla.cli.pipeline.common import EXIT_NO_JAVA, EXIT_USAGE, file_argument, stop_with, variables_of, variables_option

if TYPE_CHECKING:
    from ottla.spark.pipeline.config.model import Pipeline

OUTPUTS = {"append": "rows that do not change any more", "update": "rows that are new or changed", "complete": "the whole result"}
VIEWS = (
    Column("VIEW", "name"),
    Column("KIND", lambda view: f"{view['kind']}, {view['decode']}" if view["decode"] else view["kind"]),
    Column("READS", lambda view: ", ".join(view["reads"])),
    Column("COLUMNS", lambda view: ", ".join(f"{column['name']} {column['type']}" for column in view["columns"])),
    Column("WATERMARK", lambda view: f"{view['watermark']['column']}, {view['watermark']['delay']}" if view["watermark"] else ""),
    Column("KEEPS", lambda view: "; ".join(_kept(state) for state in view["state"])),
)
SINKS = (
    Column("SINK", "type"),
    Column("FROM", "from"),
    Column("TO", lambda sink: sink["to"] or ""),
    Column("MODE", lambda sink: sink["mode"] or ""),
    Column("BATCHES HOLD", lambda sink: OUTPUTS[sink["output"]]),
)


@fields(
    name="the pipeline's name",
    file="its file",
    sources="how many there are; steps and sinks the same",
    steps="queries",
    sinks="where results go",
    sql_checked="whether Spark has looked at the SQL too",
    notes="what is new since its checkpoint was made, and what is kept for ever, in sentences",
)
@click.command("validate")
@file_argument
@variables_option
@click.option("--no-spark", is_flag=True, help="Check only what can be told without Spark, in a blink.")
@output_option
def validate(file: Path, variables: tuple[str, ...], no_spark: bool, output: Form) -> None:
    """Check a pipeline FILE without running it: every key, its functions and, where Spark is there, its SQL. Needs no broker."""
    pipeline = _loaded(file, variables)
    told = _news(pipeline)
    checked = not no_spark and _analysed(pipeline, told)
    document: dict[str, Any] = {
        "name": pipeline.name,
        "file": str(file),
        "sources": len(pipeline.sources),
        "steps": len(pipeline.steps),
        "sinks": len(pipeline.sinks),
        "sql_checked": checked,
        "notes": told,
    }
    if output.for_programs:
        output.document(document)
        return
    counts = ", ".join(_counted(document[name], name) for name in ("sources", "steps", "sinks"))
    click.echo(f"{file}: pipeline {pipeline.name}: {counts}; SQL {'checked' if checked else 'not checked'}")
    for sentence in told:
        note(sentence)


@fields(
    {
        "functions[].name": "a function of the pipeline's module",
        "functions[].type": "what it returns",
        "views[].name": "a source or a step",
        "views[].kind": "topic, files, delta or step",
        "views[].reads": "the topics, files or table, or the views",
        "views[].stream": "whether rows come while it runs",
        "views[].decode": "how values of a topic are written; null: they are no topic's",
        "views[].watermark": "{column, delay}; null: it sets none",
        "views[].state[].kind": "aggregate, join or deduplicate",
        "views[].state[].by": "by what",
        "views[].state[].until": "watermark, or never: it grows as long as new keys come",
        "views[].columns[].name": "a column",
        "views[].columns[].type": "Spark's name of its type",
        "sinks[].type": "where results go",
        "sinks[].from": "the view",
        "sinks[].to": "the topic or the table; null: neither",
        "sinks[].mode": "as the file says; null: by what the view can give",
        "sinks[].output": "append: rows that do not change any more, update: rows that are new or changed, complete: the whole result",
        "physical[].view": "a view that has a sink",
        "physical[].plan": "how Spark would compute one batch of it, in Spark's words",
    },
    name="the pipeline's name",
    file="its file",
    bootstrap="brokers",
    checkpoint="directory of what was read and what is kept",
    trigger="when batches begin",
    master="where Spark runs",
    notes="what is new since its checkpoint was made, and what is kept for ever, in sentences",
)
@click.command("plan")
@file_argument
@variables_option
@click.option("--physical", is_flag=True, help="Add how Spark would compute one batch of each view that has a sink.")
@output_option
def plan(file: Path, variables: tuple[str, ...], physical: bool, output: Form) -> None:
    """Show what a pipeline FILE would do, without running it: views with their columns, state that is kept, sinks. Needs no broker."""
    pipeline = _loaded(file, variables)
    news = _news(pipeline)
    with _planning(pipeline) as session:
        from ottla.spark.pipeline.plan import plan

        document = plan(pipeline, session, physical=physical, news=news)
    if output.for_programs:
        output.document(document)
    else:
        _print(document, output)


def _print(document: dict[str, Any], output: Form) -> None:
    title = f"{document['name']}: {document['file']}, brokers {document['bootstrap']}, trigger {document['trigger']}, {document['master']}"
    output.table(document["views"], VIEWS, title=title, prefix=("", "view"))
    output.table(document["sinks"], SINKS, title=f"sinks; checkpoint {document['checkpoint']}", prefix=("", "sink"))
    if document["functions"]:
        output.table(document["functions"], (Column("FUNCTION", "name"), Column("RETURNS", "type")), prefix=("", "function"))
    for one in document.get("physical", ()):
        click.echo(f"\nOne batch of {one['view']}:\n{one['plan'].strip()}")
    for sentence in document["notes"]:
        note(sentence)


def _loaded(file: Path, variables: tuple[str, ...]) -> Pipeline:
    from ottla.spark.pipeline.config.file import load
    from ottla.spark.pipeline.config.toml_table import PipelineError

    try:
        return load(file, variables_of(variables))
    except PipelineError as error:
        stop_with(str(error), EXIT_USAGE)


def _news(pipeline: Pipeline) -> list[str]:
    """What is new since the pipeline's checkpoint was made; one that does not fit any more ends the command."""
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
        stop_with(str(error), EXIT_USAGE)


def _analysed(pipeline: Pipeline, told: list[str]) -> bool:
    """Whether Spark is there and has looked at everything; `told` gets what is new since the checkpoint was made."""
    from importlib.util import find_spec

    from ottla.spark.java import NoJava, java_home

    if find_spec("pyspark") is None:
        note("The SQL is not checked: that needs pyspark, pip install 'ottla[spark]'.")
        return False
    try:
        java_home()
    except NoJava as error:
        note(f"The SQL is not checked: {error}")
        return False
    with _planning(pipeline) as session:
        from ottla.spark.pipeline.plan import checked

        checked(pipeline, session, told)
    return True


class _planning:
    """A session to plan in; what goes wrong ends the command."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline

    def __enter__(self) -> Any:
        from ottla.spark.java import NoJava
        from ottla.spark.pipeline.config.toml_table import PipelineError

        try:
            from ottla.spark.pipeline.plan import planning_session
        except ModuleNotFoundError as error:
            stop_with(f"pipelines need {(error.name or 'pyspark').partition('.')[0]}: pip install 'ottla[spark]'", EXIT_NO_JAVA)
        self.session = planning_session(self.pipeline)
        try:
            return self.session.__enter__()
        except NoJava as error:
            stop_with(str(error), EXIT_NO_JAVA)
        except PipelineError as error:
            stop_with(str(error), EXIT_USAGE)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        from ottla.spark.pipeline.config.toml_table import PipelineError

        self.session.__exit__(None, None, None)
        if isinstance(error, PipelineError):
            stop_with(str(error), EXIT_USAGE)


def _kept(state: dict[str, Any]) -> str:
    until = "until the watermark passes" if state["until"] == "watermark" else "for ever"
    return f"{state['kind']} by {state['by']}, {until}" if state["by"] else f"{state['kind']}, one row"


def _counted(number: int, plural: str) -> str:
    return f"{number} {plural[:-1] if number == 1 else plural}"
