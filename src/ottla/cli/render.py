"""How commands talk: to a person a table, to a pipe tab-separated lines, to a program JSON; errors are one line on stderr.

`-o json` prints one JSON document per command, or one line per record where the output has no end. Bytes become text where they are
UTF-8, and `{"base64": "..."}` where they are not, so that what `consume -o json` prints, `produce -o json` takes.

Exit codes: 0 done, 1 failed, 2 asked wrongly.
"""

from __future__ import annotations

import sys
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ottla.cli.connection import admin as admin
from ottla.cli.connection import bootstrap_option as bootstrap_option
from ottla.cli.connection import whence

if TYPE_CHECKING:
    from rich.table import Table

F = TypeVar("F", bound=Callable[..., Any])


def output_option(function: F) -> F:
    """`-o`, for people or for programs."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="text for people and pipes, json for programs.",
    )(function)


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


def is_terminal() -> bool:
    """Whether a person reads standard output."""
    return sys.stdout.isatty()


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None, right: Iterable[str] = ()) -> None:
    """Rows under headings on a terminal; bare tab-separated lines in a pipe. Columns named in `right` hold numbers."""
    if not is_terminal():
        for row in rows:
            print("\t".join(text(cell) for cell in row))
        return
    from rich.console import Console

    Console().print(drawn(columns, rows, title=title, right=right))


def drawn(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None, right: Iterable[str] = ()) -> Table:
    """The table for a terminal."""
    from shutil import get_terminal_size

    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    # A title is cut to the width of its table.
    width = min(len(title or ""), get_terminal_size().columns)
    made = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, min_width=width)
    numbers = set(right)
    for column in columns:
        made.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    for row in rows:
        made.add_row(*(text(cell) for cell in row))
    return made


def text(cell: object) -> str:
    """A cell as text: lists with commas, nothing for None."""
    if cell is None:
        return ""
    if isinstance(cell, list | tuple):
        return ",".join(str(part) for part in cell)
    return str(cell)


def print_json(value: object) -> None:
    """One JSON document on one line, or indented for a person."""
    import msgspec

    encoded = msgspec.json.encode(value)
    if is_terminal():
        encoded = msgspec.json.format(encoded, indent=2)
    sys.stdout.write(encoded.decode() + "\n")


def report(names: Iterable[str], failed: dict[str, Any], done: str, otherwise: dict[str, str], output: str) -> None:
    """Say what became of each thing that was named; failures on stderr, or in the document, and as the exit code."""
    outcomes = {name: None if name in failed else otherwise.get(name, done) for name in names}
    if output == "json":
        errors = {name: {"code": error.code, "message": str(error)} for name, error in failed.items()}
        print_json([{"name": name, "outcome": outcome, "error": errors.get(name)} for name, outcome in outcomes.items()])
        outcomes = {}
    for name, outcome in outcomes.items():
        if outcome is None:
            click.echo(f"Error: {name}: {' '.join(str(failed[name]).split())}", err=True)
        else:
            click.echo(f"{name}\t{outcome}")
    if failed:
        raise SystemExit(1)


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
