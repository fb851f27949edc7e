"""An Iceberg table that a query writes batch by batch. One commit of the catalog holds a batch's files and its number.

    ottla.batch/APPLICATION    the number of the last batch of a writer, with a hash of its rows where a retry may make others, in the
                               snapshot's summary and in the table's properties (`iceberg_table`)

Each attempt of a commit looks for the batch first, so a batch that is retried after a kill, or whose answer was lost, is there once. Any
number of writers may share a table.

    ottla.backfill    the records whose rows a snapshot replaced, as a condition in SQL, in its summary (`replace_records`, `merge_newest`)

Such a snapshot changes no number of a batch.
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, EqualTo, GreaterThanOrEqual, LessThan, LessThanOrEqual, Or

from ottla.lake.table.delta import TableMismatch, refuse_repeated
from ottla.lake.table.iceberg_catalog import created
from ottla.lake.table.iceberg_files import TableUploads, added_files, data_root, file_plan, foreign, read_columns, rows_of, write_rows
from ottla.lake.table.iceberg_partitions import Partition, parsed, partitioning_of
from ottla.lake.table.iceberg_schema import arrow_of, columns_of, delta_of, optional
from ottla.lake.table.iceberg_table import COMMIT, PROPERTIES, SEQUENCE, IcebergTable, StagedTransaction, recorded
from ottla.lake.table.keys import comparable
from ottla.lake.table.newest_rows import Changes, NewestRows
from ottla.lake.table.parquet_files import DataFile, aligned
from ottla.lake.table.partitioned_files import FilePlan, RowFiles
from ottla.lake.table.record_ranges import RecordRanges
from ottla.lake.table.target import FORM, TableConflict

BATCH = "ottla.batch/"
BACKFILL = "ottla.backfill"
#: A column of the comparison of keys; no column has this name.
_PLACE = "\0place"


class IcebergBatches(IcebergTable):
    """An Iceberg table of a query, or of another program. Methods raise: CatalogError; TableMismatch for partitions of other kinds."""

    def _check(self) -> None:
        if FORM in self._table.properties:
            raise TableConflict(f"the table at {self._place} is kept by ottla table sync; write to another one")
        self._partitions()

    def _new_files(self, metadata: Any) -> RowFiles:
        return file_plan(metadata).files(self.uploads())

    def plan(self) -> FilePlan:
        """The files for rows of the table, as it is now. Raises: TableConflict."""
        self._ready()
        self._refresh()
        return file_plan(self._table.metadata)

    def uploads(self) -> TableUploads:
        """Where files are uploaded, for a plan without a directory. Raises: TableConflict."""
        self._ready()
        return TableUploads(data_root(self._table.metadata), self._table.io)

    def ensure(self, schema: pa.Schema, *, partition_by: Sequence[str] = (), evolving: bool = False) -> None:
        """Create the table where there is none; else compare its columns, or with `evolving` add columns and widen types.

        Raises: TableMismatch for other columns or partitions; TableConflict for the table of a topic.
        """
        if self._table is None:
            self._table = self._opened()
        fields = tuple(map(parsed, partition_by))
        if self._table is None:
            self._create(arrow_of(delta_of(optional(schema))), fields)
        self._refresh()
        partitions = self._partitions()
        if fields and fields != partitions:
            raise TableMismatch(
                f"the table at {self._place} is partitioned by {', '.join(map(str, partitions)) or 'nothing'}; write to another one"
            )
        if evolving:
            self.evolve(optional(schema), rewrite=False)
            return
        there, wanted = (delta_of(optional(one))["fields"] for one in (columns_of(self._table.schema()), schema))
        types = [{one["name"]: one["type"] for one in fields} for fields in (there, wanted)]
        if types[0] != types[1]:
            raise TableMismatch(
                f"the table at {self._place} has the columns {types[0]} and the results have {types[1]}; write to another one"
            )

    def _create(self, columns: pa.Schema, fields: Sequence[Partition]) -> None:
        for one in fields:
            if one.column not in columns.names:
                raise TableMismatch(f"there is no column {one.column} for the partitions; there are {', '.join(columns.names)}")
        if self._place.directory is not None:
            self._place.directory.mkdir(parents=True, exist_ok=True)
        if self._catalog is None:
            self._catalog = self._place.open()
        partition_by = [(one.column, one.transform) for one in fields]
        try:
            created(self._place, self._catalog, "rows", schema=columns, properties=PROPERTIES, partition_by=partition_by)
        except ValueError as error:
            raise TableMismatch(f"{', '.join(map(str, fields))} cannot be the partitions: {error}") from None
        self._table = self._opened()
        self._show_version()

    def _partitions(self) -> tuple[Partition, ...]:
        try:
            return partitioning_of(self._table.metadata)
        except ValueError as error:
            raise TableMismatch(f"{self._place}: {error}; write to another one") from None

    def _refresh(self) -> None:
        self._retried(lambda: None)

    def has(self, application: str, batch: int, content: int | None = None) -> bool:
        """Whether the table has this batch, and with this `content` if it is not None. A table that is not there has none."""
        if not self.is_there():
            return False
        self._refresh()
        return self._holds(application, batch, content)

    def _holds(self, application: str, batch: int, content: int | None) -> bool:
        text = recorded(self._table.metadata, BATCH + application)
        if text is None:
            return False
        number, _, of = text.partition(" ")
        if int(number) != batch:
            return int(number) > batch
        return content is None or of == str(content)

    def append(self, files: list[DataFile], application: str, batch: int, content: int | None = None) -> bool:
        """Commit files; returns False if the table has the batch. Raises: Overtaken, TableConflict."""
        self._ready()

        def once(transaction: Any, summary: Mapping[str, str]) -> None:
            with transaction.update_snapshot(snapshot_properties=dict(summary)).merge_append() as update:
                for one in added_files(transaction.table_metadata, files):
                    update.append_data_file(one)

        return self._transact(application, batch, content, once)

    def write(
        self, rows: pa.Table, *, mode: str, keys: Sequence[str], application: str, batch: int, partition_by: Sequence[str], evolving: bool
    ) -> bool:
        """Write a batch; `mode`: append, merge (by `keys`, where nulls are equal) or replace. Returns False if the table has the batch.

        Columns that `rows` lack are null; a merge keeps those of the rows that it replaces. With merge and replace a retried batch is
        written again, since its rows may be others. Raises: TableMismatch, Overtaken, RepeatedKeys.
        """
        again = mode != "append"
        if self.has(application, batch + again):
            return False
        if mode == "merge":
            refuse_repeated(rows, keys)
        self.ensure(rows.schema, partition_by=partition_by, evolving=evolving)
        if mode == "append":
            files = self._new_files(self._table.metadata)
            files.write(rows)
            return self.append(files.finish(), application, batch)

        def once(transaction: Any, summary: Mapping[str, str]) -> None:
            files = self._new_files(self._table.metadata)
            added = aligned(rows, self.schema())
            if mode == "merge":
                tasks = self._tasks_with(added, keys)
                merge = _Merge(added, keys, lacking=[name for name in added.column_names if name not in rows.column_names])
                write_rows(files, self._table.metadata, self._table.io, tasks, without=merge.others)
                added = merge.completed()
            else:
                tasks = list(self._table.scan().plan_files())
            files.write(added)
            self._replace(transaction, tasks, files.finish(), summary)

        return self._transact(application, batch, None, once, again=again)

    def _transact(
        self,
        application: str,
        batch: int,
        content: int | None,
        once: Callable[[Any, Mapping[str, str]], None],
        *,
        again: bool = False,
    ) -> bool:
        commit = uuid.uuid4().hex
        noted = {BATCH + application: f"{batch}" if content is None else f"{batch} {content}"}

        def attempt() -> bool:
            if self._has(commit):
                # An earlier attempt was carried out, and its answer was lost.
                return True
            if self._holds(application, batch + again, content):
                return False
            transaction = StagedTransaction(self._table)
            transaction.set_properties({**noted, SEQUENCE: str(self.version + 1)})
            once(transaction, {**noted, COMMIT: commit})
            self._commit(transaction)
            return True

        return self._retried(attempt)

    def is_there(self) -> bool:
        if self._table is None:
            self._table = self._opened()
        return self._table is not None

    def columns(self) -> pa.Schema:
        """The columns of the table. Raises: TableConflict if there is none."""
        self._ready()
        self._refresh()
        return self.schema()

    def count_records(self, records: RecordRanges) -> int:
        """The number of rows of these records. Raises: TableConflict."""
        self._ready()
        return self._retried(lambda: int(self._table.scan(row_filter=_condition(records), selected_fields=records.columns).count()))

    def replace_records(self, rows: pa.Table, records: RecordRanges) -> None:
        """Replace the rows of these records in one commit; `rows` are of these records.

        An attempt after another writer's commit reads the files again. Raises: ArrowInvalid for a value that does not fit; TableConflict,
        Overtaken.
        """
        self._ready()
        commit = uuid.uuid4().hex

        def attempt() -> None:
            if self._has(commit):
                # An earlier attempt was carried out, and its answer was lost.
                return
            transaction = StagedTransaction(self._table)
            files = self._new_files(self._table.metadata)
            tasks = self._tasks_of(records)
            try:
                write_rows(files, self._table.metadata, self._table.io, tasks, without=records.others)
                files.write(rows)
            except BaseException:
                files.abandon()
                raise
            self._replace(transaction, tasks, files.finish(), {BACKFILL: records.sql, COMMIT: commit})
            self._commit(transaction)

        self._retried(attempt)

    def merge_newest(self, newest: NewestRows) -> Changes:
        """Replace, add and remove rows as `newest` decides, in one commit; none if nothing changes. Returns the changes.

        An attempt after another writer's commit reads the files again. Raises: ArrowInvalid for a value that does not fit; TableConflict,
        Overtaken, UnorderedKeys.
        """
        self._ready()
        commit, carried_out = uuid.uuid4().hex, None

        def attempt() -> Changes:
            nonlocal carried_out
            if carried_out is not None and self._has(commit):
                # An earlier attempt was carried out, and its answer was lost.
                return carried_out
            metadata, io = self._table.metadata, self._table.io
            found = {task.file.file_path: task for task in (*self._tasks_of(newest.records), *self._tasks_with(newest.rows, newest.keys))}
            there = [newest.concerned(rows.select(newest.columns)) for rows in rows_of(metadata, io, found.values())]
            changes = newest.changes(pa.concat_tables([newest.rows.select(newest.columns).slice(0, 0), *there]))
            if not changes.keys.num_rows:
                return changes
            carried_out = changes
            transaction = StagedTransaction(self._table)
            files = self._new_files(metadata)
            tasks = self._tasks_with(changes.keys, newest.keys)
            try:
                write_rows(files, metadata, io, tasks, without=_Merge(changes.keys, newest.keys).others)
                files.write(changes.rows)
            except BaseException:
                files.abandon()
                raise
            self._replace(transaction, tasks, files.finish(), {BACKFILL: newest.records.sql, COMMIT: commit})
            self._commit(transaction)
            return changes

        return self._retried(attempt)

    def _tasks_of(self, records: RecordRanges) -> list[Any]:
        """The files with a row of these records. A file without the columns has none, unless another writer omits their ids."""
        fields = {self._table.schema().find_field(name).field_id: self.schema().field(name) for name in records.columns}
        found = []
        for task in self._table.scan(row_filter=_condition(records)).plan_files():
            there = read_columns(task, self._table.io, fields)
            if foreign(task, self._table.io) if there is None else pc.any(records.mask(there)).as_py():
                found.append(task)
        return found

    def _tasks_with(self, rows: pa.Table, keys: Sequence[str]) -> list[Any]:
        """The files that may have a row with the keys of one of `rows`."""
        wanted: BooleanExpression = AlwaysTrue()
        for key in keys:
            column = rows.column(key)
            limits = pc.min_max(column) if not column.null_count and len(column) and _is_ordered(column.type) else None
            if limits is not None and limits["min"].is_valid:
                wanted = And(wanted, GreaterThanOrEqual(key, limits["min"].as_py()), LessThanOrEqual(key, limits["max"].as_py()))
        found = []
        fields = {self._table.schema().find_field(key).field_id: self.schema().field(key) for key in keys}
        for task in self._table.scan(row_filter=wanted).plan_files():
            there = read_columns(task, self._table.io, fields)
            if there is None or len(_Merge(rows, keys).others(there)) < len(there):
                found.append(task)
        return found


def _condition(records: RecordRanges) -> BooleanExpression:
    """The rows of these records, for pyiceberg."""
    found: list[BooleanExpression] = []
    for tp, (start, end) in records.offsets.items():
        one = And(EqualTo("_partition", tp.partition), GreaterThanOrEqual("_offset", start), LessThan("_offset", end))
        found.append(And(EqualTo("_topic", tp.topic), one) if records.several_topics else one)
    return Or(*found) if len(found) > 1 else found[0]


def _is_ordered(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_date(kind))


class _Merge:
    """Rows that replace those with the same keys. Nulls are equal."""

    def __init__(self, rows: pa.Table, keys: Sequence[str], lacking: Sequence[str] = ()) -> None:
        """`lacking`: columns whose values are kept from the replaced rows."""
        self._rows, self._keys, self._lacking = rows, keys, lacking
        self._wanted = comparable(rows, keys).append_column("place", pa.array(range(len(rows)), pa.int64()))
        #: The replaced rows that were seen: their columns `lacking`, and the places of the rows that replace them.
        self._kept: list[pa.Table] = []

    def others(self, there: pa.Table) -> pa.Table:
        """The rows whose keys are not replaced."""
        if not there.num_rows or not self._rows.num_rows:
            return there
        numbered = comparable(there, self._keys).append_column("row", pa.array(range(len(there)), pa.int64()))
        same = [name for name in self._wanted.column_names if name != "place"]
        found = numbered.join(self._wanted, keys=same, join_type="left outer")
        if self._lacking:
            replaced = found.filter(pc.is_valid(found.column("place")))
            if replaced.num_rows:
                values = there.select(self._lacking).take(replaced.column("row"))
                self._kept.append(values.append_column(_PLACE, replaced.column("place")))
        return there.take(found.filter(pc.is_null(found.column("place"))).column("row").combine_chunks().sort())

    def completed(self) -> pa.Table:
        """The rows, after `others` of all rows of the table."""
        if not self._kept:
            return self._rows
        kept = pa.concat_tables(self._kept)
        # If others wrote two rows with the same keys, one is enough.
        which = pc.index_in(pa.array(range(len(self._rows)), pa.int64()), value_set=kept.column(_PLACE).combine_chunks())
        rows = self._rows
        for name in self._lacking:
            rows = rows.set_column(rows.column_names.index(name), rows.schema.field(name), kept.column(name).take(which))
        return rows
