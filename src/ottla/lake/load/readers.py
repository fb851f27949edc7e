"""Opens input files by their format. A format's module is imported when the first file of that format is read."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from ottla.lake.load.inputs import STDIN, CannotLoad, Input
from ottla.lake.load.line_files import LineSource, TextReader
from ottla.lake.load.reader import Reader, ReadOptions, RowBatch, json_type


@contextmanager
def open_reader(given: Input, how: ReadOptions) -> Iterator[Reader]:
    """Open a file. Raises: CannotLoad, OSError."""
    with _open_reader(given, how) as reader:
        yield PartitionColumnsReader(reader, given.fixed) if given.fixed else reader


@contextmanager
def _open_reader(given: Input, how: ReadOptions) -> Iterator[Reader]:
    try:
        if given.format in ("parquet", "arrow"):
            from ottla.lake.load.columnar import open_columns

            if given.name == STDIN and given.format == "parquet":
                raise CannotLoad("parquet files end with their table of contents, and standard input cannot be read from its end")
            with open_columns(given) as reader:
                yield reader
            return
        if given.name == STDIN:
            yield _open_lines(given, how, LineSource(sys.stdin.buffer))
            return
        with pa.OSFile(given.name, "rb") if given.bucket is None else pa.PythonFile(given.open(), "r") as raw:
            if given.codec is None:
                yield _open_lines(given, how, LineSource(raw, limit=given.size))
                return
            with pa.CompressedInputStream(raw, given.codec) as unpacked:
                yield _open_lines(given, how, LineSource(unpacked, raw.tell))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise CannotLoad(f"{given.name}: {str(error).splitlines()[0]}") from None
    except OSError as error:
        if given.codec is not None and error.errno is None:
            raise CannotLoad(f"{given.name}: it cannot be unpacked: {error}") from None
        raise


class PartitionColumnsReader:
    """Adds constant columns from the file's path (``year=2026/``). Columns of the file take precedence."""

    def __init__(self, reader: Reader, fixed: tuple[tuple[str, str | None], ...]) -> None:
        self._reader = reader
        there = reader.columns or {}
        self._values = {name: pa.scalar(_plain(value)) for name, value in fixed if name not in there}
        self.columns = {**there, **{name: json_type(value.type) for name, value in self._values.items()}}
        self.value = reader.value
        self.skipped = 0

    def portions(self, skip: int) -> Iterator[RowBatch]:
        for portion in self._reader.portions(skip):
            self.skipped += self._reader.skipped
            self._reader.skipped = 0
            batch = portion.batch
            more = [pa.repeat(value, batch.num_rows) for value in self._values.values()]
            whole = pa.RecordBatch.from_arrays([*batch.columns, *more], names=[*batch.schema.names, *self._values])
            yield portion._replace(batch=whole)


def _plain(value: str | None) -> int | str | None:
    """A canonical whole number as int, else the text."""
    return int(value) if value is not None and re.fullmatch(r"-?(0|[1-9][0-9]{0,17})", value) else value


def _open_lines(given: Input, how: ReadOptions, source: LineSource) -> Reader:
    """Raises: CannotLoad, OSError, ArrowInvalid."""
    if given.format in ("csv", "tsv"):
        from ottla.lake.load.csv import CsvReader

        return CsvReader(source, how, "," if given.format == "csv" else "\t")
    if given.format == "json":
        from ottla.lake.load.json import JsonReader

        return JsonReader(source, how)
    return TextReader(source)
