"""What the directory of a pipeline's checkpoint tells without Spark, and the two files that pipelines add to it.

    CHECKPOINT/
      pipeline.lock          who runs it: {"pid", "host", "since", "beat"}; held by a lock of the operating system, gone with the process
      pipeline.json          by query: what the checkpoint was made for (fit.py), and the last progress
      spark.log              Spark's own words
      VIEW-FORM/             a query's, Spark's own format:
        offsets/N            batch N was planned: a line of version, one of settings, then one of end offsets per source
        commits/N            batch N is done
        state/               of aggregates, joins, deduplication

A batch that is planned and not done is run again, with the same offsets. One process at a time may use a checkpoint: two would write the
same batch numbers with other rows. The lock is the kernel's (flock), so it needs no cleaning after kill -9; between machines that share a
directory it may not hold, so a beat of another machine that is not old counts too.
"""

import json
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from ottla.base.ids import TopicPartition
from ottla.lake.table.parquet_files import naming
from ottla.spark.source.offset_ranges import OffsetsError, from_json

try:
    import fcntl
except ImportError:  # Windows: the beat alone tells.
    fcntl = None  # type: ignore[assignment]

LOCK, NOTES = "pipeline.lock", "pipeline.json"
#: A beat that is older is of a process that is gone.
BEAT_OLD_S = 15.0


class InUse(RuntimeError):
    """Another process runs with this checkpoint."""


@dataclass(frozen=True, slots=True)
class QueryState:
    """One query's checkpoint."""

    name: str
    query_id: str
    #: The newest batch that is done; None before the first.
    batch: int | None
    #: The newest batch that is planned: run again at the next start if it is not done.
    planned: int | None
    #: When the newest batch that is done was planned, ms since 1970.
    at_ms: int | None
    #: End offsets of the newest batch that is done, of all sources that are topics.
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    #: Spark's settings for the state, as they were when the newest batch was planned.
    settings: Mapping[str, str] = field(default_factory=dict)
    stateful: bool = False
    watermark_ms: int = 0


def queries(checkpoint: Path) -> list[QueryState]:
    """Every query that has begun, by name."""
    return [read_query(path.parent) for path in sorted(checkpoint.glob("*/metadata"))]


def read_query(directory: Path) -> QueryState:
    """A query's checkpoint. Raises: OSError, ValueError when it is not one of Spark's."""
    query_id = str(json.loads((directory / "metadata").read_text())["id"])
    planned, done = _numbers(directory / "offsets"), _numbers(directory / "commits")
    finished = [number for number in done if number in planned]
    batch = max(finished, default=None)
    newest = max(planned, default=None)
    settings: Mapping[str, str] = {}
    at_ms, offsets, watermark_ms = None, {}, 0
    if newest is not None:
        settings = dict(_note(directory / "offsets" / str(newest))[0].get("conf", {}))
    if batch is not None:
        told, sources = _note(directory / "offsets" / str(batch))
        at_ms, watermark_ms = int(told.get("batchTimestampMs", 0)), int(told.get("batchWatermarkMs", 0))
        for source in sources:
            offsets.update(_topic_offsets(source))
    return QueryState(directory.name, query_id, batch, newest, at_ms, offsets, settings, (directory / "state").is_dir(), watermark_ms)


def sweep(query: Path) -> None:
    """Removes what a write that was cut off, by a kill or a full disk, has left in a query's logs: as long as no batch is planned, Spark
    refuses to start beside it. For the process that holds the checkpoint, while the query does not run.
    """
    for log in ("offsets", "commits"):
        # .0.UUID.tmp, and its checksum ..0.UUID.tmp.crc
        for path in (query / log).glob(".*.tmp*"):
            path.unlink(missing_ok=True)


def _numbers(directory: Path) -> set[int]:
    return {int(path.name) for path in directory.glob("[0-9]*") if path.name.isdigit()} if directory.is_dir() else set()


def _note(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Settings and offsets of a planned batch."""
    _, settings, *sources = path.read_text(encoding="utf-8").splitlines()
    return json.loads(settings), sources


def _topic_offsets(text: str) -> dict[TopicPartition, int]:
    """Of a source that is a topic; nothing of one that is files."""
    try:
        return from_json(json.loads(text))
    except (OffsetsError, ValueError):
        return {}


# -- who runs it


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that runs a pipeline, or ran it last."""

    pid: int
    host: str
    #: Seconds since 1970.
    since: float
    beat: float
    running: bool

    def __str__(self) -> str:
        place = "" if self.host == socket.gethostname() else f" on {self.host}"
        return f"process {self.pid}{place}, since {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(self.since))} UTC"


class Held:
    """The lock of a checkpoint, while it is ours."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._since = time.time()
        self.beat()

    def beat(self) -> None:
        """Says that we are still there; to be called every few seconds."""
        told = {"pid": os.getpid(), "host": socket.gethostname(), "since": self._since, "beat": time.time()}
        self._file.seek(0)
        self._file.truncate()
        self._file.write(json.dumps(told))
        self._file.flush()


@contextmanager
def held(checkpoint: Path) -> Iterator[Held]:
    """The checkpoint for this process alone, for the time of the block. Raises: InUse."""
    checkpoint.mkdir(parents=True, exist_ok=True)
    with (checkpoint / LOCK).open("a+", encoding="utf-8") as file:
        other = holder(checkpoint)
        if not _locked(file) or (other is not None and other.running and other.host != socket.gethostname()):
            other = holder(checkpoint) or other
            raise InUse(
                f"the checkpoint {checkpoint} is used by {other or 'another process'}; two at once would write batches twice. "
                "Stop that one first, or give this pipeline a checkpoint of its own"
            )
        try:
            yield Held(file)
        finally:
            # What is left says who ran it last; nobody holds it.
            if fcntl is None:
                file.seek(0)
                file.truncate()


def _locked(file: IO[str]) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def holder(checkpoint: Path) -> Holder | None:
    """Who runs the pipeline or ran it last; None when nobody did."""
    try:
        with (checkpoint / LOCK).open("r", encoding="utf-8") as file:
            told = json.loads(file.read() or "null")
            free = _free(file)
    except (OSError, ValueError):
        return None
    if not isinstance(told, dict):
        return None
    fresh = time.time() - float(told["beat"]) < BEAT_OLD_S
    running = not free or (fresh and (fcntl is None or told["host"] != socket.gethostname()))
    return Holder(int(told["pid"]), str(told["host"]), float(told["since"]), float(told["beat"]), running)


def _free(file: IO[str]) -> bool:
    """Whether nobody holds the lock of this machine."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(file, fcntl.LOCK_UN)
    return True


# -- notes


def read_notes(checkpoint: Path) -> dict[str, dict[str, Any]]:
    """What was noted of each query, by the name of its directory."""
    try:
        told = json.loads((checkpoint / NOTES).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    found = told.get("queries") if isinstance(told, dict) else None
    return {str(name): note for name, note in found.items() if isinstance(note, dict)} if isinstance(found, dict) else {}


class Notes:
    """What a running pipeline notes for the next start, and for `ottla pipeline status`.

    Of each query: `fit`, `last` (the progress of its newest batch) and `total` (rows in and out and dead letters since its checkpoint was
    made; what ended in the moment before a kill may be missing).
    """

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self.queries = read_notes(checkpoint)
        self._changed = False

    def begin(self, name: str, fit: Mapping[str, Any], targets: Sequence[Mapping[str, Any]]) -> None:
        note = self.queries.setdefault(name, {})
        if not (self.checkpoint / name).is_dir():
            note.clear()
        note.update(fit=dict(fit), targets=list(targets))
        self._changed = True

    def batch(self, name: str, progress: Mapping[str, Any]) -> None:
        note = self.queries.setdefault(name, {})
        if progress["batch"] > note.get("last", {}).get("batch", -1):
            total = note.setdefault("total", {})
            for figure in ("rows_in", "rows_out", "dead_letters"):
                total[figure] = total.get(figure, 0) + progress[figure]
        note["last"] = dict(progress)
        self._changed = True

    def save(self) -> None:
        """All at once: a reader sees the notes of before or those of after. Raises: OSError."""
        if not self._changed:
            return
        self.checkpoint.mkdir(parents=True, exist_ok=True)
        unfinished = self.checkpoint / f".{NOTES}.unfinished"
        with naming(unfinished):
            unfinished.write_text(json.dumps({"version": 1, "queries": self.queries}, indent=1), encoding="utf-8")
        os.replace(unfinished, self.checkpoint / NOTES)
        self._changed = False
