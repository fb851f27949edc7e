"""Readers of input files: the protocol of all formats, and the reader of a file.

A reader returns rows as Arrow record batches of some MiB in the order of the file, with the lines that are not rows. So a file need not
fit into memory.

    rows of a file     0 1 2 3 4 | 5 6 7 x 8 9 | 10 ...        x: an invalid line, which has no row number
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from ottla.base.units import MiB

#: Bytes of a block of rows.
PORTION_BYTES = 4 * MiB
#: The column of lines of text.
LINE = "line"
#: The column of whole JSON lines.
WHOLE = "(line)"


class RejectedRow(NamedTuple):
    """An invalid line or row."""

    #: Number of rows of its batch before it.
    at: int
    #: Line number from 1; None for formats without lines.
    line: int | None
    why: str
    data: bytes


class RowBatch(NamedTuple):
    """Consecutive rows of a file."""

    batch: pa.RecordBatch
    bad: list[RejectedRow]
    #: Bytes of the file read so far.
    done: int


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of the readers. `plan.digest` depends on the names of the fields."""

    #: csv: the separator, default comma, in tsv tab; the quote, None for none.
    delimiter: str | None = None
    quote: str | None = '"'
    #: csv: column names if the first line has none.
    names: tuple[str, ...] = ()
    #: csv: texts that mean null, besides an empty field.
    nulls: tuple[str, ...] = ()
    #: csv: Arrow types by column; others are inferred from the first rows, or text.
    types: Mapping[str, str] = field(default_factory=dict)
    all_text: bool = False
    #: json: fields that become columns ...
    fields: tuple[str, ...] = ()
    #: ... and which fields make the value; None: the line as it is.
    chosen: tuple[str, ...] | None = None
    without: tuple[str, ...] = ()


class Reader(Protocol):
    """An open file."""

    #: Rows that `portions` skipped.
    skipped: int

    @property
    def columns(self) -> Mapping[str, str] | None:
        """Its columns and what they hold (see `json_type`); None: not known before it is read, and not the same in all rows."""

    @property
    def value(self) -> str | None:
        """The column that is a record's value as it stands; None: the row is."""

    def portions(self, skip: int) -> Iterator[RowBatch]:
        """The rows. Of the first ``skip`` ones it leaves out what it can without reading, and says in ``skipped`` how many.

        Raises: CannotLoad, OSError.
        """


def json_type(kind: Any) -> str:
    """The JSON type of an Arrow type: number, text, boolean, list, object; empty for null."""
    types = pa.types
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return json_type(kind.value_type)
    if types.is_null(kind):
        return ""
    if types.is_integer(kind) or types.is_floating(kind) or types.is_duration(kind):
        return "number"
    if types.is_boolean(kind):
        return "boolean"
    if types.is_struct(kind) or types.is_map(kind):
        return "object"
    if types.is_nested(kind):
        return "list"
    return "text"


def column_difference(first: Mapping[str, str], other: Mapping[str, str]) -> str | None:
    """The first difference between the columns of two files; None: they are the same."""
    if missing := [name for name in first if name not in other]:
        return f"it has no column {missing[0]}"
    if more := [name for name in other if name not in first]:
        return f"it has a column {more[0]} more"
    for name, shape in first.items():
        if shape and other[name] and shape != other[name]:
            return f"column {name} is {other[name]} and not {shape}"
    return None
