"""A Delta table whose rows of a time range are replaced (`backfill`). A commit of others meanwhile is a refusal: nothing is written."""

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
from deltalake import CommitProperties, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from ottla.lake.table import delta
from ottla.lake.table.newest_rows import Changes, NewestRows
from ottla.lake.table.record_ranges import RecordRanges
from ottla.lake.table.target import DELETED
from ottla.spark.pipeline.config.model import Pipeline, Sink
from ottla.spark.pipeline.sinks import require_writable


class DeltaToFill:
    """A Delta table."""

    key = "path"

    def __init__(self, pipeline: Pipeline, sink: Sink) -> None:
        self._pipeline, self._sink = pipeline, sink
        require_writable(pipeline, sink)

    def __str__(self) -> str:
        return str(self._sink.place)

    def columns(self) -> pa.Schema | None:
        table = delta.opened(self._sink.place)
        return None if table is None else delta.arrow_schema(table)

    def count(self, records: RecordRanges) -> int:
        from deltalake import QueryBuilder

        table = delta.opened(self._sink.place)
        found = QueryBuilder().register("t", table).execute(f"SELECT count(*) AS n FROM t WHERE {records.sql}").read_all()
        return int(pa.table(found).column("n")[0].as_py())

    def replace(self, rows: pa.Table, records: RecordRanges) -> None:
        with self._errors():
            write_deltalake(
                delta.opened(self._sink.place),
                rows,
                mode="overwrite",
                predicate=records.sql,
                target_file_size=delta.FILE_BYTES,
                commit_properties=_properties(records),
            )

    def merge(self, newest: NewestRows) -> Changes:
        table = delta.opened(self._sink.place)
        schema = newest.rows.select(newest.columns).schema
        reader = pa.RecordBatchReader.from_stream(table.scan(columns=newest.columns))
        there = [newest.concerned(pa.Table.from_batches([batch]).select(newest.columns).cast(schema)) for batch in reader]
        changes = newest.changes(pa.concat_tables([schema.empty_table(), *there]))
        if not changes.keys.num_rows:
            return changes
        rows = pa.concat_tables([_marked(changes.rows, False), _marked(changes.removed, True)], promote_options="default")
        with self._errors():
            merging = delta.merger(table, rows, newest.keys, _properties(newest.records))
            merging = merging.when_matched_delete(f"s.`{DELETED}`").when_matched_update_all(except_cols=[DELETED])
            merging.when_not_matched_insert_all(f"NOT s.`{DELETED}`", except_cols=[DELETED]).execute()
        return changes

    @contextmanager
    def _errors(self) -> Iterator[None]:
        key = f"{self._sink.key}{self.key}"
        try:
            yield
        except CommitFailedError as error:
            problem = f"others have changed the table meanwhile; nothing was written: {error}"
            raise self._pipeline.error(key, problem) from None
        except DeltaError as error:
            raise self._pipeline.error(key, f"the new rows do not fit; nothing was written: {error}") from None


def _marked(rows: pa.Table, deleted: bool) -> pa.Table:
    return rows.append_column(DELETED, pa.repeat(pa.scalar(deleted), len(rows)))


def _properties(records: RecordRanges) -> CommitProperties:
    return CommitProperties(custom_metadata={"ottla.backfill": records.sql}, max_commit_retries=0)
