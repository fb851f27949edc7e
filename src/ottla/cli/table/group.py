"""`ottla table TOPIC --to DIR`, a Delta table in step with a topic; `ottla table status DIR`, how it stands.

A topic may be called like a command: with `--to`, the word is a topic.
"""

from __future__ import annotations

from typing import Any

import click

from ottla.cli.common.lazy import Entry, Lazy
from ottla.cli.table.keep import keep_command

COMMANDS = {
    "status": Entry("table.status:status", "Show a table: version, rows, files, columns, and how far behind its topic it is."),
    "compact": Entry("table.status:compact_command", "Join small files of a table, and remove those that no version of the last days has."),
}
#: Stands for the topic's place where options come first; no topic is called so.
KEEP = "\0"
EPILOG = """\b
Append: a row per record. Upsert: a row per key, that of its last record; a record without a value deletes it.
The table keeps the form in which it was begun, and belongs to one topic."""


class Table(Lazy):
    """The commands, and what is done with a topic where none of them is named; its options are shown as the group's own."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.params = list(keep_command.params)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        help_option = self.get_help_option(ctx)
        return [] if help_option is None else [help_option]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, cmd_name) if cmd_name in COMMANDS else keep_command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] == KEEP:
            return "", keep_command, args[1:]
        if args[0] not in COMMANDS or any(one == "--to" or one.startswith("--to=") for one in args):
            return "", keep_command, args
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0].startswith("-") and args[0] not in ctx.help_option_names:
            args = [KEEP, *args]
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        click.Command.format_options(keep_command, ctx, formatter)
        self.format_commands(ctx, formatter)


@click.command(
    name="table", cls=Table, table=COMMANDS, epilog=EPILOG, options_metavar="", subcommand_metavar="TOPIC[/PARTITIONS] --to DIR ..."
)
def command(**_: Any) -> None:
    """Keep a Delta table in step with TOPIC: from its beginning on, then as records come, until Ctrl-C.

    A restart goes on where it stopped. Spark, polars, DuckDB and pandas read the table.
    """
