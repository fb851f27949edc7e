"""Carries out an import: writes the new data directory beside its place, and renames it at the end.

A segment that is closed is linked, if source and target are in one file system and this process may write it; else it is copied. All that
Ottla changes in place is copied: the last segment of each log, segments that recovery reads, indexes, snapshots, checkpoints. Should a
follower have to truncate a linked segment, ``RealFile`` first replaces the link by a copy. So the source does not change.

A directory that ends in ``.importing`` is unfinished: the next import into the same place removes it.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ottla.base.ids import TopicPartition
from ottla.log import checkpoints, filenames
from ottla.log.checkpoints import MetaProperties
from ottla.server.data_directory import LOCK, STORE, LockedDirectory
from ottla.server.kafka_import.kafka_metadata import CannotImport, not_regular, open_regular
from ottla.server.kafka_import.plan import ImportPlan, PlannedLog
from ottla.store.embedded.copies import write_last
from ottla.store.embedded.file import sync, write_new

UNFINISHED = ".importing"
#: Bytes copied between two reports of progress.
CHUNK_BYTES = 8 << 20
#: Errors of a hard link after which the file is copied.
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOTSUP)


@dataclass(frozen=True, slots=True)
class FileStep:
    """One file to link or to copy. ``target`` is relative to the data directory."""

    source: Path
    target: str
    may_link: bool
    size: int


@dataclass(slots=True)
class Transferred:
    """What was written."""

    files: int = 0
    linked_bytes: int = 0
    copied_bytes: int = 0


def steps(plan: ImportPlan) -> list[FileStep]:
    """All files of the logs, in the order of the brokers. Raises: CannotImport, OSError."""
    found: list[FileStep] = []
    for planned in sorted(plan.logs, key=lambda one: (one.broker, one.source.partition)):
        log = planned.source
        for path in sorted(log.path.iterdir()):
            if path.name.endswith((filenames.DELETED, filenames.TEMPORARY)) or path.name == filenames.PARTITION_METADATA:
                continue
            if _is_preallocated(planned, path):
                continue
            state = path.lstat()
            if not stat.S_ISREG(state.st_mode):
                raise not_regular(path)
            found.append(FileStep(path, f"{_directory(planned)}/{path.name}", _may_link(planned, path), state.st_size))
    return found


def _directory(planned: PlannedLog) -> str:
    return f"broker-{planned.broker}/{planned.source.partition}"


def _may_link(planned: PlannedLog, path: Path) -> bool:
    """Whether this is a closed segment that recovery does not read."""
    log = planned.source
    base = filenames.offset_of(path.name)
    if not path.name.endswith(filenames.LOG) or base not in log.bases[:-1]:
        return False
    return log.clean or log.bases[log.bases.index(base) + 1] <= (log.recovery_point or 0)


def _is_preallocated(planned: PlannedLog, path: Path) -> bool:
    """Whether this is an index that Kafka had not trimmed yet: it is 10 MiB of zeros, and recovery writes it anew."""
    log = planned.source
    last = bool(log.bases) and filenames.offset_of(path.name) == log.bases[-1]
    return not log.clean and last and path.name.endswith((filenames.OFFSET_INDEX, filenames.TIME_INDEX))


def carry_out(plan: ImportPlan, data_dir: Path, *, copy: bool, progress: Callable[[int], None]) -> Transferred:
    """Writes the data directory; ``progress`` gets the bytes done so far. Raises: CannotImport, OSError."""
    if data_dir.exists() and any(data_dir.iterdir()):
        raise CannotImport(f"{data_dir} is not empty; an import makes a new data directory, so choose another --data-dir")
    unfinished = data_dir.with_name(data_dir.name + UNFINISHED)
    held = LockedDirectory(unfinished)
    try:
        for child in unfinished.iterdir():
            if child.name != LOCK:
                shutil.rmtree(child) if child.is_dir() else child.unlink()
        done = _transfer(plan, unfinished, copy=copy, progress=progress)
        for broker in plan.brokers.values():
            _write_small_files(plan, broker, unfinished / f"broker-{broker}")
        store = unfinished / STORE
        store.parent.mkdir(mode=0o700)
        write_new(store, plan.contents)
        write_last(store, plan.contents.last)
        # One call for all files: a sync of each takes as long as the device needs per file.
        os.sync()
        if data_dir.exists():
            data_dir.rmdir()
        unfinished.rename(data_dir)
        sync(data_dir.parent)
        return done
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    finally:
        held.release()


def _transfer(plan: ImportPlan, root: Path, *, copy: bool, progress: Callable[[int], None]) -> Transferred:
    done = Transferred()
    planned = steps(plan)
    _check_room(planned, root, copy=copy)
    for one in planned:
        target = root / one.target
        target.parent.mkdir(parents=True, exist_ok=True)
        done.files += 1
        if one.may_link and not copy and _linked(one.source, target):
            done.linked_bytes += one.size
        else:
            _copied(one.source, target, lambda size: progress(done.linked_bytes + done.copied_bytes + size))
            done.copied_bytes += one.size
        progress(done.linked_bytes + done.copied_bytes)
    return done


def _check_room(planned: list[FileStep], root: Path, *, copy: bool) -> None:
    """Raises: CannotImport."""
    device = root.stat().st_dev
    needed = sum(one.size for one in planned if copy or not one.may_link or one.source.stat().st_dev != device)
    state = os.statvfs(root)
    if needed > (free := state.f_bavail * state.f_frsize):
        raise CannotImport(
            f"the import writes {needed} bytes, and {free} are free at {root.parent}; free space, or choose another --data-dir"
        )


def _linked(source: Path, target: Path) -> bool:
    """Links a file; False if it has to be copied. Raises: OSError."""
    if not os.access(source, os.W_OK):
        return False
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        return False
    return True


def _copied(source: Path, target: Path, progress: Callable[[int], None]) -> None:
    """Copies a file with its times. Raises: OSError."""
    with os.fdopen(open_regular(source), "rb", buffering=0) as reading, target.open("xb") as writing:
        size = 0
        while chunk := reading.read(CHUNK_BYTES):
            writing.write(chunk)
            size += len(chunk)
            progress(size)
    state = source.stat()
    os.utime(target, ns=(state.st_atime_ns, state.st_mtime_ns))


def _write_small_files(plan: ImportPlan, broker: int, root: Path) -> None:
    """The files of a log directory besides the logs: the checkpoints of all directories of the Kafka broker together."""
    root.mkdir(exist_ok=True)
    logs = [one for one in plan.logs if one.broker == broker]
    for one in logs:
        directory = root / str(one.source.partition)
        directory.mkdir(exist_ok=True)
        (directory / filenames.PARTITION_METADATA).write_bytes(checkpoints.partition_metadata_file(one.topic_id))
        if not one.compacts:
            # The topic may have been compacted once: holes below the last segment are no damage.
            (directory / filenames.HOLES).write_bytes(checkpoints.holes_file(one.source.holes_below))
    named: dict[str, dict[TopicPartition, int]] = {
        filenames.RECOVERY_POINTS: {one.source.partition: one.source.recovery_point or 0 for one in logs},
        filenames.HIGH_WATERMARKS: {one.source.partition: one.source.high_watermark or 0 for one in logs},
    }
    cleaned = {one.source.partition: one.source.cleaned for one in logs if one.source.cleaned is not None}
    if cleaned:
        named[filenames.CLEANER_OFFSETS] = dict(cleaned)
    for name, offsets in named.items():
        (root / name).write_bytes(checkpoints.offsets_file(offsets))
    starts = {one.source.partition: one.source.start_offset for one in logs if one.source.start_offset}
    (root / filenames.LOG_STARTS).write_bytes(checkpoints.offsets_file(dict(starts), has_checksum=True))
    identity = MetaProperties(plan.cluster_id, broker, os.urandom(16))
    (root / filenames.META_PROPERTIES).write_bytes(identity.file(time.time_ns() // 1_000_000))
    if all(one.source.clean for one in logs):
        (root / filenames.CLEAN_SHUTDOWN).write_bytes(checkpoints.clean_shutdown_file(-1))
