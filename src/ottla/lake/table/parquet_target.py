"""Parquet files of a topic, with a manifest of the files and the offsets that they contain.

    DIR/part-*.parquet          or DIR/date=2026-05-17/part-*.parquet
    DIR/_ottla/manifest.json    topic, format, columns, files, next offset by partition
    DIR/_ottla/lock             one process writes

A commit writes complete files with names that end in `.unfinished`, replaces the manifest, and renames the files. The next start completes
what the manifest has and removes the rest. `*.parquet` therefore has each record once, even if the process is killed at any time.
"""

import fcntl
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from deltalake import Schema

from ottla.lake.table.delta import TableMismatch, schema_of_arrow
from ottla.lake.table.parquet_files import DataFile, Files, on_disk
from ottla.lake.table.schema import DATE, TableFormat
from ottla.lake.table.schema_evolution import Evolution, evolution
from ottla.lake.table.target import TableConflict, TableOrigin, check_origin

UNFINISHED = ".unfinished"


class ManifestFile(msgspec.Struct):
    """A file in the manifest."""

    name: str
    rows: int
    size: int


class Manifest(msgspec.Struct):
    """Contents of the manifest."""

    topic: str
    topic_id: str
    form: TableFormat
    #: Delta's schema of the columns; the same rules for changes apply.
    schema: dict[str, Any]
    offsets: dict[str, int] = {}
    files: list[ManifestFile] = []
    version: int = 0


class InUse(TableConflict):
    """Another process writes to the directory."""


class ParquetTarget:
    """A directory of Parquet files."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._manifest: Manifest | None = None
        self._lock: int | None = None

    @property
    def _there(self) -> Manifest:
        assert self._manifest is not None, "the table was begun"
        return self._manifest

    @property
    def _path(self) -> Path:
        return self._directory / "_ottla" / "manifest.json"

    @property
    def version(self) -> int:
        return self._there.version

    def form(self, origin: TableOrigin) -> TableFormat | None:
        if (self._directory / "_delta_log").exists():
            raise TableConflict(f"{self._directory} holds a Delta table; write to another directory")
        if not self._path.exists():
            return None
        found = read_manifest(self._directory)
        check_origin(origin, found.topic, found.topic_id, self._directory)
        return found.form

    def begin(self, origin: TableOrigin, form: TableFormat, schema: pa.Schema) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self._path.with_name("lock"), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InUse(f"another process writes to {self._directory}; one is enough") from None
        if not self._path.exists():
            self._manifest = Manifest(origin.topic, origin.topic_id, form, json.loads(schema_of_arrow(schema).to_json()))
            self._write()
        self._manifest = read_manifest(self._directory)
        self._finish()

    def _finish(self) -> None:
        """Completes a started commit, and removes files of an uncommitted one."""
        told = {one.name for one in self._there.files}
        for path in self._directory.rglob(f"*{UNFINISHED}"):
            name = path.relative_to(self._directory).as_posix().removesuffix(UNFINISHED)
            if name in told:
                path.rename(self._directory / name)
            else:
                path.unlink()

    def close(self) -> None:
        """Releases the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def positions(self, partitions: Iterable[int]) -> dict[int, int]:
        found = {partition: self._there.offsets.get(str(partition)) for partition in partitions}
        return {partition: offset for partition, offset in found.items() if offset is not None}

    def schema(self) -> pa.Schema:
        return pa.schema(Schema.from_json(json.dumps(self._there.schema)).to_arrow())

    def changes(self, schema: pa.Schema) -> Evolution:
        return evolution(self._there.schema, json.loads(schema_of_arrow(schema).to_json()))

    def evolve(self, schema: pa.Schema, *, rewrite: bool) -> list[str]:
        change = self.changes(schema)
        if change.refused or change.wider:
            story = "; ".join(str(one) for one in (*change.refused, *change.wider))
            raise TableMismatch(f"the files at {self._directory} have {story}: say the type with --schema, in another directory")
        self._there.schema = change.schema
        return [f"{one.column} {one.becomes}" for one in change.added]

    def files(self) -> Files:
        form = self._there.form
        return Files(self._directory, self.schema(), date_column=DATE if form.by_date else None, suffix=UNFINISHED)

    def commit(self, files: list[DataFile], before: Mapping[int, int], after: Mapping[int, int]) -> None:
        there = self._there
        stored = self.positions(before)
        assert all(stored.get(one, 0) == offset for one, offset in before.items()), "one process writes, and knows how far it is"
        there.offsets = {**there.offsets, **{str(partition): offset for partition, offset in after.items()}}
        there.files += [ManifestFile(one.name, one.rows, one.size) for one in files]
        there.version += 1
        self._write()
        self._finish()

    def _write(self) -> None:
        """Replaces the manifest atomically."""
        beside = self._path.with_name("manifest.json.new")
        beside.write_bytes(msgspec.json.format(msgspec.json.encode(self._there)))
        on_disk(beside)
        beside.replace(self._path)
        on_disk(self._path)


def read_manifest(directory: Path) -> Manifest:
    """Reads a directory's manifest. Raises: TableConflict if it is unreadable."""
    try:
        return msgspec.json.decode((directory / "_ottla" / "manifest.json").read_bytes(), type=Manifest)
    except msgspec.MsgspecError as error:
        raise TableConflict(f"{directory}/_ottla/manifest.json cannot be read: {error}") from None
