"""Computes the rows of a time range again and replaces them in a Delta table, without doubling.

The columns `_partition` and `_offset` identify the rows, and `_topic` if the source has several topics; the sink's view passes them on.
One commit removes the rows of the range's offsets and adds the new ones, so a reader sees the old rows or the new ones.

    topic   0 ............ from .............. to ..... read by the query ..... end
                           |--- replaced ---|

The range is offsets: of the first record at or after `from`, up to the first one at or after `to`, and at most up to the last finished
batch of the sink's query: the query writes later records itself. Records that retention deleted are not read, and their rows stay. The
pipeline is stopped meanwhile: its checkpoint is locked.

Refused: a view with state (a part of a group would replace the whole), sinks that merge or replace, views that read several streams, and
tables without the columns. Dead letters are not written again.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from ottla.base.ids import TopicPartition
from ottla.lake.storage import Location
from ottla.lake.table import delta
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

Ranges = Mapping[TopicPartition, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Backfill:
    """A planned backfill of one table."""

    sink: Sink
    source: Source
    place: Location
    #: Offsets to read and to replace, by partition; half-open, not empty.
    ranges: Ranges
    predicate: str
    #: Rows of the table in the ranges.
    rows: int


def sinks_to_fill(pipeline: Pipeline, path: str | None) -> list[Sink]:
    """The Delta sinks, or the one of `path`. Raises: PipelineError if one cannot be filled by its settings alone."""
    sinks = [sink for sink in pipeline.sinks if sink.type == "delta" and path in (None, sink.path)]
    if not sinks:
        known = ", ".join(str(sink.path) for sink in pipeline.sinks if sink.type == "delta")
        raise pipeline.error(
            "sink", f"there is no Delta sink{f' with the path {path}' if path else ''} to fill{f'; there is {known}' if known else ''}"
        )
    for sink in sinks:
        if sink.mode != "append":
            problem = f"{sink.mode} keeps only the newest rows, not those of each record: only append can be filled (--sink chooses)"
            raise pipeline.error(f"{sink.key}mode", problem)
    return sinks


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
    require_writable(pipeline, sink)
    table = delta.opened(sink.place)
    if table is None:
        raise pipeline.error(f"{sink.key}path", f"there is no table at {sink.place}; ottla pipeline run creates it")
    options = SourceOptions.of(options_of(pipeline, source), streaming=True)
    several = len(options.subscription.topics) != 1
    needed = ["_partition", "_offset", *(["_topic"] if several else [])]
    kinds = {field.name: str(field.type) for field in delta.arrow_schema(table)}
    missing = [name for name in needed if name not in kinds or name not in frames[sink.view].columns]
    if missing:
        problem = f"the table and {sink.view} need the columns {', '.join(needed)}, which identify the rows of a record"
        raise pipeline.error(f"{sink.key}path", f"{problem}; without: {', '.join(missing)}. Select them, and write to a new table")
    ranges = _ranges(pipeline, sink, options, from_ms, to_ms)
    predicate = _predicate(ranges, several)
    return Backfill(sink, source, sink.place, ranges, predicate, _count(table, predicate, ranges))


def _ranges(pipeline: Pipeline, sink: Sink, options: SourceOptions, from_ms: int, to_ms: int) -> Ranges:
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


def _predicate(ranges: Ranges, several: bool) -> str:
    def one(tp: TopicPartition) -> str:
        topic = f"_topic = '{tp.topic}' AND " if several else ""
        return f"({topic}_partition = {tp.partition} AND _offset >= {ranges[tp][0]} AND _offset < {ranges[tp][1]})"

    return " OR ".join(map(one, sorted(ranges)))


def _count(table: Any, predicate: str, ranges: Ranges) -> int:
    if not ranges:
        return 0
    from deltalake import QueryBuilder

    found = QueryBuilder().register("t", table).execute(f"SELECT count(*) AS n FROM t WHERE {predicate}").read_all()
    return int(pa.table(found).column("n")[0].as_py())


def run_backfill(pipeline: Pipeline, plan: Backfill, session: Any) -> int:
    """Replaces the rows in one commit. The caller holds the checkpoint. Returns the number of new rows.

    Raises: PipelineError if the new rows do not fit the table, or others have changed these rows meanwhile.
    """
    rows = _rows(pipeline, plan, session)
    table = delta.opened(plan.place)
    target = delta.arrow_schema(table)
    lacking = [name for name in target.names if name not in rows.schema.names]
    surplus = [name for name in rows.schema.names if name not in target.names]
    if lacking or surplus:
        problem = f"the table has other columns than {plan.sink.view} ({', '.join(lacking or surplus)}); write to another table"
        raise pipeline.error(f"{plan.sink.key}path", problem)
    try:
        write_deltalake(
            table,
            rows.select(target.names).cast(target),
            mode="overwrite",
            predicate=plan.predicate,
            target_file_size=delta.FILE_BYTES,
            commit_properties=CommitProperties(custom_metadata={"ottla.backfill": plan.predicate}, max_commit_retries=0),
        )
    except CommitFailedError as error:
        raise pipeline.error(f"{plan.sink.key}path", f"others have changed the table meanwhile; nothing was written: {error}") from None
    except (DeltaError, pa.ArrowInvalid) as error:
        # For example rows whose `_offset` is not the record's: Delta checks that new rows are in the replaced range.
        raise pipeline.error(f"{plan.sink.key}path", f"the new rows do not fit; nothing was written: {error}") from None
    return int(rows.num_rows)


def _rows(pipeline: Pipeline, plan: Backfill, session: Any) -> pa.Table:
    """The rows of the ranges, gathered on the driver."""
    offsets: dict[str, dict[str, list[int]]] = {}
    for tp, range_ in plan.ranges.items():
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
