"""Writes the Parquet files of a table: rows go into row groups, groups into files of about 128 MB, which are invisible until the table's
log has them.

Rows wait in memory until they fill a group, so memory is one group per open file. With a directory per day several may be open; the largest
is written when all together exceed a limit. A file is synced before it is returned.

For an object store, a file is written to the directory of temporary files, and uploaded when it is complete.
"""

import json
import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from ottla.base.units import MiB
from ottla.lake.casts import fitted
from ottla.lake.full_disk import naming, sync
from ottla.lake.storage import Location, location
from ottla.lake.table.delta import FILE_BYTES

#: Arrow rows of one group; compressed they have some MB, which readers can skip or read at once.
GROUP_BYTES, GROUP_ROWS = 32 * MiB, 256 * 1024
WAITING_BYTES = 128 * MiB
OPEN_MAX = 32
#: Maximum text in statistics; readers truncate longer ones.
TEXT_MAX = 32


@dataclass(slots=True)
class DataFile:
    """A complete file on disk, not yet in the table."""

    #: Relative to the table's directory, with / as separator.
    name: str
    size: int
    rows: int
    #: Values of the partition columns.
    partition: dict[str, Any]
    #: Parquet's metadata.
    metadata: Any

    def add_action(self) -> Any:
        """The file as an action of Delta's log."""
        partition: Any = dict(self.partition)
        stats = json.dumps(stats_of(self.metadata))
        return AddAction(self.name, self.size, partition, time.time_ns() // 1_000_000, True, stats)


class Uploads(Protocol):
    """Where complete files are uploaded."""

    def upload(self, name: str, path: Path) -> None:
        """Writes an object from a file. Raises: OSError."""

    def remove(self, names: Iterable[str]) -> None:
        """Removes objects. Raises: OSError."""


@dataclass(slots=True)
class _Open:
    name: str
    path: Path
    writer: Any
    sink: Any
    rows: int = 0
    waiting: list[Any] = field(default_factory=list)
    waiting_bytes: int = 0
    waiting_rows: int = 0


class Files:
    """Writes files. `suffix` is appended to names on disk; `date_column`, if set, becomes directories, and is not in the files.

    `stored`, if set, are the columns of files, with ids; then the date is in the files too.
    """

    def __init__(
        self,
        directory: Location | Path | Uploads,
        schema: pa.Schema,
        *,
        date_column: str | None = None,
        stored: pa.Schema | None = None,
        suffix: str = "",
        file_bytes: int = FILE_BYTES,
    ) -> None:
        where = location(directory) if isinstance(directory, Path) else directory
        self._remote: Uploads | None = None
        self._staging: TemporaryDirectory[str] | None = None
        if isinstance(where, Location) and where.is_local:
            self._directory = where.path
        else:
            self._remote, self._staging = where, TemporaryDirectory(prefix="ottla-upload-")
            self._directory = Path(self._staging.name)
        self._date_column = date_column
        self._suffix = suffix
        self._file_bytes = file_bytes
        self.schema = schema
        self._in_files = stored or pa.schema([one for one in schema if one.name != date_column])
        self._open: dict[str | None, _Open] = {}
        self._done: list[DataFile] = []
        self.rows = 0

    @property
    def size(self) -> int:
        """Bytes on disk so far."""
        return sum(one.size for one in self._done) + sum(int(one.sink.tell()) for one in self._open.values())

    @property
    def waiting_bytes(self) -> int:
        """Bytes of waiting rows."""
        return sum(one.waiting_bytes for one in self._open.values())

    def write(self, table: pa.Table) -> None:
        """Adds rows; missing columns are null. Raises: ArrowInvalid if a value does not fit its column; OSError."""
        if not table.num_rows:
            return
        table = aligned(table, self.schema)
        self.rows += table.num_rows
        if self._date_column is None:
            self._add(None, table)
        else:
            days = table.column(self._date_column)
            table = table.select(self._in_files.names)
            for day in pc.unique(days).to_pylist():
                chosen = table if pc.all(pc.equal(days, day)).as_py() else table.filter(pc.equal(days, day))
                self._add(day.isoformat(), chosen)
        while self.waiting_bytes > WAITING_BYTES:
            self._group(max(self._open.values(), key=lambda one: one.waiting_bytes))

    def _add(self, day: str | None, table: pa.Table) -> None:
        one = self._open.get(day)
        if one is None:
            if len(self._open) >= OPEN_MAX:
                self._close(max(self._open, key=lambda day: self._open[day].sink.tell()))
            one = self._open[day] = self._opened(day)
        one.waiting.append(table)
        one.waiting_bytes += table.nbytes
        one.waiting_rows += table.num_rows
        if one.waiting_bytes >= GROUP_BYTES or one.waiting_rows >= GROUP_ROWS:
            self._group(one)
        if one.sink.tell() >= self._file_bytes:
            self._close(day)

    def _opened(self, day: str | None) -> _Open:
        name = f"part-{uuid.uuid4()}.zstd.parquet"
        if day is not None:
            name = f"{self._date_column}={day}/{name}"
        path = self._directory / (name + self._suffix)
        path.parent.mkdir(parents=True, exist_ok=True)
        sink = pa.OSFile(str(path), "wb")
        try:
            with naming(path):
                writer = pq.ParquetWriter(sink, self._in_files, compression="zstd", coerce_timestamps="us")
        except OSError:
            path.unlink(missing_ok=True)
            raise
        return _Open(name, path, writer, sink)

    def _group(self, one: _Open) -> None:
        if one.waiting:
            with naming(one.path):
                one.writer.write_table(pa.concat_tables(one.waiting), row_group_size=GROUP_ROWS)
            one.rows += one.waiting_rows
        one.waiting, one.waiting_bytes, one.waiting_rows = [], 0, 0

    def _close(self, day: str | None) -> None:
        one = self._open[day]
        self._group(one)
        with naming(one.path):
            one.writer.close()
            one.sink.close()
            if self._remote is None:
                on_disk(one.path)
        del self._open[day]
        partition = {} if day is None else {self._date_column or "": day}
        file = DataFile(one.name, one.path.stat().st_size, one.rows, partition, pq.read_metadata(one.path))
        if self._remote is not None:
            self._remote.upload(one.name + self._suffix, one.path)
            one.path.unlink()
        self._done.append(file)

    def flush(self) -> None:
        """Writes the waiting rows, complete groups or not."""
        for one in self._open.values():
            self._group(one)

    def finish(self) -> list[DataFile]:
        """All files, complete and synced."""
        for day in list(self._open):
            self._close(day)
        done, self._done, self.rows = self._done, [], 0
        self._clear_staging()
        return done

    def abandon(self) -> None:
        """Removes everything written since the last `finish`."""
        for one in self._open.values():
            with suppress(OSError, pa.ArrowException):
                # Else it tries at its end, when its file is closed, and prints an error.
                one.writer.close()
            one.sink.close()
            one.path.unlink(missing_ok=True)
        for done in self._done:
            if self._remote is None:
                (self._directory / (done.name + self._suffix)).unlink(missing_ok=True)
            else:
                self._remove_uploaded(done)
        self._open, self._done, self.rows = {}, [], 0
        self._clear_staging()

    def _clear_staging(self) -> None:
        if self._staging is not None:
            self._staging.cleanup()

    def _remove_uploaded(self, done: DataFile) -> None:
        # The error that led here is the one to report. The object is in no table, and the next start or a vacuum removes it.
        assert self._remote is not None, "it was uploaded"
        with suppress(OSError):
            self._remote.remove([done.name + self._suffix])


def aligned(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows with the columns of a schema, in its order and types; missing ones are null. Raises: ArrowInvalid."""
    return pa.Table.from_arrays([_column(table, one) for one in schema], schema=schema)


def _column(table: pa.Table, field: Any) -> Any:
    if field.name not in table.column_names:
        return pa.nulls(len(table), field.type)
    return pa.chunked_array([fitted(chunk, field.type) for chunk in table.column(field.name).chunks], field.type)


def on_disk(path: Path) -> None:
    """Syncs the file and its directory."""
    for one in (path, path.parent):
        sync(one)


def stats_of(metadata: Any) -> dict[str, Any]:
    """Delta's statistics from Parquet metadata: rows, and minimum, maximum and nulls of top-level columns."""
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for place in range(metadata.num_columns):
        name = metadata.schema.column(place).path
        if "." in name:
            continue
        found = [metadata.row_group(group).column(place).statistics for group in range(metadata.num_row_groups)]
        if not found or any(one is None or not one.has_null_count for one in found):
            continue
        nulls[name] = sum(one.null_count for one in found)
        with_bounds = [one for one in found if one.has_min_max]
        if len(with_bounds) < sum(1 for one in found if one.num_values):
            continue
        bounds = [(_bound(one.min, up=False), _bound(one.max, up=True)) for one in with_bounds]
        if bounds and all(low is not None and high is not None for low, high in bounds):
            least[name], most[name] = min(low for low, _ in bounds), max(high for _, high in bounds)
    return {"numRecords": metadata.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls}


def _bound(value: Any, *, up: bool) -> Any:
    """A value in the form of statistics: times in milliseconds, rounded outwards. None if it has none."""
    if isinstance(value, bool):
        return None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return None
        value = value.astimezone(UTC)
        if up and value.microsecond % 1000:
            value += timedelta(milliseconds=1)
        return f"{value:%Y-%m-%dT%H:%M:%S}.{value.microsecond // 1000:03}Z"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, str):
        return value if len(value) <= TEXT_MAX else None
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    return value if isinstance(value, int) else None
