"""Checks indexes against their log file, for `ottla log dump --verify`.

An entry of an offset index holds the last offset and the position of a batch. An entry of a time index holds the largest timestamp of a
batch and an offset in it. The keys of both increase. An index is a cache: a broker rebuilds one that contradicts its log.
"""

from __future__ import annotations

import mmap
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ottla.log import filenames

Row = dict[str, Any]


class IndexedBatch(NamedTuple):
    """A batch in a log file; batches order by last offset."""

    last_offset: int
    base_offset: int
    position: int
    max_timestamp: int


def batches(log: Path) -> list[IndexedBatch]:
    """The complete batches of a log file, up to the first damage."""
    from ottla.records.batch import headers
    from ottla.records.errors import RecordsError

    complete: list[IndexedBatch] = []
    if not log.exists() or not log.stat().st_size:
        return complete
    with log.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as view:
        try:
            for position, header in headers(view):
                complete.append(IndexedBatch(header.last_offset, header.base_offset, position, header.max_timestamp))
        except RecordsError:
            # `dump` of the log file reports it.
            pass
    return complete


def log_of(index: Path) -> Path:
    """The log file of an index; it has the same suffix: deleted, swap, cleaned, or none."""
    for state in (filenames.DELETED, filenames.SWAP, filenames.CLEANED):
        if index.name.endswith(state):
            stem = index.name.removesuffix(state).rpartition(".")[0]
            return index.with_name(stem + filenames.LOG + state)
    return index.with_name(index.name.rpartition(".")[0] + filenames.LOG)


def misplaced(entries: Iterable[Row], log: list[IndexedBatch]) -> Iterator[Row]:
    """Entries of an offset index that contradict the log, with the reason."""
    by_position = {batch.position: batch for batch in log}
    before = -1
    for row in entries:
        batch = by_position.get(row["position"])
        if row["offset"] <= before:
            yield {**row, "damage": f"does not increase: the previous entry has offset {before}"}
        elif batch is None:
            yield {**row, "damage": "no batch begins at this position"}
        elif batch.last_offset != row["offset"]:
            yield {**row, "damage": f"the batch there ends at offset {batch.last_offset}"}
        before = row["offset"]


def mistimed(entries: Iterable[Row], log: list[IndexedBatch]) -> Iterator[Row]:
    """Entries of a time index that contradict the log, with the reason."""
    lasts = [batch.last_offset for batch in log]
    before = -1
    for row in entries:
        place = bisect_left(lasts, row["offset"])
        batch = log[place] if place < len(log) and log[place].base_offset <= row["offset"] else None
        if row["timestamp"] <= before:
            yield {**row, "damage": f"does not increase: the previous entry has timestamp {before}"}
        elif batch is None:
            yield {**row, "damage": "no batch has this offset"}
        elif batch.max_timestamp != row["timestamp"]:
            yield {**row, "damage": f"the largest timestamp of the batch there is {batch.max_timestamp}"}
        before = row["timestamp"]
