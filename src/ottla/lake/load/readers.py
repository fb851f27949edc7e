"""Files as rows: what all formats have in common, and the way from a file to its reader.

A reader gives portions of rows as Arrow record batches, in the file's order, and between them what makes no row. Portions are of some MiB,
however large the file: a file never has to fit into memory.

    rows of a file     0 1 2 3 4 | 5 6 7 x 8 9 | 10 ...        x: a line that makes no row; rows are counted without it
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

#: Bytes of rows that are worked on at once.
PORTION_BYTES = 4 * MiB
#: The column of lines of text.
LINE = "line"
#: The column of whole JSON lines.
WHOLE = "(line)"


class RejectedRow(NamedTuple):
    """What makes no row."""

    #: How many rows of its portion come before it.
    at: int
    #: In the file, from 1; None: its format has no lines.
    line: int | None
    why: str
    data: bytes


class RowBatch(NamedTuple):
    """A portion of a file."""

    batch: pa.RecordBatch
    bad: list[RejectedRow]
    #: Bytes of the file read so far.
    done: int


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How files are to be read, where their format leaves a choice."""

    #: csv: what stands between fields, by default a comma, or a tab in tsv; quotes, None for none.
    delimiter: str | None = None
    quote: str | None = '"'
    #: csv: names of columns where the first line has none.
    names: tuple[str, ...] = ()
    #: csv: words that mean nothing, besides nothing at all.
    nulls: tuple[str, ...] = ()
    #: csv: Arrow's types by column; otherwise they are what the first rows look like, or text.
    types: Mapping[str, str] = field(default_factory=dict)
    all_text: bool = False
    #: json: fields of each record that are to be columns, or None where nothing is chosen and all stay in the line ...
    fields: tuple[str, ...] = ()
    #: ... and which fields make the value; None: the line as it is.
    chosen: tuple[str, ...] | None = None
    without: tuple[str, ...] = ()


class Reader(Protocol):
    """A file that is open."""

    #: Rows that were left out by `portions`.
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
    """The file's reader. Raises: CannotLoad, OSError; ImportError without pyarrow."""
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
    """A file, with columns that are the same in all of its rows. What the file itself has of these names stands."""

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
    """A whole number, where the text is one and nothing is lost."""
    return int(value) if value is not None and re.fullmatch(r"-?(0|[1-9][0-9]{0,17})", value) else value


def json_type(kind: Any) -> str:
    """What a type of Arrow is in JSON: number, text, boolean, list, object; nothing where it is always null."""
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
    """How the columns of a second file differ from those of the first; None: they do not."""
    if missing := [name for name in first if name not in other]:
        return f"it has no column {missing[0]}"
    if more := [name for name in other if name not in first]:
        return f"it has a column {more[0]} more"
    for name, shape in first.items():
        if shape and other[name] and shape != other[name]:
            return f"column {name} is {other[name]} and not {shape}"
    return None
