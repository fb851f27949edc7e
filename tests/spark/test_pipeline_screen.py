"""What a terminal shows of a pipeline: data as it is, and every figure whole."""

import io
import runpy
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from rich.console import Console

from ottla.spark.pipeline.progress import Screen

SHOW = Path(__file__).parents[2] / "examples" / "show.py"
#: Closing tags of nothing are errors of rich's markup, opening ones vanish, words between colons become pictures.
LIKE_MARKUP = ("[/usr/bin] x", "[error] disk", ":warning:", "[bold]")


def a_screen(width: int) -> tuple[Screen, io.StringIO]:
    screen, out = Screen(), io.StringIO()
    screen.console = Console(file=out, width=width, force_terminal=True, color_system=None)
    return screen, out


@pytest.mark.parametrize("value", LIKE_MARKUP)
def test_values_columns_titles_and_messages_are_shown_as_they_are(value: str) -> None:
    screen, out = a_screen(120)
    screen.rows(f"title {value}", pa.table({f"column {value}": [f"cell {value}", None]}), 2)
    screen.say("note", text=f"said {value}")
    for word in ("title", "column", "cell", "said"):
        assert f"{word} {value}" in out.getvalue()


def test_a_value_cannot_speak_to_the_terminal() -> None:
    screen, out = a_screen(120)
    screen.rows("records", pa.table({"value": ["\x1b]0;mine\x07"]}), 1)
    assert "\x1b]0" not in out.getvalue()
    assert r"\x1b]0;mine\x07" in out.getvalue()


@pytest.mark.parametrize("value", LIKE_MARKUP)
def test_the_examples_show_values_as_they_are(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from pyarrow import parquet

    parquet.write_table(pa.table({value: [f"cell {value}"]}), tmp_path / "part.parquet")
    monkeypatch.setattr(sys, "argv", ["show.py", str(tmp_path)])
    runpy.run_path(str(SHOW), run_name="__main__")
    heading, row = capsys.readouterr().out.splitlines()
    assert (heading.strip(), row.strip()) == (value, f"cell {value}")
