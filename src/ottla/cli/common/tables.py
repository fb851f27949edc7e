"""Tables: aligned and no wider than the terminal, or tab-separated lines in a pipe.

    NAME      PARTITIONS  REPLICAS        NAME<TAB>PARTITIONS<TAB>REPLICAS
    orders             3         1        orders<TAB>3<TAB>1

Columns are declared over the documents that `-o json` prints, so all output formats have the same content. On a terminal, rich draws the
table: the widest text columns of a too wide table shrink and their cells fold at blanks. If that is not enough, each row becomes a block
with one line per cell. A word is never broken, so that names and ids can be copied: a word wider than the terminal makes its line longer.
In a pipe nothing is folded, and a missing value is an empty cell. Tabs, backslashes and newlines in a cell are
written `\\t`, `\\\\` and `\\n`.

Colours are for terminals only, and off with NO_COLOR (https://no-color.org) or TERM=dumb.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from rich.text import Text

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


#: A partition.
PLACE = (Column("TOPIC", "topic"), Column("PARTITION", "partition", number=True))


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
    headings = headings and any(column.heading for column in columns)
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
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    listed = list(rows)
    headings = headings and any(column.heading for column in columns)
    gaps = len(GAP) * (len(columns) - 1)
    # Only a table that is too wide folds, so only its lists need blanks.
    for separator in (",", ", "):
        cells = [[_styled(column, row, separator) for column in columns] for row in listed]
        widths = [[cell_len(cell.plain) for cell in row] for row in cells]
        natural = [max([len(column.heading) if headings else 1, *(row[at] for row in widths)]) for at, column in enumerate(columns)]
        if sum(natural) + gaps <= width:
            break
    least = [
        size if column.number else max([min(size, FOLDED_MIN), *(_longest_word(row[at].plain) for row in cells)])
        for at, (column, size) in enumerate(zip(columns, natural, strict=True))
    ]
    shown = rendered(Text(title, "bold"), width=width, colours=colours) if title else ""
    if sum(least) + gaps > width:
        blocks = (_block(columns, row, width=width, colours=colours) for row in cells)
        return shown + "\n".join(blocks)
    table = Table(box=None, show_header=headings, header_style="bold", pad_edge=False, padding=(0, len(GAP), 0, 0))
    for column, size in zip(columns, _shrunk(natural, least, width - gaps), strict=True):
        justify: Literal["right", "left"] = "right" if column.number else "left"
        table.add_column(column.heading, justify=justify, overflow="fold", width=size)
    for row in cells:
        table.add_row(*row)
    return shown + rendered(table, width=width, colours=colours)


def _shrunk(natural: Sequence[int], least: Sequence[int], width: int) -> list[int]:
    """Widths of columns that fit into `width`: the widest columns shrink first, to no less than `least`."""
    sizes = [min(size, max(width, smallest)) for size, smallest in zip(natural, least, strict=True)]
    while sum(sizes) > width:
        widest = max((at for at in range(len(sizes)) if sizes[at] > least[at]), key=sizes.__getitem__)
        sizes[widest] -= 1
    return sizes


def _longest_word(cell: str) -> int:
    """Width of the longest part between blanks."""
    from rich.cells import cell_len

    return max(map(cell_len, cell.split()), default=0)


def _block(columns: Sequence[Column], row: Sequence[Text], *, width: int, colours: bool) -> str:
    """A row as a block, a line per cell: its heading and its value."""
    from rich.table import Table

    heading_width = max(len(column.heading) for column in columns)
    lines = []
    for column, cell in zip(columns, row, strict=True):
        line = Table.grid(padding=(0, len(GAP), 0, 0), pad_edge=False)
        line.add_column(style="bold", no_wrap=True, min_width=heading_width)
        line.add_column(overflow="fold")
        line.add_row(column.heading, cell)
        lines.append(rendered(line, width=max(width, heading_width + len(GAP) + _longest_word(cell.plain)), colours=colours))
    return "".join(lines)


def rendered(*parts: Any, width: int, colours: bool = False) -> str:
    """Texts and tables of rich, one below the other, without trailing blanks."""
    from io import StringIO

    from rich.console import Console

    console = Console(
        file=StringIO(), width=width, force_terminal=colours, color_system="standard" if colours else None, highlight=False, markup=False,
        emoji=False, soft_wrap=False, legacy_windows=False,
    )  # fmt: skip
    for part in parts:
        console.print(part)
    return "".join(line.rstrip() + "\n" for line in console.file.getvalue().splitlines())  # type: ignore[attr-defined]


def _styled(column: Column, row: Row, separator: str) -> Text:
    from rich.text import Text

    value = column.of(row)
    shown = separator.join(map(str, value)) if isinstance(value, list | tuple) else text(value)
    return Text(_printable(shown) or NOTHING, (column.colour and column.colour(row)) or "")


def _printable(cell: str) -> str:
    """The text with unprintable characters escaped: they could move the cursor."""
    return cell if cell.isprintable() else "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in cell)
