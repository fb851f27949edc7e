"""Passwords of commands: from a file, an environment variable or a prompt. Never from an argument: every user of the machine can see it."""

from __future__ import annotations

from pathlib import Path

import click

from ottla.cli.common.confirmation import is_interactive
from ottla.cli.common.connection import combined
from ottla.cli.common.secret_sources import password_in, password_in_variable

#: `--password-file` and `--password-env`; the command receives both under these names.
password_options = combined(
    click.option("--password-env", metavar="VARIABLE", help="Read the password from an environment variable."),
    click.option(
        "--password-file",
        metavar="FILE",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Read the password from a file. [default: ask]",
    ),
)


def password_of(file: Path | None, variable: str | None, *, prompt: str) -> str:
    """The password; asks at a terminal if neither is named. Raises: UsageError, ClickException."""
    if file is not None and variable is not None:
        raise click.UsageError("set either --password-file or --password-env")
    if file is not None:
        return password_in(file)
    if variable is not None:
        return password_in_variable(variable)
    if not is_interactive():
        raise click.UsageError("no terminal to ask for the password: use --password-file or --password-env")
    password: str = click.prompt(prompt, hide_input=True, confirmation_prompt=True, err=True)
    return password
