"""What a pipeline does, as Spark tells it after each batch, and as people and programs want to read it.

On a terminal: one live table, a row per query. Elsewhere: a line of JSON per batch that had rows, and the messages of start and end.
Lag is what the source's topics hold and the batch had not read, in records; it was true when the batch began.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TextIO

from ottla.spark.offsets import from_json


@dataclass(frozen=True, slots=True)
class Progress:
    """One batch of one query that has ended."""

    query: str
    batch: int
    #: ISO time at which the batch began, UTC.
    at: str
    rows_in: int
    rows_out: int
    rows_in_per_s: float
    rows_out_per_s: float
    batch_ms: int
    lag: int
    watermark: str | None = None
    #: Rows that became dead letters in this batch.
    dead_letters: int = 0


def progress_of(query: str, report: Mapping[str, Any], rows_out: Mapping[int, int], dead: Mapping[int, int] | None = None) -> Progress:
    """Spark's report of a batch, with the rows that its sinks took, and its dead letters."""
    batch, took_ms = int(report["batchId"]), int(report["batchDuration"])
    out = rows_out.get(batch, 0) if report["numInputRows"] or batch in rows_out else 0
    seconds = max(took_ms, 1) / 1000
    rows = int(report["numInputRows"])
    watermark = dict(report.get("eventTime") or {}).get("watermark")
    return Progress(
        query=query,
        batch=batch,
        at=report["timestamp"],
        rows_in=rows,
        rows_out=out,
        rows_in_per_s=round(rows / seconds, 1),
        rows_out_per_s=round(out / seconds, 1),
        batch_ms=took_ms,
        lag=lag(report),
        watermark=watermark,
        dead_letters=(dead or {}).get(batch, 0) if rows else 0,
    )


def lag(report: Mapping[str, Any]) -> int:
    """Records between the batch's end and the end of the log, over all sources."""
    behind = 0
    for source in report["sources"]:
        # A batch that is run again after a restart has no latest offset.
        end, latest = (from_json(_decoded(source[name]) or {}) for name in ("endOffset", "latestOffset"))
        behind += sum(max(0, offset - end.get(tp, 0)) for tp, offset in latest.items())
    return behind


def _decoded(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


class JsonLines:
    """One object per line: `event` is started, progress, message or stopped."""

    def __init__(self, out: TextIO = sys.stdout) -> None:
        self.out = out

    def __enter__(self) -> "JsonLines":
        return self

    def __exit__(self, *_: object) -> None:
        self.out.flush()

    def say(self, event: str, **fields: Any) -> None:
        print(json.dumps({"event": event, **fields}), file=self.out, flush=True)

    def batch(self, progress: Progress) -> None:
        if progress.rows_in or progress.rows_out:
            self.say("progress", **asdict(progress))

    def rows(self, title: str, table: Any, total: int | None) -> None:
        self.say("rows", title=title, total=total, rows=json.loads(json.dumps(table.to_pylist(), default=str)))


class Screen:
    """A live table on a terminal, with messages above it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self.console = Console(stderr=False)
        self.latest: dict[str, Progress] = {}
        self.totals: dict[str, tuple[int, int]] = {}
        self.live = Live(self._table(), console=self.console, refresh_per_second=8, transient=False)

    def __enter__(self) -> "Screen":
        self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.update(self._table())
        self.live.stop()

    def say(self, event: str, **fields: Any) -> None:
        told = " ".join(str(value) for value in fields.values())
        self.console.print(f"[dim]{event}[/dim] {told}", highlight=False)

    def batch(self, progress: Progress) -> None:
        rows_in, rows_out = self.totals.get(progress.query, (0, 0))
        self.totals[progress.query] = rows_in + progress.rows_in, rows_out + progress.rows_out
        self.latest[progress.query] = progress
        self.live.update(self._table())

    def rows(self, title: str, table: Any, total: int | None) -> None:
        self.console.print(table_of(table, title if total is None else f"{title}, {total} rows"))

    def _table(self) -> Any:
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="dim")
        for name in ("query", "batch", "rows in", "in/s", "rows out", "out/s", "batch time", "lag"):
            table.add_column(name, justify="left" if name == "query" else "right")
        for query, last in self.latest.items():
            rows_in, rows_out = self.totals[query]
            figures = (last.batch, rows_in, round(last.rows_in_per_s), rows_out, round(last.rows_out_per_s))
            table.add_row(query, *[f"{figure:,}" for figure in figures], f"{last.batch_ms} ms", f"{last.lag:,}")
        if not self.latest:
            table.add_row("waiting for the first batch", *[""] * 7)
        return table


def table_of(rows: Any, title: str) -> Any:
    """A rich table of an Arrow table."""
    from rich.table import Table

    shown = Table(title=title, title_justify="left")
    for name in rows.schema.names:
        shown.add_column(name)
    for row in rows.to_pylist():
        shown.add_row(*["" if value is None else str(value) for value in row.values()])
    return shown
