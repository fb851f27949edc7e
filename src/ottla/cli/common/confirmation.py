"""What a command asks before it destroys something, and `--dry-run`, which only shows what would be done.

Destroying needs a yes: `--yes`, or the answer of a person at a terminal, who sees on standard error what would go. Without either the
command is refused and changes nothing, so that a script does not hang and does not destroy by mistake. A dry run asks for nothing and ends
with 0, or as the command itself would where that can be known.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])
#: Things that are named one by one in a question.
SHOWN_MAX = 20
DRY = "Nothing was changed."


class Refused(click.ClickException):
    """Nothing was done, since nobody said yes."""

    exit_code = 2


def dry_run_option(function: F) -> F:
    """`--dry-run`."""
    return click.option("--dry-run", is_flag=True, help="Only show what would be done.")(function)


def yes_option(function: F) -> F:
    """`-y`, for commands that destroy."""
    return click.option("-y", "--yes", is_flag=True, help="Do it without being asked.")(function)


def has_somebody() -> bool:
    """Whether there is somebody to ask."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def agreed(question: str, things: Iterable[str], *, yes: bool) -> None:
    """Goes on only with a yes. Raises: Abort, when a person says no; Refused, when nobody can be asked."""
    if yes:
        return
    if not has_somebody():
        raise Refused(f"{question} This cannot be undone: say --yes to do it, or --dry-run to see what would be done.")
    listed = list(things)
    for thing in listed[:SHOWN_MAX]:
        click.echo(f"  {thing}", err=True)
    if len(listed) > SHOWN_MAX:
        click.echo(f"  and {len(listed) - SHOWN_MAX} more", err=True)
    click.confirm(f"{question} This cannot be undone. Do it?", abort=True, err=True)
