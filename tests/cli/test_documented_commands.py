"""Every command on a documentation page exists with its options."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from ottla.cli.import_.command import ImportGroup
from ottla.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def documented_commands() -> list[tuple[str, str]]:
    """(page, words after ``ottla``) of code spans and of lines in code blocks. A line can hold several commands side by side."""
    found = []
    for page in PAGES:
        text = page.read_text()
        spans = re.findall(r"`(ottla [^`\n]+)`", text)
        blocks = [line for block in re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL) for line in block.splitlines()]
        for line in [*spans, *blocks]:
            found += [(page.name, words) for words in re.findall(r"(?:^|\$ |\s{2,}|\(|\| )ottla ([a-z].*?)(?=\s{3,}|$|\)\"| \||<|#)", line)]
    return found


@pytest.mark.parametrize(("page", "words"), sorted(set(documented_commands())))
def test_a_documented_command_is_valid(page: str, words: str) -> None:
    command: click.Command = main
    rest = words.split()
    while isinstance(command, click.Group) and rest and re.fullmatch(r"[a-z][a-z-]*", rest[0]):
        found = command.get_command(click.Context(command), rest[0])
        assert found is not None, f"{page}: ottla {words}: there is no command {rest[0]}"
        command, rest = found, rest[1:]
    if isinstance(command, ImportGroup):
        # Its first argument may be a directory.
        command = command.commands["run"]
    known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)} | {"-h", "--help", "--version"}
    named = [option for word in rest for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", word)]
    assert not set(named) - known, f"{page}: ottla {words}"


def test_pages_contain_commands() -> None:
    assert {"command-line.md", "operating.md", "README.md"} <= {page for page, _ in documented_commands()}
