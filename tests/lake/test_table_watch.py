"""Progress output of a table sync."""

import json

import pytest

from ottla.cli.table.progress import JsonLinesProgress, TerminalProgress
from ottla.lake.table.sync import SyncProgress


def test_a_commit_soon_after_another_is_reported_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    lines = JsonLinesProgress()
    lines.committed(SyncProgress(records=1))
    lines.committed(SyncProgress(records=2))
    lines.end()
    assert [json.loads(line)["records"] for line in capsys.readouterr().out.splitlines()] == [1, 2]


def test_the_last_line_on_a_terminal_names_problems(capsys: pytest.CaptureFixture[str]) -> None:
    TerminalProgress(follows=True).summary(SyncProgress(records=1200, commits=1, version=3, corrupt=2, lost=5))
    assert capsys.readouterr().err == "1,200 records  0 B  1 commit  version 3  2 corrupt  5 lost  lag 0\n"
