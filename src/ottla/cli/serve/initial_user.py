"""`ottla serve --init-scram`: a user that exists before the first start, in the form of Kafka's `kafka-storage.sh format --add-scram`.

    SCRAM-SHA-512=[name=admin,password-file=/run/secrets/admin]
    SCRAM-SHA-256=[name=admin,password-env=ADMIN_PASSWORD,iterations=8192]
    SCRAM-SHA-512=[name=admin,prompt]

A password in the argument, as Kafka takes it, is refused: every user of the machine can see it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ottla.base.options import ConfigError
from ottla.base.scram import BY_NAME, ITERATIONS_MAX, ITERATIONS_MIN
from ottla.cli.common.passwords import password_of
from ottla.cli.common.secret_sources import password_in, password_in_variable

if TYPE_CHECKING:
    from ottla.server.initial_users import InitialUser

OPTION = "--init-scram"
EXAMPLE = "SCRAM-SHA-512=[name=admin,password-file=FILE]"
KEYS = ("name", "iterations", "password-file", "password-env", "prompt")


def initial_user(text: str) -> InitialUser:
    """Reads the password. Raises: ConfigError, ClickException."""
    from ottla.server.initial_users import InitialUser

    match = re.fullmatch(r"([^=]+)=\[(.*)\]", text.strip())
    if match is None:
        raise ConfigError(OPTION, f"expected {EXAMPLE}")
    if match[1].upper() not in BY_NAME:
        raise ConfigError(OPTION, f"{match[1]} is not one of {', '.join(BY_NAME)}")
    parts = {key.strip(): value for key, _, value in (part.partition("=") for part in match[2].split(","))}
    if "password" in parts:
        raise ConfigError(OPTION, "a password in an argument can be seen by every user of the machine; use password-file or password-env")
    for key in parts:
        if key not in KEYS:
            raise ConfigError(OPTION, f"{key!r} is not one of {', '.join(KEYS)}; expected {EXAMPLE}")
    if not parts.get("name"):
        raise ConfigError(OPTION, f"the name is missing; expected {EXAMPLE}")
    iterations = parts.get("iterations", str(ITERATIONS_MIN))
    if not iterations.isdecimal() or not ITERATIONS_MIN <= int(iterations) <= ITERATIONS_MAX:
        raise ConfigError(OPTION, f"iterations are {ITERATIONS_MIN} to {ITERATIONS_MAX}")
    try:
        return InitialUser(parts["name"], BY_NAME[match[1].upper()], _password(parts), int(iterations))
    except click.ClickException as error:
        raise ConfigError(OPTION, error.message) from None


def _password(parts: dict[str, str]) -> str:
    """Raises: ClickException."""
    sources = [key for key in ("password-file", "password-env", "prompt") if key in parts]
    if len(sources) != 1:
        raise click.ClickException("expected one of password-file, password-env and prompt")
    if sources == ["password-file"]:
        return password_in(Path(parts["password-file"]))
    if sources == ["password-env"]:
        return password_in_variable(parts["password-env"])
    return password_of(None, None, prompt=f"Password of {parts['name']}")
