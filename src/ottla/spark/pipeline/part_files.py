"""Parquet files as the tasks of a batch write them: one per task, or one per task and partition of the table (Hive's ``column=value/``).

Partition columns are in the directory's name and not in the file, as Delta and every reader of such directories expect it. A task keeps a
writer open per partition it meets, up to a limit; beyond it the one that was idle longest is closed, and begins another file if it comes
again. Files have their final bytes on disk when they are named here: whoever commits them may rely on that.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ottla.lake.table.parquet_files import naming

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_PER_GROUP = 128 * 1024
#: Open writers of one task; each holds up to a group of rows.
OPEN_MAX = 64
#: What Hive, Spark and Delta write for a partition without a value.
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, slots=True)
class PartFile:
    """A file that was written and nobody knows yet."""

    #: Relative to the table's directory.
    name: str
    size: int
    rows: int
    #: Values of the partition columns as Delta writes them.
    values: dict[str, str | None]


class _Open:
    """A file at work: rows wait until they fill a group."""

    def __init__(self, path: Path, schema: "pa.Schema", compression: str) -> None:
        import pyarrow.parquet as pq

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
        """A file that will never be whole only takes room, of which there may be none left."""
        with suppress(OSError):
            self._writer.close()
        self.path.unlink(missing_ok=True)

    def _write(self) -> None:
        import pyarrow as pa

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
    """Writes all batches below `directory`, in files named `stem`, a number and `suffix`; when that fails none of them stays.

    With `plain`, directories are only a help to the eye and hold nothing that would have to be escaped: a table's log has the values.

    Raises: OSError with the name of the file; what the batches raise.
    """
    written: list[PartFile] = []
    working: dict[tuple[str | None, ...], tuple[_Open, dict[str, str | None]]] = {}

    def close(place: tuple[str | None, ...]) -> None:
        part, values = working[place]
        part.close()
        del working[place]
        written.append(PartFile(str(part.path.relative_to(directory)), part.path.stat().st_size, part.rows, values))

    count = 0
    try:
        for batch in batches:
            # Spark may send a batch without rows; a file for nothing is for nobody.
            for values, rows in by_partition(batch, partition_by) if batch.num_rows else ():
                place = tuple(values.values())
                if place in working:
                    # The one used last stands last.
                    working[place] = working.pop(place)
                else:
                    if len(working) >= OPEN_MAX:
                        close(next(iter(working)))
                    path = directory / (plain_directory_of(values) if plain else directory_of(values)) / f"{stem}-{count:04d}{suffix}"
                    working[place] = _Open(path, rows.schema, compression), values
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
    """The rows of each partition, without the partition columns, and its values."""
    if not partition_by:
        yield {}, batch
        return
    import pyarrow as pa

    table = pa.Table.from_batches([batch])
    numbered = table.select(list(partition_by)).append_column("__row", pa.array(range(table.num_rows), pa.int64()))
    rest = table.drop_columns(list(partition_by))
    # A partition is a group of rows with equal values, nulls among them.
    for group in numbered.group_by(list(partition_by)).aggregate([("__row", "list")]).to_pylist():
        rows = rest.take(pa.array(group["__row_list"], pa.int64())).combine_chunks()
        values = {name: value_text(group[name]) for name in partition_by}
        for part in rows.to_batches():
            yield values, part


def value_text(value: Any) -> str | None:
    """A partition value as Delta's protocol writes it; None for null (and for empty text, which the protocol cannot tell apart)."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if hasattr(value, "astimezone"):
        from datetime import UTC

        return str((value.astimezone(UTC) if value.tzinfo is not None else value).strftime("%Y-%m-%d %H:%M:%S.%f"))
    return str(value)


def directory_of(values: dict[str, str | None]) -> str:
    """``day=2026-05-17/page=%2F``, or the table's own directory."""
    return "/".join(f"{name}={NO_VALUE if value is None else quote(value, safe=' -_.')}" for name, value in values.items())


def plain_directory_of(values: dict[str, str | None]) -> str:
    """``day=2026-05-17/page=_``: two values may share one."""
    return "/".join(
        f"{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}={re.sub(r'[^A-Za-z0-9_.-]', '_', value or '')}" for name, value in values.items()
    )


def sync(path: Path) -> None:
    """Brings a file to disk: a table's log must not speak of a file that a power cut takes back."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
