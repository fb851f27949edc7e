"""Starting a pipeline over: its queries' checkpoints are removed, and the next run begins where it is told to.

Where to begin is kept in the checkpoint's directory (`start.json`), since only new queries look at it: they read from there, and all that
come after them go on from their own checkpoints. Sinks keep what they have. What is read again is written again: it adds rows to tables
that are appended to, replaces them in those that merge by key, and repeats records of topics.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ottla.spark.pipeline import checkpoint
from ottla.spark.pipeline.config.model import Pipeline, Sink, Source
from ottla.spark.source.offset_ranges import OffsetsError, from_json

START = "start.json"


class ResetError(ValueError):
    """What was asked for cannot be done; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Reset:
    """What would be done."""

    #: Of queries, to be removed.
    directories: tuple[Path, ...]
    #: Options of the source that say where to begin; None for what the file says.
    start: Mapping[str, Any] | None
    sentences: tuple[str, ...]


def planned_reset(pipeline: Pipeline, to: str | None) -> Reset:
    """Raises: ResetError when the pipeline runs, or `to` names no place."""
    directory = Path(pipeline.checkpoint)
    holder = checkpoint.holder(directory)
    if holder is not None and holder.running:
        raise ResetError(f"{pipeline.name} is running ({holder}); stop it first")
    start = None if to is None else start_of_text(to)
    states = checkpoint.queries(directory)
    said = []
    for state in states:
        read = ", ".join(f"{tp} up to {offset}" for tp, offset in sorted(state.offsets.items())) or "nothing yet"
        said.append(f"{state.name}: forgets batch {state.batch if state.batch is not None else 0} and before, which read {read}")
    if not states:
        said.append(f"{pipeline.name} has no checkpoint in {directory}: it starts new anyway")
    said.append(f"then reads from {to or 'where the file says new pipelines start'}")
    said += [_kept(sink) for sink in pipeline.sinks if states and sink.type != "console"]
    return Reset(tuple(directory / state.name for state in states), start, tuple(said))


def _kept(sink: Sink) -> str:
    match sink.type:
        case "topic":
            return f"topic {sink.topic} keeps its records; what is read again is sent again"
        case "jdbc":
            place = f"table {sink.table} of the database"
        case _:
            place = f"{'table' if sink.type == 'delta' else 'directory'} {sink.path}"
    again = {
        "merge": "what is read again replaces rows with the same keys",
        "replace": "the next batch replaces them",
    }.get(sink.mode or "", "what is read again is added to them: remove it first if that is not wanted")
    return f"{place} keeps its rows; {again}"


def start_of_text(text: str) -> dict[str, str]:
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


def carry_out(pipeline: Pipeline, plan: Reset) -> None:
    """Raises: InUse when the pipeline was started meanwhile."""
    directory = Path(pipeline.checkpoint)
    with checkpoint.held(directory):
        if plan.start is None:
            (directory / START).unlink(missing_ok=True)
        else:
            (directory / START).write_text(json.dumps(plan.start), encoding="utf-8")
        for path in plan.directories:
            # Without its metadata Spark takes it for new; the rest may take a while.
            (path / "metadata").unlink(missing_ok=True)
            shutil.rmtree(path)
        (directory / checkpoint.NOTES).unlink(missing_ok=True)


def started_at(pipeline: Pipeline, source: Source, options: Mapping[str, str]) -> dict[str, str]:
    """`options` of a source of topics, to begin where the last reset said."""
    try:
        start = json.loads((Path(pipeline.checkpoint) / START).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return dict(options)
    kept = {name: value for name, value in options.items() if not name.lower().startswith("starting")}
    if "offsets" not in start:
        return {**kept, **start}
    # The source wants every partition that it reads; those that the reset did not name begin at their beginning.
    offsets = _whole(pipeline, source, kept, json.loads(start["offsets"]))
    return {**kept, "startingOffsets": json.dumps(offsets)}


def _whole(pipeline: Pipeline, source: Source, options: Mapping[str, str], offsets: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
    from ottla.spark.source.log_client import open_log_client
    from ottla.spark.source.options import SourceOptions
    from ottla.spark.source.starting_offsets import subscribed_partitions

    read = SourceOptions.of(options, streaming=True)
    whole: dict[str, dict[str, int]] = {}
    for topic, partition in subscribed_partitions(open_log_client(read.bootstrap, read.client), read.subscription):
        whole.setdefault(topic, {})[str(partition)] = offsets.get(topic, {}).get(str(partition), -2)
    return whole
