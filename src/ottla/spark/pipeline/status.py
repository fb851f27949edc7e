"""The status of a pipeline, read from its checkpoint and the brokers without Spark. A checkpoint at a URL may need Spark's file system.

    state      running: a process holds the checkpoint's lock (in a topic: its heartbeat is recent) · stopped · new: no checkpoint
    queries    per query: the last finished batch and its time, an unfinished batch (it runs again at the next start), offset, end and lag
               of each source partition, and totals since the checkpoint was created
    views      the sources: name of the view, and topics if they are listed
    targets    the sinks; for Delta tables with the version

The lag refers to the current ends of the topics. If no broker answers, it is null and `brokers` holds the error.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ottla.base.ids import TopicPartition
from ottla.lake.storage import StorageError, plain
from ottla.spark.pipeline import checkpoint
from ottla.spark.pipeline.checkpoint import QueryState
from ottla.spark.pipeline.checkpoint_access import to_read
from ottla.spark.pipeline.config.model import Pipeline, place_of
from ottla.spark.source.log_client import KafkaError, open_log_client
from ottla.spark.source.offset_ranges import LATEST
from ottla.spark.source.options import SourceOptions

#: Short, because a person waits for the output.
BROKERS_TIMEOUT_MS = 10_000
FIGURES = ("rows_in_per_s", "rows_out_per_s", "batch_ms", "watermark", "state_rows")


def pipeline_status(pipeline: Pipeline) -> dict[str, Any]:
    """The status as a JSON object. Raises: CheckpointUnavailable."""
    with to_read(pipeline) as local:
        directory = Path(local.checkpoint)
        states = checkpoint.queries(directory)
        holder = checkpoint.holder(directory, copied=pipeline.checkpoint_is_copy)
        notes = checkpoint.read_notes(directory)
    ends, problem = _ends(pipeline, sorted({tp for state in states for tp in state.offsets}))
    running = holder is not None and holder.running
    return {
        "pipeline": pipeline.name,
        "file": str(pipeline.file),
        "checkpoint": pipeline.checkpoint_place,
        "state": "running" if running else "stopped" if states else "new",
        "process": None
        if holder is None
        else {"pid": holder.pid, "host": holder.host, "since": _iso(holder.since), "beat": _iso(holder.beat)},
        "brokers": problem,
        "queries": [_query(state, notes.get(state.name, {}), ends) for state in states],
        "views": [{"name": source.name, "topic": source.options.get("subscribe", "")} for source in pipeline.sources],
        "targets": [_target(pipeline, target) for note in notes.values() for target in note.get("targets", ())] + _letters(pipeline),
    }


def _ends(pipeline: Pipeline, partitions: list[TopicPartition]) -> tuple[Mapping[TopicPartition, int], str | None]:
    """The current ends of partitions, and the error if they cannot be read."""
    ends: dict[TopicPartition, int] = {}
    timeouts = {"default.api.timeout.ms": str(BROKERS_TIMEOUT_MS), "request.timeout.ms": str(BROKERS_TIMEOUT_MS)}
    read = [
        SourceOptions.of({**pipeline.broker_options(source), **source.options}, streaming=True)
        for source in pipeline.sources
        if source.type == "topic"
    ]
    for bootstrap, properties in {options.bootstrap: options.client for options in read}.items():
        try:
            client = open_log_client(bootstrap, {**properties, **timeouts})
            counts = client.topics(sorted({tp.topic for tp in partitions})) if partitions else {}
            ends |= client.end_offsets([tp for tp in partitions if tp.partition < counts.get(tp.topic, 0)], LATEST)
        except (KafkaError, OSError, TimeoutError) as error:
            return ends, f"{bootstrap}: {error}"
    return ends, None


def _query(state: QueryState, note: Mapping[str, Any], ends: Mapping[TopicPartition, int]) -> dict[str, Any]:
    sources: dict[str, dict[str, Any]] = {}
    behind = []
    for tp, offset in sorted(state.offsets.items()):
        end = ends.get(tp)
        lag = None if end is None else max(0, end - offset)
        behind.append(lag)
        sources.setdefault(tp.topic, {})[str(tp.partition)] = {"offset": offset, "end": end, "lag": lag}
    total, last = note.get("total", {}), note.get("last", {})
    return {
        "query": state.name,
        "batch": state.batch,
        "at": None if state.at_ms is None else _iso(state.at_ms / 1000),
        "unfinished": state.planned if state.planned is not None and state.planned != state.batch else None,
        "lag": None if None in behind else sum(filter(None, behind)),
        **{figure: int(total.get(figure, 0)) for figure in ("rows_in", "rows_out", "dead_letters")},
        **{figure: last.get(figure) for figure in FIGURES},
        "sources": sources,
    }


def _target(pipeline: Pipeline, target: Mapping[str, Any]) -> dict[str, Any]:
    if target.get("type") == "iceberg":
        return _iceberg(pipeline, target)
    if target.get("type") != "delta":
        return dict(target)
    try:
        from deltalake.exceptions import DeltaError

        from ottla.lake.table.delta import opened
    except ImportError:
        return dict(target)
    # The options are those of the file. A sink that the file no longer has gets those of the environment.
    storage = {sink.path: sink.storage for sink in pipeline.all_sinks}
    try:
        table = opened(place_of(str(target["path"]), storage.get(target["path"], ())))
    except (StorageError, OSError, DeltaError) as error:
        return {**target, "version": None, "problem": plain(str(error))}
    return {**target, "version": None if table is None else table.version()}


def _iceberg(pipeline: Pipeline, target: Mapping[str, Any]) -> dict[str, Any]:
    """The sequence number of the last commit is the version of an Iceberg table."""
    where = (target.get("path"), target.get("catalog"), target.get("table"))
    sink = next((one for one in pipeline.all_sinks if one.type == "iceberg" and (one.path, one.catalog, one.table) == where), None)
    if sink is None:
        return dict(target)
    try:
        from ottla.lake.table.iceberg_catalog import opened_table
        from ottla.lake.table.target import TableConflict
        from ottla.spark.pipeline.iceberg_place import iceberg_place
    except ImportError:
        return dict(target)
    try:
        with opened_table(iceberg_place(sink)) as table:
            return {**target, "version": int(table.metadata.last_sequence_number)}
    except TableConflict:
        return {**target, "version": None}
    except (ValueError, OSError) as error:
        return {**target, "version": None, "problem": str(error)}


def _letters(pipeline: Pipeline) -> list[dict[str, Any]]:
    letters = pipeline.dead_letters
    if letters is None:
        return []
    where = {"path": letters.path, "topic": letters.topic, "catalog": letters.catalog, "table": letters.table}
    target = {"type": letters.type, **{name: value for name, value in where.items() if value is not None}}
    return [_target(pipeline, {**target, "dead_letters": True})]


def _iso(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def status_text(status: Mapping[str, Any]) -> str:
    """The status as text."""
    process = status["process"]
    who = f" by process {process['pid']} on {process['host']} since {process['since']}" if status["state"] == "running" else ""
    lines = [f"{status['pipeline']}: {status['state']}{who}", f"checkpoint {status['checkpoint']}"]
    if status["brokers"] is not None:
        lines.append(f"brokers unreachable: {status['brokers']}")
    for query in status["queries"]:
        lines += ["", f"{query['query']}: {_batches(query)}"]
        sums = f"{query['rows_in']:,} rows in, {query['rows_out']:,} out, {query['dead_letters']:,} dead letters"
        state = f", {query['state_rows']:,} rows of state" if query["state_rows"] else ""
        mark = f", watermark {query['watermark']}" if query["watermark"] else ""
        lines.append(f"  {sums}{state}{mark}")
        rows: list[tuple[str, ...]] = [("partition", "offset", "end", "lag")]
        for topic, partitions in query["sources"].items():
            rows += [
                (f"{topic}-{number}", *(_figure(place[name]) for name in ("offset", "end", "lag"))) for number, place in partitions.items()
            ]
        lines += _aligned(rows) if len(rows) > 1 else []
    if status["targets"]:
        lines += ["", *(f"{'dead letters to' if target.get('dead_letters') else 'to'} {_place(target)}" for target in status["targets"])]
    return "\n".join(lines)


def _batches(query: Mapping[str, Any]) -> str:
    done = "no finished batch" if query["batch"] is None else f"batch {query['batch']} of {query['at']}"
    unfinished = "" if query["unfinished"] is None else f"; batch {query['unfinished']} is unfinished"
    return f"{done}{unfinished}, lag {_figure(query['lag'])}"


def _place(target: Mapping[str, Any]) -> str:
    where = target.get("path") or target.get("topic") or target.get("table") or ""
    version, promise = target.get("version"), target.get("promise")
    more = ("" if version is None else f", version {version}") + (f", {promise}" if promise not in (None, "none") else "")
    more += f": cannot be read: {target['problem']}" if "problem" in target else ""
    return f"{target['type']} {where}{more}".strip()


def _figure(value: int | None) -> str:
    return "unknown" if value is None else f"{value:,}"


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    return [
        "  "
        + "  ".join(
            cell.ljust(width) if index == 0 else cell.rjust(width) for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
