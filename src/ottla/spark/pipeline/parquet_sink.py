"""A directory of Parquet files that any reader of such takes as a table; no log beside them, so also no transaction.

Each batch of each sink has files of its own, and their names tell whose they are:

    part-SINK-BATCH-NUMBER.parquet        SINK: ten hexadecimal digits made of the query's id and the sink, BATCH: the batch's number

A batch that is run again after a crash replaces its files, so the directory comes to hold each batch once. Tasks write below `.ottla`,
which readers pass over, and when all are done the files are renamed into place one by one: a reader never sees half a file, but for a
moment it may see half a batch, and while a batch is run again the rows of before and after side by side. Who cannot live with that takes a
Delta table.

    .ottla/SINK/ATTEMPT/TASK/...          an attempt is one run of one batch; what others have left is removed before and after each

When a driver is killed its JVM may live on for a while, and run tasks of the batch while another driver runs it again. So each attempt
knows its own directory alone, and only the driver's own process, which holds the lock of the checkpoint, renames and removes: a write of
Spark ends by telling it what the tasks have written.
"""

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
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
    #: One run of the batch.
    attempt: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def sink(self) -> str:
        return hashlib.sha256(self.application.encode()).hexdigest()[:10]

    @property
    def stem(self) -> str:
        return f"part-{self.sink}-{self.batch:06d}"

    def clear(self) -> None:
        """Removes what attempts have left, before this one begins; for the process that holds the checkpoint."""
        # Whoever still writes there fails, or makes its directory anew, which is removed the next time.
        shutil.rmtree(self._hidden.parent, ignore_errors=True)

    def write(self, batches: "Iterator[pa.RecordBatch]") -> tuple[str, list[PartFile]]:
        """Writes the rows of one task, and tells where below the attempt's directory."""
        task = uuid.uuid4().hex
        place = self._hidden / task
        return task, write_parts(batches, place, "part", partition_by=self.partition_by, compression=self.compression, suffix=UNFINISHED)

    def commit(self, tasks: Iterable[tuple[str, list[PartFile]]]) -> int:
        """Puts the files of all tasks in the place of those that the batch has; the number of rows. For the process that holds the
        checkpoint.
        """
        directory = Path(self.path)
        written = [(self._hidden / task / file.name, file) for task, files in tasks for file in files]
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
        self.clear()
        return sum(file.rows for _, file in written)

    def abort(self) -> None:
        """Removes what this attempt has left."""
        shutil.rmtree(self._hidden, ignore_errors=True)

    @property
    def _hidden(self) -> Path:
        return Path(self.path) / HIDDEN / self.sink / self.attempt


class Written(WriterCommitMessage):  # type: ignore[misc]
    """What a task wrote, and below which name."""

    def __init__(self, task: str, files: list[PartFile]) -> None:
        self.task = task
        self.files = files


class ParquetFiles(DataSource):  # type: ignore[misc]
    """``df.write.format("ottla_parquet")``: writes files that `BatchFiles.commit` takes; `reported` reads which, from the file `reportTo`.

    Options: path, application, batch, attempt, partitionBy (a JSON list), compression, reportTo.
    """

    @classmethod
    def name(cls) -> str:
        return "ottla_parquet"

    def schema(self) -> str:
        return ""

    def writer(self, schema: Any, overwrite: bool) -> "ParquetWriter":
        given = self.options
        files = BatchFiles(
            given["path"],
            given["application"],
            int(given["batch"]),
            tuple(json.loads(given["partitionBy"])),
            given["compression"],
            given["attempt"],
        )
        return ParquetWriter(files, given["reportTo"])


class ParquetWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """The tasks write; what they have written is told."""

    def __init__(self, files: BatchFiles, report_to: str) -> None:
        self.files = files
        self.report_to = report_to

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        return Written(*self.files.write(iterator))

    def commit(self, messages: list[Written | None]) -> None:
        # Spark runs this in a process that outlives a driver that is killed: it renames nothing.
        told = [(message.task, [asdict(file) for file in message.files]) for message in messages if message is not None]
        Path(self.report_to).write_text(json.dumps(told), encoding="utf-8")

    def abort(self, messages: list[Written | None]) -> None:
        self.files.abort()


def reported(text: str) -> list[tuple[str, list[PartFile]]]:
    """What the tasks of a write have written, as its report tells."""
    return [(task, [PartFile(**file) for file in files]) for task, files in json.loads(text)]
