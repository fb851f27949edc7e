"""`ottla consume` says once, at a terminal, that it waits for new records."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest

from ottla.cli.consume.printer import Printer

NO_OUTPUT: Any = None


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "lines"), [(Terminal(), 1), (io.StringIO(), 0)])
def test_the_hint_comes_once_at_a_terminal_when_all_records_are_read(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, lines: int
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    printer = Printer(NO_OUTPUT)
    for unread in ([3, 0], [None, 0]):
        printer.note_waiting(unread)
    assert stream.getvalue() == ""
    printer.note_waiting([0, 0])
    printer.note_waiting([0, 0])
    assert len(stream.getvalue().splitlines()) == lines
