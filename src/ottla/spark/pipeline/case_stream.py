"""Runs a test with several batches: as a stream, so that watermarks drop late records, windows close, and state is kept and removed.

    batch 1  ──►  files of a temporary directory, one per source  ──►  a query for each view, topic and dead letters that the test names
    batch 2  ──►  ...                                                  each starts, reads the new files, and ends when it is idle

After its records, a query runs the empty batch by which Spark writes the windows that the watermark has closed. So each batch of a test
shows what the pipeline has written when it has been idle after these records. The next batch starts the query from its checkpoint.

A view has the form of its first sink; without a sink that of `form_without_sink`:

    form       rows after a batch       rows at the end
    append     final rows               all of them
    update     new or changed rows      the last row of each key, if the sink merges by keys, else all of them
    complete   the whole result         the whole result after the last batch

Files and tables that are not streams are read, or replaced by the rows of the test, as in a test of one batch.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ottla.spark.pipeline.config.cases import Row
from ottla.spark.pipeline.config.model import Pipeline, Sink
from ottla.spark.pipeline.query import aggregates, form_of

#: Reads the rows of a batch's frame.
Collect = Callable[[Any], list[Row]]
RUN_MAX_S = 600


@dataclass
class StreamedView:
    """A view whose rows a test compares, as a query of its own."""

    frame: Any
    form: str
    #: Columns that identify a row, for rows at the end.
    keys: tuple[str, ...]
    checkpoint: Path
    collect: Collect
    #: Rows of the last batch of the test.
    rows: list[Row] = field(default_factory=list)
    _kept: list[Row] = field(default_factory=list)

    def run(self) -> None:
        """Reads the new files. Raises: an exception of Spark."""
        self.rows = []
        if not self.frame.isStreaming:
            self.rows = self._kept = self.collect(self.frame)
            return
        writer = self.frame.writeStream.foreachBatch(self._batch).outputMode(self.form)
        query = writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()
        try:
            if not query.awaitTermination(RUN_MAX_S):
                raise TimeoutError(f"a batch took more than {RUN_MAX_S} s")
        finally:
            query.stop()
        self._kept = list(self.rows) if self.form == "complete" else self._kept + self.rows

    def _batch(self, frame: Any, _: int) -> None:
        rows = self.collect(frame)
        self.rows = rows if self.form == "complete" else self.rows + rows

    @property
    def rows_at_end(self) -> list[Row]:
        if not self.keys:
            return self._kept
        return list({tuple(repr(row.get(name)) for name in self.keys): row for row in self._kept}.values())


def form_and_keys(pipeline: Pipeline, view: str, frame: Any, sink: Sink | None = None) -> tuple[str, tuple[str, ...]]:
    """The form of a view's rows, and the keys of a merge: of a sink, else of the first sink of the view."""
    sink = sink or next((one for one in pipeline.sinks if one.view == view), None)
    if sink is None:
        return "update" if aggregates(frame) else "append", ()
    return form_of(pipeline, sink, frame), sink.keys if sink.mode == "merge" else ()


def write_files(directory: Path, number: int, table: pa.Table) -> None:
    """Adds a file to a stream of Parquet files, which sees it complete."""
    directory.mkdir(parents=True, exist_ok=True)
    unfinished = directory / f"_{number}"
    pq.write_table(table, unfinished)
    unfinished.rename(directory / f"{number:06}.parquet")


def stream_of(session: Any, directory: Path, empty: pa.Table) -> Any:
    """A stream of the files that `write_files` adds."""
    directory.mkdir(parents=True, exist_ok=True)
    return session.readStream.schema(session.createDataFrame(empty).schema).parquet(str(directory))
