"""Tables: output of the same rows on a terminal and in a pipe."""

from __future__ import annotations

import pytest

from ottla.cli.common import tables
from ottla.cli.common.output_formats import OutputFormat
from ottla.cli.common.tables import Column, aligned, tab_separated

COLUMNS = (Column("NAME", "name"), Column("COUNT", "count", number=True), Column("WORDS", "words"))
ROWS = [
    {"name": "orders", "count": 12, "words": ["one", "two"]},
    {"name": "a", "count": None, "words": []},
]


def test_a_table_is_aligned_with_numbers_to_the_right_and_marks_empty_cells() -> None:
    assert aligned(COLUMNS, ROWS).splitlines() == [  # type: ignore[arg-type]
        "NAME    COUNT  WORDS",
        "orders     12  one,two",
        "a           -  -",
    ]


def test_a_pipe_gets_tabs_and_headings_on_request() -> None:
    assert tab_separated(COLUMNS, ROWS) == "orders\t12\tone,two\na\t\t\n"  # type: ignore[arg-type]
    assert tab_separated(COLUMNS, ROWS, headings=True).startswith("NAME\tCOUNT\tWORDS\norders")  # type: ignore[arg-type]
    assert tab_separated(COLUMNS[:1], ROWS, headings=True, prefix=("OF", 7)) == "OF\tNAME\n7\torders\n7\ta\n"  # type: ignore[arg-type]


def test_tables_in_a_pipe_have_headings_once_for_consecutive_tables_with_the_same_columns() -> None:
    output = OutputFormat()
    assert output.rendered(ROWS[:1], COLUMNS[:2]) == "NAME\tCOUNT\norders\t12\n"  # type: ignore[arg-type]
    assert output.rendered(ROWS[1:], COLUMNS[:2]) == "a\t\n"  # type: ignore[arg-type]
    assert output.rendered(ROWS[:1], COLUMNS[:1]) == "NAME\norders\n"  # type: ignore[arg-type]
    assert OutputFormat(headings=False).rendered(ROWS[:1], COLUMNS[:1]) == "orders\n"  # type: ignore[arg-type]
    assert OutputFormat().rendered([{"a": 1}], [Column("", "a")]) == "1\n", "columns without names have no line of headings"


def test_a_row_in_a_pipe_is_one_line_whatever_its_cells_contain() -> None:
    assert tab_separated(COLUMNS[:1], [{"name": "a\tb\nc\\d"}]) == "a\\tb\\nc\\\\d\n"


def test_booleans_are_written_as_in_kafka() -> None:
    assert [tables.text(True), tables.text(False), tables.text(0), tables.text(None)] == ["true", "false", "0", ""]


@pytest.mark.parametrize("width", [80, 40, 30, 24])
def test_a_table_is_never_wider_than_the_terminal(width: int) -> None:
    rows = [{"name": "orders.of.the.east", "count": 123456, "words": ["alpha", "beta", "gamma", "delta", "epsilon", "zeta"]}]
    lines = aligned(COLUMNS, rows, width=width, title="a title that is longer than the narrowest of terminals").splitlines()
    name = "orders.of.the.east"
    assert max(len(line) for line in lines if name not in line) <= width
    assert any(name in line for line in lines), "a name is on one line"
    # Wrapping loses no text.
    text = "".join("".join(lines).split())
    assert "123456" in text
    for word in ("alpha", "epsilon", "zeta"):
        assert word in text


def test_the_widest_column_wraps_first_and_numbers_never_wrap() -> None:
    rows = [{"name": "orders", "count": 123456, "words": ["alpha", "beta", "gamma", "delta"]}]
    assert aligned(COLUMNS, rows, width=30).splitlines() == [
        "NAME     COUNT  WORDS",
        "orders  123456  alpha, beta,",
        "                gamma, delta",
    ]


def test_rows_that_cannot_fit_become_a_block_each() -> None:
    assert aligned(COLUMNS, ROWS, width=20).splitlines() == [  # type: ignore[arg-type]
        "NAME   orders",
        "COUNT  12",
        "WORDS  one, two",
        "",
        "NAME   a",
        "COUNT  -",
        "WORDS  -",
    ]


def test_text_wraps_between_words() -> None:
    rows = [{"name": "some words here", "count": 123456}, {"name": "abcdefghijk", "count": 1}]
    assert aligned(COLUMNS[:2], rows, width=20).splitlines()[1:] == ["some words    123456", "here", "abcdefghijk        1"]


def test_a_name_is_never_broken() -> None:
    """It could not be copied. The table becomes blocks, and a line may be longer than the terminal."""
    rows = [{"name": "abcdefghijklmnopq", "count": 123456}, {"name": "x" * 30, "count": 1}]
    assert aligned(COLUMNS[:2], rows, width=24).splitlines() == [
        "NAME   abcdefghijklmnopq",
        "COUNT  123456",
        "",
        "NAME   " + "x" * 30,
        "COUNT  1",
    ]


def test_wide_characters_take_two_columns() -> None:
    assert aligned(COLUMNS[:2], [{"name": "日本", "count": 1}, {"name": "abcd", "count": 2}]).splitlines()[1:] == [
        "日本      1",
        "abcd      2",
    ]


def test_control_characters_are_escaped() -> None:
    assert "\x1b" not in aligned(COLUMNS[:1], [{"name": "\x1b[2Jbye"}])


def test_colours_appear_on_request_and_take_no_width() -> None:
    columns = (Column("A", "a", colour=lambda row: "red"), Column("B", "b"))
    painted = aligned(columns, [{"a": "x", "b": "y"}], colours=True)
    assert "\x1b[31mx\x1b[0m  y" in painted
    assert "\x1b" not in aligned(columns, [{"a": "x", "b": "y"}])


@pytest.mark.parametrize(
    ("environment", "expected"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False), ({"NO_COLOR": ""}, True)]
)
def test_colours_are_for_terminals_without_no_color(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: bool) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(tables, "is_terminal", lambda: True)
    assert tables.has_colours() is expected
    monkeypatch.setattr(tables, "is_terminal", lambda: False)
    assert not tables.has_colours()
