"""The two scenarios: telemetry of this machine, and a web server's log."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: How long records are produced: several windows, and the whole demo takes less than 90 s.
FEED_S = 30.0
BUSIEST = 8
#: Lines of the log between two checks of the clock.
STRIDE = 100

SummaryTable = tuple[str, list[str], list[list[Any]]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """The records and the pipeline of a demo."""

    name: str
    description: str
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
        """The records to send. Raises: OSError if the input cannot be read."""
        if self.input is not None:
            return weblog(self.input, self.seconds)
        from ottla.demo.telemetry import telemetry

        return telemetry(self.seconds)

    def summary_tables(self, table: Any) -> list[SummaryTable]:
        """Tables that summarize the result."""
        return _weblog_tables(table) if self.input is not None else _telemetry_tables(table)


def make_scenario(input_file: Path | None, seconds: float | None) -> Scenario:
    """The scenario for `make demo` with or without a file."""
    folder = Path(__file__).parent
    if input_file is None:
        return Scenario("telemetry", "telemetry of this machine", folder / "telemetry.toml", None, seconds or FEED_S)
    return Scenario("weblog", f"the web log {input_file}", folder / "weblog.toml", input_file, seconds or FEED_S / 2)


def weblog(path: Path, seconds: float) -> Iterator[tuple[bytes, bytes]]:
    """Every line of the file in order, keyed by client address, spread evenly over `seconds`. Raises: OSError."""
    size = path.stat().st_size
    began = time.monotonic()
    done = 0
    with path.open("rb") as lines:
        for number, line in enumerate(lines):
            done += len(line)
            text = line.rstrip(b"\r\n")
            yield text.partition(b" ")[0], text
            if number % STRIDE == 0:
                due = began + seconds * done / size
                time.sleep(max(0.0, due - time.monotonic()))


def _telemetry_tables(table: Any) -> list[SummaryTable]:
    """The last complete window: the second newest."""
    windows = sorted(set(table.column("window_start").to_pylist()))
    chosen = windows[-2] if len(windows) > 1 else windows[-1]
    rows = [row for row in table.to_pylist() if row["window_start"] == chosen]
    names = ["kind", "metric", "records", "mean", "peak", "highest"]
    shown = [[row[name] for name in names] for row in sorted(rows, key=lambda row: (row["kind"], row["metric"]))]
    title = f"{len(windows)} windows of 5 s in the Delta table; the one at {chosen:%H:%M:%S} UTC"
    return [(title, names, shown)]


def _weblog_tables(table: Any) -> list[SummaryTable]:
    """Totals by status class, and the minutes with the most requests."""
    classes = table.group_by("status_class").aggregate([("records", "sum"), ("bytes", "sum"), ("minute", "count_distinct")])
    totals = [[row["status_class"], row["records_sum"], row["bytes_sum"], row["minute_count_distinct"]] for row in classes.to_pylist()]
    minutes = table.group_by("minute").aggregate([("records", "sum"), ("bytes", "sum")]).sort_by([("records_sum", "descending")])
    busiest = [[f"{row['minute']:%Y-%m-%d %H:%M}", row["records_sum"], row["bytes_sum"]] for row in minutes.slice(0, BUSIEST).to_pylist()]
    return [
        ("Requests by class of status", ["status", "requests", "bytes", "minutes"], sorted(totals)),
        ("The busiest minutes", ["minute", "requests", "bytes"], busiest),
    ]
