"""Computes the rows of a time range again and replaces them in a Delta or Iceberg table, without doubling.

The columns `_partition` and `_offset` identify the rows, and `_topic` if the source has several topics; the sink's view passes them on.
One commit removes the rows of the range's offsets and adds the new ones, so a reader sees the old rows or the new ones.

    topic   0 ............ from .............. to ..... read by the query ..... end
                           |--- replaced ---|

The range is offsets: of the first record at or after `from`, up to the first one at or after `to`, and at most up to the last finished
batch of the sink's query: the query writes later records itself. Records that retention deleted are not read, and their rows stay. The
pipeline is stopped meanwhile: its checkpoint is locked.

If others commit to the table meanwhile, the backfill of a Delta table is refused. That of an Iceberg table reads the files again
(`iceberg_backfill`).

Refused: a view with state (a part of a group would replace the whole), sinks that merge or replace, views that read several streams, and
tables without the columns. Dead letters are not written again.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from deltalake import CommitProperties, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from ottla.base.ids import TopicPartition
from ottla.lake.table import delta
from ottla.lake.table.record_ranges import RecordRanges
from ottla.spark.pipeline import checkpoint, streaming_checks
from ottla.spark.pipeline.checkpoint_compatibility import path_of
from ottla.spark.pipeline.config.model import Pipeline, Sink, Source
from ottla.spark.pipeline.plan import checked
from ottla.spark.pipeline.sinks import require_writable
from ottla.spark.pipeline.views import build_views, options_of
from ottla.spark.source.log_client import open_log_client
from ottla.spark.source.offset_ranges import EARLIEST
from ottla.spark.source.options import BATCH_OPTIONS, STREAM_OPTIONS, SourceOptions
from ottla.spark.source.starting_offsets import subscribed_partitions


class TableToFill(Protocol):
    """The table of a sink. Methods raise PipelineError."""

    #: The key of the sink that errors name.
    key: str

    def __str__(self) -> str:
        """Where it is, for people."""

    def columns(self) -> pa.Schema | None:
        """Its columns; None if there is no table."""

    def count(self, records: RecordRanges) -> int:
        """The number of rows of these records."""

    def replace(self, rows: pa.Table, records: RecordRanges) -> None:
        """Replaces the rows of these records in one commit, or writes nothing and raises."""


@dataclass(frozen=True, slots=True)
class Backfill:
    """A planned backfill of one table."""

    sink: Sink
    source: Source
    table: TableToFill
    records: RecordRanges
    #: Rows of the table of these records.
    rows: int


def _name(sink: Sink) -> str:
    """What `--sink` chooses it by: the path, or NAMESPACE.TABLE of a catalog."""
    return sink.path or sink.table or ""


def sinks_to_fill(pipeline: Pipeline, name: str | None) -> list[Sink]:
    """The Delta and Iceberg sinks, or the one of `name`. Raises: PipelineError if one cannot be filled by its settings alone."""
    fillable = [sink for sink in pipeline.sinks if sink.type in ("delta", "iceberg")]
    sinks = [sink for sink in fillable if name in (None, _name(sink))]
    if not sinks:
        known = f"; there is {', '.join(map(_name, fillable))}" if fillable else ""
        raise pipeline.error("sink", f"there is no Delta or Iceberg sink{f' {name}' if name else ''} to fill{known}")
    for sink in sinks:
        if sink.mode != "append":
            problem = f"{sink.mode} keeps only the newest rows, not those of each record: only append can be filled (--sink chooses)"
            raise pipeline.error(f"{sink.key}mode", problem)
    return sinks


def table_to_fill(pipeline: Pipeline, sink: Sink) -> TableToFill:
    if sink.type == "iceberg":
        from ottla.spark.pipeline.iceberg_backfill import IcebergToFill

        return IcebergToFill(pipeline, sink)
    return DeltaToFill(pipeline, sink)


def plan_backfill(pipeline: Pipeline, sink: Sink, session: Any, from_ms: int, to_ms: int) -> Backfill:
    """Raises: PipelineError if the sink's rows cannot be identified."""
    frames = checked(pipeline, session)
    sources = path_of(pipeline, sink.view)[0]
    if len(sources) != 1 or sources[0].type != "topic":
        read = ", ".join(source.name for source in sources)
        raise pipeline.error(f"{sink.key}from", f"{sink.view} reads the streams {read}: only a view of one source of topics can be filled")
    if streaming_checks.keeps_state(frames[sink.view]):
        problem = f"{sink.view} keeps state: a range of records would give parts of its groups; use ottla pipeline reset and another table"
        raise pipeline.error(f"{sink.key}from", problem)
    (source,) = sources
    table = table_to_fill(pipeline, sink)
    columns = table.columns()
    if columns is None:
        raise pipeline.error(f"{sink.key}{table.key}", f"there is no table at {table}; ottla pipeline run creates it")
    options = SourceOptions.of(options_of(pipeline, source), streaming=True)
    records = RecordRanges(_ranges(pipeline, sink, options, from_ms, to_ms), several_topics=len(options.subscription.topics) != 1)
    _require_positions(pipeline, sink, table, columns, frames[sink.view].columns, records.columns)
    return Backfill(sink, source, table, records, table.count(records) if records.offsets else 0)


def _require_positions(
    pipeline: Pipeline, sink: Sink, table: TableToFill, columns: pa.Schema, of_view: Sequence[str], needed: Sequence[str]
) -> None:
    """Raises: PipelineError if the table or the view lacks the columns that identify rows, or they have other types."""
    key = f"{sink.key}{table.key}"
    needs = f"the table and {sink.view} need the columns {', '.join(needed)}, which identify the rows of a record"
    if missing := [name for name in needed if name not in columns.names or name not in of_view]:
        raise pipeline.error(key, f"{needs}; without: {', '.join(missing)}. Select them, and write to a new table")
    for name in needed:
        kind = columns.field(name).type
        if not (pa.types.is_integer(kind) or (name == "_topic" and not pa.types.is_nested(kind))):
            raise pipeline.error(key, f"{needs}; {name} of the table is of type {kind}. Write to a new table")


def _ranges(pipeline: Pipeline, sink: Sink, options: SourceOptions, from_ms: int, to_ms: int) -> dict[TopicPartition, tuple[int, int]]:
    directory = Path(pipeline.checkpoint) / f"{sink.view}-append"
    if not (directory / "metadata").is_file():
        return {}
    state = checkpoint.read_query(directory)
    client = open_log_client(options.bootstrap, options.client)
    partitions = [tp for tp in subscribed_partitions(client, options.subscription) if tp in state.offsets]
    first = client.end_offsets(partitions, EARLIEST)
    begins, ends = (client.offsets_at(dict.fromkeys(partitions, at)) for at in (from_ms, to_ms))
    found = {}
    for tp in partitions:
        begin, end = begins[tp], ends[tp]
        last = state.offsets[tp] if end is None else min(end, state.offsets[tp])
        if begin is not None and max(begin, first[tp]) < last:
            found[tp] = (max(begin, first[tp]), last)
    return found


def run_backfill(pipeline: Pipeline, plan: Backfill, session: Any) -> int:
    """Replaces the rows in one commit. The caller holds the checkpoint. Returns the number of new rows.

    Raises: PipelineError if the new rows do not fit the table, or others have changed the table meanwhile.
    """
    rows = _rows(pipeline, plan, session)
    key, target = f"{plan.sink.key}{plan.table.key}", plan.table.columns()
    if target is None:
        raise pipeline.error(key, f"others have removed the table at {plan.table} meanwhile; nothing was written")
    lacking = [name for name in target.names if name not in rows.schema.names]
    surplus = [name for name in rows.schema.names if name not in target.names]
    if lacking or surplus:
        problem = f"the table has other columns than {plan.sink.view} ({', '.join(lacking or surplus)}); write to another table"
        raise pipeline.error(key, problem)
    try:
        rows = rows.select(target.names).cast(target)
        if others := plan.records.others(rows).num_rows:
            raise pa.ArrowInvalid(f"{others} of {len(rows)} have a position that no record of the range has")
        plan.table.replace(rows, plan.records)
    except pa.ArrowInvalid as error:
        raise pipeline.error(key, f"the new rows do not fit; nothing was written: {error}") from None
    return int(rows.num_rows)


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
        try:
            write_deltalake(
                delta.opened(self._sink.place),
                rows,
                mode="overwrite",
                predicate=records.sql,
                target_file_size=delta.FILE_BYTES,
                commit_properties=CommitProperties(custom_metadata={"ottla.backfill": records.sql}, max_commit_retries=0),
            )
        except CommitFailedError as error:
            problem = f"others have changed the table meanwhile; nothing was written: {error}"
            raise self._pipeline.error(f"{self._sink.key}path", problem) from None
        except DeltaError as error:
            raise self._pipeline.error(f"{self._sink.key}path", f"the new rows do not fit; nothing was written: {error}") from None


def _rows(pipeline: Pipeline, plan: Backfill, session: Any) -> pa.Table:
    """The rows of the ranges, gathered on the driver."""
    offsets: dict[str, dict[str, list[int]]] = {}
    for tp, range_ in plan.records.offsets.items():
        offsets.setdefault(tp.topic, {})[str(tp.partition)] = list(range_)
    left_out = {name.lower() for name in (*STREAM_OPTIONS, *BATCH_OPTIONS, "subscribe", "subscribePattern", "assign")}
    options = options_of(pipeline, plan.source)
    options = {name: value for name, value in options.items() if name.lower() not in left_out and not name.lower().startswith("starting")}
    options["assign"] = json.dumps({topic: [int(partition) for partition in parts] for topic, parts in offsets.items()})
    for name, index in (("startingOffsets", 0), ("endingOffsets", 1)):
        options[name] = json.dumps({topic: {number: one[index] for number, one in parts.items()} for topic, parts in offsets.items()})
    reader = session.read.format("ottla").options(**options)
    decode = plan.source.decode
    assert decode is not None, "topics have one"
    if not decode.options:
        from ottla.spark.pipeline.decode import source_schema

        reader = reader.schema(source_schema(decode))
    frames = build_views(pipeline, session, inputs={plan.source.name: reader.load()}, static=True)
    return pa.table(frames[plan.sink.view].toArrow())
