"""Data files of an Iceberg table: written by `Files`, described for manifests, read and rewritten, and removed.

Files have the ids of columns, and all columns, also the date that is their partition. Those of this machine are written in place; for other
addresses they are written to the directory of temporary files and uploaded by the table's own file system, which has its credentials.

`vacuumed` removes what no snapshot needs: data files and manifests of expired snapshots, and those of killed writers. It looks only at
names that writers of Iceberg give, below `data` and `metadata` of the table.
"""

import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pyiceberg.expressions import And, GreaterThanOrEqual, LessThanOrEqual
from pyiceberg.io.pyarrow import (
    PyArrowFileIO,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile as TableFile
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.typedef import Record
from pyiceberg.types import DateType

from ottla.lake.storage import Location
from ottla.lake.table.delta import FILE_BYTES
from ottla.lake.table.iceberg_catalog import local_file
from ottla.lake.table.iceberg_partitions import partitioning_of
from ottla.lake.table.iceberg_schema import columns_of, field_id, projected_members, stored_schema
from ottla.lake.table.parquet_files import DataFile, Files
from ottla.lake.table.partitioned_files import FilePlan, RowFiles
from ottla.lake.table.schema import DATE
from ottla.lake.table.target import TableConflict

#: Files smaller than this are joined.
SMALL_BYTES = FILE_BYTES * 3 // 4
BATCH_ROWS = 64 * 1024
_DATA_FILE = re.compile(r".*\.parquet")
_METADATA_FILE = re.compile(r".*\.avro|.*\.metadata\.json|version-hint\.text\..*\.new")


def data_root(metadata: Any) -> str:
    """The address of the data files."""
    return str(metadata.properties.get("write.data.path") or f"{metadata.location.rstrip('/')}/data")


def new_files(metadata: Any, io: Any, *, by_date: bool = False) -> Files:
    """New files for rows of a table without partitions, or of one with a partition for each date."""
    root = data_root(metadata)
    path = local_file(root)
    where = TableUploads(root, io) if path is None else Location(str(path))
    schema = metadata.schema()
    return Files(where, columns_of(schema), date_column=DATE if by_date else None, stored=stored_schema(schema), file_bytes=FILE_BYTES)


def file_plan(metadata: Any) -> FilePlan:
    """The files for rows of a table with any partitions that `iceberg_partitions` can compute. Raises: ValueError for others."""
    path = local_file(data_root(metadata))
    columns, stored = columns_of(metadata.schema()), stored_schema(metadata.schema())
    names = [one.name for one in metadata.spec().fields]
    partitions = dict(zip(names, partitioning_of(metadata), strict=True))
    directory = None if path is None else str(path)
    return FilePlan(columns.serialize().to_pybytes(), stored.serialize().to_pybytes(), directory, partitions)


class TableUploads:
    """Uploads by the file system of a table."""

    def __init__(self, root: str, io: Any) -> None:
        self._root, self._io = root, io

    def upload(self, name: str, path: Path) -> None:
        with path.open("rb") as source, self._io.new_output(f"{self._root}/{name}").create() as stream:
            shutil.copyfileobj(source, stream, 1 << 20)

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            self._io.delete(f"{self._root}/{name}")


def added_files(metadata: Any, files: Iterable[DataFile]) -> Iterator[Any]:
    """New files as entries of a manifest. Raises: TableConflict if the table has other partitions than the files."""
    schema, root = metadata.schema(), data_root(metadata)
    plan, mapping = compute_statistics_plan(schema, metadata.properties), parquet_path_to_id_mapping(schema)
    for one in files:
        statistics = data_file_statistics_from_parquet_metadata(one.metadata, plan, mapping)
        yield TableFile.from_args(
            content=DataFileContent.DATA,
            file_path=f"{root}/{one.name}",
            file_format=FileFormat.PARQUET,
            partition=_partition(metadata, one.partition),
            file_size_in_bytes=one.size,
            sort_order_id=None,
            spec_id=metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )


def _partition(metadata: Any, values: Mapping[str, Any]) -> Any:
    """The partition of a file: values in Iceberg's form, or a date as the name of a directory."""
    schema = metadata.schema()
    found = []
    if [one.name for one in metadata.spec().fields] != list(values):
        raise TableConflict(f"the partitions of the table at {metadata.location} were changed while rows were written; try again")
    for one in metadata.spec().fields:
        value = values[one.name]
        is_date = isinstance(value, str) and isinstance(schema.find_type(one.source_id), DateType)
        found.append((date.fromisoformat(value) - date(1970, 1, 1)).days if is_date else value)
    return Record(*found)


# -- reading


def write_rows(
    files: RowFiles, metadata: Any, io: Any, tasks: Iterable[Any], *, without: Callable[[pa.Table], pa.Table] | None = None
) -> None:
    """Write the rows of existing files to new ones, some at a time.

    `without`: leaves out rows. Raises: ArrowInvalid for a value that does not fit; TableConflict for a file that cannot be rewritten.
    """
    for rows in rows_of(metadata, io, tasks):
        files.write(rows if without is None else without(rows))


def rows_of(metadata: Any, io: Any, tasks: Iterable[Any]) -> Iterator[pa.Table]:
    """The rows of files, some at a time. Raises: TableConflict for a file that cannot be rewritten."""
    stored, columns = stored_schema(metadata.schema()), columns_of(metadata.schema())
    for task in tasks:
        if reason := foreign(task, io):
            raise TableConflict(f"{task.file.file_path} {reason}; rewrite the table's files with that writer first")
        with io.new_input(task.file.file_path).open() as stream, pq.ParquetFile(stream) as file:
            there = list(file.schema_arrow)
            for batch in file.iter_batches(BATCH_ROWS):
                yield pa.Table.from_arrays(projected_members(batch.columns, len(batch), there, stored), schema=columns)


def foreign(task: Any, io: Any) -> str:
    """Why a file cannot be rewritten here; "" if it can.

    pyiceberg's own reader knows more kinds of files, and turns null lists of structs into empty ones.
    """
    if task.delete_files:
        return "has deleted rows in a delete file of another writer"
    if task.file.file_format != FileFormat.PARQUET:
        return f"is a file of {task.file.file_format}, by another writer"
    with io.new_input(task.file.file_path).open() as stream, pq.ParquetFile(stream) as file:
        return "" if all(field_id(one) is not None for one in file.schema_arrow) else "has no ids of columns"


def tasks_with(table: Any, column: str, values: Any) -> list[Any]:
    """The files with a row whose column has one of the values."""
    limits = pc.min_max(values)
    low, high = limits["min"].as_py(), limits["max"].as_py()
    wanted = table.schema().find_field(column).field_id
    found = []
    for task in table.scan(row_filter=And(GreaterThanOrEqual(column, low), LessThanOrEqual(column, high))).plan_files():
        with table.io.new_input(task.file.file_path).open() as stream, pq.ParquetFile(stream) as file:
            names = [one.name for one in file.schema_arrow if field_id(one) == wanted]
            if not names or any(pc.any(pc.is_in(one.column(0), value_set=values)).as_py() for one in file.iter_batches(columns=names)):
                found.append(task)
    return found


def read_columns(task: Any, io: Any, fields: Mapping[int, Any]) -> pa.Table | None:
    """Columns of a file as `fields`, Arrow's by their ids; None if the file lacks some."""
    with io.new_input(task.file.file_path).open() as stream, pq.ParquetFile(stream) as file:
        found = {one.name: fields[number] for one in file.schema_arrow if (number := field_id(one)) in fields and number is not None}
        if len(found) < len(fields):
            return None
        rows = file.read(columns=list(found))
        return pa.table({field.name: rows.column(name).cast(field.type) for name, field in found.items()})


def small_files(table: Any) -> list[Any]:
    """The small files of partitions that have several."""
    groups = defaultdict(list)
    for task in table.scan().plan_files():
        if task.file.file_size_in_bytes < SMALL_BYTES and not foreign(task, table.io):
            groups[tuple(task.file.partition)].append(task)
    return [task for tasks in groups.values() if len(tasks) > 1 for task in tasks]


# -- removing


def vacuumed(table: Any, retention_hours: int, commit: Callable[[Any], None]) -> list[str]:
    """Expire snapshots older than this by `commit`, and remove unneeded files that are older; returns their names."""
    cutoff = datetime.now(UTC) - timedelta(hours=retention_hours)
    io = table.io
    if not isinstance(io, PyArrowFileIO):
        raise ValueError(
            f"files cannot be listed by {type(io).__name__}: remove py-io-impl from the catalog's properties, or vacuum with Spark"
        )
    expire(table, cutoff, commit)
    needed = {_path(io, one) for one in needed_files(table)}
    removed = []
    for root, pattern in ((data_root(table.metadata), _DATA_FILE), (_metadata_root(table.metadata), _METADATA_FILE)):
        scheme, netloc, path = io.parse_location(root)
        system = io.fs_by_scheme(scheme, netloc)
        for one in system.get_file_info(pafs.FileSelector(path, allow_not_found=True, recursive=True)):
            is_candidate = one.type == pafs.FileType.File and pattern.fullmatch(one.base_name) and one.mtime < cutoff
            if is_candidate and one.path not in needed:
                system.delete_file(one.path)
                removed.append(one.path)
    return removed


def expire(table: Any, cutoff: datetime, commit: Callable[[Any], None]) -> None:
    """Remove snapshots older than this, except those of branches and tags."""
    kept = {ref.snapshot_id for ref in table.metadata.refs.values()}
    old = [
        one.snapshot_id for one in table.metadata.snapshots if one.snapshot_id not in kept and one.timestamp_ms < cutoff.timestamp() * 1000
    ]
    if not old:
        return
    from pyiceberg.table.update.snapshot import ExpireSnapshots

    transaction = table.transaction()
    ExpireSnapshots(transaction).by_ids(old).commit()
    commit(transaction)


def needed_files(table: Any) -> Iterator[str]:
    """The addresses of all files of all snapshots."""
    metadata = table.metadata
    yield table.metadata_location
    yield from (one.metadata_file for one in metadata.metadata_log)
    yield from (one.statistics_path for one in (*metadata.statistics, *metadata.partition_statistics))
    seen = set()
    for snapshot in metadata.snapshots:
        yield snapshot.manifest_list
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path in seen:
                continue
            seen.add(manifest.manifest_path)
            yield manifest.manifest_path
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                yield entry.data_file.file_path


def _metadata_root(metadata: Any) -> str:
    return str(metadata.properties.get("write.metadata.path") or f"{metadata.location.rstrip('/')}/metadata")


def _path(io: PyArrowFileIO, address: str) -> str:
    return str(io.parse_location(address)[2])
