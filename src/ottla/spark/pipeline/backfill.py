"""Computes the rows of a time range again and replaces them in a Delta or Iceberg table, without doubling.

The columns `_partition` and `_offset` identify the rows, and `_topic` if the source has several topics; the sink's view passes them on.
One commit removes the rows of the range's offsets and adds the new ones, so a reader sees the old rows or the new ones.

    topic   0 ............ from .............. to ..... read by the query ..... end
                           |--- replaced ---|

The range is offsets: of the first record at or after `from`, up to the first one at or after `to`, and at most up to the last finished
batch of the sink's query: the query writes later records itself. Records that retention deleted are not read, and their rows stay. The
pipeline is stopped meanwhile: its checkpoint is locked.

In a table that is merged by keys, rows of later records stay, and a key without a row in the range has the row of an earlier record again
(`lake/table/newest_rows`). Only if there are such keys, the topic is read again from its first record.

If others commit to the table meanwhile, the backfill of a Delta table is refused. That of an Iceberg table reads the files again
(`iceberg_backfill`).

Refused: a view with state (a part of a group would replace the whole), sinks that replace, views that read several streams, and tables
without the columns. Dead letters are not written again.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from ottla.base.ids import TopicPartition
from ottla.lake.table.newest_rows import Changes, NewestRows, UnorderedKeys, newest_of_each_key
from ottla.lake.table.record_ranges import RecordRanges
from ottla.spark.pipeline import checkpoint, streaming_checks
from ottla.spark.pipeline.checkpoint_compatibility import path_of
from ottla.spark.pipeline.config.model import Pipeline, Sink, Source
from ottla.spark.pipeline.plan import checked
from ottla.spark.pipeline.query import OUTPUT_OF
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

    def merge(self, newest: NewestRows) -> Changes:
        """Changes the rows by keys in one commit, or writes nothing and raises, also UnorderedKeys."""


@dataclass(frozen=True, slots=True)
class Backfill:
    """A planned backfill of one table."""

    sink: Sink
    source: Source
    table: TableToFill
    records: RecordRanges
    #: Rows of the table of these records.
    rows: int
    positions: "Positions"


@dataclass(frozen=True, slots=True)
class Positions:
    """The partitions that the sink's query has read."""

    #: The offsets of the range; half-open, also empty ranges.
    cuts: Mapping[TopicPartition, tuple[int, int]]
    #: The first offset that is left.
    first: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Filled:
    """What a backfill has written. The last three are of tables that are merged by keys."""

    #: Rows of the range's records.
    rows: int = 0
    #: Rows that were not written, because a later record has the key.
    superseded: int = 0
    #: Keys that have the row of a record before the range again.
    restored: int = 0
    #: Keys that have no row any more.
    removed: int = 0


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
        if sink.mode == "replace":
            problem = (
                "each batch replaces the whole table, which has no rows of a range: only append and merge can be filled (--sink chooses)"
            )
            raise pipeline.error(f"{sink.key}mode", problem)
    return sinks


def table_to_fill(pipeline: Pipeline, sink: Sink) -> TableToFill:
    if sink.type == "iceberg":
        from ottla.spark.pipeline.iceberg_backfill import IcebergToFill

        return IcebergToFill(pipeline, sink)
    from ottla.spark.pipeline.delta_backfill import DeltaToFill

    return DeltaToFill(pipeline, sink)


def query_directory(sink: Sink) -> str:
    """The directory of the sink's query in the checkpoint."""
    assert sink.mode is not None, "tables have a mode"
    return f"{sink.view}-{OUTPUT_OF[sink.mode]}"


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
    positions = _positions(pipeline, sink, options, from_ms, to_ms)
    filled = {tp: (start, end) for tp, (start, end) in positions.cuts.items() if start < end}
    records = RecordRanges(filled, several_topics=len(options.subscription.topics) != 1)
    _require_positions(pipeline, sink, table, columns, frames[sink.view].columns, records.columns)
    return Backfill(sink, source, table, records, table.count(records) if records.offsets else 0, positions)


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


def _positions(pipeline: Pipeline, sink: Sink, options: SourceOptions, from_ms: int, to_ms: int) -> Positions:
    directory = Path(pipeline.checkpoint) / query_directory(sink)
    if not (directory / "metadata").is_file():
        return Positions({}, {})
    state = checkpoint.read_query(directory)
    client = open_log_client(options.bootstrap, options.client)
    partitions = [tp for tp in subscribed_partitions(client, options.subscription) if tp in state.offsets]
    first = client.end_offsets(partitions, EARLIEST)
    begins, ends = (client.offsets_at(dict.fromkeys(partitions, at)) for at in (from_ms, to_ms))
    cuts = {}
    for tp in partitions:
        begin, end, read = begins[tp], ends[tp], state.offsets[tp]
        last = read if end is None else min(end, read)
        cuts[tp] = (last if begin is None else min(max(begin, first[tp]), last), last)
    return Positions(cuts, first)


def run_backfill(pipeline: Pipeline, plan: Backfill, session: Any) -> Filled:
    """Changes the table in one commit. The caller holds the checkpoint.

    Raises: PipelineError if the new rows do not fit the table, or others have changed the table meanwhile.
    """
    key, target = f"{plan.sink.key}{plan.table.key}", plan.table.columns()
    if target is None:
        raise pipeline.error(key, f"others have removed the table at {plan.table} meanwhile; nothing was written")
    try:
        rows = _fitting(pipeline, plan, pa.table(_frame(pipeline, plan, session, plan.records.offsets).toArrow()), target)
        if others := plan.records.others(rows).num_rows:
            raise pa.ArrowInvalid(f"{others} of {len(rows)} have a position that no record of the range has")
        if plan.sink.mode == "append":
            plan.table.replace(rows, plan.records)
            return Filled(int(rows.num_rows))
        return _merge(pipeline, plan, session, rows)
    except pa.ArrowInvalid as error:
        raise pipeline.error(key, f"the new rows do not fit; nothing was written: {error}") from None


def _merge(pipeline: Pipeline, plan: Backfill, session: Any, rows: pa.Table) -> Filled:
    def earlier(keys: pa.Table) -> pa.Table:
        return _fitting(pipeline, plan, _earlier(pipeline, plan, session, keys), rows.schema)

    keys = plan.sink.keys
    try:
        newest = newest_of_each_key(rows, keys, plan.records)
        changes = plan.table.merge(NewestRows(keys, plan.records, plan.positions.cuts, newest, earlier))
    except UnorderedKeys as error:
        raise pipeline.error(f"{plan.sink.key}keys", f"{error}; nothing was written") from None
    written = changes.rows.num_rows - changes.restored
    return Filled(written, changes.superseded, changes.restored, changes.removed.num_rows)


def _fitting(pipeline: Pipeline, plan: Backfill, rows: pa.Table, target: pa.Schema) -> pa.Table:
    """Rows of the view as those of the table. Raises: PipelineError for other columns; ArrowInvalid for other values."""
    lacking = [name for name in target.names if name not in rows.schema.names]
    surplus = [name for name in rows.schema.names if name not in target.names]
    if lacking or surplus:
        problem = f"the table has other columns than {plan.sink.view} ({', '.join(lacking or surplus)}); write to another table"
        raise pipeline.error(f"{plan.sink.key}{plan.table.key}", problem)
    return rows.select(target.names).cast(target)


def _earlier(pipeline: Pipeline, plan: Backfill, session: Any, keys: pa.Table) -> pa.Table:
    """The newest rows that the records before the range make for these keys: of each partition, with the columns of the view."""
    from pyspark.sql import Window
    from pyspark.sql import functions as sql

    before = {tp: (plan.positions.first[tp], start) for tp, (start, _) in plan.positions.cuts.items() if plan.positions.first[tp] < start}
    frame = _frame(pipeline, plan, session, before or plan.records.offsets)
    if not before:
        return pa.table(frame.limit(0).toArrow())
    numbered = keys.rename_columns([f"__key{place}" for place in range(keys.num_columns)])
    wanted = session.createDataFrame(numbered)
    quoted = [f"`{name}`" for name in keys.column_names]
    same = reduce(lambda one, other: one & other, (frame[name].eqNullSafe(wanted[f"__key{place}"]) for place, name in enumerate(quoted)))
    each = [*quoted, *(name for name in plan.records.columns if name != "_offset" and name not in keys.column_names)]
    rank = sql.rank().over(Window.partitionBy(*each).orderBy(sql.desc("_offset")))
    ranked = frame.join(sql.broadcast(wanted), same, "left_semi").withColumn("__rank", rank)
    return pa.table(ranked.where("__rank = 1").drop("__rank").toArrow())


def _frame(pipeline: Pipeline, plan: Backfill, session: Any, ranges: Mapping[TopicPartition, tuple[int, int]]) -> Any:
    """The sink's view of the records of the ranges."""
    offsets: dict[str, dict[str, list[int]]] = {}
    for tp, range_ in ranges.items():
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
    return frames[plan.sink.view]
