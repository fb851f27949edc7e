"""Parquet and Arrow files: columns are used as they are, and the metadata of the file gives the first batch to read."""

import sys
from collections.abc import Iterator
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
        with pyarrow.parquet.ParquetFile(given.name) as parquet:
            yield ParquetReader(parquet, given.size)
        return
    if given.name == STDIN:
        with pa.ipc.open_stream(sys.stdin.buffer) as stream:
            yield StreamReader(stream, lambda: 0)
        return
    with pa.memory_map(given.name, "rb") as mapped:
        magic = mapped.read(len(ARROW_FILE))
        mapped.seek(0)
        if magic.startswith(FEATHER_1):
            raise CannotLoad(
                f"{given.name} is Feather of version 1; pyarrow.feather.write_feather(pyarrow.feather.read_table(it), it) renews it"
            )
        if magic == ARROW_FILE:
            with pa.ipc.open_file(mapped) as file:
                yield FileReader(file, given.size)
            return
        with pa.ipc.open_stream(mapped) as stream:
            yield StreamReader(stream, mapped.tell)


class _Columns:
    """Common part of the three readers."""

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


class FileReader(_Columns):
    """An Arrow file, memory-mapped."""

    def __init__(self, file: Any, size: int) -> None:
        super().__init__(file.schema)
        self._file, self._size = file, size

    def portions(self, skip: int) -> Iterator[RowBatch]:
        count = self._file.num_record_batches
        for number in range(count):
            yield from _cut(self._file.get_batch(number), self._size * (number + 1) // count)


class StreamReader(_Columns):
    """An Arrow stream."""

    def __init__(self, stream: Any, tell: Any) -> None:
        super().__init__(stream.schema)
        self._stream, self._tell = stream, tell

    def portions(self, skip: int) -> Iterator[RowBatch]:
        for batch in self._stream:
            yield from _cut(batch, self._tell())


def _cut(batch: Any, done: int) -> Iterator[RowBatch]:
    """A batch in slices, without a copy."""
    rows = max(1, min(ROWS_MAX, batch.num_rows * PORTION_BYTES // max(batch.nbytes, 1)))
    for first in range(0, batch.num_rows, rows):
        yield RowBatch(batch.slice(first, rows), [], done)
