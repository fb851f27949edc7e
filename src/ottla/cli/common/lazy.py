"""A group of commands that imports the one asked for and none of the others, so that nobody waits for what he does not use.

A command is the attribute ``command`` of its module, or the one named behind a colon. ``--help`` prints the table, without importing any.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class Entry(NamedTuple):
    """A command: ``module`` or ``module:attribute`` below ``ottla.cli``, and what ``--help`` says of it."""

    module: str
    says: str


#: The exit code of what Ctrl-C ended before it was done.
INTERRUPTED = 130


class Commands(click.Group):
    """A group of commands that knows which one was meant. What Ctrl-C ends, in whatever it was doing, ends silently with exit code 130."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if not ctx.resilient_parsing and args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            from ottla.base.options import suggestion

            near = suggestion(args[0], self.list_commands(ctx))
            ctx.fail(f"there is no command {args[0]}{near or '; those there are: ' + ', '.join(self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)


class Lazy(Commands):
    """Commands by name, in the order of ``--help``."""

    def __init__(self, *arguments: Any, table: dict[str, Entry], **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        module, _, attribute = self._table[cmd_name].module.partition(":")
        found = getattr(import_module(f"ottla.cli.{module}"), attribute or "command")
        assert isinstance(found, click.Command), f"ottla.cli.{module} has the command {cmd_name}"
        return found

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        found = [CompletionItem(name, help=self._table[name].says) for name in self.list_commands(ctx) if name.startswith(incomplete)]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if names := self.list_commands(ctx):
            with formatter.section("Commands"):
                formatter.write_dl([(name, self._table[name].says) for name in names])
