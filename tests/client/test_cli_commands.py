"""Command tables: every entry loads a command, and a command imports no other."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from ottla.cli.main import main

SOURCE = Path(__file__).resolve().parents[2] / "src"


def commands(group: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """All commands below a group, with their words."""
    if isinstance(group, click.Group):
        context = click.Context(group)
        for name in group.list_commands(context):
            found = group.get_command(context, name)
            assert found is not None, (*path, name)
            yield (*path, name), found
            yield from commands(found, (*path, name))


def test_every_command_exists_and_has_a_help_text() -> None:
    found = dict(commands(main))
    assert {("serve",), ("topic", "create"), ("cluster",), ("cluster", "up"), ("cluster", "reassign", "plan"), ("cluster", "elect")} <= set(
        found
    )
    silent = [path for path, command in found.items() if not command.help]
    assert not silent


@pytest.mark.parametrize("arguments", [["--help"], ["cluster", "--help"]])
def test_help_imports_no_command(arguments: list[str]) -> None:
    program = (
        "import sys\nfrom ottla.cli.main import main\nmain(sys.argv[1:], standalone_mode=False)\n"
        "print(sorted(name for name in sys.modules if name.startswith('ottla.')), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(SOURCE)}
    )
    assert done.stdout.startswith("Usage:"), done.stderr
    assert eval(done.stderr) == [
        "ottla.cli",
        "ottla.cli.common",
        "ottla.cli.common.lazy",
        *(["ottla.cli.groups"] if "cluster" in arguments else []),
        "ottla.cli.main",
    ]
