"""The live view: four tables, which are filled anew after each measurement.

A measurement follows another after the interval, or ten times as long as it took, so that a large cluster is not kept busy by it. If no
broker answers, the view keeps the last figures and says so.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Input, Static

from ottla.aio import Admin
from ottla.cli.top.figures import (
    GROUP_ORDERS,
    TOPIC_ORDERS,
    Figures,
    broker_rows,
    group_rows,
    headline,
    moving_rows,
    read,
    topic_rows,
)
from ottla.client.admin.admin import Admin as AsyncAdmin
from ottla.console.watch.snapshot import Measured
from ottla.wire.errors import KafkaError

#: A measurement takes at most this share of the time.
BUSY_SHARE = 0.1
#: Timeout of a measurement's requests.
API_TIMEOUT_MS = 15_000
#: Columns of the tables by their id; those after "|" are aligned to the right.
COLUMNS: dict[str, tuple[str, ...]] = {
    "brokers": ("Broker", "Address", "Rack", "|Leads", "|Replicas", "|Behind", "|Stored", "|Records in"),
    "topics": ("Topic", "|Records in", "|Bytes in", "|Records", "|Size", "|Partitions", "Health"),
    "groups": ("Group", "State", "|Members", "|Lag", "|Time lag"),
    "moves": ("Partition", "New replicas", "Adds", "Removes", "Copied"),
}


class Top(App[None]):
    """The application. `interval_s`: between two measurements."""

    TITLE = "ottla top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #head { height: 1; text-style: bold; }
    #problem { height: auto; color: $error; display: none; }
    DataTable { height: auto; max-height: 40%; border-top: solid $primary; }
    #brokers { max-height: 25%; }
    #topics { height: 1fr; max-height: 100%; }
    #groups { height: 1fr; max-height: 100%; }
    #moves { max-height: 20%; }
    #search { display: none; dock: bottom; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("p", "pause", "Pause"),
        Binding("t", "order_topics", "Order of topics"),
        Binding("g", "order_groups", "Order of groups"),
        Binding("slash", "search", "Search"),
        Binding("escape", "leave_search", "All", show=False),
    ]

    def __init__(self, bootstrap: str, settings: Mapping[str, Any], *, interval_s: float) -> None:
        super().__init__()
        self._bootstrap = bootstrap
        self._settings = {"default_api_timeout_ms": API_TIMEOUT_MS, **settings}
        self._interval_s = interval_s
        self._topic_order, self._group_order = next(iter(TOPIC_ORDERS)), next(iter(GROUP_ORDERS))
        self._wanted = ""
        self._is_paused = False
        self.figures: Figures | None = None
        #: Set after each measurement.
        self.measured = asyncio.Event()

    def compose(self) -> ComposeResult:
        """One column: the headline, the tables, the keys."""
        yield Static("connecting", id="head", markup=False)
        yield Static("", id="problem", markup=False)
        for name in COLUMNS:
            yield DataTable(id=name, cursor_type="row", zebra_stripes=True)
        yield Input(placeholder="name contains", id="search")
        yield Footer()

    def on_mount(self) -> None:
        """Starts to measure."""
        for name, columns in COLUMNS.items():
            table = self._table(name)
            for column in columns:
                table.add_column(Text(column.removeprefix("|"), justify="right" if column.startswith("|") else "left"), key=column)
        self._titles()
        self.run_worker(self._measure(), name="measure", exit_on_error=True)

    async def _measure(self) -> None:
        before: Measured | None = None
        async with Admin(bootstrap_servers=self._bootstrap, client_id="ottla-top", **self._settings) as admin:
            while True:
                began_s = time.monotonic()
                if not self._is_paused:
                    before = await self._once(admin, before)
                    self.measured.set()
                took_s = time.monotonic() - began_s
                await asyncio.sleep(max(self._interval_s, took_s / BUSY_SHARE))

    async def _once(self, admin: AsyncAdmin, before: Measured | None) -> Measured | None:
        try:
            self.figures = await read(admin, before)
        except KafkaError as error:
            self._tell(f"{self._bootstrap} does not answer, trying again: {error}")
            return before
        self._tell("; ".join(self.figures.problems))
        self._show()
        return self.figures.snapshot.measured

    def _tell(self, problem: str) -> None:
        shown = self.query_one("#problem", Static)
        shown.update(problem)
        shown.display = bool(problem)

    def _show(self) -> None:
        if self.figures is None:
            return
        snapshot = self.figures.snapshot
        self.query_one("#head", Static).update(headline(self.figures) + ("  paused" if self._is_paused else ""))
        self._fill("brokers", broker_rows(snapshot.brokers))
        self._fill("topics", topic_rows(list(snapshot.topics.values()), self._topic_order, self._wanted))
        self._fill("groups", group_rows(self.figures.groups, self._group_order, self._wanted))
        moves = moving_rows(self.figures.moves)
        self._fill("moves", moves)
        self._table("moves").display = bool(moves)

    def _fill(self, name: str, rows: Sequence[tuple[str, ...]]) -> None:
        table, right = self._table(name), [column.startswith("|") for column in COLUMNS[name]]
        place = table.cursor_row
        scroll = table.scroll_offset
        table.clear()
        for row in rows:
            # Names are of others: they are no markup.
            table.add_row(*(Text(cell, justify="right" if is_right else "left") for cell, is_right in zip(row, right, strict=True)))
        if rows:
            table.move_cursor(row=min(place, len(rows) - 1), scroll=False)
            table.scroll_to(scroll.x, scroll.y, animate=False)

    def _titles(self) -> None:
        searched = f", name contains {self._wanted}" if self._wanted else ""
        self._table("brokers").border_title = Text("Brokers")
        self._table("topics").border_title = Text(f"Topics by {self._topic_order}{searched}")
        self._table("groups").border_title = Text(f"Groups by {self._group_order}{searched}")
        self._table("moves").border_title = Text("Reassignments")

    def _table(self, name: str) -> DataTable[Any]:
        found: DataTable[Any] = self.query_one(f"#{name}", DataTable)
        return found

    def _changed(self) -> None:
        self._titles()
        self._show()

    def action_pause(self) -> None:
        """Pauses or resumes the measurement."""
        self._is_paused = not self._is_paused
        self._changed()

    def action_order_topics(self) -> None:
        """The next order of topics."""
        self._topic_order = _after(list(TOPIC_ORDERS), self._topic_order)
        self._changed()

    def action_order_groups(self) -> None:
        """The next order of groups."""
        self._group_order = _after(list(GROUP_ORDERS), self._group_order)
        self._changed()

    def action_search(self) -> None:
        """Opens the search field."""
        search = self.query_one("#search", Input)
        search.display = True
        # At once, not in a later message: the next key belongs to the search.
        self.screen.set_focus(search)

    def action_leave_search(self) -> None:
        """Shows all names again."""
        search = self.query_one("#search", Input)
        search.value, search.display, self._wanted = "", False, ""
        self._table("topics").focus()
        self._changed()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Searches while the name is typed."""
        self._wanted = event.value.strip()
        self._changed()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keeps the search, and closes the field."""
        self.query_one("#search", Input).display = False
        self._table("topics").focus()


def _after(names: list[str], name: str) -> str:
    return names[(names.index(name) + 1) % len(names)]
