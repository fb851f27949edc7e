"""Parquet and Arrow files: columns are used as they are, and the metadata of the file gives the first batch to read."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from ottla.lake.load.inputs import STDIN, CannotLoad, Input
from ottla.lake.load.reader import PORTION_BYTES, Reader, RowBatch, json_type

ARROW_FILE, FEATHER_1 = b"ARROW1", b"FEA1"
#: Rows per batch, so that derived data stays in the processor's caches.
ROWS_MAX = 32 * 1024


@contextmanager
def open_columns(given: Input) -> Iterator[Reader]:
    """Raises: CannotLoad, OSError, ArrowInvalid."""
    if given.format == "parquet":
        with pyarrow.parquet.ParquetFile(given.name if given.bucket is None else given.open()) as parquet:
            yield ParquetReader(parquet, given.size)
        return
    if given.name == STDIN:
        with pa.ipc.open_stream(sys.stdin.buffer) as stream:
            yield ArrowReader(stream.schema, ((batch, 0) for batch in stream))
        return
    with pa.memory_map(given.name, "rb") if given.bucket is None else pa.PythonFile(given.open(), "r") as mapped:
        magic = mapped.read(len(ARROW_FILE))
        mapped.seek(0)
        if magic.startswith(FEATHER_1):
            raise CannotLoad(
                f"{given.name} is Feather of version 1; pyarrow.feather.write_feather(pyarrow.feather.read_table(it), it) renews it"
            )
        if magic == ARROW_FILE:
            with pa.ipc.open_file(mapped) as file:
                count = file.num_record_batches
                yield ArrowReader(file.schema, ((file.get_batch(index), given.size * (index + 1) // count) for index in range(count)))
            return
        with pa.ipc.open_stream(mapped) as stream:
            yield ArrowReader(stream.schema, ((batch, mapped.tell()) for batch in stream))


class _Columns:
    """Common part of both readers."""

    value: str | None = None

    def __init__(self, schema: Any) -> None:
        names = schema.names
        if twice := [name for name in names if names.count(name) > 1]:
            raise CannotLoad(f"several of its columns are called {twice[0]}")
        self.columns = {field.name: json_type(field.type) for field in schema}
        self.skipped = 0


class ParquetReader(_Columns):
    """Skips row groups before the first row."""

    def __init__(self, file: Any, size: int) -> None:
        super().__init__(file.schema_arrow)
        self._file, self._size = file, size

    def portions(self, skip: int) -> Iterator[RowBatch]:
        meta = self._file.metadata
        groups = [meta.row_group(number) for number in range(meta.num_row_groups)]
        first = 0
        while first < len(groups) and self.skipped + groups[first].num_rows <= skip:
            self.skipped += groups[first].num_rows
            first += 1
        size = sum(group.total_byte_size for group in groups)
        rows = max(1, min(ROWS_MAX, meta.num_rows * PORTION_BYTES // max(size, 1)))
        done = self.skipped
        for batch in self._file.iter_batches(batch_size=rows, row_groups=range(first, len(groups))):
            done += batch.num_rows
            yield RowBatch(batch, [], self._size * done // max(meta.num_rows, 1))


class ArrowReader(_Columns):
    """An Arrow file or stream: its batches, each with the bytes of the file read so far."""

    def __init__(self, schema: Any, batches: Iterable[tuple[Any, int]]) -> None:
        super().__init__(schema)
        self._batches = batches

    def portions(self, skip: int) -> Iterator[RowBatch]:
        """Large batches in slices, without a copy."""
        for batch, done in self._batches:
            rows = max(1, min(ROWS_MAX, batch.num_rows * PORTION_BYTES // max(batch.nbytes, 1)))
            for first in range(0, batch.num_rows, rows):
                yield RowBatch(batch.slice(first, rows), [], done)
