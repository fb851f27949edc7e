"""Secrets of commands: from a file, an environment variable or a prompt. `ottla.client.profiles` has the forms."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import click

from ottla.client import profiles

P = ParamSpec("P")
T = TypeVar("T")


def _as_command_error(function: Callable[P, T]) -> Callable[P, T]:
    """The same function for commands. Raises: ClickException instead of ProfileError."""

    @wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> T:
        try:
            return function(*arguments, **named)
        except profiles.ProfileError as error:
            raise click.ClickException(str(error)) from None

    return call


password_in = _as_command_error(profiles.password_in)
password_in_variable = _as_command_error(profiles.password_in_variable)
cluster_address = _as_command_error(profiles.cluster_address)
_stored_secret = _as_command_error(profiles.secret_from)


def secret_from(name: str, value: str) -> str:
    """The secret of a setting; asks at a terminal for `prompt:`. Raises: ClickException."""
    if value.startswith(profiles.PROMPT):
        secret: str = click.prompt(name, hide_input=True, err=True)
        return secret
    return _stored_secret(name, value)
