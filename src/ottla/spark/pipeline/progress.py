"""The progress of a pipeline, from Spark's report of each batch.

On a terminal: a live table with a row per query, or lines per query if the table is too wide. Elsewhere: a line of JSON per batch with
rows, and for start and end. Lag is the number of records in the source's topics after the batch's end, at the time when the batch started.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ottla.spark.source.offset_ranges import offsets_in

#: Source partitions that are listed, those with the largest lag first.
PARTITIONS_SHOWN = 12
#: Wider than any terminal.
UNBOUNDED = 10_000


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """A finished batch of a query."""

    query: str
    batch: int
    #: ISO time of the batch's start, UTC.
    at: str
    rows_in: int
    rows_out: int
    rows_in_per_s: float
    rows_out_per_s: float
    batch_ms: int
    #: Records between the batch's end and the end of the log, over all topics; None until Spark knows the end of the log.
    lag: int | None
    #: ISO time; windows that end before are closed. None without a watermark.
    watermark: str | None = None
    #: Rows that became dead letters in this batch.
    dead_letters: int = 0
    #: Rows in the state of aggregates, joins and deduplication.
    state_rows: int = 0
    #: The same lag, by topic and partition.
    lags: Mapping[str, Mapping[str, int | None]] = field(default_factory=dict)
    #: Records read, by source: its topics, or Spark's description.
    rows_in_by_source: Mapping[str, int] = field(default_factory=dict)


def progress_of(query: str, report: Mapping[str, Any], rows_out: Mapping[int, int], dead: Mapping[int, int] | None = None) -> BatchProgress:
    """Spark's report of a batch, with the rows written and the dead letters by batch number."""
    batch, took_ms = int(report["batchId"]), int(report["batchDuration"])
    out = rows_out.get(batch, 0) if report["numInputRows"] or batch in rows_out else 0
    seconds = max(took_ms, 1) / 1000
    by_source = rows_by_source(report)
    rows = sum(by_source.values()) if by_source else int(report["numInputRows"])
    behind = lags(report)
    partition_lags = [lag for partitions in behind.values() for lag in partitions.values()]
    return BatchProgress(
        query=query,
        batch=batch,
        at=report["timestamp"],
        rows_in=rows,
        rows_out=out,
        rows_in_per_s=round(rows / seconds, 1),
        rows_out_per_s=round(out / seconds, 1),
        batch_ms=took_ms,
        lag=None if None in partition_lags else sum(filter(None, partition_lags)),
        watermark=dict(report.get("eventTime") or {}).get("watermark"),
        dead_letters=(dead or {}).get(batch, 0) if rows else 0,
        state_rows=sum(int(operator["numRowsTotal"]) for operator in report.get("stateOperators") or ()),
        lags=behind,
        rows_in_by_source=by_source,
    )


def rows_by_source(report: Mapping[str, Any]) -> dict[str, int]:
    """Records of the batch by source. Spark counts rows twice if a query reads a source twice, so offsets limit the number."""
    rows: dict[str, int] = {}
    for source in report["sources"]:
        counted = source.get("numInputRows")
        if counted is None:
            continue
        start, end = (offsets_in(source[name]) for name in ("startOffset", "endOffset"))
        name = ", ".join(sorted({tp.topic for tp in end})) if end else str(source.get("description", ""))
        if start and end:
            counted = min(counted, sum(max(0, offset - start.get(tp, 0)) for tp, offset in end.items()))
        rows[name] = max(int(counted), rows.get(name, 0))
    return rows


def lags(report: Mapping[str, Any]) -> dict[str, dict[str, int | None]]:
    """Records between the batch's end and the end of the log, by topic and partition; None while the end is unknown."""
    behind: dict[str, dict[str, int | None]] = {}
    for source in report["sources"]:
        end, latest = offsets_in(source["endOffset"]), offsets_in(source["latestOffset"])
        if end is None:
            continue
        # A retried batch after a restart has no latest offset.
        for tp, offset in sorted((end if latest is None else latest).items()):
            behind.setdefault(tp.topic, {})[str(tp.partition)] = None if latest is None else max(0, offset - end.get(tp, 0))
    return behind


class JsonLines:
    """One object per line: `event` is starting, started, progress, rows, note, retrying, stopping or stopped."""

    def __init__(self, out: TextIO = sys.stdout) -> None:
        self.out = out

    def __enter__(self) -> "JsonLines":
        return self

    def __exit__(self, *_: object) -> None:
        self.out.flush()

    def emit(self, event: str, **fields: Any) -> None:
        print(json.dumps({"event": event, **fields}), file=self.out, flush=True)

    def batch(self, progress: BatchProgress) -> None:
        if progress.rows_in or progress.rows_out:
            self.emit("progress", **asdict(progress))

    def rows(self, title: str, table: Any, total: int) -> None:
        self.emit("rows", title=title, total=total, rows=json.loads(json.dumps(table.to_pylist(), default=str)))


class Screen:
    """A live table on a terminal, with messages above it."""

    def __init__(self) -> None:
        self.console = Console(stderr=False)
        self.latest: dict[str, BatchProgress] = {}
        self.totals: dict[str, tuple[int, int, int]] = {}
        self.live = Live(self._table(), console=self.console, refresh_per_second=8, transient=False)

    def __enter__(self) -> "Screen":
        self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.update(self._table())
        self.live.stop()

    def emit(self, event: str, **fields: Any) -> None:
        text = " ".join(str(value) for value in fields.values())
        self.console.print(Text.assemble((event, "dim"), " ", escaped(text)))

    def batch(self, progress: BatchProgress) -> None:
        rows_in, rows_out, dead = self.totals.get(progress.query, (0, 0, 0))
        self.totals[progress.query] = rows_in + progress.rows_in, rows_out + progress.rows_out, dead + progress.dead_letters
        self.latest[progress.query] = progress
        self.live.update(self._table())

    def rows(self, title: str, table: Any, total: int) -> None:
        self.console.print(table_of(table, f"{title}, {total} rows"))

    def _table(self) -> Any:
        if not self.latest:
            return escaped("waiting for the first batch")
        behind = lag_summary(self.latest.values())
        figures = QueryFigures([(query, figures_of(last, *self.totals[query])) for query, last in self.latest.items()])
        return Group(figures, escaped(behind)) if behind else figures


def figures_of(last: BatchProgress, rows_in: int, rows_out: int, dead_letters: int) -> dict[str, str]:
    """A query's figures by heading: those of its last batch, and totals of all batches."""
    return {
        "batch": f"{last.batch:,}",
        "rows in": f"{rows_in:,}",
        "in/s": f"{round(last.rows_in_per_s):,}",
        "rows out": f"{rows_out:,}",
        "out/s": f"{round(last.rows_out_per_s):,}",
        "batch time": f"{last.batch_ms:,} ms",
        "lag": "unknown" if last.lag is None else f"{last.lag:,}",
        "dead letters": f"{dead_letters:,}",
        "state rows": f"{last.state_rows:,}",
        "watermark": (last.watermark or "")[:19].replace("T", " "),
    }


class QueryFigures:
    """Renders queries as a table if it fits into the width, else as lines per query, wrapped between figures. Nothing is cut."""

    def __init__(self, queries: Sequence[tuple[str, Mapping[str, str]]]) -> None:
        self.queries = queries

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "Iterator[RenderableType]":
        table = self._table()
        # rich limits the measure of a table to the given width.
        if console.measure(table, options=options.update(width=UNBOUNDED)).maximum <= options.max_width:
            yield table
        else:
            yield from self._lines(options.max_width)

    def _table(self) -> "Table":
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("query", no_wrap=True)
        for heading in self.queries[0][1]:
            table.add_column(heading, justify="right", no_wrap=True)
        for query, figures in self.queries:
            table.add_row(escaped(query), *figures.values())
        return table

    def _lines(self, width: int) -> "Iterator[RenderableType]":
        for query, figures in self.queries:
            yield escaped(query)
            line = Text(" ")
            for heading, figure in figures.items():
                if not figure:
                    continue
                part = Text.assemble(" ", (heading, "dim"), " ", figure)
                if line.cell_len + 1 + part.cell_len > width and line.cell_len > 1:
                    yield line
                    line = Text(" ")
                line = Text.assemble(line, " " if line.cell_len > 1 else "", part)
            yield line


def lag_summary(batches: Iterable[BatchProgress]) -> str:
    """The source partitions with a lag, in one line; empty without any."""
    lags: dict[str, int] = {}
    for batch in batches:
        for topic, partitions in batch.lags.items():
            for partition, behind in partitions.items():
                lags[f"{topic}-{partition}"] = max(behind or 0, lags.get(f"{topic}-{partition}", 0))
    late = sorted(((behind, name) for name, behind in lags.items() if behind), reverse=True)
    if not late:
        return ""
    shown = ", ".join(f"{name} {behind:,}" for behind, name in late[:PARTITIONS_SHOWN])
    more = f", and {len(late) - PARTITIONS_SHOWN} more" if len(late) > PARTITIONS_SHOWN else ""
    return f"behind: {shown}{more} (of {len(lags)} partitions)"


def escaped(text: str) -> Any:
    """Foreign text for rich: square brackets are not markup, and control characters are escaped."""
    return Text("".join(letter if letter.isprintable() or letter == "\n" else repr(letter)[1:-1] for letter in text))


def table_of(rows: Any, title: str) -> Any:
    """A rich table of an Arrow table."""
    shown = Table(title=escaped(title), title_justify="left")
    for name in rows.schema.names:
        shown.add_column(escaped(name), overflow="fold")
    for row in rows.to_pylist():
        shown.add_row(*[escaped("" if value is None else str(value)) for value in row.values()])
    return shown
