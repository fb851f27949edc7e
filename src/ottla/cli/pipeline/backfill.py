"""``ottla pipeline backfill``: computes a time range again and replaces its rows in Delta and Iceberg tables."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.common.confirmation import NOTHING_CHANGED, confirm, dry_run_option, yes_option
from ottla.cli.common.errors import give_up
from ottla.cli.common.output_formats import OutputFormat, fields, note, output_option
from ottla.cli.common.tables import Column
from ottla.cli.pipeline.commands import EXIT_FAILED, bootstrap_option, file_argument, load_pipeline, variables_option
from ottla.cli.pipeline.plan import exiting

if TYPE_CHECKING:
    from ottla.spark.pipeline.backfill import Backfill
    from ottla.spark.pipeline.config.model import Pipeline, Sink

TABLES = (
    Column("TABLE", "path"),
    Column("OFFSETS", lambda one: ", ".join(one["offsets"])),
    Column("ROWS", "rows"),
    Column("NEW ROWS", "new_rows"),
    Column("SUPERSEDED", "superseded"),
    Column("RESTORED", "restored"),
    Column("REMOVED", "removed"),
)
#: What `Filled` counts, by the names of the document.
COUNTS = {"new_rows": "rows", "superseded": "superseded", "restored": "restored", "removed": "removed"}


def _time(context: click.Context, parameter: click.Parameter, value: str) -> int:
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(f"expected a time such as 2026-05-17T10:00:00Z, not {value!r}", context, parameter) from None
    return round((at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp() * 1000)


@fields(
    {
        "tables[].offsets[]": "TOPIC-PARTITION FIRST:END, the end excluded",
        "tables[].new_rows": "rows of the range that were written",
        "tables[].superseded": "of a merged table: rows that were not written, because a later record has the key",
        "tables[].restored": "of a merged table: keys that have the row of a record before the range again",
        "tables[].removed": "of a merged table: keys that have no row any more",
    },
    name="name of the pipeline",
    done="whether the rows were replaced",
    tables="table, its rows in the range, and counts of changes; null: not done",
)
@click.command("backfill")
@file_argument
@variables_option
@bootstrap_option
@click.option(
    "--from", "from_ms", required=True, metavar="TIME", callback=_time, help="First time of records, such as 2026-05-17T10:00:00Z."
)
@click.option("--to", "to_ms", required=True, metavar="TIME", callback=_time, help="End of the range, excluded.")
@click.option("--sink", "name", metavar="PATH|TABLE", help="Fill only the sink with this path, or this table of a catalog.")
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
    name: str | None,
    dry_run: bool,
    yes: bool,
    output: OutputFormat,
) -> None:
    """Compute the records of a time range again and replace their rows in the Delta and Iceberg tables of the pipeline in FILE.

    One commit per table: no row is doubled. Needs the columns _partition and _offset in the table, and a stopped pipeline.
    """
    if from_ms >= to_ms:
        raise click.BadParameter("must be before --to", param_hint="--from")
    pipeline = load_pipeline(file, variables, bootstrap, profile)
    with exiting():
        from ottla.spark.pipeline.backfill import Filled, plan_backfill, run_backfill, sinks_to_fill
        from ottla.spark.pipeline.checkpoint import InUse, checkpoint_lock
        from ottla.spark.pipeline.checkpoint_access import holding, session_to_change
        from ottla.spark.pipeline.checkpoint_errors import CheckpointUnavailable
        from ottla.spark.pipeline.session import planning_session

        sinks = sinks_to_fill(pipeline, name)
        directory = Path(pipeline.checkpoint)
        try:
            with ExitStack() as stack:
                # The session that reads a checkpoint at a URL computes the rows too.
                early = stack.enter_context(session_to_change(pipeline))
                _require_stopped(pipeline, sinks, early)
                stack.enter_context(checkpoint_lock(directory))
                stack.enter_context(holding(pipeline, early))
                session = early or stack.enter_context(planning_session(pipeline))
                plans = [plan_backfill(pipeline, sink, session, from_ms, to_ms) for sink in sinks]
                documents = [_document(plan) for plan in plans]
                if dry_run:
                    _show(pipeline.name, documents, False, output)
                    note(NOTHING_CHANGED)
                    return
                shown = [f"{one['path']}: {one['rows']} rows of {', '.join(one['offsets']) or 'no offsets'}" for one in documents]
                confirm("The rows of these offsets would be replaced.", shown, yes=yes)
                for plan, document in zip(plans, documents, strict=True):
                    filled = run_backfill(pipeline, plan, session) if plan.records.offsets else Filled()
                    document |= {name: getattr(filled, attribute) for name, attribute in COUNTS.items()}
        except (InUse, CheckpointUnavailable) as error:
            give_up(str(error), EXIT_FAILED)
    _show(pipeline.name, documents, True, output)


def _require_stopped(pipeline: Pipeline, sinks: Sequence[Sink], session: Any) -> None:
    """Exits if the pipeline has never run, or runs on another machine."""
    from ottla.spark.pipeline.backfill import query_directory
    from ottla.spark.pipeline.checkpoint import holder
    from ottla.spark.pipeline.checkpoint_access import to_read

    with to_read(pipeline, session) as local:
        copy = Path(local.checkpoint)
        if not any((copy / query_directory(sink) / "metadata").is_file() for sink in sinks):
            where = pipeline.checkpoint_place
            give_up(f"{pipeline.name} has no checkpoint in {where}: it has written no rows; run it first", EXIT_FAILED)
        if pipeline.checkpoint_is_copy and (other := holder(copy, copied=True)) is not None and other.running:
            give_up(f"{pipeline.name} is running ({other}); stop it first", EXIT_FAILED)


def _document(plan: Backfill) -> dict[str, Any]:
    offsets = [f"{tp} {first}:{end}" for tp, (first, end) in plan.records.offsets.items()]
    return {"path": str(plan.table), "offsets": offsets, "rows": plan.rows, **dict.fromkeys(COUNTS)}


def _show(name: str, documents: list[dict[str, Any]], done: bool, output: OutputFormat) -> None:
    if output.is_structured:
        output.document({"name": name, "done": done, "tables": documents})
    else:
        output.table(documents, TABLES)
