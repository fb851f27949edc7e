"""Files of a table with partitions, for rows in any order. A plan of them crosses processes, and needs no library of the table's format."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from ottla.lake.storage import Location
from ottla.lake.table.delta import FILE_BYTES
from ottla.lake.table.iceberg_partitions import Partition, partitions_of
from ottla.lake.table.parquet_files import OPEN_MAX, WAITING_BYTES, DataFile, Files, Uploads, aligned


class RowFiles(Protocol):
    """New files for rows."""

    def write(self, table: pa.Table) -> None:
        """Adds rows; missing columns are null. Raises: ArrowInvalid if a value does not fit its column; OSError."""

    def finish(self) -> list[DataFile]:
        """All files, complete and synced."""

    def abandon(self) -> None:
        """Removes everything written since the last `finish`."""


@dataclass(frozen=True, slots=True)
class FilePlan:
    """Which files are written. Schemas are in Arrow's form for other processes."""

    #: Of rows, and of files: with ids.
    columns: bytes
    stored: bytes
    #: A directory of this machine; None if the files are uploaded.
    directory: str | None
    #: By the names of the fields of the partitioning.
    partitions: dict[str, Partition]

    def files(self, uploads: Uploads | None) -> "PartitionedFiles":
        """`uploads`: needed without a directory."""
        where = uploads if self.directory is None else Location(self.directory)
        assert where is not None, "files that are uploaded have a destination"
        columns, stored = (pa.ipc.read_schema(pa.py_buffer(one)) for one in (self.columns, self.stored))
        return PartitionedFiles(columns, stored, where, self.partitions)


class PartitionedFiles:
    """New files for rows, each with the rows of one partition."""

    def __init__(self, columns: pa.Schema, stored: pa.Schema, where: Location | Uploads, partitions: dict[str, Partition]) -> None:
        self._columns, self._stored, self._where, self._partitions = columns, stored, where, partitions
        #: By the values of the partition; the first one is the least recently used.
        self._open: dict[tuple[Any, ...], Files] = {}
        self._done: list[DataFile] = []

    def write(self, table: pa.Table) -> None:
        if not table.num_rows:
            return
        table = aligned(table, self._columns)
        for values, rows in partitions_of(table, tuple(self._partitions.values())):
            if values in self._open:
                self._open[values] = self._open.pop(values)
            else:
                if len(self._open) >= OPEN_MAX:
                    self._close(next(iter(self._open)))
                self._open[values] = Files(self._where, self._columns, stored=self._stored, file_bytes=FILE_BYTES)
            self._open[values].write(rows)
        while sum(one.waiting_bytes for one in self._open.values()) > WAITING_BYTES:
            max(self._open.values(), key=lambda one: one.waiting_bytes).flush()

    def finish(self) -> list[DataFile]:
        for values in list(self._open):
            self._close(values)
        done, self._done = self._done, []
        return done

    def abandon(self) -> None:
        for files in self._open.values():
            files.abandon()
        _remove(self._where, (one.name for one in self._done))
        self._open, self._done = {}, []

    def _close(self, values: tuple[Any, ...]) -> None:
        done = self._open.pop(values).finish()
        self._done += [replace(one, partition=dict(zip(self._partitions, values, strict=True))) for one in done]


def _remove(where: Location | Uploads, names: Iterable[str]) -> None:
    if not isinstance(where, Location):
        where.remove(names)
        return
    for name in names:
        (Path(where.path) / name).unlink(missing_ok=True)
