"""A directory of Parquet files that any reader of such takes as a table; no log beside them, so also no transaction.

Each batch of each sink has files of its own, and their names tell whose they are:

    part-SINK-BATCH-NUMBER.parquet        SINK: ten hexadecimal digits made of the query's id and the sink, BATCH: the batch's number

A batch that is run again after a crash replaces its files, so the directory comes to hold each batch once. Tasks write below `.ottla`,
which readers pass over, and when all are done the files are renamed into place one by one: a reader never sees half a file, but for a
moment it may see half a batch, and while a batch is run again the rows of before and after side by side. Who cannot live with that takes a
Delta table.
"""

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from ottla.spark.pipeline.part_files import PartFile, sync, write_parts

if TYPE_CHECKING:
    import pyarrow as pa

HIDDEN = ".ottla"
#: Not `.parquet`, so that nobody who searches for these finds files that are being written.
UNFINISHED = ".unfinished"


@dataclass(frozen=True, slots=True)
class BatchFiles:
    """The files of one batch of one sink."""

    path: str
    #: Who writes, and which batch: the query's id with the sink, and a number.
    application: str
    batch: int
    partition_by: tuple[str, ...] = ()
    compression: str = "zstd"

    @property
    def sink(self) -> str:
        return hashlib.sha256(self.application.encode()).hexdigest()[:10]

    @property
    def stem(self) -> str:
        return f"part-{self.sink}-{self.batch:06d}"

    def write(self, batches: "Iterator[pa.RecordBatch]") -> tuple[str, list[PartFile]]:
        """Writes the rows of one task, and tells where below the hidden directory."""
        attempt = uuid.uuid4().hex
        place = self._hidden / attempt
        return attempt, write_parts(batches, place, "part", partition_by=self.partition_by, compression=self.compression, suffix=UNFINISHED)

    def commit(self, attempts: Iterable[tuple[str, list[PartFile]]]) -> int:
        """Puts the files of all tasks in the place of those that the batch has; the number of rows."""
        directory = Path(self.path)
        written = [(self._hidden / attempt / file.name, file) for attempt, files in attempts for file in files]
        wanted = {}
        for number, (source, file) in enumerate(written):
            wanted[(directory / file.name).parent / f"{self.stem}-{number:04d}.parquet"] = source
        for old in directory.rglob(f"{self.stem}-*.parquet"):
            if old not in wanted:
                old.unlink()
        for target, source in wanted.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(source, target)
        for changed in {directory, *(target.parent for target in wanted)}:
            if changed.exists():
                sync(changed)
        # Also what batches that were killed have left.
        shutil.rmtree(self._hidden, ignore_errors=True)
        return sum(file.rows for _, file in written)

    def abort(self) -> None:
        shutil.rmtree(self._hidden, ignore_errors=True)

    @property
    def _hidden(self) -> Path:
        return Path(self.path) / HIDDEN / self.sink


class Attempt(WriterCommitMessage):  # type: ignore[misc]
    """What a task wrote, and below which name."""

    def __init__(self, place: str, files: list[PartFile]) -> None:
        self.place = place
        self.files = files


class ParquetFiles(DataSource):  # type: ignore[misc]
    """``df.write.format("ottla_parquet")``: options path, application, batch, partitionBy (a JSON list), compression, reportTo."""

    @classmethod
    def name(cls) -> str:
        return "ottla_parquet"

    def schema(self) -> str:
        return ""

    def writer(self, schema: Any, overwrite: bool) -> "ParquetWriter":
        given = self.options
        files = BatchFiles(
            given["path"], given["application"], int(given["batch"]), tuple(json.loads(given["partitionBy"])), given["compression"]
        )
        return ParquetWriter(files, given.get("reportTo"))


class ParquetWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """The tasks write, the driver renames."""

    def __init__(self, files: BatchFiles, report_to: str | None) -> None:
        self.files = files
        self.report_to = report_to

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Attempt:
        return Attempt(*self.files.write(iterator))

    def commit(self, messages: list[Attempt | None]) -> None:
        rows = self.files.commit((message.place, message.files) for message in messages if message is not None)
        if self.report_to is not None:
            Path(self.report_to).write_text(str(rows), encoding="utf-8")

    def abort(self, messages: list[Attempt | None]) -> None:
        self.files.abort()
