"""An Iceberg table of a topic, by pyiceberg. One commit of the catalog holds the files, the snapshot and the next offsets.

    snapshot summary    ottla.offsets: the next offset of each partition; ottla.commit: the id of the commit
    table properties    ottla.offsets: the same, for when the snapshots that have it are expired; ottla.sequence: the sequence number of
                        the last commit, by which a table that was rolled back is known

The offsets of a table are those of its newest snapshot that has some, along the parents: a table that is rolled back to an older snapshot
has that snapshot's offsets, and the later records are read again. Snapshots of other writers (compaction by Spark, deletes) have none.

Each attempt of a commit loads the table, compares its offsets with those that the files start from, and requires that the snapshot that was
read is still the newest. So of two writers one commits, and the other raises `Overtaken`. pyiceberg's own repetition of commits does not
compare offsets, and is not used. If the answer to a commit is lost, the commit is looked up by its id.

Merging and compaction are copy on write: files with changed rows are replaced, and there are no delete files.
"""

import json
import random
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import requests
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, ServerError, ServiceUnavailableError
from pyiceberg.table import Transaction
from pyiceberg.table.update import AssertTableUUID
from pyiceberg.transforms import IdentityTransform
from sqlalchemy.exc import OperationalError

from ottla.lake.table.delta import TRIES, Compacted, Overtaken, TableMismatch
from ottla.lake.table.iceberg_catalog import IcebergPlace, catalog_error, created, explained, loaded, local_file
from ottla.lake.table.iceberg_files import added_files, new_files, small_files, tasks_with, vacuumed, write_rows
from ottla.lake.table.iceberg_schema import arrow_of, columns_of, delta_of, iceberg_evolution, needs_rewrite, top_level
from ottla.lake.table.parquet_files import DataFile, Files
from ottla.lake.table.schema import DATE, TableFormat
from ottla.lake.table.schema_evolution import Evolution
from ottla.lake.table.target import DELETED, FORM, TOPIC, TOPIC_ID, TableConflict, TableOrigin, check_origin, refuse_others

OFFSETS, SEQUENCE, COMMIT = "ottla.offsets", "ottla.sequence", "ottla.commit"
#: Frequent commits make many small manifests and metadata files, so both are joined or removed; other writers may change these.
PROPERTIES = {
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
    "write.parquet.compression-codec": "zstd",
}
#: Errors after which a commit may be there or not, or is worth another attempt.
_PASSING = (CommitStateUnknownException, ServiceUnavailableError, ServerError, requests.ConnectionError, requests.Timeout, OperationalError)
#: Wait before another attempt after such an error, doubled each time.
_WAIT_S, _WAIT_MAX_S = 0.2, 5.0
T = TypeVar("T")


class _Transaction(Transaction):  # type: ignore[misc]
    """Computes the metadata once per change: pyiceberg copies all snapshots of the table at each of about 15 looks per commit."""

    _seen: Any = None

    @property
    def table_metadata(self) -> Any:
        if self._seen is None or self._seen[0] is not self._updates:
            self._seen = (self._updates, super().table_metadata)
        return self._seen[1]


class IcebergTarget:
    """An Iceberg table."""

    def __init__(self, place: IcebergPlace, *, pause: Callable[[float], None] = time.sleep) -> None:
        self._place = place
        self._pause = pause
        self._catalog: Any = None
        self._table: Any = None
        self._schema: pa.Schema | None = None
        self._form = TableFormat()

    def _opened(self) -> Any:
        """The table; None if there is none."""
        if self._catalog is None:
            if not self._place.is_there():
                return None
            self._catalog = self._place.open()
        return loaded(self._place, self._catalog)

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
            partition_by = [DATE] if form.by_date else []
            columns = arrow_of(delta_of(schema))
            created(self._place, self._catalog, origin.topic, schema=columns, properties=settings, partition_by=partition_by)
            # Another process may have created it first.
            self.form(origin)
            self._table = self._opened()
        self._show_version()

    def close(self) -> None:
        """Close the catalog. No lock is held: the catalog detects concurrent commits."""
        if self._catalog is not None:
            self._catalog.close()
            self._catalog = None

    @property
    def version(self) -> int:
        return int(self._table.metadata.last_sequence_number)

    def positions(self, partitions: Iterable[int]) -> dict[int, int]:
        found = offsets_of(self._table.metadata)
        return {partition: found[partition] for partition in partitions if partition in found}

    def schema(self) -> pa.Schema:
        if self._schema is None:
            self._schema = columns_of(self._table.schema())
        return self._schema

    def changes(self, schema: pa.Schema) -> Evolution:
        return iceberg_evolution(self._table.schema(), schema)

    def is_empty(self) -> bool:
        """Whether the table has no files."""
        return next(iter(self._table.scan().plan_files()), None) is None

    def files(self) -> Files:
        return new_files(self._table.metadata, self._table.io, by_date=self._form.by_date)

    # ------------------------------------------------------------------------------------------------------------ columns

    def evolve(self, schema: pa.Schema, *, rewrite: bool) -> list[str]:
        def attempt() -> list[str]:
            change = self.changes(schema)
            rewritten = [one for one in change.wider if needs_rewrite(one)]
            if change.refused or (rewritten and not rewrite):
                raise TableMismatch(_refusal(self._place, [*change.refused, *rewritten], is_refused=bool(change.refused)))
            if change.added or change.wider:
                transaction = _Transaction(self._table)
                if rewritten:
                    self._rewrite(transaction, change, {top_level(one, self.schema().names) for one in rewritten})
                else:
                    with transaction.update_schema() as update:
                        update.union_by_name(arrow_of(change.schema))
                self._commit(transaction)
            return [f"{one.column} {one.becomes}" for one in (*change.added, *change.wider)]

        return self._retried(attempt)

    def _rewrite(self, transaction: Any, change: Evolution, columns: set[str]) -> None:
        """Write all rows again, with new columns in the place of `columns`. Raises: TableMismatch for a value that does not fit exactly."""
        before = self._table.metadata
        tasks = list(self._table.scan().plan_files())
        with transaction.update_schema(allow_incompatible_changes=True) as update:
            for column in columns:
                update.delete_column((column,))
        with transaction.update_schema() as update:
            update.union_by_name(arrow_of(change.schema))
        files = new_files(transaction.table_metadata, self._table.io, by_date=self._form.by_date)
        try:
            write_rows(files, before, self._table.io, tasks)
        except pa.ArrowInvalid as error:
            files.abandon()
            raise TableMismatch(f"the table at {self._place} holds values that do not fit {change.wider[0]}: {error}") from error
        self._replace(transaction, tasks, files.finish(), self._summary(offsets_of(before)))

    # ------------------------------------------------------------------------------------------------------------ commits

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
            write_rows(files, self._table.metadata, self._table.io, tasks, without=(key, keys))
            files.write(kept)
            self._replace(transaction, tasks, files.finish(), summary)

        self._transact(before, after, once)

    def _replace(self, transaction: Any, tasks: Iterable[Any], files: list[DataFile], summary: Mapping[str, str]) -> None:
        """A snapshot without the files of the tasks and with new ones."""
        with transaction.update_snapshot(snapshot_properties=dict(summary)).overwrite() as update:
            for task in tasks:
                update.delete_data_file(task.file)
            for one in added_files(transaction.table_metadata, files):
                update.append_data_file(one)

    def _summary(self, offsets: Mapping[int, int]) -> dict[str, str]:
        return {OFFSETS: _text(offsets), COMMIT: uuid.uuid4().hex}

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
            transaction = _Transaction(self._table)
            transaction.set_properties({OFFSETS: _text(offsets), SEQUENCE: str(self.version + 1)})
            once(transaction, {OFFSETS: _text(offsets), COMMIT: commit})
            self._commit(transaction)

        self._retried(attempt)

    def _commit(self, transaction: Any) -> None:
        """One request to the catalog. `commit_transaction` of pyiceberg would repeat it without the comparison of offsets."""
        requirements = (*transaction._requirements, AssertTableUUID(uuid=self._table.metadata.table_uuid))
        self._table._do_commit(updates=transaction._updates, requirements=requirements)
        self._schema = None
        self._show_version()

    def _has(self, commit: str) -> bool:
        """Whether a commit is in the history of the table."""
        return any(one.summary is not None and one.summary.get(COMMIT) == commit for one in history_of(self._table.metadata))

    def _retried(self, attempt: Callable[[], T]) -> T:
        """Calls `attempt` with the newest state of the table, again after conflicts with others and lost answers.

        Raises: Overtaken, CatalogError.
        """
        wait_s = _WAIT_S
        for left in reversed(range(TRIES)):
            try:
                with explained(self._place, but=(CommitFailedException, *_PASSING)):
                    self._table.refresh()
                    form_of(self._table, self._place)
                    self._schema = None
                    return attempt()
            except CommitFailedException as error:
                if not left:
                    raise Overtaken(f"another process writes to the table at {self._place}: {error}") from error
            except _PASSING as error:
                if not left:
                    raise catalog_error(self._place, error) from None
                self._pause(wait_s * random.uniform(0.5, 1))
                wait_s = min(2 * wait_s, _WAIT_MAX_S)
        raise AssertionError("the last try returns or raises")

    def _show_version(self) -> None:
        """Name the metadata file for readers without a catalog. They see the commit before if the process ends here."""
        metadata = None if self._place.directory is None else local_file(self._table.metadata_location)
        if metadata is None:
            return
        hint = metadata.with_name("version-hint.text")
        beside = metadata.with_name("version-hint.text.new")
        beside.write_text(metadata.name.removesuffix(".metadata.json"))
        beside.replace(hint)

    # ------------------------------------------------------------------------------------------------------------ maintenance

    def compact(self) -> Compacted:
        """Join small files. Returns (0, 0) if another writer changed the table first."""
        self._ready()

        def attempt() -> Compacted:
            tasks = small_files(self._table)
            if not tasks:
                return Compacted(0, 0)
            transaction = _Transaction(self._table)
            files = self.files()
            write_rows(files, self._table.metadata, self._table.io, tasks)
            written = files.finish()
            self._replace(transaction, tasks, written, self._summary(offsets_of(self._table.metadata)))
            try:
                self._commit(transaction)
            except CommitFailedException:
                return Compacted(0, 0)
            return Compacted(len(tasks), len(written))

        return self._retried(attempt)

    def vacuum(self, retention_hours: int) -> int:
        """Expire snapshots older than this, and remove files that no snapshot needs; returns the number of files."""
        self._ready()

        return self._retried(lambda: len(vacuumed(self._table, retention_hours, self._commit)))

    def _ready(self) -> None:
        """Load the table, for commands that did not begin it. Raises: TableConflict."""
        if self._table is None:
            self._table = self._opened()
        if self._table is None:
            raise TableConflict(f"there is no Iceberg table at {self._place}")
        self._form = form_of(self._table, self._place)


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
    for one in history_of(metadata):
        if one.summary is not None and (text := one.summary.get(OFFSETS)):
            return _offsets(text)
    # The snapshots that had them are expired, which cuts the history. A table that was rolled back has older rows than the properties say.
    current = metadata.current_snapshot()
    if (current.sequence_number if current else 0) < int(metadata.properties.get(SEQUENCE, 0)):
        raise TableConflict(
            f"the table at {metadata.location} was rolled back to a snapshot without offsets, so the records that it has are not known;"
            " roll it back to a snapshot with ottla.offsets in its summary, or write to another table"
        )
    return _offsets(metadata.properties.get(OFFSETS, "{}"))


def history_of(metadata: Any) -> Iterator[Any]:
    """The current snapshot and its parents, as far as they are not expired."""
    snapshots = {one.snapshot_id: one for one in metadata.snapshots}
    snapshot = snapshots.get(metadata.current_snapshot_id)
    while snapshot is not None:
        yield snapshot
        snapshot = snapshots.get(snapshot.parent_snapshot_id)


def _offsets(text: str) -> dict[int, int]:
    return {int(partition): offset for partition, offset in json.loads(text).items()}


def _text(offsets: Mapping[int, int]) -> str:
    return json.dumps({str(partition): offset for partition, offset in sorted(offsets.items())}, separators=(",", ":"))


def _refusal(place: IcebergPlace, changes: Iterable[Any], *, is_refused: bool) -> str:
    story = "; ".join(str(one) for one in changes)
    todo = "cast the column to the type that the table has, give it another name, or write to another table"
    if not is_refused:
        todo += ". Readers cannot convert the values of files that are there, so the table must be rewritten to widen it"
    return f"the table at {place} has {story}: {todo}"
