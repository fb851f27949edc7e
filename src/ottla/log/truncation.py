"""Removes batches at the start of a log (retention, DeleteRecords) and at its end (divergence from the leader).

Segments are removed as whole files. They are renamed to ``*.deleted`` first, so fetches can finish sending from them; the caller removes
them later. Records below the start offset stay on disk until their whole segment is below it.
"""

from collections.abc import Callable
from errno import ENOSPC

from ottla.base.ids import Offset
from ottla.log.batch_scan import headers, sound_upto
from ottla.log.errors import CorruptLog, OffsetOutOfRange
from ottla.log.filenames import DELETED, SNAPSHOT, segment_name
from ottla.log.producer_recovery import rebuild_producers
from ottla.log.segment import NO_TIMESTAMP, Segment
from ottla.log.state import LogState


def delete_before(log: LogState, offset: int, now_ms: int) -> tuple[str, ...]:
    if not 0 <= offset <= log.end_offset:
        raise OffsetOutOfRange(offset, log.start_offset, log.end_offset)
    _raise_start(log, offset)
    return tuple(_drop(log, _below_start(log), now_ms))


def retain(log: LogState, now_ms: int, high_watermark: int) -> tuple[str, ...]:
    removed = list(_drop(log, _below_start(log), now_ms))
    if "delete" not in log.options.cleanup_policy:
        return tuple(removed)
    excess = log.size - log.options.retention_bytes
    if log.options.retention_bytes >= 0 and excess >= 0:

        def too_much(segment: Segment) -> bool:
            nonlocal excess
            excess -= segment.size
            return excess >= 0

        removed += _drop(log, _expired(log, high_watermark, too_much), now_ms)
    if log.options.retention_ms >= 0:

        def too_old(segment: Segment) -> bool:
            try:
                timestamp = segment.max_timestamp[0]
            except CorruptLog:
                # A header is damaged: use the file's time, as for batches without timestamps.
                timestamp = NO_TIMESTAMP
            newest = timestamp if timestamp >= 0 else log.disk.mtime_ms(segment.file.path)
            return now_ms - newest > log.options.retention_ms

        removed += _drop(log, _expired(log, high_watermark, too_old), now_ms)
    return tuple(removed)


def truncate_to(log: LogState, offset: int, now_ms: int) -> tuple[str, ...]:
    if offset >= log.end_offset:
        log.epochs.truncate_end(log.end_offset)
        return ()
    former = log.recovery_point
    if offset < log.bases[0]:
        removed = restart_empty(log, offset, now_ms)
    else:
        index = log.segment_of(offset)
        removed = []
        for segment in log.segments[index + 1 :]:
            removed += _rename(log, segment)
        del log.segments[index + 1 :], log.bases[index + 1 :]
        log.end_offset = _cut(log, log.segments[index], offset)
    log.epochs.end_offset = log.end_offset
    log.epochs.truncate_end(log.end_offset)
    log.start_offset = min(log.start_offset, log.end_offset)
    log.recovery_point = min(log.recovery_point, log.end_offset)
    log.lower_clean_offset()
    rebuild_producers(log, log.end_offset, now_ms)
    log.pending.directory(log.directory)
    if log.recovery_point < former:
        log.recovery_point_lowered(log)
    return tuple(removed)


def restart_empty(log: LogState, offset: int, now_ms: int) -> list[str]:
    """Drops every segment; the empty log begins at ``offset``."""
    removed = []
    for segment in log.segments:
        removed += _rename(log, segment)
    log.segments = [log.new_segment(offset, now_ms)]
    log.bases = [Offset(offset)]
    log.start_offset = log.end_offset = log.epochs.end_offset = Offset(offset)
    log.recovery_point = min(log.recovery_point, log.end_offset)
    return removed


def restart_at(log: LogState, offset: int, now_ms: int) -> tuple[str, ...]:
    former = log.recovery_point
    removed = restart_empty(log, offset, now_ms)
    log.epochs.truncate_end(0)
    log.recovery_point = Offset(min(former, offset))
    rebuild_producers(log, offset, now_ms)
    log.pending.directory(log.directory)
    log.recovery_point_lowered(log)
    return tuple(removed)


def _cut(log: LogState, segment: Segment, offset: int) -> Offset:
    """Truncates the last segment at the batch with ``offset``, or at the first damaged header before it; returns the new end offset.

    The position is found from the batches before it, so the removed part may be damaged. The segment becomes the active one.
    """
    file = segment.file
    start, expected = 0, int(segment.base_offset)
    for one in segment.damages:
        if one.first < offset:
            # Known damage before the offset stays, and so do batches between. An offset inside the damage means a cut before it.
            start, expected = (one.end_position, one.end) if one.end <= offset else (one.position, one.first)
    position, end_offset, sound = sound_upto(file, start, segment.size, expected=expected, below=offset, holes_below=log.holes_below)
    if sound and position < segment.size:
        # The batch at the cut may begin before ``offset``; compaction may have left a hole before it.
        end_offset = min(offset, next(headers(file, position, segment.size))[1].base_offset)
    elif sound and offset <= log.holes_below:
        end_offset = offset
    log.pending.forget(segment)
    segment.damages = tuple(one for one in segment.damages if one.end_position <= position)
    if position < file.size:
        file.truncate(position)
    segment.reset_aborted(end_offset)
    segment.rebuild(position)
    log.pending.file(file)
    return Offset(end_offset)


def _raise_start(log: LogState, offset: int) -> None:
    if offset > log.start_offset:
        log.start_offset = Offset(offset)
        log.epochs.truncate_start(offset)


def _below_start(log: LogState) -> int:
    """Number of segments that end at or below the start offset; never the active one."""
    count = 0
    while count + 1 < len(log.bases) and log.bases[count + 1] <= log.start_offset:
        count += 1
    return count


def _expired(log: LogState, high_watermark: int, predicate: Callable[[Segment], bool]) -> int:
    """Number of leading segments below the high watermark that satisfy the predicate; an empty active segment stays."""
    for count, segment in enumerate(log.segments):
        last = count + 1 == len(log.segments)
        end = log.end_offset if last else log.bases[count + 1]
        if high_watermark < end or (last and not segment.size) or not predicate(segment):
            return count
    return len(log.segments)


def _drop(log: LogState, count: int, now_ms: int) -> list[str]:
    """Removes the first ``count`` segments; rolls a new one first when that is all of them.

    A segment stays until the name of the next one is durable; otherwise a power cut could remove both, and the end offset with them. Its
    records are below the start offset already, and a later call removes it.
    """
    if not count:
        return []
    if count == len(log.segments):
        try:
            log.roll(now_ms)
        except OSError as error:
            if error.errno != ENOSPC:
                raise
            count -= 1  # No room for an empty file; removing the other segments frees space.
    _raise_start(log, log.bases[count])
    removed = []
    while count and not log.pending.holds(log.segments[0]):
        removed += _rename(log, log.segments[0])
        del log.segments[0], log.bases[0]
        count -= 1
    return removed


def _rename(log: LogState, segment: Segment) -> list[str]:
    log.pending.forget(segment)
    paths = segment.rename_deleted()
    path = f"{log.directory}/{segment_name(segment.base_offset, SNAPSHOT)}"
    if log.disk.exists(path):
        log.disk.rename(path, path + DELETED)
        paths.append(path + DELETED)
    return paths
