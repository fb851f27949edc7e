"""The two demonstrations: telemetry of this machine, and a web server's log."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: How long records are produced: several windows, and well within a minute and a half with everything around it.
FEED_S = 30.0
BUSIEST = 8

Shown = tuple[str, list[str], list[list[Any]]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is fed, through which pipeline."""

    name: str
    what: str
    file: Path
    input: Path | None
    seconds: float

    @property
    def topic(self) -> str:
        return self.name

    @property
    def result_topic(self) -> str:
        return f"{self.name}-results"

    def records(self) -> Iterator[tuple[bytes, bytes]]:
        """The feed. Raises: OSError when the input cannot be read."""
        if self.input is not None:
            from ottla.demo.weblog import weblog

            return weblog(self.input, self.seconds)
        from ottla.demo.telemetry import telemetry

        return telemetry(self.seconds)

    def shown(self, table: Any) -> list[Shown]:
        """Tables made of the result, to be looked at."""
        return _of_weblog(table) if self.input is not None else _of_telemetry(table)


def scenario(input_file: Path | None, seconds: float | None) -> Scenario:
    """The scenario for `make demo` with or without a file."""
    here = Path(__file__).parent
    if input_file is None:
        return Scenario("telemetry", "telemetry of this machine", here / "telemetry.toml", None, seconds or FEED_S)
    return Scenario("weblog", f"the web log {input_file}", here / "weblog.toml", input_file, seconds or FEED_S / 2)


def _of_telemetry(table: Any) -> list[Shown]:
    """The last window that is complete: the one before the newest."""
    windows = sorted(set(table.column("window_start").to_pylist()))
    chosen = windows[-2] if len(windows) > 1 else windows[-1]
    rows = [row for row in table.to_pylist() if row["window_start"] == chosen]
    names = ["kind", "metric", "records", "mean", "peak", "highest"]
    shown = [[row[name] for name in names] for row in sorted(rows, key=lambda row: (row["kind"], row["metric"]))]
    title = f"{len(windows)} windows of 5 s in the Delta table; the one at {chosen:%H:%M:%S} UTC"
    return [(title, names, shown)]


def _of_weblog(table: Any) -> list[Shown]:
    """Totals by class of status, and the minutes with most requests."""
    classes = table.group_by("status_class").aggregate([("records", "sum"), ("bytes", "sum"), ("minute", "count_distinct")])
    totals = [[row["status_class"], row["records_sum"], row["bytes_sum"], row["minute_count_distinct"]] for row in classes.to_pylist()]
    minutes = table.group_by("minute").aggregate([("records", "sum"), ("bytes", "sum")]).sort_by([("records_sum", "descending")])
    busiest = [[f"{row['minute']:%Y-%m-%d %H:%M}", row["records_sum"], row["bytes_sum"]] for row in minutes.slice(0, BUSIEST).to_pylist()]
    return [
        ("Requests by class of status", ["status", "requests", "bytes", "minutes"], sorted(totals)),
        ("The busiest minutes", ["minute", "requests", "bytes"], busiest),
    ]
