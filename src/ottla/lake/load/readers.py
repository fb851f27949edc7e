"""Readers of input files: the protocol of all formats, and the reader of a file.

A reader returns rows as Arrow record batches of some MiB in the order of the file, with the lines that are not rows. So a file need not
fit into memory.

    rows of a file     0 1 2 3 4 | 5 6 7 x 8 9 | 10 ...        x: an invalid line, which has no row number
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ottla.base.units import MiB
from ottla.lake.load.inputs import STDIN, CannotLoad, Input

if TYPE_CHECKING:
    import pyarrow as pa

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


@contextmanager
def open_reader(given: Input, how: ReadOptions) -> Iterator[Reader]:
    """Open a file. Raises: CannotLoad, OSError; ImportError without pyarrow."""
    with _open_reader(given, how) as reader:
        yield PartitionColumnsReader(reader, given.fixed) if given.fixed else reader


@contextmanager
def _open_reader(given: Input, how: ReadOptions) -> Iterator[Reader]:
    from ottla.client.arrow.columns import needed_arrow

    pa = needed_arrow()
    try:
        if given.format in ("parquet", "arrow"):
            from ottla.lake.load.columnar import open_columns

            if given.name == STDIN and given.format == "parquet":
                raise CannotLoad("parquet files end with their table of contents, and standard input cannot be read from its end")
            with open_columns(given) as reader:
                yield reader
            return
        from ottla.lake.load.line_files import LineSource, open_lines

        if given.name == STDIN:
            yield open_lines(given, how, LineSource(sys.stdin.buffer))
            return
        with pa.OSFile(given.name, "rb") as raw:
            if given.codec is None:
                yield open_lines(given, how, LineSource(raw, limit=given.size))
                return
            with pa.CompressedInputStream(raw, given.codec) as unpacked:
                yield open_lines(given, how, LineSource(unpacked, raw.tell))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise CannotLoad(f"{given.name}: {str(error).splitlines()[0]}") from None
    except OSError as error:
        if given.codec is not None and error.errno is None:
            raise CannotLoad(f"{given.name}: it cannot be unpacked: {error}") from None
        raise


class PartitionColumnsReader:
    """Adds constant columns from the file's path (``year=2026/``). Columns of the file take precedence."""

    def __init__(self, reader: Reader, fixed: tuple[tuple[str, str | None], ...]) -> None:
        import pyarrow as pa

        self._reader = reader
        there = reader.columns or {}
        self._values = {name: pa.scalar(_plain(value)) for name, value in fixed if name not in there}

    @property
    def columns(self) -> Mapping[str, str] | None:
        return {**(self._reader.columns or {}), **{name: json_type(value.type) for name, value in self._values.items()}}

    @property
    def value(self) -> str | None:
        return self._reader.value

    @property
    def skipped(self) -> int:
        return self._reader.skipped

    @skipped.setter
    def skipped(self, rows: int) -> None:
        self._reader.skipped = rows

    def portions(self, skip: int) -> Iterator[RowBatch]:
        import pyarrow as pa

        for portion in self._reader.portions(skip):
            batch = portion.batch
            more = [pa.repeat(value, batch.num_rows) for value in self._values.values()]
            whole = pa.RecordBatch.from_arrays([*batch.columns, *more], names=[*batch.schema.names, *self._values])
            yield portion._replace(batch=whole)


def _plain(value: str | None) -> int | str | None:
    """A canonical whole number as int, else the text."""
    return int(value) if value is not None and re.fullmatch(r"-?(0|[1-9][0-9]{0,17})", value) else value


def json_type(kind: Any) -> str:
    """The JSON type of an Arrow type: number, text, boolean, list, object; empty for null."""
    import pyarrow as pa

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
