"""Where rows and offsets are written. Both are committed atomically, so each record is in the table once.

    Delta      one commit holds the files and, per partition, an application transaction (`ottla/TOPIC/PARTITION`, next offset)
    Parquet    `_ottla/manifest.json` lists the files and the next offsets, and is replaced atomically (`parquet_target`)
    Iceberg    one commit of the catalog holds the files and a snapshot whose summary has the next offsets (`iceberg_target`)

A table belongs to one topic, identified by its id, and keeps the format with which it was created.
"""

import json
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import msgspec
import pyarrow as pa

from ottla.lake.storage import Location, location
from ottla.lake.table.delta import (
    FILE_BYTES,
    TRIES,
    Compacted,
    Overtaken,
    arrow_schema,
    commit_properties,
    compact,
    create,
    evolution_of,
    evolve,
    merger,
    opened,
    retried,
    vacuum,
)
from ottla.lake.table.parquet_files import DataFile, Files
from ottla.lake.table.schema import DATE, TableFormat
from ottla.lake.table.schema_evolution import Evolution

TOPIC, TOPIC_ID, FORM = "ottla.topic", "ottla.topic_id", "ottla.form"
#: Versions older than this are no longer readable; their log is deleted, because frequent commits make many versions.
LOG_RETENTION = "interval 7 days"
#: A column of rows to merge: whether the record is a tombstone. Tables do not have it.
DELETED = "_ottla_deleted"
#: By format: what a directory with a table has, and what to call it.
MARKS = {
    "delta": ("_delta_log", "a Delta table"),
    "parquet": ("_ottla", "an export to Parquet"),
    "iceberg": ("catalog.db", "an Iceberg table"),
}


class TableConflict(ValueError):
    """The directory holds a table of another topic, or one that was not made from a topic."""


@dataclass(slots=True)
class TableOrigin:
    """The topic of a table: its name, and its id in Kafka's text form, empty if brokers have none."""

    topic: str
    topic_id: str


class Target(Protocol):
    """A table to write to."""

    def form(self, origin: TableOrigin) -> TableFormat | None:
        """The format of the table; None if there is no table. Raises: TableConflict."""

    def begin(self, origin: TableOrigin, form: TableFormat, schema: pa.Schema) -> None:
        """Open the table, or create it."""

    def positions(self, partitions: Iterable[int]) -> dict[int, int]:
        """The next offset of each partition that the table has records of."""

    def schema(self) -> pa.Schema:
        """The columns of the table."""

    def changes(self, schema: pa.Schema) -> Evolution:
        """The column changes that rows of `schema` need."""

    def evolve(self, schema: pa.Schema, *, rewrite: bool) -> list[str]:
        """Change the columns so that they hold rows of `schema`; returns a message per change. Raises: TableMismatch."""

    def files(self) -> Files:
        """New files for rows."""

    def commit(self, files: list[DataFile], before: Mapping[int, int], after: Mapping[int, int]) -> None:
        """Add the files and move the positions from `before` to `after`, atomically. Raises: Overtaken."""

    @property
    def version(self) -> int:
        """Number of changes of the table."""

    def close(self) -> None:
        """Release the table for other processes."""


@runtime_checkable
class LakeTarget(Target, Protocol):
    """A table whose rows and files can be replaced."""

    def is_empty(self) -> bool:
        """Whether the table has no files."""

    def merge(self, rows: pa.Table, before: Mapping[int, int], after: Mapping[int, int]) -> None:
        """Upsert rows by key; rows with `DELETED` delete the row of their key. Raises: Overtaken."""

    def compact(self) -> Compacted:
        """Join small files."""

    def vacuum(self, retention_hours: int) -> int:
        """Remove files that no version of the last hours needs; returns their number."""


def refuse_others(directory: Location | Path, form: str) -> None:
    """Raises: TableConflict if the directory has a table of another format."""
    where = location(directory)
    for other, (mark, what) in MARKS.items():
        # An embedded catalog is always local.
        if other != form and (other != "iceberg" or where.is_local) and where.holds(mark):
            raise TableConflict(f"{where} holds {what}; write to another directory, or with --format {other} if its command has that")


def check_origin(origin: TableOrigin, topic: str, topic_id: str, where: object) -> None:
    """Raises: TableConflict unless the table belongs to this topic."""
    if topic != origin.topic:
        raise TableConflict(f"the table at {where} holds topic {topic}, not {origin.topic}; write to another directory")
    if topic_id and origin.topic_id and topic_id != origin.topic_id:
        raise TableConflict(
            f"topic {topic} was deleted and recreated since the table at {where} was created (topic id {topic_id} then,"
            f" {origin.topic_id} now), so its offsets are other records; sync the new topic to another directory"
        )


class DeltaTarget:
    """A Delta table."""

    def __init__(self, directory: Location | Path) -> None:
        self._directory = location(directory)
        self._table: Any = None
        self._schema: pa.Schema | None = None
        self._form = TableFormat()
        self._topic = ""
        #: The version of the last commit, if this process made the versions since the positions were compared; None: not known.
        self._own_version: int | None = None

    @property
    def path(self) -> str:
        return str(self._directory)

    @property
    def version(self) -> int:
        return int(self._table.version())

    def form(self, origin: TableOrigin) -> TableFormat | None:
        refuse_others(self._directory, "delta")
        table = opened(self._directory)
        if table is None:
            return None
        settings = table.metadata().configuration
        if FORM not in settings:
            raise TableConflict(f"the table at {self.path} was not made from a topic; write to another directory")
        check_origin(origin, settings[TOPIC], settings.get(TOPIC_ID, ""), self.path)
        return msgspec.json.decode(settings[FORM], type=TableFormat)

    def begin(self, origin: TableOrigin, form: TableFormat, schema: pa.Schema) -> None:
        self._form, self._topic = form, origin.topic
        self._directory.require_conditional_writes()
        self._table = opened(self._directory)
        if self._table is None:
            settings = {
                TOPIC: origin.topic,
                TOPIC_ID: origin.topic_id,
                FORM: msgspec.json.encode(form).decode(),
                "delta.logRetentionDuration": LOG_RETENTION,
            }
            partition_by = [DATE] if form.by_date else []
            create(self._directory, schema, partition_by=partition_by, settings=settings, description=f"topic {origin.topic}")
            # Another process may have created it first.
            self.form(origin)
            self._table = opened(self._directory)

    def positions(self, partitions: Iterable[int]) -> dict[int, int]:
        found = {partition: self._table.transaction_version(self._application(partition)) for partition in partitions}
        return {partition: offset for partition, offset in found.items() if offset is not None}

    def _application(self, partition: int) -> str:
        return f"ottla/{self._topic}/{partition}"

    def schema(self) -> pa.Schema:
        if self._schema is None:
            self._schema = arrow_schema(self._table)
        return self._schema

    def changes(self, schema: pa.Schema) -> Evolution:
        return evolution_of(self._table, schema)

    def evolve(self, schema: pa.Schema, *, rewrite: bool) -> list[str]:
        changes = evolve(self._directory, schema, rewrite=rewrite)
        self._table, self._schema = opened(self._directory), None
        return [f"{one.column} {one.becomes}" for one in changes]

    def files(self) -> Files:
        return Files(self._directory, self.schema(), date_column=DATE if self._form.by_date else None, file_bytes=FILE_BYTES)

    def commit(self, files: list[DataFile], before: Mapping[int, int], after: Mapping[int, int]) -> None:
        actions = [one.add_action() for one in files]
        partition_by = [DATE] if self._form.by_date else None

        def once(table: Any, properties: Any) -> None:
            table.create_write_transaction(
                actions, mode="append", schema=table.schema(), partition_by=partition_by, commit_properties=properties
            )

        self._transact(before, after, once)

    def merge(self, rows: pa.Table, before: Mapping[int, int], after: Mapping[int, int]) -> None:
        """Upsert rows by key; rows with `DELETED` delete the row of their key. Raises: Overtaken."""
        key = self._form.name("key")

        def once(table: Any, properties: Any) -> None:
            merging = merger(table, rows, [key], properties)
            merging = merging.when_matched_delete(f"s.`{DELETED}`").when_matched_update_all(except_cols=[DELETED])
            merging.when_not_matched_insert_all(f"NOT s.`{DELETED}`", except_cols=[DELETED]).execute()

        self._transact(before, after, once)

    def _transact(self, before: Mapping[int, int], after: Mapping[int, int], once: Callable[[Any, Any], None]) -> None:
        moved = {partition: offset for partition, offset in after.items() if before.get(partition) != offset}
        versions = {self._application(partition): offset for partition, offset in moved.items()}
        commit = uuid.uuid4().hex
        properties = commit_properties(versions, {"ottla.offsets": json.dumps(moved), "ottla.commit": commit})

        def attempt() -> None:
            self._table.update_incremental()
            # Positions are read only if others wrote: each is a request to an object store.
            current = before if self.version == self._own_version else self.positions(after)
            if any(current.get(partition, 0) != before.get(partition, 0) for partition in after):
                raise Overtaken(f"another process syncs the table at {self.path} with {self._topic}; stop one of the two")
            once(self._table, properties)

        try:
            retried(attempt, f"another process writes to the table at {self.path}")
        except (Overtaken, OSError):
            if self._directory.is_local or not self._has(commit):
                raise
        read_version = self.version
        self._table.update_incremental()
        self._own_version = self.version if self.version <= read_version + 1 else None

    def _has(self, commit: str) -> bool:
        """Whether a commit is in the table although its request failed: the store's answer may be lost after it wrote."""
        self._table.update_incremental()
        return any(one.get("ottla.commit") == commit for one in self._table.history(TRIES))

    def close(self) -> None:
        """No lock is held: Delta detects concurrent commits."""

    def is_empty(self) -> bool:
        """Whether the table has no files."""
        return not self._table.file_uris()

    def compact(self) -> Compacted:
        """Join small files."""
        done = compact(self._directory)
        self._table.update_incremental()
        return done

    def vacuum(self, retention_hours: int) -> int:
        """Remove files that no version needs; returns their number."""
        return len(vacuum(self._directory, retention_hours=retention_hours))
