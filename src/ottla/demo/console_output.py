"""The output of the demo: steps with the time since the start, a live status line, tables at the end.

Without a terminal the status line is printed every few seconds.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.status import Status
from rich.table import Table

#: Interval between two prints of the status line without a terminal.
PLAIN_EVERY_S = 3.0
PLAIN_WIDTH = 120


class ConsoleOutput:
    """Prints the progress of one run of the demo."""

    def __init__(self) -> None:
        console = Console()
        self.console = console if console.is_terminal else Console(width=PLAIN_WIDTH)
        self.live = console.is_terminal
        self.began = time.monotonic()
        self._status: Status | None = None
        self._printed = 0.0

    def step(self, text: str) -> None:
        """Prints a finished step."""
        self.console.print(f"[dim]{time.monotonic() - self.began:5.1f} s[/dim]  {text}", highlight=False)

    @contextmanager
    def doing(self, text: str) -> Iterator[None]:
        """Shows a status line during the block; `now` updates it."""
        self._printed = time.monotonic()
        if not self.live:
            self.step(f"{text} ...")
            yield
            return
        with self.console.status(text) as self._status:
            try:
                yield
            finally:
                self._status = None

    def now(self, text: str) -> None:
        """Updates the status line."""
        if self._status is not None:
            self._status.update(f"{text}  [dim]{time.monotonic() - self.began:.0f} s[/dim]")
        elif not self.live and time.monotonic() - self._printed >= PLAIN_EVERY_S:
            self._printed = time.monotonic()
            self.step(text)

    def table(self, title: str, names: list[str], rows: list[list[Any]]) -> None:
        """Prints a table with numbers aligned right."""
        table = Table(title=title, title_justify="left", title_style="bold", box=None, header_style="dim", pad_edge=False)
        for index, name in enumerate(names):
            numbers = bool(rows) and isinstance(rows[0][index], int | float)
            table.add_column(name, justify="right" if numbers else "left", no_wrap=True)
        for row in rows:
            table.add_row(*[_shown(value) for value in row])
        self.console.print()
        self.console.print(table)


def _shown(value: Any) -> str:
    match value:
        case None:
            return ""
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.2f}"
        case _:
            return str(value)
