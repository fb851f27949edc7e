"""Errors as one line and an exit code, `name=value` arguments."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NoReturn

import click

from ottla.base.options import ConfigError
from ottla.cli.common.connection import address_source_hint
from ottla.cli.common.connection import admin as admin
from ottla.cli.common.connection import bootstrap_option as bootstrap_option
from ottla.client.errors import ConnectionFailed
from ottla.client.values.json_bytes import bytes_json as bytes_json
from ottla.client.values.json_bytes import json_bytes as json_bytes
from ottla.wire.errors import KafkaError


class CommandFailed(click.ClickException):
    """An error of a broker, with its number in Kafka's protocol; None for an error of this client."""

    def __init__(self, message: str, code: int | None) -> None:
        super().__init__(message)
        self.code = code


def say(line: str) -> None:
    """Prints a line of a command that runs processes."""
    print(f"ottla: {line}", file=sys.stderr, flush=True)


def give_up(reason: str, code: int) -> NoReturn:
    """Prints the reason and exits."""
    say(reason)
    sys.exit(code)


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt, as Ctrl-C does. No effect outside the main thread."""
    try:
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def reporting_errors() -> Iterator[None]:
    """Turns errors of clients and files into one line and an exit code, and warnings of clients into lines of the same format."""
    import logging

    logging.basicConfig(format="Warning: %(message)s")
    try:
        yield
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    except BrokenPipeError:
        # The reader of the pipe is gone. Without this the interpreter reports an error when it flushes stdout at exit.
        sys.stdout = open("/dev/null", "w")  # noqa: SIM115
        raise SystemExit(0) from None
    except ConnectionFailed as error:
        message = " ".join(str(error).split())
        raise click.ClickException(message + (address_source_hint() if message.startswith("no broker can be reached") else "")) from None
    except KafkaError as error:
        raise CommandFailed(" ".join(str(error).split()), error.code) from None
    except (OSError, ValueError, ImportError) as error:
        raise click.ClickException(" ".join(str(error).split())) from None


def assignments(pairs: Iterable[str], option: str) -> dict[str, str]:
    """`name=value` arguments. Raises: UsageError."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise click.UsageError(f"{option} expects NAME=VALUE, not {pair!r}")
        found[name] = value
    return found
