"""What a pipeline does, as Spark tells it after each batch, and as people and programs want to read it.

On a terminal: one live table, a row per query, or lines per query where that is too wide. Elsewhere: a line of JSON per batch that had
rows, and the messages of start and end.
Lag is what the source's topics hold and the batch had not read, in records; it was true when the batch began.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, TextIO

from ottla.base.ids import TopicPartition
from ottla.spark.source.offset_ranges import OffsetsError, from_json

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table

#: Source partitions that are shown one by one; of more, the ones that are furthest behind.
PARTITIONS_SHOWN = 12
#: Wider than any terminal.
UNBOUNDED = 10_000


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
    #: Records between the batch's end and the end of the log, over all topics; None until Spark has asked for the end of the log.
    lag: int | None
    #: ISO time; windows that end before are closed. None without a watermark.
    watermark: str | None = None
    #: Rows that became dead letters in this batch.
    dead_letters: int = 0
    #: Rows that aggregates, joins and deduplication keep.
    state_rows: int = 0
    #: The same lag, by topic and partition.
    lags: Mapping[str, Mapping[str, int | None]] = field(default_factory=dict)
    #: The records that were read, by source: its topics, or Spark's description.
    rows_in_by_source: Mapping[str, int] = field(default_factory=dict)


def progress_of(query: str, report: Mapping[str, Any], rows_out: Mapping[int, int], dead: Mapping[int, int] | None = None) -> Progress:
    """Spark's report of a batch, with the rows that its sinks took, and its dead letters."""
    batch, took_ms = int(report["batchId"]), int(report["batchDuration"])
    out = rows_out.get(batch, 0) if report["numInputRows"] or batch in rows_out else 0
    seconds = max(took_ms, 1) / 1000
    by_source = rows_by_source(report)
    rows = sum(by_source.values()) if by_source else int(report["numInputRows"])
    behind = lags(report)
    waiting = [lag for partitions in behind.values() for lag in partitions.values()]
    return Progress(
        query=query,
        batch=batch,
        at=report["timestamp"],
        rows_in=rows,
        rows_out=out,
        rows_in_per_s=round(rows / seconds, 1),
        rows_out_per_s=round(out / seconds, 1),
        batch_ms=took_ms,
        lag=None if None in waiting else sum(filter(None, waiting)),
        watermark=dict(report.get("eventTime") or {}).get("watermark"),
        dead_letters=(dead or {}).get(batch, 0) if rows else 0,
        state_rows=sum(int(operator["numRowsTotal"]) for operator in report.get("stateOperators") or ()),
        lags=behind,
        rows_in_by_source=by_source,
    )


def rows_by_source(report: Mapping[str, Any]) -> dict[str, int]:
    """Records of the batch by source. A query that reads a source in two places counts its rows twice: offsets bound them."""
    rows: dict[str, int] = {}
    for source in report["sources"]:
        counted = source.get("numInputRows")
        if counted is None:
            continue
        start, end = (_offsets(source[name]) for name in ("startOffset", "endOffset"))
        name = ", ".join(sorted({tp.topic for tp in end})) if end else str(source.get("description", ""))
        if start and end:
            counted = min(counted, sum(max(0, offset - start.get(tp, 0)) for tp, offset in end.items()))
        rows[name] = max(int(counted), rows.get(name, 0))
    return rows


def _offsets(value: Any) -> dict[TopicPartition, int] | None:
    """Offsets by partition; None where there are none, or of a source that has no partitions, such as files."""
    try:
        return from_json(_decoded(value) or {}) if value is not None else None
    except (OffsetsError, ValueError):
        return None


def lags(report: Mapping[str, Any]) -> dict[str, dict[str, int | None]]:
    """Records between the batch's end and the end of the log, by topic and partition; None where the end of the log is not known yet."""
    behind: dict[str, dict[str, int | None]] = {}
    for source in report["sources"]:
        end, latest = _offsets(source["endOffset"]), _offsets(source["latestOffset"])
        if end is None:
            continue
        # A batch that is run again after a restart has no latest offset.
        for tp, offset in sorted((end if latest is None else latest).items()):
            behind.setdefault(tp.topic, {})[str(tp.partition)] = None if latest is None else max(0, offset - end.get(tp, 0))
    return behind


def _decoded(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


class JsonLines:
    """One object per line: `event` is starting, started, progress, rows, note, retrying, stopping or stopped."""

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

    def rows(self, title: str, table: Any, total: int) -> None:
        self.say("rows", title=title, total=total, rows=json.loads(json.dumps(table.to_pylist(), default=str)))


class Screen:
    """A live table on a terminal, with messages above it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self.console = Console(stderr=False)
        self.latest: dict[str, Progress] = {}
        self.totals: dict[str, tuple[int, int, int]] = {}
        self.live = Live(self._table(), console=self.console, refresh_per_second=8, transient=False)

    def __enter__(self) -> "Screen":
        self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.update(self._table())
        self.live.stop()

    def say(self, event: str, **fields: Any) -> None:
        from rich.text import Text

        told = " ".join(str(value) for value in fields.values())
        self.console.print(Text.assemble((event, "dim"), " ", as_it_is(told)))

    def batch(self, progress: Progress) -> None:
        rows_in, rows_out, dead = self.totals.get(progress.query, (0, 0, 0))
        self.totals[progress.query] = rows_in + progress.rows_in, rows_out + progress.rows_out, dead + progress.dead_letters
        self.latest[progress.query] = progress
        self.live.update(self._table())

    def rows(self, title: str, table: Any, total: int) -> None:
        self.console.print(table_of(table, f"{title}, {total} rows"))

    def _table(self) -> Any:
        from rich.console import Group

        if not self.latest:
            return as_it_is("waiting for the first batch")
        behind = furthest_behind(self.latest.values())
        figures = Figures([(query, figures_of(last, *self.totals[query])) for query, last in self.latest.items()])
        return Group(figures, as_it_is(behind)) if behind else figures


def figures_of(last: Progress, rows_in: int, rows_out: int, dead_letters: int) -> dict[str, str]:
    """What is shown of a query, by heading: its last batch, and sums of all of them."""
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


class Figures:
    """Figures of queries: a table where it fits into the width, else lines for each query, broken between figures. None is ever cut."""

    def __init__(self, queries: Sequence[tuple[str, Mapping[str, str]]]) -> None:
        self.queries = queries

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "Iterator[RenderableType]":
        table = self._table()
        # A table of rich measures itself within the width it is given.
        if console.measure(table, options=options.update(width=UNBOUNDED)).maximum <= options.max_width:
            yield table
        else:
            yield from self._lines(options.max_width)

    def _table(self) -> "Table":
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("query", no_wrap=True)
        for heading in self.queries[0][1]:
            table.add_column(heading, justify="right", no_wrap=True)
        for query, figures in self.queries:
            table.add_row(as_it_is(query), *figures.values())
        return table

    def _lines(self, width: int) -> "Iterator[RenderableType]":
        from rich.text import Text

        for query, figures in self.queries:
            yield as_it_is(query)
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


def furthest_behind(batches: Iterable[Progress]) -> str:
    """Which source partitions are behind, in one line: all of them where they are few; empty when none is."""
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


def as_it_is(text: str) -> Any:
    """What somebody else wrote, for rich: square brackets are no markup, and what a terminal would obey is shown escaped."""
    from rich.text import Text

    return Text("".join(letter if letter.isprintable() or letter == "\n" else repr(letter)[1:-1] for letter in text))


def table_of(rows: Any, title: str) -> Any:
    """A rich table of an Arrow table."""
    from rich.table import Table

    shown = Table(title=as_it_is(title), title_justify="left")
    for name in rows.schema.names:
        shown.add_column(as_it_is(name), overflow="fold")
    for row in rows.to_pylist():
        shown.add_row(*[as_it_is("" if value is None else str(value)) for value in row.values()])
    return shown
