"""Where a topic's rows go, and where it is written how far they are: both in one step, so that each record is there once.

    Delta      the files and, per partition, an application transaction (`ottla/TOPIC/PARTITION`, next offset) are one commit
    Parquet    `_ottla/manifest.json` tells the files and the next offsets, and is replaced as a whole (`parquet_target`)

A table belongs to one topic, known by its id, and keeps the form in which it was begun.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

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
    needed_delta,
    opened,
    vacuum,
)
from ottla.lake.table.parquet_files import DataFile, Files
from ottla.lake.table.schema import DATE, Form
from ottla.lake.table.schema_evolution import Evolution

if TYPE_CHECKING:
    import pyarrow as pa

TOPIC, TOPIC_ID, FORM = "ottla.topic", "ottla.topic_id", "ottla.form"
#: Versions older than this can no longer be read, and their log goes; a commit every few seconds makes many.
LOG_RETENTION = "interval 7 days"
#: A column of batches to merge, not of tables.
DELETED = "_ottla_deleted"


class NotOurs(ValueError):
    """What is in the directory belongs to another topic, or to something else."""


@dataclass(slots=True)
class Origin:
    """The topic of a table: its name, and its id as Kafka prints it, which is empty where brokers give none."""

    topic: str
    topic_id: str


class Target(Protocol):
    """See the module."""

    def form(self, origin: Origin) -> Form | None:
        """The form in which the table was begun; None where there is none yet. Raises: NotOurs."""

    def begin(self, origin: Origin, form: Form, schema: pa.Schema) -> None:
        """Opens the table, and makes it where there is none."""

    def positions(self, partitions: Iterable[int]) -> dict[int, int]:
        """The offset behind the last record in the table, of each partition that has been read."""

    def schema(self) -> pa.Schema:
        """The columns that the table has now."""

    def changes(self, schema: pa.Schema) -> Evolution:
        """What would have to change for rows of `schema`."""

    def evolve(self, schema: pa.Schema, *, rewrite: bool) -> list[str]:
        """Makes room for more columns, and tells which. Raises: TableMismatch."""

    def files(self) -> Files:
        """Files to write rows to."""

    def commit(self, files: list[DataFile], before: Mapping[int, int], after: Mapping[int, int]) -> None:
        """The files' rows are in the table, and it has come from some positions to others. Raises: Overtaken."""

    @property
    def version(self) -> int:
        """How many times the table has changed."""

    def close(self) -> None:
        """Lets others write."""


def belongs(origin: Origin, topic: str, topic_id: str, where: object) -> None:
    """Raises: NotOurs unless a table is of this topic."""
    if topic != origin.topic:
        raise NotOurs(f"the table at {where} holds topic {topic}, not {origin.topic}; write to another directory")
    if topic_id and origin.topic_id and topic_id != origin.topic_id:
        raise NotOurs(
            f"topic {topic} was deleted and made anew since the table at {where} was begun (topic id {topic_id} then, {origin.topic_id}"
            " now), so its offsets mean other records; keep the new topic in another directory"
        )


class DeltaTarget:
    """A Delta table at a directory. Raises: ImportError without deltalake."""

    def __init__(self, directory: Path) -> None:
        needed_delta()
        self._directory = directory
        self._table: Any = None
        self._schema: pa.Schema | None = None
        self._form = Form()
        self._topic = ""

    @property
    def path(self) -> str:
        return str(self._directory)

    @property
    def version(self) -> int:
        return int(self._table.version())

    def form(self, origin: Origin) -> Form | None:
        if (self._directory / "_ottla").exists():
            raise NotOurs(f"{self.path} holds an export to Parquet; write to another directory")
        table = opened(self.path)
        if table is None:
            return None
        settings = table.metadata().configuration
        if FORM not in settings:
            raise NotOurs(f"the table at {self.path} was not made from a topic; write to another directory")
        belongs(origin, settings[TOPIC], settings.get(TOPIC_ID, ""), self.path)
        return msgspec.json.decode(settings[FORM], type=Form)

    def begin(self, origin: Origin, form: Form, schema: pa.Schema) -> None:
        self._form, self._topic = form, origin.topic
        self._table = opened(self.path)
        if self._table is None:
            settings = {
                TOPIC: origin.topic,
                TOPIC_ID: origin.topic_id,
                FORM: msgspec.json.encode(form).decode(),
                "delta.logRetentionDuration": LOG_RETENTION,
            }
            partition_by = [DATE] if form.by_date else []
            create(self.path, schema, partition_by=partition_by, settings=settings, description=f"topic {origin.topic}")
            # Another process may have made it first.
            self.form(origin)
            self._table = opened(self.path)

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
        changes = evolve(self.path, schema, rewrite=rewrite)
        self._table, self._schema = opened(self.path), None
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
        """Rows with a key that the table has replace its rows, or delete them where `DELETED` is true; others are added.

        Raises: Overtaken.
        """
        key = self._form.name("key")

        def once(table: Any, properties: Any) -> None:
            merging = merger(table, rows, [key], properties)
            merging = merging.when_matched_delete(f"s.`{DELETED}`").when_matched_update_all(except_cols=[DELETED])
            merging.when_not_matched_insert_all(f"NOT s.`{DELETED}`", except_cols=[DELETED]).execute()

        self._transact(before, after, once)

    def _transact(self, before: Mapping[int, int], after: Mapping[int, int], once: Callable[[Any, Any], None]) -> None:
        from deltalake.exceptions import CommitFailedError

        moved = {partition: offset for partition, offset in after.items() if before.get(partition) != offset}
        versions = {self._application(partition): offset for partition, offset in moved.items()}
        properties = commit_properties(versions, {"ottla.offsets": json.dumps(moved)})
        for left in reversed(range(TRIES)):
            self._table.update_incremental()
            there = self.positions(after)
            if any(there.get(partition, 0) != before.get(partition, 0) for partition in after):
                raise Overtaken(f"another process keeps the table at {self.path} in step with {self._topic}; one is enough")
            try:
                once(self._table, properties)
                break
            except CommitFailedError as error:
                if "oncurrent transaction failed" in str(error) or not left:
                    raise Overtaken(f"another process writes to the table at {self.path}: {error}") from error
        self._table.update_incremental()

    def close(self) -> None:
        """Nothing is held: others are heard of by their commits."""

    def is_empty(self) -> bool:
        """Whether the table has no files."""
        return not self._table.file_uris()

    def compact(self) -> Compacted:
        """Joins small files."""
        done = compact(self.path)
        self._table.update_incremental()
        return done

    def vacuum(self, retention_hours: int) -> int:
        """Removes files that no version needs, and tells how many."""
        return len(vacuum(self.path, retention_hours=retention_hours))
