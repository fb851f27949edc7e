"""What commands share beside the forms of their answers: errors as one line, bytes as JSON, `name=value` arguments.

Bytes become text where they are UTF-8, and `{"base64": "..."}` where they are not, so that what `consume -o json` prints, `produce -o json`
takes.
"""

from __future__ import annotations

import signal
import sys
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from ottla.cli.common.connection import admin as admin
from ottla.cli.common.connection import bootstrap_option as bootstrap_option
from ottla.cli.common.connection import whence


@contextmanager
def terminated() -> Iterator[None]:
    """Whoever asks the process to end (SIGTERM) is heard as Ctrl-C is, in the main thread: as KeyboardInterrupt."""
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
def told() -> Iterator[None]:
    """Turn what clients and files raise into one line and an exit code, and what clients warn of into lines that look the same."""
    import logging

    from ottla.base.options import ConfigError
    from ottla.client.errors import ConnectionFailed
    from ottla.wire.errors import KafkaError

    logging.basicConfig(format="Warning: %(message)s")
    try:
        yield
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    except BrokenPipeError:
        # Whoever read our output has seen enough; the interpreter must not complain when it flushes at its end.
        sys.stdout = open("/dev/null", "w")  # noqa: SIM115
        raise SystemExit(0) from None
    except ConnectionFailed as error:
        said = " ".join(str(error).split())
        raise click.ClickException(said + (whence() if said.startswith("no broker can be reached") else "")) from None
    except (KafkaError, OSError, ValueError) as error:
        raise click.ClickException(" ".join(str(error).split())) from None


def json_bytes(value: bytes | None) -> Any:
    """Bytes for JSON; see the module."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(value).decode()}


def bytes_json(value: Any, name: str) -> bytes | None:
    """Bytes from JSON: the reverse of `json_bytes`; other JSON values are taken as the text they were written as.

    Raises: ValueError.
    """
    import msgspec

    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and list(value) == ["base64"] and isinstance(value["base64"], str):
        try:
            return b64decode(value["base64"], validate=True)
        except ValueError:
            raise ValueError(f"{name}: not base64") from None
    return msgspec.json.encode(value)


def assignments(pairs: Iterable[str], option: str) -> dict[str, str]:
    """`name=value` arguments. Raises: UsageError."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise click.UsageError(f"{option} expects NAME=VALUE, not {pair!r}")
        found[name] = value
    return found
