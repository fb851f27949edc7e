"""A log directory of a stopped Kafka broker, opened for reading only.

``.lock`` is locked for reading meanwhile: that fails while Kafka runs, keeps Kafka from starting, and writes nothing. Kafka locks with
POSIX locks, not with ``flock``.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ottla.base.ids import Offset, TopicId, TopicPartition
from ottla.log import checkpoints, filenames
from ottla.log.batch_scan import headers, whole_batches
from ottla.log.errors import CorruptLog, DirectoryRefused
from ottla.log.producer_snapshots import read_snapshot
from ottla.records.batch import BatchHeader, crc_ok
from ottla.records.read import ABORT_MARKER, COMMIT_MARKER, control_record
from ottla.server.data_directory import LOCK
from ottla.server.kafka_import.kafka_metadata import CannotImport, ReadOnlyFile, open_regular, read_small
from ottla.server.kafka_import.metadata_log import DIRECTORY as METADATA_LOG


@dataclass(slots=True)
class SourceLog:
    """One partition's directory."""

    partition: TopicPartition
    path: Path
    #: Whether Kafka stopped cleanly.
    clean: bool
    #: None in a directory of an old version.
    topic_id: TopicId | None
    #: Base offsets of the segments.
    bases: list[int]
    #: From the checkpoints; None without an entry.
    recovery_point: Offset | None
    start_offset: Offset | None
    high_watermark: Offset | None
    cleaned: Offset | None
    #: End of the log, by the headers of its last segment.
    end_offset: int = 0
    #: Leader epoch of the last batch, or the last one in the epoch table; -1 without any.
    last_epoch: int = -1
    #: No batch at or above it begins behind a hole.
    holes_below: int = 0

    @property
    def first_offset(self) -> int:
        """The first offset that consumers can read."""
        return max(self.start_offset or 0, self.bases[0] if self.bases else 0)

    def segment(self, base: int) -> Path:
        return self.path / filenames.segment_name(base, filenames.LOG)

    def batches(self, base: int) -> Iterator[tuple[int, BatchHeader, memoryview]]:
        """(position, header, bytes) of the whole batches of a segment, up to the first one that is torn."""
        file = ReadOnlyFile(self.segment(base))
        try:
            for position, header, chunk, inside in whole_batches(file, 0, file.size):
                batch = chunk[inside : inside + header.size]
                if not crc_ok(batch):
                    return
                yield position, header, batch
        finally:
            file.close()

    def open_transactions(self) -> set[int]:
        """Ids of the producers with an open transaction: by the newest valid snapshot, and the batches behind it. Raises: OSError."""
        begun, upto = self._newest_snapshot()
        for number, base in enumerate(self.bases):
            if number + 1 < len(self.bases) and self.bases[number + 1] <= upto:
                continue
            file = ReadOnlyFile(self.segment(base))
            try:
                with suppress(CorruptLog):
                    for position, header in headers(file, 0, file.size):  # type: ignore[arg-type]  # It reads only.
                        if header.last_offset < upto or not header.has_producer:
                            continue
                        if not header.is_control:
                            if header.is_transactional:
                                begun.add(header.producer_id)
                        elif _ends_transaction(file.read(position, header.size)):
                            begun.discard(header.producer_id)
            finally:
                file.close()
        return begun

    def _newest_snapshot(self) -> tuple[set[int], int]:
        """Ids of the producers with an open transaction in the newest valid snapshot, and its offset."""
        snapshots = [(filenames.offset_of(path.name), path) for path in self.path.iterdir() if path.suffix == filenames.SNAPSHOT]
        for offset, path in sorted(((offset, path) for offset, path in snapshots if offset is not None), reverse=True):
            producers = read_snapshot(read_small(path), 0) if offset <= self.end_offset else None
            if producers is not None:
                return {producer_id for producer_id, producer in producers.items() if producer.transaction_from >= 0}, offset
        return set(), 0


@dataclass(slots=True)
class SourceDirectory:
    """A directory of Kafka's log.dirs."""

    path: Path
    node_id: int
    cluster_id: str | None
    #: Whether the broker is one of KRaft; else it is one of ZooKeeper.
    kraft: bool
    clean: bool
    logs: dict[TopicPartition, SourceLog] = field(default_factory=dict)
    metadata_log: Path | None = None
    #: Directories that Kafka deletes, moves, or set aside.
    skipped: list[str] = field(default_factory=list)
    #: Descriptor of the locked file; -1 if there is none.
    lock: int = -1

    def release(self) -> None:
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1


def _ends_transaction(batch: bytes) -> bool:
    """Whether a control batch has the marker of a transaction."""
    if not crc_ok(batch):
        return False
    control = control_record(batch)
    return control is not None and control.kind in (ABORT_MARKER, COMMIT_MARKER)


def open_source(path: Path) -> SourceDirectory:
    """Reads and locks a directory; ``release`` must follow. Raises: CannotImport, OSError."""
    if not path.is_dir():
        raise CannotImport(f"{path} is not a directory; name the directories of Kafka's log.dirs")
    properties = path / filenames.META_PROPERTIES
    if not properties.exists():
        raise CannotImport(f"{path} has no {filenames.META_PROPERTIES}; name the directories of Kafka's log.dirs, one by one")
    data = read_small(properties)
    if b"#crc32c=" in data or b"ottla." in data:
        raise CannotImport(f"{path} is a log directory of Ottla, not of Kafka; start it with ottla serve")
    try:
        found = checkpoints.read_meta_properties(data, str(path))
    except DirectoryRefused as error:
        raise CannotImport(str(error)) from None
    if found.broker_id is None:
        raise CannotImport(f"{properties} names no broker; start and stop Kafka once")
    directory = SourceDirectory(
        path=path,
        node_id=found.broker_id,
        cluster_id=found.cluster_id,
        kraft=any(line.strip() == b"version=1" for line in data.splitlines()),
        clean=(path / filenames.CLEAN_SHUTDOWN).exists(),
    )
    directory.lock = _locked(path)
    try:
        read_logs(directory)
    except BaseException:
        directory.release()
        raise
    return directory


def _locked(path: Path) -> int:
    """Raises: CannotImport."""
    try:
        descriptor = open_regular(path / LOCK)
    except FileNotFoundError:
        return -1
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno in (errno.EACCES, errno.EAGAIN):
            raise CannotImport(f"{path} is in use by a running Kafka broker; stop it first") from None
        raise
    return descriptor


def read_logs(directory: SourceDirectory) -> None:
    """Finds the logs and reads their entries in the checkpoints. Raises: CannotImport, OSError."""
    recovery_points = _offsets(directory.path, filenames.RECOVERY_POINTS)
    starts = _offsets(directory.path, filenames.LOG_STARTS)
    high_watermarks = _offsets(directory.path, filenames.HIGH_WATERMARKS)
    cleaned = _offsets(directory.path, filenames.CLEANER_OFFSETS)
    for path in sorted(directory.path.iterdir()):
        if not path.is_dir():
            continue
        if path.name == METADATA_LOG:
            directory.metadata_log = path
            continue
        partition = filenames.partition_of(path.name)
        if partition is None:
            directory.skipped.append(path.name)
            continue
        names = [child.name for child in path.iterdir()]
        bases = (filenames.offset_of(name) for name in names if name.endswith(filenames.LOG))
        metadata = path / filenames.PARTITION_METADATA
        log = directory.logs[partition] = SourceLog(
            partition=partition,
            path=path,
            clean=directory.clean,
            topic_id=checkpoints.read_partition_metadata(read_small(metadata)) if metadata.exists() else None,
            bases=sorted(base for base in bases if base is not None),
            recovery_point=recovery_points.get(partition),
            start_offset=starts.get(partition),
            high_watermark=high_watermarks.get(partition),
            cleaned=cleaned.get(partition),
        )
        _inspect(log)


def _offsets(path: Path, name: str) -> dict[TopicPartition, Offset]:
    with suppress(FileNotFoundError):
        return checkpoints.read_offsets(read_small(path / name)) or {}
    return {}


def _inspect(log: SourceLog) -> None:
    """Finds the end of the log by the headers of its last segment."""
    epochs = log.path / filenames.LEADER_EPOCHS
    known = checkpoints.read_epochs(read_small(epochs)) if epochs.exists() else None
    if known:
        log.last_epoch = known[-1][0]
    if not log.bases:
        log.end_offset = log.holes_below = log.start_offset or 0
        return
    log.end_offset = log.holes_below = log.bases[-1]
    file = ReadOnlyFile(log.segment(log.bases[-1]))
    try:
        with suppress(CorruptLog):
            for position, header in headers(file, 0, file.size):  # type: ignore[arg-type]  # It reads only.
                if header.base_offset < log.end_offset:
                    break
                if header.base_offset > log.end_offset:
                    if not crc_ok(file.read(position, header.size)):
                        break
                    log.holes_below = header.base_offset
                log.end_offset = header.last_offset + 1
                log.last_epoch = max(log.last_epoch, header.leader_epoch)
    finally:
        file.close()
