"""Writes the dead letters of a batch (`rejected_rows`) to a Delta or Iceberg table or to a topic, each batch once.

The number of a batch comes with a hash of its dead letters, so a retry that makes others writes them too.
"""

from dataclasses import replace
from typing import Any

from ottla.lake.table import delta
from ottla.spark.pipeline.config.model import Pipeline
from ottla.spark.pipeline.delta_sink import schema_of_frame
from ottla.spark.pipeline.rejected_rows import DEAD_LETTER_COLUMNS, content_hash
from ottla.spark.pipeline.sinks import DeltaTarget, MicroBatch, Target, TopicTarget, require_writable


class DeadLetterTarget:
    """Writes dead letters."""

    def __init__(self, pipeline: Pipeline) -> None:
        letters = pipeline.dead_letters
        assert letters is not None, "checked with the file"
        self.target: Target
        if letters.type == "delta":
            self.target = DeltaTarget(letters.sink, pipeline)
        elif letters.type == "iceberg":
            from ottla.spark.pipeline.iceberg_sink import IcebergSink

            self.target = IcebergSink(letters.sink, pipeline)
        else:
            headers = {f"ottla.{name}": _header(name) for name in DEAD_LETTER_COLUMNS if name not in ("key", "value")}
            value = "coalesce(`value`, CAST(`row` AS BINARY))"
            self.target = TopicTarget(replace(letters.sink, key_sql="`key`", value_sql=value, headers_sql=headers), pipeline)

    def prepare(self, letters: Any) -> None:
        """Checks the columns, and creates the table before several queries try to do so.

        Raises: PipelineError if the table exists with other columns.
        """
        target = self.target
        if isinstance(target, TopicTarget):
            target.prepare(letters)
        elif isinstance(target, DeltaTarget):
            require_writable(target.pipeline, target.sink)
            try:
                delta.ensure(target.place, schema_of_frame(letters))
            except delta.TableMismatch as error:
                raise target.pipeline.error("dead_letters.path", str(error)) from None
        else:
            from ottla.spark.pipeline.iceberg_sink import IcebergSink

            assert isinstance(target, IcebergSink), "the kinds of targets above"
            target.prepare(letters, create=True)

    def write(self, letters: Any, batch: MicroBatch) -> int:
        """Writes the dead letters of a batch. Returns their number, also if they are already written."""
        count, content = content_hash(letters)
        if count:
            self.target.write_frame(letters, replace(batch, content=content))
        return count


def _header(column: str) -> str:
    """A column of dead letters as header text; times in ISO format with a zone."""
    text = f"CAST(`{column}` AS STRING)"
    if column not in ("timestamp", "at"):
        return text
    # A step may use the name `_timestamp` for another type.
    return f"coalesce(date_format(TRY_CAST(`{column}` AS TIMESTAMP), \"yyyy-MM-dd'T'HH:mm:ss.SSSXXX\"), {text})"
