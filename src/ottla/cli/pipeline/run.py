"""``ottla pipeline run``.

Output of a run: a live table on a terminal; JSON lines with `-o json` or where standard output is no terminal.
"""

from __future__ import annotations

from pathlib import Path

import click

from ottla.cli.pipeline.common import (
    EXIT_FAILED,
    EXIT_NO_JAVA,
    EXIT_USAGE,
    bootstrap_option,
    file_argument,
    stop_with,
    variables_of,
    variables_option,
)


@click.command("run")
@file_argument
@variables_option
@bootstrap_option
@click.option("--once", is_flag=True, help="Read what is there now and end, whatever the file's trigger.")
@click.option("-o", "--output", type=click.Choice(["auto", "text", "json"]), default="auto", help="Live table, or JSON lines.")
def run(file: Path, variables: tuple[str, ...], bootstrap: str | None, once: bool, output: str) -> None:
    """Run a pipeline FILE until Ctrl-C. A restart goes on where it stopped."""
    from dataclasses import replace

    from ottla.lake.table.parquet_files import AGAIN, FULL
    from ottla.spark.java import NoJava
    from ottla.spark.pipeline.config.file import load
    from ottla.spark.pipeline.config.toml_table import PipelineError

    try:
        from ottla.spark.pipeline.checkpoint import InUse
        from ottla.spark.pipeline.foreground import run_until_stopped
        from ottla.spark.pipeline.run import QueryFailed
    except ModuleNotFoundError as error:
        stop_with(f"pipelines need {(error.name or 'pyspark').partition('.')[0]}: pip install 'ottla[spark]'", EXIT_NO_JAVA)
    try:
        pipeline = load(file, variables_of(variables))
        pipeline = replace(pipeline, bootstrap=bootstrap or pipeline.bootstrap, trigger="available-now" if once else pipeline.trigger)
        run_until_stopped(pipeline, output=output)
    except PipelineError as error:
        stop_with(str(error), EXIT_USAGE)
    except NoJava as error:
        stop_with(str(error), EXIT_NO_JAVA)
    except (QueryFailed, InUse) as error:
        stop_with(str(error), EXIT_FAILED)
    except OSError as error:
        stop_with(f"{file}: {error}{f'; {AGAIN}' if FULL in str(error) else ''}", EXIT_FAILED)
