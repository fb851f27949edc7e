"""Terminal output of a pipeline: data is escaped, and no figure is truncated."""

import io
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console

from ottla.spark.pipeline.progress import BatchProgress, Screen

SHOW = Path(__file__).parents[2] / "examples" / "show.py"
#: rich's markup fails on unmatched closing tags, hides opening ones, and turns words between colons into emojis.
LIKE_MARKUP = ("[/usr/bin] x", "[error] disk", ":warning:", "[bold]")


def a_screen(width: int) -> tuple[Screen, io.StringIO]:
    screen, out = Screen(), io.StringIO()
    screen.console = Console(file=out, width=width, force_terminal=True, color_system=None)
    return screen, out


@pytest.mark.parametrize("value", LIKE_MARKUP)
def test_values_columns_titles_and_messages_are_shown_unchanged(value: str) -> None:
    screen, out = a_screen(120)
    screen.rows(f"title {value}", pa.table({f"column {value}": [f"cell {value}", None]}), 2)
    screen.emit("note", text=f"said {value}")
    for word in ("title", "column", "cell", "said"):
        assert f"{word} {value}" in out.getvalue()


def test_a_value_cannot_control_the_terminal() -> None:
    screen, out = a_screen(120)
    screen.rows("records", pa.table({"value": ["\x1b]0;mine\x07"]}), 1)
    assert "\x1b]0" not in out.getvalue()
    assert r"\x1b]0;mine\x07" in out.getvalue()


@pytest.mark.parametrize("value", LIKE_MARKUP)
def test_the_examples_show_values_unchanged(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from pyarrow import parquet

    parquet.write_table(pa.table({value: [f"cell {value}"]}), tmp_path / "part.parquet")
    monkeypatch.setattr(sys, "argv", ["show.py", str(tmp_path)])
    runpy.run_path(str(SHOW), run_name="__main__")
    heading, row = capsys.readouterr().out.splitlines()
    assert (heading.strip(), row.strip()) == (value, f"cell {value}")


def a_batch(query: str, **figures: Any) -> BatchProgress:
    made = {"rows_in": 123_456_789, "rows_out": 98_765_432, "rows_in_per_s": 1_234_567.0, "rows_out_per_s": 987_654.0, **figures}
    at, watermark = "2026-05-17T10:00:00.000Z", "2026-05-17T09:59:50.000Z"
    return BatchProgress(
        query, 12_345, at, batch_ms=100_200, lag=55_666_777, watermark=watermark, dead_letters=4_321, state_rows=7_654_321, **made
    )


WHOLE = (
    "12,345",
    "123,456,789",
    "98,765,432",
    "1,234,567",
    "987,654",
    "100,200 ms",
    "55,666,777",
    "4,321",
    "7,654,321",
    "2026-05-17 09:59:50",
)


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_every_figure_is_complete_at_any_width(width: int) -> None:
    screen, out = a_screen(width)
    for query in ("per_minute", "a view with a rather long name of its own"):
        screen.batch(a_batch(query))
    screen.console.print(screen._table())
    shown = out.getvalue()
    for figure in WHOLE:
        assert len(re.findall(rf"(?<![\d,]){re.escape(figure)}(?![\d,])", shown)) == 2, (figure, shown)
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= width
    assert shown.startswith("query") == (width == 200), "a table if it fits"


def test_small_figures_are_a_table_at_120_columns() -> None:
    screen, out = a_screen(120)
    screen.batch(a_batch("sums", rows_in=1_000, rows_out=10, rows_in_per_s=200.0, rows_out_per_s=2.0))
    screen.console.print(screen._table())
    heading, row = out.getvalue().splitlines()
    assert heading.split()[:3] == ["query", "batch", "rows"]
    assert row.split()[:6] == ["sums", "12,345", "1,000", "200", "10", "2"]
