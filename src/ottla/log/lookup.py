"""Lookups in a log by timestamp, and of aborted transactions by offset range."""

from typing import NamedTuple

from ottla.base.ids import LeaderEpoch, Offset
from ottla.log.batch_scan import batch_at, headers
from ottla.log.flush import Slice
from ottla.log.segment import LOOKUP_CHUNK, Segment
from ottla.log.state import LogState
from ottla.log.transaction_index import AbortedTransaction
from ottla.records.batch import BatchHeader
from ottla.records.read import records


class TimedOffset(NamedTuple):
    """A record: its timestamp, its offset, and the leader epoch of its batch."""

    timestamp: int
    offset: Offset
    epoch: LeaderEpoch


def offset_for_time(log: LogState, timestamp_ms: int, upto: int) -> TimedOffset | None:
    """The first record from the start offset on, below ``upto``, whose timestamp is at least ``timestamp_ms``."""
    for segment in log.segments:
        if segment.base_offset >= upto:
            return None
        if not segment.size or segment.max_timestamp[0] < timestamp_ms:
            continue
        for position, header in _from_time(segment, timestamp_ms, log.start_offset):
            if header.base_offset >= upto:
                return None
            if header.max_timestamp >= timestamp_ms:
                found = _first_at(segment, position, header, timestamp_ms, log.start_offset)
                if found is not None:
                    return found if found.offset < upto else None
    return None


def _from_time(segment: Segment, timestamp_ms: int, start_offset: int) -> list[tuple[int, BatchHeader]]:
    """Batches from a point before which every timestamp is below ``timestamp_ms``, or every offset below ``start_offset``."""
    entry = segment.times.lookup(timestamp_ms)
    offset = max(start_offset, segment.base_offset + entry[1] if entry else segment.base_offset)
    found = segment.header_of(offset)
    if found is not None and entry is not None and offset > start_offset and found[1].max_timestamp != entry[0]:
        segment.rebuild()  # The entry contradicts the log.
        return _from_time(segment, timestamp_ms, start_offset)
    return [] if found is None else headers(segment.file, found[0], segment.size, chunk_bytes=LOOKUP_CHUNK)  # type: ignore[return-value]


def _first_at(segment: Segment, position: int, header: BatchHeader, timestamp_ms: int, start_offset: int) -> TimedOffset | None:
    epoch = LeaderEpoch(header.leader_epoch)
    if header.is_control:
        return TimedOffset(header.max_timestamp, Offset(header.base_offset), epoch) if header.base_offset >= start_offset else None
    for offset, timestamp, *_ in records(batch_at(segment.file, position, segment.size), start_offset=start_offset):
        if timestamp >= timestamp_ms:
            return TimedOffset(timestamp, Offset(offset), epoch)
    return None


def max_timestamp(log: LogState, upto: int) -> TimedOffset | None:
    """The first record below ``upto`` with the largest timestamp; None without records, or without timestamps."""
    best: tuple[int, Segment, int, BatchHeader] | None = None
    for index, segment in enumerate(log.segments):
        if not segment.size or segment.base_offset >= upto:
            continue
        timestamp, offset = segment.max_timestamp
        following = log.bases[index + 1] if index + 1 < len(log.bases) else log.end_offset
        if following <= upto and (timestamp < 0 or (best is not None and timestamp <= best[0])):
            continue
        found = segment.header_of(offset) if following <= upto else _largest_below(segment, upto)
        if found is not None and found[1].max_timestamp >= 0 and (best is None or found[1].max_timestamp > best[0]):
            best = (found[1].max_timestamp, segment, *found)
    if best is None:
        return None
    timestamp, segment, position, header = best
    return _first_at(segment, position, header, timestamp, log.start_offset)


def _largest_below(segment: Segment, upto: int) -> tuple[int, BatchHeader] | None:
    """The first batch below ``upto`` with the largest timestamp."""
    best: tuple[int, BatchHeader] | None = None
    for position, header in headers(segment.file, 0, segment.size):
        if header.last_offset >= upto:
            break
        if header.count and (best is None or header.max_timestamp > best[1].max_timestamp):
            best = position, header
    return best


def aborted_in(log: LogState, first: int, found: Slice, upto: int) -> list[AbortedTransaction]:
    """As ``Log.aborted_in``."""
    aborted = aborted_transactions(log, first, upto)
    if not aborted:
        return aborted
    index = log.segment_of(first)
    while log.segments[index].file is not found.file:  # Compaction can remove the last batches of a segment.
        index += 1
    following = log.bases[index + 1] if index + 1 < len(log.bases) else log.end_offset
    bound = log.segments[index].bound_of(found.position + found.size)
    end = min(upto, following if bound is None else bound)
    return [entry for entry in aborted if entry.first_offset < end]


def aborted_transactions(log: LogState, first: int, upto: int) -> list[AbortedTransaction]:
    """Aborted transactions that have offsets in ``first..upto`` (exclusive), in the order of their markers."""
    found = []
    for segment in log.segments[log.segment_of(first) :]:
        for entry in segment.aborted:
            if entry.last_offset >= first and entry.first_offset < upto:
                found.append(entry)
            if entry.last_stable_offset >= upto:
                return found
    return found
