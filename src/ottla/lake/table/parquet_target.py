"""Parquet files of a topic, with a manifest of the files and the offsets that they contain.

    DIR/part-*.parquet          or DIR/date=2026-05-17/part-*.parquet
    DIR/_ottla/manifest.json    topic, format, columns, files, next offset by partition
    DIR/_ottla/lock             one process writes; object stores have conditional writes instead (`manifest_files`)

A commit writes complete files with names that end in `.unfinished`, replaces the manifest, and renames the files. The next start completes
what the manifest has and removes the rest. `*.parquet` therefore has each record once, even if the process is killed at any time.
"""

import json
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from deltalake import Schema

from ottla.lake.storage import Location, location
from ottla.lake.table.delta import TableMismatch, schema_of_arrow
from ottla.lake.table.manifest_files import MANIFEST, UNFINISHED, manifest_files
from ottla.lake.table.parquet_files import DataFile, Files
from ottla.lake.table.schema import DATE, TableFormat
from ottla.lake.table.schema_evolution import Evolution, evolution
from ottla.lake.table.target import TableConflict, TableOrigin, check_origin, refuse_others


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
    #: The id of the process that writes to an object store.
    writer: str = ""


class ParquetTarget:
    """A directory of Parquet files."""

    def __init__(self, directory: Location | Path) -> None:
        self._directory = location(directory)
        self._kept = manifest_files(self._directory)
        self._manifest: Manifest | None = None

    @property
    def _there(self) -> Manifest:
        assert self._manifest is not None, "the table was begun"
        return self._manifest

    @property
    def version(self) -> int:
        return self._there.version

    def form(self, origin: TableOrigin) -> TableFormat | None:
        refuse_others(self._directory, "parquet")
        found = read_manifest(self._directory)
        if found is None:
            return None
        check_origin(origin, found.topic, found.topic_id, self._directory)
        return found.form

    def begin(self, origin: TableOrigin, form: TableFormat, schema: pa.Schema) -> None:
        self._kept.lock()
        data = self._kept.read()
        if data is None:
            self._manifest = Manifest(origin.topic, origin.topic_id, form, json.loads(schema_of_arrow(schema).to_json()))
        else:
            self._manifest = parse_manifest(data, self._directory)
            check_origin(origin, self._manifest.topic, self._manifest.topic_id, self._directory)
        if data is None or not self._directory.is_local:
            self._manifest.writer = "" if self._directory.is_local else uuid.uuid4().hex
            self._write()
        self._finish()

    def _finish(self) -> None:
        """Completes a started commit, and removes files of an uncommitted one."""
        told = {one.name for one in self._there.files}
        for name in self._kept.unfinished():
            if name in told:
                self._kept.publish(name)
            else:
                self._kept.discard(name)

    def close(self) -> None:
        """Lets other processes write."""
        self._kept.close()

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
        self._kept.write(msgspec.json.format(msgspec.json.encode(self._there)))


def read_manifest(directory: Location) -> Manifest | None:
    """A directory's manifest; None if there is none. Raises: TableConflict if it is unreadable."""
    data = manifest_files(directory).read()
    return None if data is None else parse_manifest(data, directory)


def parse_manifest(data: bytes, directory: Location) -> Manifest:
    """Raises: TableConflict."""
    try:
        return msgspec.json.decode(data, type=Manifest)
    except msgspec.MsgspecError as error:
        raise TableConflict(f"{directory}/{MANIFEST} cannot be read: {error}") from None
