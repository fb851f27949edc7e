"""A group of commands that imports only the command that is called, so that commands start fast.

A command is the attribute ``command`` of its module, or the attribute after a colon. ``--help`` prints the table and imports no command.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class CommandEntry(NamedTuple):
    """A command: ``module`` or ``module:attribute`` below ``ottla.cli``, and its line in ``--help``."""

    module: str
    help: str


#: Exit code of a command that Ctrl-C interrupted.
INTERRUPTED = 130


class CommandGroup(click.Group):
    """A group of commands. Suggests a name for an unknown command; Ctrl-C ends a command silently with exit code 130."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if not ctx.resilient_parsing and args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            from ottla.base.options import suggestion

            near = suggestion(args[0], self.list_commands(ctx))
            ctx.fail(f"unknown command {args[0]}{near or '; commands are: ' + ', '.join(self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)


class LazyGroup(CommandGroup):
    """Commands by name, in the order of ``--help``."""

    def __init__(self, *arguments: Any, table: dict[str, CommandEntry], **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        module, _, attribute = self._table[cmd_name].module.partition(":")
        command = getattr(import_module(f"ottla.cli.{module}"), attribute or "command")
        assert isinstance(command, click.Command), f"ottla.cli.{module} has the command {cmd_name}"
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        items = [CompletionItem(name, help=self._table[name].help) for name in self.list_commands(ctx) if name.startswith(incomplete)]
        return items + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if names := self.list_commands(ctx):
            with formatter.section("Commands"):
                formatter.write_dl([(name, self._table[name].help) for name in names])
