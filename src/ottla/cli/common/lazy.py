"""A group of commands that imports only the command that is called, so that commands start fast.

A command is the attribute ``command`` of its module, or the attribute after a colon. ``--help`` prints the table and imports no command.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from itertools import pairwise
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
#: Options that may also stand before the command, with their short forms.
ANYWHERE = {"--output": "-o", "--bootstrap-server": "-b", "--profile": ""}
JSON_WORDS = ("-ojson", "--output=json")
#: Whether the command prints JSON, in the context of all commands.
JSON_OUTPUT = "ottla.json"


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


class MainGroup(LazyGroup):
    """The command line as a whole. `-o`, `-b` and `--profile` may stand before the command; with `-o json` errors are JSON too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = pairwise([*args, ""])
        ctx.meta[JSON_OUTPUT] = any(word in JSON_WORDS or (word in ("-o", "--output") and value == "json") for word, value in words)
        leading, rest = _leading(args)
        if leading and rest[:1] != ["--version"]:
            place = self._command_words(ctx, rest)
            args = [*rest[:place], *leading, *rest[place:]] if place else args
        return super().parse_args(ctx, args)

    def _command_words(self, ctx: click.Context, args: list[str]) -> int:
        """How many arguments name a command and its groups."""
        command: click.Command | None = self
        for count, word in enumerate(args):
            if not isinstance(command, click.Group) or (command := command.get_command(ctx, word)) is None:
                return count
        return len(args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            if not ctx.meta.get(JSON_OUTPUT):
                raise
            document = {"message": error.format_message(), "code": getattr(error, "code", None)}
            print(json.dumps({"error": document}, ensure_ascii=False), file=sys.stderr)
            ctx.exit(error.exit_code)


def _leading(args: list[str]) -> tuple[list[str], list[str]]:
    """The options before the command, and the other arguments."""
    at = 0
    while at < len(args):
        word = args[at]
        if word in (*ANYWHERE, *filter(None, ANYWHERE.values())):
            at += 2
        elif word.startswith(tuple(f"{name}=" for name in ANYWHERE)) or (word[:2] in ANYWHERE.values() and word[:2]):
            at += 1
        else:
            break
    return args[:at], args[at:]
