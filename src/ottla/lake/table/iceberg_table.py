"""An Iceberg table that is written by pyiceberg: commits with a check before each attempt, evolution of columns, and maintenance.

What a commit must find in the table, so that each record is there once, is up to the two writers: `iceberg_target` (a topic's next
offsets) and `iceberg_batches` (the last batch of a query). Both keep it in the summary of their snapshots and in the table's properties, in
one commit. `recorded` reads it:

    snapshot summary    of the newest snapshot that has it, along the parents: a rollback takes it along
    table properties    the same, for when the snapshots that have it are expired; ottla.sequence: the sequence number of the last commit,
                        by which a table that was rolled back is known

Each attempt of a commit loads the table and requires that the snapshot that was read is still the newest. pyiceberg's own repetition of
commits does not compare, and is not used. Merging, replacing and compaction are copy on write: files with changed rows are replaced, and
there are no delete files.
"""

import random
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Transaction
from pyiceberg.table.update import AssertTableUUID

from ottla.lake.table.delta import TRIES, Compacted, Overtaken, TableMismatch
from ottla.lake.table.iceberg_catalog import ERRORS, IcebergPlace, catalog_error, is_passing, loaded, local_file
from ottla.lake.table.iceberg_files import added_files, small_files, vacuumed, write_rows
from ottla.lake.table.iceberg_schema import arrow_of, columns_of, iceberg_evolution, needs_rewrite, top_level
from ottla.lake.table.parquet_files import DataFile
from ottla.lake.table.partitioned_files import RowFiles
from ottla.lake.table.schema_evolution import Evolution
from ottla.lake.table.target import TableConflict

SEQUENCE, COMMIT = "ottla.sequence", "ottla.commit"
#: Frequent commits make many small manifests and metadata files, so both are joined or removed; other writers may change these.
PROPERTIES = {
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
    "write.parquet.compression-codec": "zstd",
}
#: Wait before another attempt after such an error, doubled each time.
_WAIT_S, _WAIT_MAX_S = 0.2, 5.0
T = TypeVar("T")


class StagedTransaction(Transaction):  # type: ignore[misc]
    """Computes the metadata once per change: pyiceberg copies all snapshots of the table at each of about 15 looks per commit."""

    _seen: Any = None

    @property
    def table_metadata(self) -> Any:
        if self._seen is None or self._seen[0] is not self._updates:
            self._seen = (self._updates, super().table_metadata)
        return self._seen[1]


class IcebergTable:
    """An Iceberg table."""

    def __init__(self, place: IcebergPlace, *, pause: Callable[[float], None] = time.sleep) -> None:
        self._place = place
        self._pause = pause
        self._catalog: Any = None
        self._table: Any = None
        self._schema: pa.Schema | None = None

    def _check(self) -> None:
        """Checks the newest state of the table, before each attempt. Raises: TableConflict."""

    def _new_files(self, metadata: Any) -> RowFiles:
        """New files for rows."""
        raise NotImplementedError

    def _kept(self) -> Mapping[str, str]:
        """The summary of a snapshot that changes no rows."""
        return {}

    def _opened(self) -> Any:
        """The table; None if there is none."""
        if self._catalog is None:
            if not self._place.is_there():
                return None
            self._catalog = self._place.open()
        return loaded(self._place, self._catalog)

    def close(self) -> None:
        """Close the catalog. No lock is held: the catalog detects concurrent commits."""
        if self._catalog is not None:
            self._catalog.close()
            self._catalog = None

    @property
    def version(self) -> int:
        return int(self._table.metadata.last_sequence_number)

    def schema(self) -> pa.Schema:
        if self._schema is None:
            self._schema = columns_of(self._table.schema())
        return self._schema

    def changes(self, schema: pa.Schema) -> Evolution:
        return iceberg_evolution(self._table.schema(), schema)

    def is_empty(self) -> bool:
        """Whether the table has no files."""
        return next(iter(self._table.scan().plan_files()), None) is None

    def evolve(self, schema: pa.Schema, *, rewrite: bool) -> list[str]:
        def attempt() -> list[str]:
            change = self.changes(schema)
            rewritten = [one for one in change.wider if needs_rewrite(one)]
            if change.refused or (rewritten and not rewrite):
                raise TableMismatch(_refusal(self._place, [*change.refused, *rewritten], is_refused=bool(change.refused)))
            if change.added or change.wider:
                transaction = StagedTransaction(self._table)
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
        files = self._new_files(transaction.table_metadata)
        try:
            write_rows(files, before, self._table.io, tasks)
        except pa.ArrowInvalid as error:
            files.abandon()
            raise TableMismatch(f"the table at {self._place} holds values that do not fit {change.wider[0]}: {error}") from error
        self._replace(transaction, tasks, files.finish(), self._kept())

    def _replace(self, transaction: Any, tasks: Iterable[Any], files: list[DataFile], summary: Mapping[str, str]) -> None:
        """A snapshot without the files of the tasks and with new ones."""
        with transaction.update_snapshot(snapshot_properties=dict(summary)).overwrite() as update:
            for task in tasks:
                update.delete_data_file(task.file)
            for one in added_files(transaction.table_metadata, files):
                update.append_data_file(one)

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
                self._table.refresh()
                self._check()
                self._schema = None
                return attempt()
            except CommitFailedException as error:
                if not left:
                    raise Overtaken(f"another process writes to the table at {self._place}: {error}") from error
            except ERRORS as error:
                if not left or not is_passing(error):
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
        # A name of its own: another process may write the hint at the same time, and would move this file.
        beside = metadata.with_name(f"version-hint.text.{uuid.uuid4().hex}.new")
        beside.write_text(metadata.name.removesuffix(".metadata.json"))
        beside.replace(hint)

    def compact(self) -> Compacted:
        """Join small files. Returns (0, 0) if another writer changed the table first."""
        self._ready()

        def attempt() -> Compacted:
            tasks = small_files(self._table)
            if not tasks:
                return Compacted(0, 0)
            transaction = StagedTransaction(self._table)
            files = self._new_files(self._table.metadata)
            write_rows(files, self._table.metadata, self._table.io, tasks)
            written = files.finish()
            self._replace(transaction, tasks, written, self._kept())
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
        self._check()


def recorded(metadata: Any, key: str) -> str | None:
    """What the last commit with this key in its summary has there; None if there was none.

    Raises: TableConflict if it is not known, because the table was rolled back to where no snapshot has it.
    """
    for one in history_of(metadata):
        if one.summary is not None and (text := one.summary.get(key)):
            return str(text)
    text = metadata.properties.get(key)
    # The snapshots that had it are expired, which cuts the history. A table that was rolled back has older rows than the properties say.
    current = metadata.current_snapshot()
    if text is not None and (current.sequence_number if current else 0) < int(metadata.properties.get(SEQUENCE, 0)):
        raise TableConflict(
            f"the table at {metadata.location} was rolled back to a snapshot without {key}, so the records that it has are not known;"
            f" roll it back to a snapshot with {key} in its summary, or write to another table"
        )
    return None if text is None else str(text)


def history_of(metadata: Any) -> Iterator[Any]:
    """The current snapshot and its parents, as far as they are not expired."""
    snapshots = {one.snapshot_id: one for one in metadata.snapshots}
    snapshot = snapshots.get(metadata.current_snapshot_id)
    while snapshot is not None:
        yield snapshot
        snapshot = snapshots.get(snapshot.parent_snapshot_id)


def _refusal(place: IcebergPlace, changes: Iterable[Any], *, is_refused: bool) -> str:
    story = "; ".join(str(one) for one in changes)
    todo = "cast the column to the type that the table has, give it another name, or write to another table"
    if not is_refused:
        todo += ". Readers cannot convert the values of files that are there, so the table must be rewritten to widen it"
    return f"the table at {place} has {story}: {todo}"
