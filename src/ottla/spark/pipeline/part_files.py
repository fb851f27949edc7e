"""Writes the Parquet files of a task: one, or one per partition of the table (Hive's ``column=value/``).

Partition columns are in the directory's name and not in the file, as Delta and other readers expect. A task keeps one writer open per
partition, up to `OPEN_MAX`; then the least recently used one is closed, and a later row of its partition starts another file. Returned
files are complete and synced to disk.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from ottla.lake.full_disk import naming, sync

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
    directory: Path,
    stem: str,
    *,
    partition_by: Sequence[str] = (),
    compression: str = "zstd",
    suffix: str = ".parquet",
    plain: bool = False,
) -> list[PartFile]:
    """Writes all batches below `directory`, in files named `stem`, a number and `suffix`. On failure removes them all.

    With `plain`, directory names need no escaping and may be ambiguous: the table's log holds the values.

    Raises: OSError with the name of the file; what the batches raise.
    """
    written: list[PartFile] = []
    working: dict[tuple[str | None, ...], tuple[_OpenFile, dict[str, str | None]]] = {}

    def close(place: tuple[str | None, ...]) -> None:
        part, values = working[place]
        part.close()
        del working[place]
        written.append(PartFile(str(part.path.relative_to(directory)), part.path.stat().st_size, part.rows, values))

    count = 0
    try:
        for batch in batches:
            # Spark may send a batch without rows; it needs no file.
            for values, rows in by_partition(batch, partition_by) if batch.num_rows else ():
                place = tuple(values.values())
                if place in working:
                    # Moved to the end: the first one is the least recently used.
                    working[place] = working.pop(place)
                else:
                    if len(working) >= OPEN_MAX:
                        close(next(iter(working)))
                    path = directory / (plain_directory_of(values) if plain else directory_of(values)) / f"{stem}-{count:04d}{suffix}"
                    working[place] = _OpenFile(path, rows.schema, compression), values
                    count += 1
                working[place][0].add(rows)
        for place in list(working):
            close(place)
    except BaseException:
        for part, _ in working.values():
            part.remove()
        for file in written:
            (directory / file.name).unlink(missing_ok=True)
        raise
    return written


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
