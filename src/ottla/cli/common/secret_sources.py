"""Where secrets of profiles and options are: a secret setting of a profile may be one of these instead of the secret itself.

sasl_password = "file:/run/secrets/kafka"       the first line of a file, or all of a file in PEM form
sasl_password = "env:KAFKA_PASSWORD"            an environment variable
sasl_password = "prompt:"                       asked at a terminal, for each command
"""

from __future__ import annotations

import os
from pathlib import Path

import click

FILE, VARIABLE, PROMPT = "file:", "env:", "prompt:"


def is_source(value: str) -> bool:
    """Whether the value says where the secret is."""
    return value.startswith((FILE, VARIABLE, PROMPT))


def secret_from(name: str, value: str) -> str:
    """The secret of a setting. Raises: ClickException."""
    if value.startswith(FILE):
        return password_in(Path(value.removeprefix(FILE)))
    if value.startswith(VARIABLE):
        return password_in_variable(value.removeprefix(VARIABLE))
    if value.startswith(PROMPT):
        secret: str = click.prompt(name, hide_input=True, err=True)
        return secret
    return value


def password_in(file: Path) -> str:
    """The first line of a file, or all of it if it is in PEM form. Raises: ClickException."""
    try:
        text = file.read_text()
        password = text if text.startswith("-----BEGIN ") else text.partition("\n")[0].rstrip("\r")
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
