"""Tables: aligned and no wider than the terminal, or tab-separated lines in a pipe.

    NAME      PARTITIONS  REPLICAS        orders<TAB>3<TAB>1
    orders             3         1

Columns are declared over the documents that `-o json` prints, so all output formats have the same content. On a terminal, the widest text
columns of a too wide table shrink and their cells fold at commas and blanks. If that is not enough, each row becomes a block with one line
per cell. In a pipe nothing is folded, headings are printed only on request, and a missing value is an empty cell. Tabs, backslashes and
newlines in a cell are written `\\t`, `\\\\` and `\\n`.

Colours are for terminals only, and off with NO_COLOR (https://no-color.org) or TERM=dumb.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

Row = Mapping[str, Any]
GAP = "  "
#: A missing value on a terminal.
NOTHING = "-"
#: Minimum width of a folded text column, in characters.
FOLDED_MIN = 12


class Column(NamedTuple):
    """A column: its heading, and the field of a document that it shows, or a function of the document."""

    heading: str
    cell: str | Callable[[Row], object]
    #: Right-aligned and never folded.
    number: bool = False
    #: Only with `-o wide`.
    wide: bool = False
    #: Colour of the cell for a document, or None.
    colour: Callable[[Row], str | None] | None = None

    def of(self, row: Row) -> object:
        """The value for a document."""
        return row[self.cell] if isinstance(self.cell, str) else self.cell(row)


def is_terminal() -> bool:
    """Whether standard output is a terminal."""
    return sys.stdout.isatty()


def has_colours() -> bool:
    """Whether to print colours."""
    return is_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def terminal_columns() -> int:
    """Width of the terminal in characters."""
    from shutil import get_terminal_size

    return get_terminal_size().columns


def text(cell: object) -> str:
    """A cell as text: lists with commas, "" for None, true and false as Kafka writes them."""
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, list | tuple):
        return ",".join(str(part) for part in cell)
    return str(cell)


def tab_separated(
    columns: Sequence[Column], rows: Iterable[Row], *, headings: bool = False, prefix: tuple[str, object] | None = None
) -> str:
    """Tab-separated lines. `prefix`, (heading, value), is a first column; it replaces the title that the table has on a terminal."""
    all_columns = list(columns) if prefix is None else [Column(prefix[0], lambda row: prefix[1]), *columns]
    lines = ["\t".join(column.heading for column in all_columns)] if headings else []
    lines += ["\t".join(_escaped(text(column.of(row))) for column in all_columns) for row in rows]
    return "".join(line + "\n" for line in lines)


def _escaped(cell: str) -> str:
    if cell.isprintable() and "\\" not in cell:
        return cell
    return cell.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")


def aligned(
    columns: Sequence[Column], rows: Iterable[Row], *, title: str = "", headings: bool = True, width: int = 80, colours: bool = False
) -> str:
    """The table for a terminal that is `width` characters wide."""
    listed = list(rows)
    cells = [[_printable(text(column.of(row))) or NOTHING for column in columns] for row in listed]
    paints = [[column.colour and column.colour(row) for column in columns] for row in listed]
    headings = headings and any(column.heading for column in columns)
    widths = _fit_widths(columns, cells, width, headings=headings)
    lines = [_styled(part, "bold", colours) for part in folded(title, width)] if title else []
    if widths is None:
        lines += _blocks(columns, cells, paints, width, colours)
    else:
        if headings:
            lines.append(_styled(_line([column.heading for column in columns], columns, widths), "bold", colours))
        for row, paint in zip(cells, paints, strict=True):
            parts = [folded(cell, size) for cell, size in zip(row, widths, strict=True)]
            for number in range(max(map(len, parts), default=0)):
                shown = [part[number] if number < len(part) else "" for part in parts]
                lines.append(_line(shown, columns, widths, paint if colours else None))
    return "".join(line + "\n" for line in lines)


def folded(cell: str, width: int) -> list[str]:
    """The text in pieces of at most `width`, cut after commas and blanks where possible."""
    pieces = []
    while display_width(cell) > width:
        cut = _characters(cell, width)
        at = max(cell.rfind(",", 0, cut), cell.rfind(" ", 0, cut + 1))
        cut = at + 1 if at > 0 else cut
        pieces.append(cell[:cut].rstrip())
        cell = cell[cut:].lstrip()
    return [*pieces, cell]


def display_width(shown: str) -> int:
    """Columns that a text takes on a terminal: two for a wide character, none for a combining one."""
    if shown.isascii():
        return len(shown)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(letter) else 2 if east_asian_width(letter) in "WF" else 1 for letter in shown)


def _characters(shown: str, width: int) -> int:
    """The number of characters of a text that fit into `width` columns; at least one."""
    if shown.isascii():
        return max(width, 1)
    count = 1
    while count < len(shown) and display_width(shown[: count + 1]) <= width:
        count += 1
    return count


def _printable(cell: str) -> str:
    """The text with unprintable characters escaped: they could move the cursor."""
    return cell if cell.isprintable() else "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in cell)


def _fit_widths(columns: Sequence[Column], cells: Sequence[Sequence[str]], width: int, *, headings: bool) -> list[int] | None:
    """The width of each column; None if the terminal is too narrow."""
    least = [len(column.heading) if headings else 1 for column in columns]
    widths = [max([low, *(display_width(row[index]) for row in cells)]) for index, low in enumerate(least)]
    lows = [
        natural if column.number else min(natural, max(low, FOLDED_MIN))
        for column, natural, low in zip(columns, widths, least, strict=True)
    ]
    left = width - len(GAP) * (len(columns) - 1)
    while (over := sum(widths) - left) > 0:
        loose = [index for index, size in enumerate(widths) if size > lows[index]]
        if not loose:
            return None
        widest = max(loose, key=lambda index: widths[index])
        # Shrink to the next widest column, or as far as needed.
        others = [widths[index] for index in loose if widths[index] < widths[widest]]
        floor = max([lows[widest], *others]) if others else lows[widest]
        widths[widest] -= max(min(over, widths[widest] - floor), 1)
    return widths


def _line(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int], paints: Sequence[str | None] | None = None) -> str:
    parts = []
    for index, (cell, column, width) in enumerate(zip(cells, columns, widths, strict=True)):
        blank = " " * (width - display_width(cell))
        shown = _styled(cell, paints[index], True) if paints is not None else cell
        last = index == len(columns) - 1
        parts.append(blank + shown if column.number else shown if last else shown + blank)
    return GAP.join(parts).rstrip()


def _blocks(
    columns: Sequence[Column], cells: Sequence[Sequence[str]], paints: Sequence[Sequence[str | None]], width: int, colours: bool
) -> list[str]:
    heading_width = max(len(column.heading) for column in columns)
    lines: list[str] = []
    for row, paint in zip(cells, paints, strict=True):
        if lines:
            lines.append("")
        for column, cell, colour in zip(columns, row, paint, strict=True):
            for number, part in enumerate(folded(cell, max(width - heading_width - len(GAP), 8))):
                heading = _styled("" if number else column.heading, "bold", colours)
                blank = " " * (heading_width - (0 if number else len(column.heading)))
                lines.append(heading + blank + GAP + _styled(part, colour, colours))
    return lines


def _styled(shown: str, colour: str | None, colours: bool) -> str:
    if not colours or not colour or not shown:
        return shown
    from click import style

    return style(shown, bold=True) if colour == "bold" else style(shown, dim=True) if colour == "dim" else style(shown, fg=colour)
