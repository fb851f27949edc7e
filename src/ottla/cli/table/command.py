"""`ottla table TOPIC --to DIR` keeps a Delta table in sync with a topic; `ottla table status DIR` shows its state.

With `--to` the first argument is a topic, even if it is also the name of a command.
"""

from __future__ import annotations

from typing import Any

import click

from ottla.cli.common.arguments import duration_ms
from ottla.cli.common.complete import topic_names
from ottla.cli.common.errors import reporting_errors
from ottla.cli.common.lazy import CommandEntry, LazyGroup
from ottla.cli.table.options import parse_bytes, schema_request, sync_table, table_options


@click.command(name="table")
@click.argument("topic", metavar="TOPIC[/PARTITIONS]", shell_complete=topic_names)
@table_options
@click.option("--mode", type=click.Choice(["append", "upsert"]), help="[default: upsert for compacted topics, append for others]")
@click.option("--once", is_flag=True, help="Exit when the table has the topic's current records.")
@click.option("--commit-interval", metavar="TIME", default="5s", help="Time between commits, once it is in sync. [default: 5s]")
@click.option("-g", "--group", metavar="GROUP", help="Commit the table's offsets in this consumer group, for monitoring of its lag.")
@click.option(
    "--compact-every",
    type=click.IntRange(min=0),
    default=60,
    metavar="N",
    help="Merge small files after N commits; 0: never. [default: 60]",
)
@click.option("--vacuum-hours", type=click.IntRange(min=0), default=168, metavar="N",
              help="After merging, remove files that no version of the last N hours uses; 0: never. [default: 168]")  # fmt: skip
def sync_command(topic: str, **options: Any) -> None:
    """Keep a Delta table in sync with TOPIC until Ctrl-C: with existing records, then with new ones.

    A restart continues where it stopped.
    """
    if "@" in topic:
        raise click.UsageError("a table holds the whole topic; to export a range, use ottla pipeline export TOPIC@RANGE")
    with reporting_errors():
        from ottla.lake.table.sync import SyncOptions
        from ottla.lake.table.target import DeltaTarget

        plan = SyncOptions(
            once=options["once"],
            commit_interval_s=duration_ms(options["commit_interval"], "--commit-interval") / 1000,
            commit_bytes=parse_bytes(options["commit_bytes"], "--commit-bytes"),
            fails_on_loss=options["on_loss"] == "fail",
            group=options["group"],
            compact_commits=options["compact_every"],
            vacuum_hours=options["vacuum_hours"],
        )
        request = schema_request(options, mode=options["mode"])
        target = DeltaTarget(options["directory"])
    sync_table(topic, options, plan, request, target)


COMMANDS = {
    "status": CommandEntry("table.status:status", "Show version, rows, files, columns, offsets and lag of a table."),
    "compact": CommandEntry("table.status:compact_command", "Merge small files of a table, and vacuum old ones."),
}
#: Marks a command line that begins with options; not a valid topic name.
SYNC = "\0"
EPILOG = """\b
Append: a row per record. Upsert: a row per key, from its last record; a tombstone deletes the row.
A table belongs to one topic and keeps the schema and mode that it was created with."""


class Table(LazyGroup):
    """The group of commands. With a topic instead of a command it runs `sync_command`, whose options the group's help shows."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.params = list(sync_command.params)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        help_option = self.get_help_option(ctx)
        return [] if help_option is None else [help_option]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, cmd_name) if cmd_name in COMMANDS else sync_command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] == SYNC:
            return "", sync_command, args[1:]
        if args[0] not in COMMANDS or any(one == "--to" or one.startswith("--to=") for one in args):
            return "", sync_command, args
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0].startswith("-") and args[0] not in ctx.help_option_names:
            args = [SYNC, *args]
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        click.Command.format_options(sync_command, ctx, formatter)
        self.format_commands(ctx, formatter)


@click.command(
    name="table", cls=Table, table=COMMANDS, epilog=EPILOG, options_metavar="", subcommand_metavar="TOPIC[/PARTITIONS] --to DIR ..."
)
def command(**_: Any) -> None:
    """Keep a Delta table in sync with TOPIC until Ctrl-C: with existing records, then with new ones.

    A restart continues where it stopped. Spark, polars, DuckDB and pandas can read the table.
    """
