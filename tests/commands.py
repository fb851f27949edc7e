"""Results of commands in tests."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import click
from click.testing import Result

from ottla.cli.common.output_formats import fields_of
from ottla.cli.main import main

Ottla = Callable[..., Result]


def good(result: Result) -> str:
    """What a command that worked printed."""
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(result: Result, code: int = 1) -> str:
    """The error output of a failed command."""
    assert result.exit_code == code, result.output
    return result.stderr


def documents(result: Result, *path: str, code: int = 0) -> Any:
    """What a command printed as JSON, of which each field is named in the command's reference."""
    assert result.exit_code == code, result.output
    found = json.loads(result.stdout)
    named = fields_of(command(*path))
    unnamed = {field for field in _fields(found, "") if not _is_named(field, named)}
    assert not unnamed, f"fields that the reference does not name: {unnamed}"
    return found


def _is_named(field: str, named: Mapping[str, str]) -> bool:
    below = tuple(name[:-1] for name in named if name.endswith(".*"))
    return field.startswith(below) or any(name == field or name.startswith((f"{field}.", f"{field}[]")) for name in named)


def command(*path: str) -> click.Command:
    """A command by the words that call it."""
    found: click.Command = main
    for name in path:
        assert isinstance(found, click.Group)
        below = found.get_command(click.Context(found), name)
        assert below is not None, name
        found = below
    return found


def _fields(value: Any, before: str) -> set[str]:
    """Names of all that is not itself made of fields."""
    match value:
        case list():
            return {field for one in value for field in _fields(one, before and f"{before}[]")} or ({before} if before else set())
        case Mapping() if value and set(value) != {"code", "message"}:
            return {field for name, one in value.items() for field in _fields(one, f"{before}.{name}" if before else name)}
        case _:
            return {before.removesuffix("[]")} if before else set()


_HEADINGS = re.compile(r"[A-Z][A-Z0-9./-]*(\t[A-Z][A-Z0-9./-]*)*")


def rows(result: Result, code: int = 0) -> str:
    """The rows of the tables that a command printed, without their headings."""
    assert result.exit_code == code, result.output
    return without_headings(result.stdout)


def without_headings(output: str) -> str:
    """The rows of tables, without their headings. There are headings."""
    kept = [line for line in output.splitlines(keepends=True) if not _HEADINGS.fullmatch(line.rstrip("\n"))]
    assert len(kept) < len(output.splitlines()), f"no headings: {output!r}"
    return "".join(kept)
