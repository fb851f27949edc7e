"""``ottla pipeline backfill``: computes a time range again and replaces its rows in Delta tables."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from ottla.cli.common.confirmation import NOTHING_CHANGED, confirm, dry_run_option, yes_option
from ottla.cli.common.errors import give_up
from ottla.cli.common.output_formats import OutputFormat, fields, note, output_option
from ottla.cli.common.tables import Column
from ottla.cli.pipeline.commands import EXIT_FAILED, bootstrap_option, file_argument, load_pipeline, variables_option
from ottla.cli.pipeline.plan import exiting

TABLES = (
    Column("TABLE", "path"),
    Column("OFFSETS", lambda one: ", ".join(one["offsets"])),
    Column("ROWS", "rows"),
    Column("NEW ROWS", "new_rows"),
)


def _time(context: click.Context, parameter: click.Parameter, value: str) -> int:
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(f"expected a time such as 2026-05-17T10:00:00Z, not {value!r}", context, parameter) from None
    return round((at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp() * 1000)


@fields(
    {"tables[].offsets[]": "TOPIC-PARTITION FIRST:END, the end excluded"},
    name="name of the pipeline",
    done="whether the rows were replaced",
    tables="table, its rows in the range, and the new rows; null: not done",
)
@click.command("backfill")
@file_argument
@variables_option
@bootstrap_option
@click.option(
    "--from", "from_ms", required=True, metavar="TIME", callback=_time, help="First time of records, such as 2026-05-17T10:00:00Z."
)
@click.option("--to", "to_ms", required=True, metavar="TIME", callback=_time, help="End of the range, excluded.")
@click.option("--sink", "path", metavar="PATH", help="Fill only the Delta sink with this path.")
@dry_run_option
@yes_option
@output_option
def backfill(
    file: Path,
    variables: tuple[str, ...],
    profile: str | None,
    bootstrap: str | None,
    from_ms: int,
    to_ms: int,
    path: str | None,
    dry_run: bool,
    yes: bool,
    output: OutputFormat,
) -> None:
    """Compute the records of a time range again and replace their rows in the Delta tables of the pipeline in FILE.

    One commit per table: no row is doubled. Needs the columns _partition and _offset in the table, and a stopped pipeline.
    """
    if from_ms >= to_ms:
        raise click.BadParameter("must be before --to", param_hint="--from")
    pipeline = load_pipeline(file, variables, bootstrap, profile)
    with exiting():
        from ottla.spark.pipeline.backfill import plan_backfill, run_backfill, sinks_to_fill
        from ottla.spark.pipeline.checkpoint import InUse, checkpoint_lock
        from ottla.spark.pipeline.plan import planning_session

        sinks = sinks_to_fill(pipeline, path)
        directory = Path(pipeline.checkpoint)
        if not any((directory / f"{sink.view}-append" / "metadata").is_file() for sink in sinks):
            give_up(f"{pipeline.name} has no checkpoint in {directory}: it has written no rows; run it first", EXIT_FAILED)
        try:
            with checkpoint_lock(directory), planning_session(pipeline) as session:
                plans = [plan_backfill(pipeline, sink, session, from_ms, to_ms) for sink in sinks]
                documents: list[dict[str, Any]] = [
                    {
                        "path": str(plan.place),
                        "offsets": [f"{tp} {a}:{b}" for tp, (a, b) in plan.ranges.items()],
                        "rows": plan.rows,
                        "new_rows": None,
                    }
                    for plan in plans
                ]
                if dry_run:
                    _show(pipeline.name, documents, False, output)
                    note(NOTHING_CHANGED)
                    return
                shown = [f"{one['path']}: {one['rows']} rows of {', '.join(one['offsets']) or 'no offsets'}" for one in documents]
                confirm("The rows of these offsets would be replaced.", shown, yes=yes)
                for plan, document in zip(plans, documents, strict=True):
                    document["new_rows"] = run_backfill(pipeline, plan, session) if plan.ranges else 0
        except InUse as error:
            give_up(str(error), EXIT_FAILED)
    _show(pipeline.name, documents, True, output)


def _show(name: str, documents: list[dict[str, Any]], done: bool, output: OutputFormat) -> None:
    if output.is_structured:
        output.document({"name": name, "done": done, "tables": documents})
    else:
        output.table(documents, TABLES)
