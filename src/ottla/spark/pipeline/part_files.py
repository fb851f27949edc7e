"""Writes the Parquet files of a task: one, or one per partition of the table (Hive's ``column=value/``).

Partition columns are in the directory's name and not in the file, as Delta and other readers expect. A task keeps one writer open per
partition, up to `OPEN_MAX`; then the least recently used one is closed, and a later row of its partition starts another file. Returned
files are complete and synced to disk. For an object store, a file is written to the directory of temporary files, and uploaded when it is
complete.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from ottla.lake.full_disk import naming, sync
from ottla.lake.storage import Location

ROWS_PER_GROUP = 128 * 1024
#: Open writers of one task; each buffers up to a row group.
OPEN_MAX = 64
#: The directory value of null in Hive, Spark and Delta.
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, slots=True)
class PartFile:
    """A written file that is not committed yet."""

    #: Relative to the table's directory.
    name: str
    size: int
    rows: int
    #: Values of the partition columns in Delta's format.
    values: dict[str, str | None]


class _OpenFile:
    """A file that is being written. Buffers rows until they fill a row group."""

    def __init__(self, path: Path, schema: "pa.Schema", compression: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.rows = 0
        try:
            with naming(path):
                self._writer = pq.ParquetWriter(path, schema, compression=compression)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0

    def add(self, batch: "pa.RecordBatch") -> None:
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        if self._waiting_rows >= ROWS_PER_GROUP:
            self._write()

    def close(self) -> None:
        self._write()
        with naming(self.path):
            self._writer.close()
            sync(self.path)

    def remove(self) -> None:
        """Closes and deletes the incomplete file: the disk may be full."""
        with suppress(OSError):
            self._writer.close()
        self.path.unlink(missing_ok=True)

    def _write(self) -> None:
        if self._waiting:
            table = pa.Table.from_batches(self._waiting)
            with naming(self.path):
                self._writer.write_table(table, row_group_size=ROWS_PER_GROUP)
            self.rows += table.num_rows
            self._waiting, self._waiting_rows = [], 0


def write_parts(
    batches: "Iterator[pa.RecordBatch]",
    place: Location,
    stem: str,
    *,
    partition_by: Sequence[str] = (),
    compression: str = "zstd",
    suffix: str = ".parquet",
    plain: bool = False,
) -> list[PartFile]:
    """Writes all batches below `place`, in files named `stem`, a number and `suffix`. On failure removes them all.

    With `plain`, directory names need no escaping and may be ambiguous: the table's log holds the values.

    Raises: OSError with the name of the file; what the batches raise.
    """
    with _Parts(place, stem, suffix, compression) as parts:
        for batch in batches:
            # Spark may send a batch without rows; it needs no file.
            for values, rows in by_partition(batch, partition_by) if batch.num_rows else ():
                parts.add(values, plain_directory_of(values) if plain else directory_of(values), rows)
        return parts.finish()


class _Parts:
    """The files of a task. Leaving the block with an error removes them."""

    def __init__(self, place: Location, stem: str, suffix: str, compression: str) -> None:
        self._place, self._stem, self._suffix, self._compression = place, stem, suffix, compression
        self._staging = None if place.is_local else TemporaryDirectory(prefix="ottla-upload-")
        self._directory = place.path if self._staging is None else Path(self._staging.name)
        #: By partition; the first one is the least recently used.
        self._working: dict[tuple[str | None, ...], tuple[_OpenFile, dict[str, str | None]]] = {}
        self._written: list[PartFile] = []
        self._count = 0

    def __enter__(self) -> "_Parts":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._remove()
        if self._staging is not None:
            self._staging.cleanup()

    def add(self, values: dict[str, str | None], directory: str, rows: "pa.RecordBatch") -> None:
        partition = tuple(values.values())
        if partition in self._working:
            self._working[partition] = self._working.pop(partition)
        else:
            if len(self._working) >= OPEN_MAX:
                self._close(next(iter(self._working)))
            path = self._directory / directory / f"{self._stem}-{self._count:04d}{self._suffix}"
            self._working[partition] = _OpenFile(path, rows.schema, self._compression), values
            self._count += 1
        self._working[partition][0].add(rows)

    def finish(self) -> list[PartFile]:
        for partition in list(self._working):
            self._close(partition)
        return self._written

    def _close(self, partition: tuple[str | None, ...]) -> None:
        part, values = self._working[partition]
        part.close()
        file = PartFile(part.path.relative_to(self._directory).as_posix(), part.path.stat().st_size, part.rows, values)
        if self._staging is not None:
            self._place.upload(file.name, part.path)
            part.path.unlink()
        del self._working[partition]
        self._written.append(file)

    def _remove(self) -> None:
        for part, _ in self._working.values():
            part.remove()
        if self._staging is None:
            for file in self._written:
                (self._directory / file.name).unlink(missing_ok=True)
        else:
            # The error that led here is the one to report. The objects are in no table; the next start or a vacuum removes them.
            with suppress(OSError):
                self._place.remove([file.name for file in self._written])


def by_partition(batch: "pa.RecordBatch", partition_by: Sequence[str]) -> "Iterator[tuple[dict[str, str | None], pa.RecordBatch]]":
    """The values of each partition and its rows without the partition columns."""
    if not partition_by:
        yield {}, batch
        return
    table = pa.Table.from_batches([batch])
    numbered = table.select(list(partition_by)).append_column("__row", pa.array(range(table.num_rows), pa.int64()))
    rest = table.drop_columns(list(partition_by))
    # Null is a value like others here.
    for group in numbered.group_by(list(partition_by)).aggregate([("__row", "list")]).to_pylist():
        rows = rest.take(pa.array(group["__row_list"], pa.int64())).combine_chunks()
        values = {name: value_text(group[name]) for name in partition_by}
        for part in rows.to_batches():
            yield values, part


def value_text(value: Any) -> str | None:
    """A partition value in the format of Delta's protocol; None for null, and for empty text, which the protocol does not distinguish."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if hasattr(value, "astimezone"):
        from datetime import UTC

        return str((value.astimezone(UTC) if value.tzinfo is not None else value).strftime("%Y-%m-%d %H:%M:%S.%f"))
    return str(value)


def directory_of(values: dict[str, str | None]) -> str:
    """``day=2026-05-17/page=%2F``; empty without partition columns."""
    return "/".join(f"{name}={NO_VALUE if value is None else quote(value, safe=' -_.')}" for name, value in values.items())


def plain_directory_of(values: dict[str, str | None]) -> str:
    """``day=2026-05-17/page=_``; two values may share a directory."""
    return "/".join(
        f"{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}={re.sub(r'[^A-Za-z0-9_.-]', '_', value or '')}" for name, value in values.items()
    )
