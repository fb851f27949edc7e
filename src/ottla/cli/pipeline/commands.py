"""``ottla pipeline run``, ``status``, ``reset`` and ``export``, and the options and exit codes of pipeline commands.

Exit codes: 0 done or stopped, 1 a query failed, 2 the file or an option is invalid, 3 Java or Spark is missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.common.complete import topic_names
from ottla.cli.common.confirmation import NOTHING_CHANGED, confirm, dry_run_option, yes_option
from ottla.cli.common.connection import combined
from ottla.cli.common.errors import give_up, reporting_errors
from ottla.cli.common.output_formats import note
from ottla.cli.common.paths import LocalPath
from ottla.cli.common.profiles import profile_names
from ottla.cli.table.options import parse_bytes, schema_request, sync_table, table_options
from ottla.cli.table.places import ICEBERG, format_option, target_of
from ottla.client.fetch.ranges import END, parse_part
from ottla.client.options import address_problem
from ottla.lake.full_disk import AGAIN, FULL
from ottla.wire.errors import KafkaError

if TYPE_CHECKING:
    from ottla.spark.pipeline.config.model import Pipeline

EXIT_FAILED, EXIT_USAGE, EXIT_NO_JAVA = 1, 2, 3

file_argument = click.argument("file", type=LocalPath(path_type=Path))
variables_option = click.option("--var", "variables", multiple=True, metavar="NAME=VALUE", help="Value of ${NAME} in the file; repeatable.")


def _check_address(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and (problem := address_problem(value)):
        raise click.BadParameter(problem, context, parameter)
    return value


bootstrap_option = combined(
    click.option("--profile", metavar="NAME", shell_complete=profile_names, help="Use the cluster of a profile instead of the file's."),
    click.option(
        "-b",
        "--bootstrap-server",
        "--bootstrap",
        "bootstrap",
        metavar="HOST:PORT[,...]",
        callback=_check_address,
        help="Bootstrap servers instead of the file's.",
    ),
)


def parse_variables(texts: tuple[str, ...]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for name, equals, _ in pairs:
        if not equals or not name:
            raise click.BadParameter(f"{name!r} is not NAME=VALUE", param_hint="--var")
    return {name: value for name, _, value in pairs}


@click.command("run")
@file_argument
@variables_option
@bootstrap_option
@click.option("--once", is_flag=True, help="Process the existing records and exit; overrides the file's trigger.")
@click.option("-o", "--output", type=click.Choice(["auto", "text", "json"]), default="auto", help="Live table, or JSON lines.")
def run(file: Path, variables: tuple[str, ...], profile: str | None, bootstrap: str | None, once: bool, output: str) -> None:
    """Run a pipeline FILE until Ctrl-C. A restart continues where it stopped.

    Prints a live table on a terminal, else JSON lines.
    """
    from dataclasses import replace

    from ottla.spark.java import NoJava
    from ottla.spark.pipeline.config.file import load
    from ottla.spark.pipeline.config.toml_table import PipelineError

    try:
        from ottla.spark.pipeline.checkpoint import InUse
        from ottla.spark.pipeline.checkpoint_errors import CheckpointUnavailable
        from ottla.spark.pipeline.foreground import run_until_stopped
        from ottla.spark.pipeline.run import QueryFailed
    except ModuleNotFoundError as error:
        give_up(f"pipelines need {(error.name or 'pyspark').partition('.')[0]}: pip install 'ottla[spark]'", EXIT_NO_JAVA)
    try:
        pipeline = load(file, parse_variables(variables), profile=profile)
        pipeline = replace(pipeline, bootstrap=bootstrap or pipeline.bootstrap, trigger="available-now" if once else pipeline.trigger)
        run_until_stopped(pipeline, output=output)
    except PipelineError as error:
        give_up(str(error), EXIT_USAGE)
    except NoJava as error:
        give_up(str(error), EXIT_NO_JAVA)
    except (QueryFailed, InUse, CheckpointUnavailable) as error:
        give_up(str(error), EXIT_FAILED)
    except OSError as error:
        give_up(f"{file}: {error}{f'; {AGAIN}' if FULL in str(error) else ''}", EXIT_FAILED)


def load_pipeline(file: Path, variables: tuple[str, ...], bootstrap: str | None = None, profile: str | None = None) -> Pipeline:
    """The pipeline of a file. Exits if the file is invalid."""
    from dataclasses import replace

    from ottla.spark.pipeline.config.file import load
    from ottla.spark.pipeline.config.toml_table import PipelineError

    try:
        pipeline = load(file, parse_variables(variables), profile=profile)
    except PipelineError as error:
        give_up(str(error), EXIT_USAGE)
    return replace(pipeline, bootstrap=bootstrap or pipeline.bootstrap)


@click.command("status")
@file_argument
@variables_option
@bootstrap_option
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="Tables, or one JSON object.")
def status(file: Path, variables: tuple[str, ...], profile: str | None, bootstrap: str | None, output: str) -> None:
    """Show batches, offsets, lag, dead letters, tables and the process of the pipeline in FILE."""
    from ottla.spark.pipeline.checkpoint_errors import CheckpointUnavailable
    from ottla.spark.pipeline.status import pipeline_status, status_text

    pipeline = load_pipeline(file, variables, bootstrap, profile)
    with _starting_spark():
        try:
            document = pipeline_status(pipeline)
        except CheckpointUnavailable as error:
            give_up(str(error), EXIT_FAILED)
    click.echo(json.dumps(document) if output == "json" else status_text(document))


@click.command("reset")
@file_argument
@variables_option
@bootstrap_option
@click.option(
    "--to",
    "to",
    metavar="WHERE",
    help="earliest, latest, a time such as 2026-05-17T10:00:00Z, or offsets as JSON. [default: the file's start position]",
)
@dry_run_option
@yes_option
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="Sentences, or one JSON object.")
def reset(
    file: Path,
    variables: tuple[str, ...],
    profile: str | None,
    bootstrap: str | None,
    to: str | None,
    dry_run: bool,
    yes: bool,
    output: str,
) -> None:
    """Delete the checkpoint of the pipeline in FILE, so that it starts over. Tables and topics do not change."""
    from ottla.spark.pipeline.checkpoint import InUse
    from ottla.spark.pipeline.checkpoint_access import session_to_change
    from ottla.spark.pipeline.checkpoint_errors import CheckpointUnavailable
    from ottla.spark.pipeline.reset import ResetError

    pipeline = load_pipeline(file, variables, bootstrap, profile)
    with _starting_spark(), nullcontext() if dry_run else session_to_change(pipeline) as session:
        try:
            _reset(pipeline, to, session, dry_run=dry_run, yes=yes, output=output)
        except ResetError as error:
            give_up(str(error), EXIT_USAGE)
        except (InUse, CheckpointUnavailable, KafkaError) as error:
            give_up(str(error), EXIT_FAILED)


def _reset(pipeline: Pipeline, to: str | None, session: Any, *, dry_run: bool, yes: bool, output: str) -> None:
    """Raises: ResetError, InUse, CheckpointUnavailable, KafkaError."""
    from ottla.spark.pipeline.reset import apply_reset, plan_reset

    plan = plan_reset(pipeline, to, session)
    directories = [f"{pipeline.checkpoint_place}/{path.name}" for path in plan.directories]

    def report(done: bool) -> None:
        if output == "json":
            click.echo(json.dumps({"pipeline": pipeline.name, "done": done, "changes": list(plan.sentences), "directories": directories}))
        elif done:
            click.echo(f"{pipeline.name} starts over with its next run.")

    for sentence in plan.sentences if output == "text" else ():
        click.echo(sentence)
    if dry_run:
        report(False)
        note(NOTHING_CHANGED)
        return
    if not plan.directories and plan.start is None:
        report(False)
        return
    confirm(f"The state of pipeline {pipeline.name} would be deleted.", directories, yes=yes)
    apply_reset(pipeline, plan, session)
    report(True)


@contextmanager
def _starting_spark() -> Iterator[None]:
    """Commands that may start Spark, for a checkpoint at a URL. Exits if it does not start."""
    from ottla.spark.java import NoJava
    from ottla.spark.pipeline.config.toml_table import PipelineError

    try:
        yield
    except ModuleNotFoundError as error:
        give_up(f"this checkpoint needs {(error.name or 'pyspark').partition('.')[0]}: pip install 'ottla[spark]'", EXIT_NO_JAVA)
    except PipelineError as error:
        give_up(str(error), EXIT_USAGE)
    except NoJava as error:
        give_up(str(error), EXIT_NO_JAVA)


EPILOG = """\b
Ranges: orders@-1h:end   orders/0,2@100:200   orders@2026-01-01:2026-02-01; see ottla consume --help.
Offsets are stored with the rows: after a crash, a rerun continues and each record is exported once."""


@click.command(name="export", epilog=EPILOG)
@click.argument("part", metavar="TOPIC[/PARTITIONS][@FROM:TO]", shell_complete=topic_names)
@table_options
@format_option("delta", "parquet", ICEBERG)
def export(part: str, **options: Any) -> None:
    """Export TOPIC, or a range of it, to files in a directory. A rerun adds new records."""
    import time

    with reporting_errors():
        from ottla.lake.table.sync import SyncOptions

        range = parse_part(part, int(time.time() * 1000)).range
        plan = SyncOptions(
            range=range if range.last is not None else range._replace(last=END),
            once=True,
            commit_bytes=parse_bytes(options["commit_bytes"], "--commit-bytes"),
            fails_on_loss=options["on_loss"] == "fail",
            compact_commits=0,
        )
        request = schema_request(options, mode="append")
        target = target_of(options)
    sync_table(part, options, plan, request, target)
