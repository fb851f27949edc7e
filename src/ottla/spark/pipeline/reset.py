"""Resets a pipeline: removes its queries' checkpoints, so that the next run starts at a chosen position.

The position is stored in the checkpoint (`start.json`). Only queries without a checkpoint read it. Sinks keep their content,
and records that are read again are written again: tables in append mode get duplicate rows, merged tables replace rows, topics get
duplicate records.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ottla.spark.pipeline import checkpoint
from ottla.spark.pipeline.checkpoint import START
from ottla.spark.pipeline.checkpoint_access import holding, to_read
from ottla.spark.pipeline.config.model import Pipeline, Sink, Source
from ottla.spark.source.log_client import open_log_client
from ottla.spark.source.offset_ranges import OffsetsError, from_json
from ottla.spark.source.options import SourceOptions
from ottla.spark.source.starting_offsets import subscribed_partitions


class ResetError(ValueError):
    """The reset is not possible; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Reset:
    """A planned reset."""

    #: The queries' directories to remove.
    directories: tuple[Path, ...]
    #: Starting options of the source; None: those of the file.
    start: Mapping[str, Any] | None
    sentences: tuple[str, ...]


def plan_reset(pipeline: Pipeline, to: str | None, session: Any = None) -> Reset:
    """Raises: ResetError if the pipeline runs or `to` is invalid; CheckpointUnavailable; NoJava, PipelineError for a URL."""
    with to_read(pipeline, session) as local:
        holder = checkpoint.holder(Path(local.checkpoint), copied=pipeline.checkpoint_is_copy)
        states = checkpoint.queries(Path(local.checkpoint))
    if holder is not None and holder.running:
        raise ResetError(f"{pipeline.name} is running ({holder}); stop it first")
    start = None if to is None else parse_start(to)
    sentences = []
    for state in states:
        read = ", ".join(f"{tp} up to {offset}" for tp, offset in sorted(state.offsets.items())) or "nothing yet"
        sentences.append(f"{state.name}: forgets batch {state.batch if state.batch is not None else 0} and before, which read {read}")
    if not states:
        sentences.append(f"{pipeline.name} has no checkpoint in {pipeline.checkpoint_place}: it starts new anyway")
    sentences.append(f"then reads from {to or 'the start position in the file'}")
    sentences += [_effect_on(sink) for sink in pipeline.sinks if states and sink.type != "console"]
    return Reset(tuple(Path(pipeline.checkpoint) / state.name for state in states), start, tuple(sentences))


def _effect_on(sink: Sink) -> str:
    match sink.type:
        case "topic":
            return f"topic {sink.topic} keeps its records; records that are read again are sent again"
        case "jdbc":
            target = f"table {sink.table} of the database"
        case _:
            target = f"{'directory' if sink.type == 'parquet' else 'table'} {sink.target}"
    effect = {
        "merge": "rows that are read again replace rows with the same keys",
        "replace": "the next batch replaces them",
    }.get(sink.mode or "", "rows that are read again are added; to avoid duplicates, remove it first")
    return f"{target} keeps its rows; {effect}"


def parse_start(text: str) -> dict[str, str]:
    """``earliest``, ``latest``, a time (ISO, in UTC) or offsets as JSON, as options of the source. Raises: ResetError."""
    if text in ("earliest", "latest"):
        return {"startingOffsets": text}
    if text.lstrip().startswith("{"):
        try:
            offsets = from_json(json.loads(text))
        except (OffsetsError, ValueError) as error:
            raise ResetError(f"--to: {error}") from None
        return {
            "offsets": json.dumps({topic: {str(p): offset for (t, p), offset in offsets.items() if t == topic} for topic, _ in offsets})
        }
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        places = 'earliest, latest, a time such as 2026-05-17T10:00:00Z, or offsets such as {"visits": {"0": 23}}'
        raise ResetError(f"--to: expected {places}, not {text!r}") from None
    when = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
    return {"startingTimestamp": str(int(when.timestamp() * 1000)), "startingOffsetsByTimestampStrategy": "latest"}


def apply_reset(pipeline: Pipeline, plan: Reset, session: Any = None) -> None:
    """`session`: of Spark, for a checkpoint at a URL.

    Raises: InUse if the pipeline was started meanwhile; CheckpointUnavailable; KafkaError of one in a topic.
    """
    directory = Path(pipeline.checkpoint)
    with checkpoint.checkpoint_lock(directory), holding(pipeline, session) as held:
        if plan.start is None:
            (directory / START).unlink(missing_ok=True)
        else:
            (directory / START).write_text(json.dumps(plan.start), encoding="utf-8")
        held.forget([path.name for path in plan.directories])


def with_reset_start(pipeline: Pipeline, source: Source, options: Mapping[str, str]) -> dict[str, str]:
    """`options` of a source of topics with the starting position of the last reset."""
    try:
        start = json.loads((Path(pipeline.checkpoint) / START).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return dict(options)
    kept = {name: value for name, value in options.items() if not name.lower().startswith("starting")}
    if "offsets" not in start:
        return {**kept, **start}
    # The source needs an offset for every partition. Partitions that the reset does not name start at their beginning.
    offsets = _for_all_partitions(pipeline, source, kept, json.loads(start["offsets"]))
    return {**kept, "startingOffsets": json.dumps(offsets)}


def _for_all_partitions(
    pipeline: Pipeline, source: Source, options: Mapping[str, str], offsets: Mapping[str, Mapping[str, int]]
) -> dict[str, Any]:
    read = SourceOptions.of(options, streaming=True)
    whole: dict[str, dict[str, int]] = {}
    for topic, partition in subscribed_partitions(open_log_client(read.bootstrap, read.client), read.subscription):
        whole.setdefault(topic, {})[str(partition)] = offsets.get(topic, {}).get(str(partition), -2)
    return whole
