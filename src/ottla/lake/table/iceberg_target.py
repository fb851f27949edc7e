"""An Iceberg table of a topic, by pyiceberg. One commit of the catalog holds the files, the snapshot and the next offsets.

    ottla.offsets    the next offset of each partition, in the snapshot's summary and in the table's properties (`iceberg_table`)
    ottla.commit     the id of the commit, in the summary

The offsets of a table are those of its newest snapshot that has some, along the parents: a table that is rolled back to an older snapshot
has that snapshot's offsets, and the later records are read again. Snapshots of other writers (compaction by Spark, deletes) have none.

Each attempt of a commit compares the offsets of the table with those that the files start from. So of two writers one commits, and the
other raises `Overtaken`. If the answer to a commit is lost, the commit is looked up by its id.
"""

import json
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.transforms import IdentityTransform

from ottla.lake.table.delta import Overtaken
from ottla.lake.table.iceberg_catalog import IcebergPlace, created
from ottla.lake.table.iceberg_files import added_files, new_files, tasks_with, write_rows
from ottla.lake.table.iceberg_schema import arrow_of, delta_of
from ottla.lake.table.iceberg_table import COMMIT, PROPERTIES, SEQUENCE, IcebergTable, StagedTransaction, recorded
from ottla.lake.table.parquet_files import DataFile, Files
from ottla.lake.table.partitioned_files import RowFiles
from ottla.lake.table.schema import DATE, TableFormat
from ottla.lake.table.target import DELETED, FORM, TOPIC, TOPIC_ID, TableConflict, TableOrigin, check_origin, refuse_others

OFFSETS = "ottla.offsets"


class IcebergTarget(IcebergTable):
    """An Iceberg table of a topic."""

    def __init__(self, place: IcebergPlace, *, pause: Callable[[float], None] = time.sleep) -> None:
        super().__init__(place, pause=pause)
        self._form = TableFormat()

    def _check(self) -> None:
        self._form = form_of(self._table, self._place)

    def _new_files(self, metadata: Any) -> RowFiles:
        return new_files(metadata, self._table.io, by_date=self._form.by_date)

    def _kept(self) -> Mapping[str, str]:
        return {OFFSETS: _text(offsets_of(self._table.metadata)), COMMIT: uuid.uuid4().hex}

    def form(self, origin: TableOrigin) -> TableFormat | None:
        if self._place.directory is not None:
            refuse_others(self._place.directory, "iceberg")
        table = self._opened()
        if table is None:
            return None
        form = form_of(table, self._place)
        check_origin(origin, table.properties[TOPIC], table.properties.get(TOPIC_ID, ""), self._place)
        return form

    def begin(self, origin: TableOrigin, form: TableFormat, schema: pa.Schema) -> None:
        self._form = form
        if self._place.directory is not None:
            self._place.directory.mkdir(parents=True, exist_ok=True)
        if self._catalog is None:
            self._catalog = self._place.open()
        self._table = self._opened()
        if self._table is None:
            settings = {TOPIC: origin.topic, TOPIC_ID: origin.topic_id, FORM: msgspec.json.encode(form).decode(), **PROPERTIES}
            partition_by = [(DATE, "identity")] if form.by_date else []
            columns = arrow_of(delta_of(schema))
            created(self._place, self._catalog, origin.topic, schema=columns, properties=settings, partition_by=partition_by)
            # Another process may have created it first.
            self.form(origin)
            self._table = self._opened()
        self._show_version()

    def positions(self, partitions: Iterable[int]) -> dict[int, int]:
        found = offsets_of(self._table.metadata)
        return {partition: found[partition] for partition in partitions if partition in found}

    def files(self) -> Files:
        return new_files(self._table.metadata, self._table.io, by_date=self._form.by_date)

    def commit(self, files: list[DataFile], before: Mapping[int, int], after: Mapping[int, int]) -> None:
        def once(transaction: Any, summary: Mapping[str, str]) -> None:
            with transaction.update_snapshot(snapshot_properties=dict(summary)).merge_append() as update:
                for one in added_files(transaction.table_metadata, files):
                    update.append_data_file(one)

        self._transact(before, after, once)

    def merge(self, rows: pa.Table, before: Mapping[int, int], after: Mapping[int, int]) -> None:
        """Upsert rows by key; rows with `DELETED` delete the row of their key. Raises: Overtaken."""
        key = self._form.name("key")
        keys = rows.column(key).combine_chunks()
        kept = rows.filter(pc.invert(rows.column(DELETED))).drop_columns([DELETED])

        def once(transaction: Any, summary: Mapping[str, str]) -> None:
            tasks = tasks_with(self._table, key, keys)
            files = self.files()
            write_rows(
                files,
                self._table.metadata,
                self._table.io,
                tasks,
                without=lambda rows: rows.filter(pc.invert(pc.is_in(rows.column(key), value_set=keys))),
            )
            files.write(kept)
            self._replace(transaction, tasks, files.finish(), summary)

        self._transact(before, after, once)

    def _transact(self, before: Mapping[int, int], after: Mapping[int, int], once: Callable[[Any, Mapping[str, str]], None]) -> None:
        commit = uuid.uuid4().hex

        def attempt() -> None:
            current = offsets_of(self._table.metadata)
            if any(current.get(partition, 0) != before.get(partition, 0) for partition in after):
                if self._has(commit):
                    # An earlier attempt was carried out, and its answer was lost.
                    return
                topic = self._table.properties.get(TOPIC)
                raise Overtaken(f"another process syncs the table at {self._place} with {topic}; stop one of the two")
            offsets = {**current, **after}
            transaction = StagedTransaction(self._table)
            transaction.set_properties({OFFSETS: _text(offsets), SEQUENCE: str(self.version + 1)})
            once(transaction, {OFFSETS: _text(offsets), COMMIT: commit})
            self._commit(transaction)

        self._retried(attempt)


def form_of(table: Any, place: IcebergPlace) -> TableFormat:
    """The format of a topic's table. Raises: TableConflict."""
    if FORM not in table.properties:
        raise TableConflict(f"the table at {place} was not made from a topic; write to another one")
    form = msgspec.json.decode(table.properties[FORM], type=TableFormat)
    names = {one.field_id: one.name for one in table.schema().fields}
    found = [(names.get(one.source_id), one.transform) for one in table.spec().fields]
    if found != ([(DATE, IdentityTransform())] if form.by_date else []):
        raise TableConflict(f"the partitioning of the table at {place} was changed to {found}; change it back, or write to another table")
    return form


def offsets_of(metadata: Any) -> dict[int, int]:
    """The next offset of each partition. Raises: TableConflict if they are not known."""
    return _offsets(recorded(metadata, OFFSETS) or "{}")


def _offsets(text: str) -> dict[int, int]:
    return {int(partition): offset for partition, offset in json.loads(text).items()}


def _text(offsets: Mapping[int, int]) -> str:
    return json.dumps({str(partition): offset for partition, offset in sorted(offsets.items())}, separators=(",", ":"))
