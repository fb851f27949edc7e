"""``ottla pipeline status`` and ``reset``: what a pipeline has done, and where it goes on, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ottla.cli.common.confirmation import DRY, agreed, dry_run_option, yes_option
from ottla.cli.pipeline.common import EXIT_FAILED, EXIT_USAGE, bootstrap_option, file_argument, stop_with, variables_of, variables_option


def _loaded(file: Path, variables: tuple[str, ...], bootstrap: str | None) -> Any:
    from dataclasses import replace

    from ottla.spark.pipeline.config.file import load
    from ottla.spark.pipeline.config.toml_table import PipelineError

    try:
        pipeline = load(file, variables_of(variables))
    except PipelineError as error:
        stop_with(str(error), EXIT_USAGE)
    return replace(pipeline, bootstrap=bootstrap or pipeline.bootstrap)


@click.command("status")
@file_argument
@variables_option
@bootstrap_option
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="Tables, or one JSON object.")
def status(file: Path, variables: tuple[str, ...], bootstrap: str | None, output: str) -> None:
    """Show what the pipeline in FILE has done: batches, offsets, lag, dead letters, tables, and who runs it."""
    import json

    from ottla.spark.pipeline.status import pipeline_status, status_text

    told = pipeline_status(_loaded(file, variables, bootstrap))
    click.echo(json.dumps(told) if output == "json" else status_text(told))


@click.command("reset")
@file_argument
@variables_option
@bootstrap_option
@click.option(
    "--to",
    "to",
    metavar="WHERE",
    help="earliest, latest, a time such as 2026-05-17T10:00:00Z, or offsets as JSON; by default where the file says new pipelines start.",
)
@dry_run_option
@yes_option
def reset(file: Path, variables: tuple[str, ...], bootstrap: str | None, to: str | None, dry_run: bool, yes: bool) -> None:
    """Forget what the pipeline in FILE has read and counted, so that it starts over. Tables and topics keep what they have."""
    from ottla.spark.pipeline.checkpoint import InUse
    from ottla.spark.pipeline.reset import ResetError, apply_reset, plan_reset

    pipeline = _loaded(file, variables, bootstrap)
    try:
        plan = plan_reset(pipeline, to)
    except ResetError as error:
        stop_with(str(error), EXIT_USAGE)
    for sentence in plan.sentences:
        click.echo(sentence)
    if dry_run:
        click.echo(DRY)
        return
    if not plan.directories and plan.start is None:
        return
    agreed(f"Forget the state of pipeline {pipeline.name}?", [str(path) for path in plan.directories], yes=yes)
    try:
        apply_reset(pipeline, plan)
    except InUse as error:
        stop_with(str(error), EXIT_FAILED)
    click.echo(f"{pipeline.name} starts over with its next run.")
