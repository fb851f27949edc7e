"""A group of commands that imports the one asked for and none of the others, so that nobody waits for what he does not use.

A command is the attribute ``command`` of its module. ``--help`` prints the table, without importing any; a command whose module this
installation has not is left out.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import click


class Entry(NamedTuple):
    """A command: the module of ``ottla.cli`` that has it, and what ``--help`` says of it."""

    module: str
    says: str


class Lazy(click.Group):
    """Commands by name, in the order of ``--help``."""

    def __init__(self, *arguments: Any, table: dict[str, Entry], **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name, entry in self._table.items() if find_spec(f"ottla.cli.{entry.module}") is not None]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        found = import_module(f"ottla.cli.{self._table[cmd_name].module}").command
        assert isinstance(found, click.Command), f"ottla.cli.{self._table[cmd_name].module}.command is a command"
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if names := self.list_commands(ctx):
            with formatter.section("Commands"):
                formatter.write_dl([(name, self._table[name].says) for name in names])
