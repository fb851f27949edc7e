"""Confirmation before a command deletes data, and `--dry-run`.

Deletion needs `--yes` or the answer of a user at a terminal, who sees on standard error what would be deleted. Without a terminal and
without `--yes` the command changes nothing and exits with 2: a script neither hangs nor deletes by mistake. A dry run asks nothing. It
exits with 0, or with the command's exit code where that is known without a change.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import click

#: Items listed in a question; further ones are only counted.
LISTED_MAX = 20
NOTHING_CHANGED = "Nothing was changed."


class NotConfirmed(click.ClickException):
    """The command needs a confirmation and has no terminal to ask at. Nothing was changed."""

    exit_code = 2


#: `--dry-run`.
dry_run_option = click.option("--dry-run", is_flag=True, help="Show what would change; change nothing.")

#: `-y`, for commands that delete data.
yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")


def is_interactive() -> bool:
    """Whether standard input and standard error are a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm(question: str, things: Iterable[str], *, yes: bool) -> None:
    """Returns once confirmed. Raises: Abort, if the user declines; NotConfirmed, without a terminal."""
    if yes:
        return
    if not is_interactive():
        raise NotConfirmed(f"{question} This cannot be undone. Confirm with --yes, or use --dry-run to see what would change.")
    listed = list(things)
    for thing in listed[:LISTED_MAX]:
        click.echo(f"  {thing}", err=True)
    if len(listed) > LISTED_MAX:
        click.echo(f"  and {len(listed) - LISTED_MAX} more", err=True)
    click.confirm(f"{question} This cannot be undone. Continue?", abort=True, err=True)
