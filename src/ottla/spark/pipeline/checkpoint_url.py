"""Keeps the checkpoint of a pipeline at a URL of a Hadoop file system: ``checkpoint = "s3a://BUCKET/PATH"``.

Spark writes there itself, state included. Beside its files are those of Ottla:

    URL/
      pipeline.owner       the run that may write: replaced once by each start, which takes the checkpoint over
      pipeline.lock        the owner's process and its heartbeat, every `BEAT_S`; at the end with "ended"
      pipeline.json        as in a directory (checkpoint.py), copied after batches, at most every `COPY_INTERVAL_S`
      start.json           of `ottla pipeline reset`
      VIEW-FORM/           a query's checkpoint, in Spark's format

The local directory has Spark's log and a copy of what Ottla reads: its own files, and per query the newest planned and the last finished
batch. Each start makes the copy anew.

Hadoop's file systems have no lock, and object stores no rename that fails if the target exists. Two processes are kept apart so:

    start          waits until the heartbeat has not changed for `BEAT_OLD_S`, unless its process has ended; then replaces `pipeline.owner`
    batch          before a sink writes a row, `pipeline.owner` is read: a run that is not the owner any more ends
    offsets/N      Spark refuses to plan a batch that is planned already; the query then starts again with the offsets that are there

Not excluded: a process that stops for `BEAT_OLD_S` between the two requests by which Spark looks for `offsets/N` and creates it, and goes
on while the new owner plans the same batch. On HDFS and Azure's hierarchical stores the second rename fails; on S3 the later one counts.
"""

import json
import logging
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from py4j.protocol import Py4JError

from ottla.base.paths import is_object_url
from ottla.lake.storage import StorageError, StoreUnavailable, location
from ottla.spark.pipeline.checkpoint import BEAT_OLD_S, LOCK, NOTES, START, HeldCheckpoint, InUse
from ottla.spark.pipeline.checkpoint_errors import CheckpointTakenOver, CheckpointUnavailable, CheckpointUnreachable
from ottla.spark.pipeline.checkpoint_records import Files, restore
from ottla.spark.pipeline.config.model import Pipeline
from ottla.spark.pipeline.hadoop_files import FilesUnreachable, HadoopFiles, ReadableFiles, StoreFiles

log = logging.getLogger("ottla.spark")

OWNER = "pipeline.owner"
#: Of the local directory, copied to the URL.
COPIED = (NOTES, START)
BEAT_S = 5.0
COPY_INTERVAL_S = 1.0
#: A heartbeat that is older by this machine's clock needs no wait, also if the clocks of the machines differ a little.
CLOCKS_S = 60.0
LOOK_S = 1.0
#: Settings of Hadoop that have a counterpart among the options of `ottla.lake.storage`.
SHARED = {"spark.hadoop.fs.s3a.endpoint": "endpoint", "spark.hadoop.fs.s3a.endpoint.region": "region"}
#: Settings that do not affect which records are read.
IGNORED = ("spark.hadoop.fs.s3a.path.style.access", "spark.hadoop.fs.s3a.connection.", "spark.hadoop.fs.s3a.fast.upload")


class ChangeableFiles(ReadableFiles, Protocol):
    """The files below a URL, to change."""

    def write(self, name: str, data: bytes) -> None:
        """Replaces a file atomically. Raises: OSError."""

    def remove(self, name: str) -> None:
        """Removes a file, or a directory with its content; a missing one is no error. Raises: OSError."""


class CheckpointUrl(HeldCheckpoint):
    """The checkpoint of one pipeline, held by this process. Batches of several queries call `save` from their threads."""

    def __init__(
        self, pipeline: Pipeline, files: ChangeableFiles, *, tell: Callable[[str], None], wait: Callable[[float], bool | None]
    ) -> None:
        """`tell` reports that the start waits; `wait` sleeps, and returns True to give up."""
        assert pipeline.checkpoint_url is not None, "the checkpoint is at a URL"
        self._url = pipeline.checkpoint_url
        self._name = pipeline.name
        super().__init__(pipeline.checkpoint)
        self._files, self._tell, self._wait = files, tell, wait
        self._run, self._since = uuid.uuid4().hex, time.time()
        #: Content of `COPIED` at the URL.
        self._copied: Files = {}
        self._is_owner = False
        #: Times of the last heartbeat and the last copy.
        self._beat_s = self._copied_s = 0.0
        self._is_empty = True

    @property
    def is_empty(self) -> bool:
        """Whether there was no checkpoint at the URL."""
        return self._is_empty

    def take_over(self) -> None:
        """Becomes the owner and makes the local copy. The caller has the directory's lock.

        Raises: InUse, CheckpointUnavailable, OSError.
        """
        with self._reported():
            self._await_other()
            self._files.write(OWNER, json.dumps({"run": self._run, **self._process()}).encode())
            self._is_owner = True
            self._beat()
            read = read_part(self._files)
            self._is_empty = all(name in (LOCK, OWNER) for name in read)
            self._copied = {name: read[name] for name in COPIED if name in read}
            self._require_owner()
        restore(read, self._directory)

    def location(self, query: str) -> str:
        """Where Spark keeps a query's checkpoint."""
        return f"{self._url}/{query}"

    def remove_partial_files(self, query: str) -> None:
        """As `checkpoint.remove_partial_files`. Raises: CheckpointUnavailable."""
        with self._reported():
            for part in ("offsets", "commits"):
                for name in self._files.entries(f"{query}/{part}"):
                    if name.startswith(".") and ".tmp" in name:
                        self._files.remove(f"{query}/{part}/{name}")

    def forget(self, queries: Sequence[str]) -> None:
        """Raises: CheckpointUnavailable, OSError."""
        with self._reported():
            # The chosen position first: a query without a checkpoint starts there.
            self._copy()
            for query in queries:
                self._files.remove(f"{query}/metadata")
                self._files.remove(query)
            super().forget(queries)
            self._copy()

    def save(self) -> None:
        """A batch is planned: returns if this run may write it. Raises: CheckpointTakenOver, CheckpointUnavailable."""
        with self._reported():
            self._require_owner()

    def keep(self) -> None:
        """Copies changed files and writes heartbeats, if due. A file system that does not answer is tried again with the next call.

        Raises: CheckpointTakenOver, CheckpointUnavailable.
        """
        now_s = time.monotonic()
        if now_s - self._copied_s < COPY_INTERVAL_S:
            return
        self._copied_s = now_s
        try:
            with self._reported():
                self._copy()
                if now_s - self._beat_s >= BEAT_S:
                    self._require_owner()
                    self._beat()
        except CheckpointUnreachable as error:
            log.info("%s", error)

    def close(self) -> None:
        """Copies the last files and notes the end. A failure is a warning: the next start waits for the heartbeat to be old."""
        if not self._is_owner:
            return
        try:
            with self._reported():
                self._require_owner()
                self._copy()
                self._beat(ended=True)
        except CheckpointTakenOver:
            return
        except (Py4JError, OSError, CheckpointUnavailable) as error:
            log.warning("the end of this process is not noted in %s: %s", self._url, error)

    def _await_other(self) -> None:
        """Waits until the process of the last heartbeat has ended, as far as can be seen. Raises: InUse."""
        seen = self._files.read(LOCK)
        other = _parsed(seen)
        if not other or has_ended(other, time.time()):
            return
        where = f"process {other.get('pid')} on {other.get('host')}"
        self._tell(f"{self._url} was used by {where} a moment ago: waiting for {BEAT_OLD_S:.0f} s to see whether it still runs")
        deadline_s = time.monotonic() + BEAT_OLD_S
        while time.monotonic() < deadline_s:
            if self._wait(LOOK_S):
                raise CheckpointUnavailable(f"{self._name} was stopped while it waited for {where}")
            now = self._files.read(LOCK)
            if now != seen and not _parsed(now).get("ended"):
                raise InUse(
                    f"the checkpoint {self._url} is used by {where}; two processes would write batches twice. Stop that process first, or"
                    " give this pipeline another checkpoint"
                )
            if now != seen:
                return

    def _require_owner(self) -> None:
        owner = _parsed(self._files.read(OWNER))
        if owner.get("run") != self._run:
            self._is_owner = False
            by = f"process {owner['pid']} on {owner['host']}" if {"pid", "host"} <= owner.keys() else "another process"
            raise CheckpointTakenOver(
                f"the checkpoint {self._url} of {self._name} was taken over by {by}, which runs the pipeline now; this process stops. Run a"
                " pipeline once, or give one of the two another checkpoint"
            )

    def _beat(self, *, ended: bool = False) -> None:
        content = {**self._process(), "since": self._since, "beat": time.time(), "run": self._run, "ended": ended}
        self._files.write(LOCK, json.dumps(content).encode())
        self._beat_s = time.monotonic()

    def _process(self) -> dict[str, Any]:
        return {"pid": os.getpid(), "host": socket.gethostname(), "machine": this_machine()}

    def _copy(self) -> None:
        for name in COPIED:
            try:
                content: bytes | None = (self._directory / name).read_bytes()
            except FileNotFoundError:
                content = None
            if content == self._copied.get(name):
                continue
            if content is None:
                self._files.remove(name)
                del self._copied[name]
            else:
                self._files.write(name, content)
                self._copied[name] = content

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Raises: CheckpointUnreachable, CheckpointUnavailable."""
        with reported(self._url, self._name):
            yield


def has_ended(other: dict[str, Any], now: float) -> bool:
    """Whether the process of a heartbeat has certainly ended: it said so, is none of this machine, or the heartbeat is old."""
    if other.get("ended") or now - float(other.get("beat", 0)) > CLOCKS_S:
        return True
    if other.get("machine") != this_machine() or this_machine() == "":
        return False
    try:
        os.kill(int(other["pid"]), 0)
    except ProcessLookupError:
        return True
    except (OSError, KeyError, ValueError):
        return False
    return False


def this_machine() -> str:
    """Identifies the machine since its start and the container, in which a process number has one meaning; empty if unknown."""
    with suppress(OSError):
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    return ""


def read_part(files: ReadableFiles) -> Files:
    """The files that Ottla reads: its own, and per query the newest planned and the last finished batch. Raises: OSError."""
    found: Files = {}
    for name, is_directory in files.entries("").items():
        if not is_directory:
            if name in (LOCK, *COPIED) and (content := files.read(name)) is not None:
                found[name] = content
            continue
        entries = files.entries(name)
        metadata = files.read(f"{name}/metadata") if "metadata" in entries else None
        if metadata is None:
            continue
        found[f"{name}/metadata"] = metadata
        planned, done = (_numbers(files.entries(f"{name}/{part}")) if part in entries else set() for part in ("offsets", "commits"))
        finished = max(planned & done, default=None)
        for number in {max(planned, default=None), finished} - {None}:
            content = files.read(f"{name}/offsets/{number}")
            if content is not None:
                found[f"{name}/offsets/{number}"] = content
        if finished is not None:
            # Only its name counts.
            found[f"{name}/commits/{finished}"] = b""
        if "state" in entries:
            found[f"{name}/state/at-the-url"] = b""
    return found


def _numbers(names: dict[str, bool]) -> set[int]:
    return {int(name) for name in names if name.isdigit()}


def _parsed(content: bytes | None) -> dict[str, Any]:
    try:
        parsed = json.loads(content or b"{}")
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


@contextmanager
def reported(url: str, name: str) -> Iterator[None]:
    """Errors of the file system name the checkpoint. Raises: CheckpointUnreachable, CheckpointUnavailable."""
    try:
        yield
    except (FilesUnreachable, StoreUnavailable) as error:
        raise CheckpointUnreachable(f"the checkpoint {url} of {name} is not reached: {error}") from None
    except (StorageError, OSError) as error:
        if isinstance(error, ConnectionError):
            # Of the JVM, which has ended.
            raise
        raise CheckpointUnavailable(f"the checkpoint {url} of {name} cannot be used: {error}") from None


# -- commands


@contextmanager
def holding_url(
    pipeline: Pipeline, session: Any, *, tell: Callable[[str], None] = lambda _: None, wait: Callable[[float], bool | None] = time.sleep
) -> Iterator[CheckpointUrl]:
    """Takes the checkpoint over for the block. The caller has the lock of the local directory.

    Raises: InUse, CheckpointUnavailable, OSError.
    """
    with reported(pipeline.checkpoint_place, pipeline.name):
        files = HadoopFiles(session, pipeline.checkpoint_place, pipeline.spark)
    held = CheckpointUrl(pipeline, files, tell=tell, wait=wait)
    try:
        held.take_over()
        yield held
    finally:
        held.close()


@contextmanager
def url_to_read(pipeline: Pipeline, session: Any = None) -> Iterator[Pipeline]:
    """The pipeline with a directory of what Ottla reads of its checkpoint, for the block. A session is started if it is needed.

    Raises: CheckpointUnavailable, NoJava, PipelineError.
    """
    read = _read_without_java(pipeline) if session is None else None
    if read is None:
        with _session_for(pipeline, session) as started, reported(pipeline.checkpoint_place, pipeline.name):
            read = read_part(HadoopFiles(started, pipeline.checkpoint_place, pipeline.spark))
    with TemporaryDirectory(prefix="ottla-checkpoint-") as directory:
        restore(read, Path(directory))
        if LOCK in read:
            (Path(directory) / LOCK).write_bytes(read[LOCK])
        yield replace(pipeline, checkpoint=directory)


@contextmanager
def _session_for(pipeline: Pipeline, session: Any) -> Iterator[Any]:
    from ottla.spark.pipeline.session import planning_session

    if session is not None:
        yield session
        return
    with planning_session(pipeline, files=True) as started:
        yield started


def _read_without_java(pipeline: Pipeline) -> Files | None:
    """What Ottla reads, by the library of object stores; None if Spark's file system is needed for it. Raises: CheckpointUnavailable."""
    options: dict[str, str] = {}
    for name, value in pipeline.spark.items():
        if name in SHARED:
            options[SHARED[name]] = value
        elif name.startswith("spark.hadoop.fs.") and not name.startswith(IGNORED):
            # Such as credentials.
            return None
    if not is_object_url(pipeline.checkpoint_place) or find_spec("obstore") is None:
        return None
    if options.get("endpoint", "").startswith("http://"):
        # Spark does not encrypt either.
        options["allow_http"] = "true"
    try:
        return read_part(StoreFiles(location(pipeline.checkpoint_place, options)))
    except StoreUnavailable as error:
        raise CheckpointUnreachable(f"the checkpoint {pipeline.checkpoint_place} of {pipeline.name} is not reached: {error}") from None
    except (StorageError, OSError) as error:
        log.info("%s is read by Spark's file system: %s", pipeline.checkpoint_place, error)
        return None
