"""``ottla pipeline``: run or check a pipeline file.

Exit codes: 0 done or stopped, 1 a query failed, 2 the file or a setting is wrong, 3 no Java or no Spark.
Output: a live table on a terminal; JSON lines with `-o json` or where standard output is no terminal.
"""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import click

EXIT_FAILED, EXIT_USAGE, EXIT_NO_JAVA = 1, 2, 3


@click.group("pipeline")
def command() -> None:
    """Run pipelines: a topic, decoded, through SQL, into a table or topic."""


def _variables(given: tuple[str, ...]) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    for name, equals, _ in pairs:
        if not equals or not name:
            raise click.BadParameter(f"{name!r} is not NAME=VALUE", param_hint="--var")
    return {name: value for name, _, value in pairs}


def _stop(message: str, code: int) -> NoReturn:
    click.echo(f"ottla: {message}", err=True)
    raise SystemExit(code)


@command.command("check")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--var", "variables", multiple=True, metavar="NAME=VALUE", help="Fill ${NAME} in the file; may be given several times.")
def check(file: Path, variables: tuple[str, ...]) -> None:
    """Check a pipeline FILE without running it. SQL is checked when it runs."""
    from ottla.spark.pipeline.file import load
    from ottla.spark.pipeline.table import PipelineError

    try:
        pipeline = load(file, _variables(variables))
    except PipelineError as error:
        _stop(str(error), EXIT_USAGE)
    click.echo(f"{file}: pipeline {pipeline.name}: {len(pipeline.steps)} steps, {len(pipeline.sinks)} sinks")


@command.command("run")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--var", "variables", multiple=True, metavar="NAME=VALUE", help="Fill ${NAME} in the file; may be given several times.")
@click.option(
    "-b", "--bootstrap-server", "--bootstrap", "bootstrap", metavar="HOST:PORT[,...]", help="Brokers to use instead of the file's."
)
@click.option("--once", is_flag=True, help="Read what is there now and end, whatever the file's trigger.")
@click.option("-o", "--output", type=click.Choice(["auto", "text", "json"]), default="auto", help="Live table, or JSON lines.")
def run(file: Path, variables: tuple[str, ...], bootstrap: str | None, once: bool, output: str) -> None:
    """Run a pipeline FILE until Ctrl-C. A restart goes on where it stopped."""
    from dataclasses import replace

    from ottla.spark.java import NoJava
    from ottla.spark.pipeline.file import load
    from ottla.spark.pipeline.table import PipelineError

    try:
        from ottla.spark.pipeline.foreground import run_until_stopped
        from ottla.spark.pipeline.run import QueryFailed
    except ModuleNotFoundError as error:
        _stop(f"pipelines need {(error.name or 'pyspark').partition('.')[0]}: pip install 'ottla[spark]'", EXIT_NO_JAVA)
    try:
        pipeline = load(file, _variables(variables))
        pipeline = replace(pipeline, bootstrap=bootstrap or pipeline.bootstrap, trigger="available-now" if once else pipeline.trigger)
        run_until_stopped(pipeline, output=output)
    except PipelineError as error:
        _stop(str(error), EXIT_USAGE)
    except NoJava as error:
        _stop(str(error), EXIT_NO_JAVA)
    except QueryFailed as error:
        _stop(str(error), EXIT_FAILED)
