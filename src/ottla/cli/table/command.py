"""`ottla table sync TOPIC --to DIR` keeps a table in sync with a topic; `ottla table status DIR` shows its state."""

from __future__ import annotations

from shlex import quote
from typing import Any

import click

from ottla.cli.common.arguments import duration_ms
from ottla.cli.common.complete import topic_names
from ottla.cli.common.errors import reporting_errors
from ottla.cli.common.lazy import CommandEntry, LazyGroup
from ottla.cli.table.options import parse_bytes, schema_request, sync_table, table_options
from ottla.cli.table.places import ICEBERG, format_option, target_of

EPILOG = """\b
Append: a row per record. Upsert: a row per key, from its last record; a tombstone deletes the row.
A table belongs to one topic and keeps the schema and mode that it was created with."""


@click.command(name="sync", epilog=EPILOG)
@click.argument("topic", metavar="TOPIC[/PARTITIONS]", shell_complete=topic_names)
@table_options
@click.option("--mode", type=click.Choice(["append", "upsert"]), help="[default: upsert for compacted topics, append for others]")
@click.option("--once", is_flag=True, help="Exit when the table has the topic's current records.")
@click.option("--commit-interval", metavar="TIME", help="Time between commits, once it is in sync. [default: 5s; Iceberg 1m]")
@click.option("-g", "--group", metavar="GROUP", help="Commit the table's offsets in this consumer group, for monitoring of its lag.")
@click.option(
    "--compact-every",
    type=click.IntRange(min=0),
    default=60,
    metavar="N",
    help="Merge small files after N commits; 0: never. [default: 60]",
)
@click.option(
    "--vacuum-hours",
    type=click.IntRange(min=0),
    metavar="N",
    help="After merging, remove files that no version of the last N hours uses; 0: never. [default: 168; Iceberg 24]",
)
@format_option("delta", ICEBERG)
def sync(topic: str, **options: Any) -> None:
    """Keep a Delta or Iceberg table in sync with TOPIC until Ctrl-C: with existing records, then with new ones.

    A restart continues where it stopped. Spark, polars, DuckDB and pandas can read the table.
    """
    if "@" in topic:
        raise click.UsageError("a table holds the whole topic; to export a range, use ottla pipeline export TOPIC@RANGE")
    with reporting_errors():
        from ottla.lake.table.sync import SyncOptions

        is_iceberg = options["form"] == ICEBERG
        interval = options["commit_interval"] or ("1m" if is_iceberg else "5s")
        vacuum_hours = options["vacuum_hours"]
        plan = SyncOptions(
            once=options["once"],
            commit_interval_s=duration_ms(interval, "--commit-interval") / 1000,
            commit_bytes=parse_bytes(options["commit_bytes"], "--commit-bytes"),
            fails_on_loss=options["on_loss"] == "fail",
            group=options["group"],
            compact_commits=options["compact_every"],
            vacuum_hours=(24 if is_iceberg else 168) if vacuum_hours is None else vacuum_hours,
        )
        request = schema_request(options, mode=options["mode"])
        target = target_of(options)
    sync_table(topic, options, plan, request, target)


COMMANDS = {
    "sync": CommandEntry("table.command:sync", "Keep a Delta or Iceberg table in sync with a topic."),
    "status": CommandEntry("table.status:status", "Show version, rows, files, columns, offsets and lag of a table."),
    "compact": CommandEntry("table.status:compact_command", "Merge small files of a table, and vacuum old ones."),
}


class Table(LazyGroup):
    """The group of commands. A topic in the place of a command is refused with the command that syncs it."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and any(one == "--to" or one.startswith("--to=") for one in args):
            ctx.fail(f"to keep a table in sync with a topic, write: ottla table sync {' '.join(map(quote, args))}")
        return super().resolve_command(ctx, args)


@click.command(name="table", cls=Table, table=COMMANDS)
def command() -> None:
    """Keep Delta and Iceberg tables in sync with topics, without Spark."""
