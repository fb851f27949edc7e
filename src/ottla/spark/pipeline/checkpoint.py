"""Reads the directory of a pipeline's checkpoint without Spark, and writes the two files that pipelines add to it.

    CHECKPOINT/
      pipeline.lock          the process that runs it: {"pid", "host", "since", "beat"}, with a lock of the operating system
      pipeline.json          per query: what the checkpoint depends on (checkpoint_compatibility.py), and the last progress
      spark.log              Spark's output
      VIEW-FORM/             a query's checkpoint, in Spark's format:
        offsets/N            batch N is planned: a line with the version, one with settings, then end offsets, one line per source
        commits/N            batch N is finished
        state/               of aggregates, joins, deduplication

A batch that is planned but not finished runs again with the same offsets. Only one process at a time may use a checkpoint: two would write
the same batch numbers with different rows. The kernel's lock (flock) needs no cleanup after kill -9. It may not work between machines that
share a directory, so a recent heartbeat ("beat") from another machine counts as a lock too.
"""

import json
import os
import shutil
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from ottla.base.ids import TopicPartition
from ottla.lake.full_disk import naming
from ottla.spark.source.offset_ranges import offsets_in

try:
    import fcntl
except ImportError:  # Windows: only the heartbeat counts.
    fcntl = None  # type: ignore[assignment]

LOCK, NOTES = "pipeline.lock", "pipeline.json"
#: The position that `ottla pipeline reset` has chosen.
START = "start.json"
#: A process with an older heartbeat has ended.
BEAT_OLD_S = 15.0


class InUse(RuntimeError):
    """Another process uses this checkpoint."""


@dataclass(frozen=True, slots=True)
class QueryState:
    """One query's checkpoint."""

    name: str
    query_id: str
    #: The last finished batch; None before the first.
    batch: int | None
    #: The last planned batch; it runs again at the next start if unfinished.
    planned: int | None
    #: When the last finished batch was planned, ms since 1970.
    at_ms: int | None
    #: End offsets of the last finished batch, for sources of topics.
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    #: Spark's settings for the state in the last planned batch.
    settings: Mapping[str, str] = field(default_factory=dict)
    stateful: bool = False
    watermark_ms: int = 0


def queries(checkpoint: Path) -> list[QueryState]:
    """The started queries, sorted by name."""
    return [read_query(path.parent) for path in sorted(checkpoint.glob("*/metadata"))]


def read_query(directory: Path) -> QueryState:
    """A query's checkpoint. Raises: OSError, ValueError if it is not one of Spark's."""
    query_id = str(json.loads((directory / "metadata").read_text())["id"])
    planned, done = _numbers(directory / "offsets"), _numbers(directory / "commits")
    finished = [number for number in done if number in planned]
    batch = max(finished, default=None)
    newest = max(planned, default=None)
    settings: Mapping[str, str] = {}
    at_ms, offsets, watermark_ms = None, {}, 0
    if newest is not None:
        settings = dict(_planned_batch(directory / "offsets" / str(newest))[0].get("conf", {}))
    if batch is not None:
        metadata, sources = _planned_batch(directory / "offsets" / str(batch))
        at_ms, watermark_ms = int(metadata.get("batchTimestampMs", 0)), int(metadata.get("batchWatermarkMs", 0))
        for source in sources:
            offsets.update(offsets_in(source) or {})
    return QueryState(directory.name, query_id, batch, newest, at_ms, offsets, settings, (directory / "state").is_dir(), watermark_ms)


def _numbers(directory: Path) -> set[int]:
    return {int(path.name) for path in directory.glob("[0-9]*") if path.name.isdigit()} if directory.is_dir() else set()


def _planned_batch(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Metadata and source offsets of a planned batch."""
    _, settings, *sources = path.read_text(encoding="utf-8").splitlines()
    return json.loads(settings), sources


class HeldCheckpoint:
    """The checkpoint in a directory, held by this process. Those in topics and at URLs have the same methods."""

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory).absolute()

    @property
    def is_empty(self) -> bool:
        """Whether this is known to be the first start."""
        return False

    def location(self, query: str) -> str:
        """Where Spark keeps a query's checkpoint: with a scheme, since Hadoop's configuration may make HDFS the default."""
        return f"file://{(self._directory / query).absolute()}" if os.name == "posix" else str(self._directory / query)

    def remove_partial_files(self, query: str) -> None:
        """Removes temporary files of interrupted writes (a kill, a full disk) from a query's logs.

        Spark does not start a query with such a file and no planned batch. The query does not run.
        """
        for log in ("offsets", "commits"):
            # .0.UUID.tmp, and its checksum ..0.UUID.tmp.crc
            for path in (self._directory / query / log).glob(".*.tmp*"):
                path.unlink(missing_ok=True)

    def forget(self, queries: Sequence[str]) -> None:
        """Removes the checkpoints of queries, and all notes. Raises: OSError."""
        for query in queries:
            # First the metadata: without it Spark treats the query as new, even if this is interrupted.
            (self._directory / query / "metadata").unlink(missing_ok=True)
            if (self._directory / query).exists():
                shutil.rmtree(self._directory / query)
        (self._directory / NOTES).unlink(missing_ok=True)

    def save(self) -> None:
        """A batch is planned: after the return, sinks may write it."""

    def keep(self) -> None:
        """Writes heartbeats and copies files, if due."""


# -- lock


@dataclass(frozen=True, slots=True)
class LockHolder:
    """The process that runs a pipeline or was the last to run it."""

    pid: int
    host: str
    #: Seconds since 1970.
    since: float
    beat: float
    running: bool

    def __str__(self) -> str:
        host = "" if self.host == socket.gethostname() else f" on {self.host}"
        return f"process {self.pid}{host}, since {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(self.since))} UTC"


class CheckpointLock:
    """A held lock of a checkpoint."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._since = time.time()
        self.beat()

    def beat(self) -> None:
        """Writes a heartbeat. Call it every few seconds."""
        content = {"pid": os.getpid(), "host": socket.gethostname(), "since": self._since, "beat": time.time()}
        self._file.seek(0)
        self._file.truncate()
        self._file.write(json.dumps(content))
        self._file.flush()


@contextmanager
def checkpoint_lock(checkpoint: Path) -> Iterator[CheckpointLock]:
    """Locks the checkpoint for the time of the block. Raises: InUse."""
    checkpoint.mkdir(parents=True, exist_ok=True)
    with (checkpoint / LOCK).open("a+", encoding="utf-8") as file:
        other = holder(checkpoint)
        if not _locked(file, exclusive=True) or (other is not None and other.running and other.host != socket.gethostname()):
            other = holder(checkpoint) or other
            raise InUse(
                f"the checkpoint {checkpoint} is used by {other or 'another process'}; two processes would write batches twice. "
                "Stop that process first, or give this pipeline another checkpoint"
            )
        try:
            yield CheckpointLock(file)
        finally:
            # Elsewhere the content stays: it names the last process. On Windows it would count as a lock.
            if fcntl is None:
                file.seek(0)
                file.truncate()


def _locked(file: IO[str], *, exclusive: bool) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def holder(checkpoint: Path, *, copied: bool = False) -> LockHolder | None:
    """The process that runs the pipeline or was the last to run it; None if there was none.

    `copied`: the file was copied from another place, so only the heartbeat counts.
    """
    try:
        with (checkpoint / LOCK).open("r", encoding="utf-8") as file:
            content = json.loads(file.read() or "null")
            free = _is_free(file)
    except (OSError, ValueError):
        return None
    if not isinstance(content, dict):
        return None
    fresh = time.time() - float(content["beat"]) < BEAT_OLD_S
    running = not free or (fresh and (copied or fcntl is None or content["host"] != socket.gethostname()))
    # Noted by `CheckpointTopic.close`.
    running = running and not content.get("ended", False)
    return LockHolder(int(content["pid"]), str(content["host"]), float(content["since"]), float(content["beat"]), running)


def _is_free(file: IO[str]) -> bool:
    """Whether no process of this machine holds the lock."""
    free = _locked(file, exclusive=False)
    if free and fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_UN)
    return free


# -- notes


def read_notes(checkpoint: Path) -> dict[str, dict[str, Any]]:
    """The notes of each query, by the name of its directory."""
    try:
        content = json.loads((checkpoint / NOTES).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    notes = content.get("queries") if isinstance(content, dict) else None
    return {str(name): note for name, note in notes.items() if isinstance(note, dict)} if isinstance(notes, dict) else {}


class CheckpointNotes:
    """The content of `pipeline.json`, for the next start and for `ottla pipeline status`.

    Per query: `fit` (what its checkpoint depends on), `targets`, `last` (progress of the last batch) and `total` (rows in and out and dead
    letters since its checkpoint was created; the batches right before a kill may be missing).
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
        """Replaces the file atomically. Raises: OSError."""
        if not self._changed:
            return
        self.checkpoint.mkdir(parents=True, exist_ok=True)
        unfinished = self.checkpoint / f".{NOTES}.unfinished"
        with naming(unfinished):
            unfinished.write_text(json.dumps({"version": 1, "queries": self.queries}, indent=1), encoding="utf-8")
        os.replace(unfinished, self.checkpoint / NOTES)
        self._changed = False
