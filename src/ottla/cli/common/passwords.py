"""Passwords of commands: from a file, an environment variable or a prompt. Never from an argument: every user of the machine can see it."""

from __future__ import annotations

import os
from pathlib import Path

import click

from ottla.cli.common.confirmation import is_interactive
from ottla.cli.common.connection import combined

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


def password_in(file: Path) -> str:
    """The first line of a file. Raises: ClickException."""
    try:
        password = file.read_text().partition("\n")[0].rstrip("\r")
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"cannot read the password in {file}: {error}") from None
    if not password:
        raise click.ClickException(f"the first line of {file} is empty; it should be the password")
    return password


def password_in_variable(variable: str) -> str:
    """Raises: ClickException."""
    if not (password := os.environ.get(variable)):
        raise click.ClickException(f"the environment has no variable {variable}, or it is empty; it should be the password")
    return password
