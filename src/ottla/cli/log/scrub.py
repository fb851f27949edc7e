"""`ottla log verify`: checks checksums, offsets and indexes of logs, segment by segment.

It uses the scan of the broker's scrub (`ottla.log.scrub`), opens files read-only and takes no lock. With ``--live`` a broker may run: the
newest segment is checked up to the recovery point, a removed file is skipped, and a damaged one is read again, in case it was replaced.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ottla.base.ids import TopicPartition
from ottla.log import checkpoints, filenames
from ottla.log.scrub import ScrubPlan, ScrubResult, carry_out

Row = dict[str, Any]
#: Attempts to read a damaged segment: a running broker may have changed it meanwhile.
TRIES = 3


class ReadOnly:
    """A directory for reading."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def open(self, path: str) -> ReadOnlyFile:
        return ReadOnlyFile(self._root / path)

    def read_file(self, path: str) -> bytes:
        return (self._root / path).read_bytes()


class ReadOnlyFile:
    """A file for reading."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._file = path.open("rb")

    @property
    def size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def read(self, position: int, size: int) -> bytes:
        return os.pread(self._file.fileno(), size, position)

    def close(self) -> None:
        self._file.close()


def log_directories(path: Path) -> list[Path]:
    """The log directories of a data directory; a log directory or partition's directory itself."""
    if is_partition(path) or (path / filenames.META_PROPERTIES).exists():
        return [path]
    return sorted(child for child in path.iterdir() if (child / filenames.META_PROPERTIES).exists())


def partitions(directory: Path) -> list[Path]:
    """The directories of partitions in a log directory."""
    return [directory] if is_partition(directory) else sorted(child for child in directory.iterdir() if is_partition(child))


def is_partition(path: Path) -> bool:
    """Whether a directory is one of a partition. Names of log directories can look the same."""
    return filenames.partition_of(path.name) is not None and path.is_dir() and not (path / filenames.META_PROPERTIES).exists()


def verified(partition: Path, *, live: bool) -> Iterator[Row]:
    """A row for each segment, or for each damage in it."""
    tp = filenames.partition_of(partition.name)
    assert tp is not None, "partitions() returns directories of partitions"
    bases = _bases(partition)
    for base in bases:
        for retries_left in reversed(range(TRIES)):
            try:
                result, size = _scan(partition, tp, base, live=live)
            except FileNotFoundError:
                break
            if not retries_left or not live or not (result.damages or result.index):
                yield from _rows(partition, tp, base, result, size)
                break


def _bases(partition: Path) -> list[int]:
    offsets = (filenames.offset_of(name.name) for name in partition.iterdir() if name.name.endswith(filenames.LOG))
    return sorted(base for base in offsets if base is not None)


def _scan(partition: Path, tp: TopicPartition, base: int, *, live: bool) -> tuple[ScrubResult, int]:
    """Raises: FileNotFoundError, OSError."""
    bases = _bases(partition)
    if base not in bases:
        raise FileNotFoundError(base)
    newest = base == bases[-1]
    bound = (1 << 62) if newest else bases[bases.index(base) + 1]
    size = (partition / f"{base:020d}{filenames.LOG}").stat().st_size
    stable = _recovery_point(partition, tp) if live and newest else None
    plan = ScrubPlan(
        directory=partition.name,
        base_offset=base,
        size=size,
        bound=bound,
        holes_below=_holes_below(partition),
        epochs=tuple(_epochs(partition)),
        indexed=not newest,
        upto=stable,
        open_end=newest,
    )
    *_, result = carry_out(ReadOnly(partition.parent), plan)
    assert isinstance(result, ScrubResult), "the last item of a scrub is its result"
    return result, size


def _rows(partition: Path, tp: TopicPartition, base: int, result: ScrubResult, size: int) -> Iterator[Row]:
    file = str(partition / f"{base:020d}{filenames.LOG}")
    read = {"batches": result.batches, "bytes": result.read_bytes, "size": size}
    row: Row = {"file": file, "topic": tp.topic, "partition": tp.partition, **read}
    for one in result.damages:
        at = {"position": one.position, "damaged_bytes": one.end_position - one.position}
        yield {**row, "first_offset": one.first, "last_offset": one.end - 1, **at, "damage": one.reason}
    if result.index:
        yield {**row, "damage": f"the offset index {result.index}; a broker rebuilds it when it reads it"}
    if not result.damages and not result.index:
        yield row


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _recovery_point(partition: Path, tp: TopicPartition) -> int:
    data = _read(partition.parent / filenames.RECOVERY_POINTS)
    offsets = checkpoints.read_offsets(data) if data is not None else None
    return (offsets or {}).get(tp, 0)


def _holes_below(partition: Path) -> int:
    """The offset below which gaps are valid. Without Ottla's file, a log that Kafka compacted may have gaps anywhere."""
    data = _read(partition / filenames.HOLES)
    if data is not None:
        offset = checkpoints.read_holes(data)
        return (1 << 62) if offset is None else offset
    cleaned = _read(partition.parent / filenames.CLEANER_OFFSETS)
    offsets = checkpoints.read_offsets(cleaned) if cleaned is not None else None
    return (1 << 62) if filenames.partition_of(partition.name) in (offsets or {}) else 0


def _epochs(partition: Path) -> list[tuple[int, int]]:
    """(epoch, start offset) pairs. A running broker may have written batches of a newer epoch."""
    data = _read(partition / filenames.LEADER_EPOCHS)
    return list(checkpoints.read_epochs(data) or ()) if data is not None else []
