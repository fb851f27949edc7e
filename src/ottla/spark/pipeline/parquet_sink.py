"""Writes a directory of Parquet files, a table for any Parquet reader. There is no log, so there are no transactions.

Each batch of each sink has its own files. Their names identify sink and batch:

    part-SINK-BATCH-NUMBER.parquet        SINK: ten hexadecimal digits made of the query's id and the sink, BATCH: the batch's number

A retried batch replaces its files, so the directory ends up with each batch once. Tasks write below `.ottla`, which readers ignore. After
all tasks have finished, the files are renamed into place one by one. A reader never sees a partial file, but it may briefly see a part of a
batch, or old and new rows of a retried batch together. If that matters, use a Delta table.

    .ottla/SINK/ATTEMPT/TASK/...          an attempt is one run of one batch; leftovers of others are removed before and after each

The JVM of a killed driver may still run tasks of a batch that another driver retries. So each attempt writes to its own directory, and only
the driver's Python process, which holds the checkpoint's lock, renames and removes files. Spark's write reports the tasks' files to it.

In an object store a rename is a copy, and a list of all files costs a request per thousand. So the batch's names are in an object of
their own, which each attempt replaces by a conditional write before it renames anything:

    .ottla/SINK.json       {"batch": 7, "attempt": "...", "files": [names that the attempts of this batch may have published]}

The condition is that it has not changed since the attempt began. So a process that stood still while another one took the checkpoint over,
and wrote this batch and later ones, publishes nothing when it goes on.
"""

import hashlib
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from ottla.lake.full_disk import sync
from ottla.lake.storage import ConditionFailed, Location
from ottla.lake.table.delta import Overtaken
from ottla.spark.pipeline.part_files import PartFile, write_parts

HIDDEN = ".ottla"
#: Not `.parquet`, so that searches for these do not find incomplete files.
UNFINISHED = ".unfinished"


class BatchRecord(msgspec.Struct):
    """The last batch of a sink in an object store."""

    batch: int
    attempt: str
    #: Names that attempts of the batch may have published.
    files: list[str]


@dataclass(frozen=True, slots=True)
class BatchFiles:
    """The files of one batch of one sink."""

    place: Location
    #: The writer (the query's id with the sink) and the batch number.
    application: str
    batch: int
    partition_by: tuple[str, ...] = ()
    compression: str = "zstd"
    #: One run of the batch.
    attempt: str = field(default_factory=lambda: uuid.uuid4().hex)
    #: In an object store: the record and its tag when the attempt began, None if there was none.
    seen: tuple[bytes, str] | None = None

    @property
    def sink(self) -> str:
        return hashlib.sha256(self.application.encode()).hexdigest()[:10]

    @property
    def stem(self) -> str:
        return f"part-{self.sink}-{self.batch:06d}"

    def begin(self) -> "BatchFiles":
        """The attempt, before any task writes. Removes leftovers of others. Only the process that holds the checkpoint may call it."""
        # Read first: what another process publishes from here on is a conflict.
        begun = self if self.place.is_local else replace(self, seen=self.place.read(self._record))
        self.clear()
        return begun

    def of_tasks(self) -> "BatchFiles":
        """What tasks need: the record names all files of the last batch."""
        return replace(self, seen=None)

    def clear(self) -> None:
        """Removes leftovers of attempts. Only the process that holds the checkpoint may call it."""
        # A task that still writes there fails, or recreates its directory, which the next call removes.
        attempts = f"{HIDDEN}/{self.sink}"
        if self.place.is_local:
            shutil.rmtree(self.place.path / attempts, ignore_errors=True)
        else:
            self.place.remove([one.name for one in self.place.list(attempts)])

    def write(self, batches: "Iterator[pa.RecordBatch]") -> tuple[str, list[PartFile]]:
        """Writes the rows of one task. Returns its directory's name and the files."""
        task = uuid.uuid4().hex
        return task, write_parts(
            batches,
            self.place.below(f"{self._hidden}/{task}"),
            "part",
            partition_by=self.partition_by,
            compression=self.compression,
            suffix=UNFINISHED,
        )

    def commit(self, tasks: Iterable[tuple[str, list[PartFile]]]) -> int:
        """Replaces the batch's files by those of all tasks. Returns the number of rows.

        Only the process that holds the checkpoint may call it. Raises: OSError; Overtaken if another process has written the batch.
        """
        written = [(f"{self._hidden}/{task}/{file.name}", file) for task, files in tasks for file in files]
        sources = {}
        for number, (source, file) in enumerate(written):
            sources[f"{file.name[: file.name.rfind('/') + 1]}{self.stem}-{number:04d}.parquet"] = source
        if self.place.is_local:
            self._publish_files(self.place.path, sources)
        else:
            self._publish_objects(sources)
        self.clear()
        return sum(file.rows for _, file in written)

    def _publish_files(self, directory: Path, names: Mapping[str, str]) -> None:
        """Renames files; `names`: the old by the new ones. Raises: Overtaken if another process has removed some."""
        sources = {directory / name: directory / source for name, source in names.items()}
        if not all(source.exists() for source in sources.values()):
            # Before anything is removed: the batch may be there, and finished, by the other process.
            raise Overtaken(f"another process writes batch {self.batch} of this pipeline to {self.place}; stop one of the two")
        for old in directory.rglob(f"{self.stem}-*.parquet"):
            if old not in sources:
                old.unlink()
        for target, source in sources.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(source, target)
        for changed in {directory, *(target.parent for target in sources)}:
            if changed.exists():
                sync(changed)

    def _publish_objects(self, names: Mapping[str, str]) -> None:
        before = None if self.seen is None else msgspec.json.decode(self.seen[0], type=BatchRecord)
        old: set[str] = set()
        if before is not None and before.batch == self.batch:
            old = set(before.files)
        elif before is not None and before.batch > self.batch:
            # An older checkpoint was restored. The names are in no record any more.
            old = {one.name for one in self.place.list() if one.name.rpartition("/")[2].startswith(f"{self.stem}-")}
        now = BatchRecord(self.batch, self.attempt, sorted({*old, *names}))
        try:
            self.place.replace(self._record, msgspec.json.encode(now), None if self.seen is None else self.seen[1])
        except ConditionFailed:
            raise Overtaken(f"another process writes batch {self.batch} of this pipeline to {self.place}; stop one of the two") from None
        self.place.remove(sorted(old - set(names)))
        for name, source in names.items():
            self.place.rename(source, name)

    def abort(self) -> None:
        """Removes this attempt's files."""
        if self.place.is_local:
            shutil.rmtree(self.place.path / self._hidden, ignore_errors=True)
        else:
            # The error that led here is the one to report.
            with suppress(OSError):
                self.place.remove([one.name for one in self.place.list(self._hidden)])

    @property
    def _record(self) -> str:
        return f"{HIDDEN}/{self.sink}.json"

    @property
    def _hidden(self) -> str:
        return f"{HIDDEN}/{self.sink}/{self.attempt}"


@dataclass
class TaskResult(WriterCommitMessage):  # type: ignore[misc]
    """A task's directory name and files."""

    task: str
    files: list[PartFile]


class ParquetFiles(DataSource):  # type: ignore[misc]
    """``df.write.format("ottla_parquet")``: writes files for `BatchFiles.commit`, and their list to the file `reportTo` (`parse_report`).

    Options: files (`BatchFiles` as JSON), reportTo.
    """

    @classmethod
    def name(cls) -> str:
        return "ottla_parquet"

    def schema(self) -> str:
        return ""

    def writer(self, schema: Any, overwrite: bool) -> "ParquetWriter":
        return ParquetWriter(msgspec.json.decode(self.options["files"], type=BatchFiles), self.options["reportTo"])


@dataclass
class ParquetWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Writes files in tasks and reports them."""

    files: BatchFiles
    report_to: str

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> TaskResult:
        return TaskResult(*self.files.write(iterator))

    def commit(self, messages: list[TaskResult | None]) -> None:
        # This process may outlive a killed driver, so it renames nothing.
        report = [(message.task, message.files) for message in messages if message is not None]
        Path(self.report_to).write_bytes(msgspec.json.encode(report))

    def abort(self, messages: list[TaskResult | None]) -> None:
        self.files.abort()


def parse_report(text: str) -> list[tuple[str, list[PartFile]]]:
    """The tasks' files from a write's report."""
    return msgspec.json.decode(text, type=list[tuple[str, list[PartFile]]])
