"""Taking from a log: at its start, by retention or DeleteRecords, and at its end, when its leader's log turns out to be another.

Segments leave as whole files, renamed to ``*.deleted`` first: whoever still sends from one is not disturbed, and the caller removes it
later. What lies below the start offset in the first segment stays until the rest of that segment may go.
"""

from collections.abc import Callable
from errno import ENOSPC
from typing import TYPE_CHECKING

from ottla.base.ids import Offset
from ottla.log.batch_scan import headers, sound_upto
from ottla.log.errors import CorruptLog, OffsetOutOfRange
from ottla.log.filenames import DELETED, SNAPSHOT, segment_name
from ottla.log.producer_recovery import rebuild_producers
from ottla.log.segment import NO_TIMESTAMP, Segment

if TYPE_CHECKING:
    from ottla.log.log import Log


def delete_before(log: "Log", offset: int, now_ms: int) -> tuple[str, ...]:
    if not 0 <= offset <= log.end_offset:
        raise OffsetOutOfRange(offset, log.start_offset, log.end_offset)
    _raise_start(log, offset)
    return tuple(_drop(log, _below_start(log), now_ms))


def retain(log: "Log", now_ms: int, high_watermark: int) -> tuple[str, ...]:
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
                # A header is damaged. The time of the file decides, as for batches without timestamps.
                timestamp = NO_TIMESTAMP
            newest = timestamp if timestamp >= 0 else log.disk.mtime_ms(segment.file.path)
            return now_ms - newest > log.options.retention_ms

        removed += _drop(log, _expired(log, high_watermark, too_old), now_ms)
    return tuple(removed)


def truncate_to(log: "Log", offset: int, now_ms: int) -> tuple[str, ...]:
    if offset >= log.end_offset:
        log.epochs.truncate_end(log.end_offset)
        return ()
    former = log.recovery_point
    if offset < log.bases[0]:
        removed = begin_anew(log, offset, now_ms)
    else:
        index = log.segment_of(offset)
        removed = []
        for gone in log.segments[index + 1 :]:
            removed += _rename(log, gone)
        del log.segments[index + 1 :], log.bases[index + 1 :]
        log.end_offset = _cut(log, log.segments[index], offset)
    log.epochs.end_offset = log.end_offset
    log.epochs.truncate_end(log.end_offset)
    log.start_offset = min(log.start_offset, log.end_offset)
    log.recovery_point = min(log.recovery_point, log.end_offset)
    log.cut_clean()
    rebuild_producers(log, log.end_offset, now_ms)
    log.pending.directory(log.directory)
    if log.recovery_point < former:
        log.recovery_point_lowered()
    return tuple(removed)


def begin_anew(log: "Log", offset: int, now_ms: int) -> list[str]:
    """Drops every segment; the log is empty and begins and ends at ``offset``."""
    removed = []
    for gone in log.segments:
        removed += _rename(log, gone)
    log.segments = [log.new_segment(offset, now_ms)]
    log.bases = [Offset(offset)]
    log.start_offset = log.end_offset = log.epochs.end_offset = Offset(offset)
    log.recovery_point = min(log.recovery_point, log.end_offset)
    return removed


def restart_at(log: "Log", offset: int, now_ms: int) -> tuple[str, ...]:
    former = log.recovery_point
    removed = begin_anew(log, offset, now_ms)
    log.epochs.truncate_end(0)
    log.recovery_point = Offset(min(former, offset))
    rebuild_producers(log, offset, now_ms)
    log.pending.directory(log.directory)
    log.recovery_point_lowered()
    return tuple(removed)


def _cut(log: "Log", segment: Segment, offset: int) -> Offset:
    """Cuts the last segment at the batch that holds ``offset``, or at the first damaged header before it; returns the new end offset.

    The cut position comes from what lies before it, so what is cut may be damaged. The segment is active from now on.
    """
    file = segment.file
    start, expected = 0, int(segment.base_offset)
    for one in segment.damages:
        if one.first < offset:
            # Known damage stays, and so does what lies between it and the cut. A cut inside of it is one before it.
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


def _raise_start(log: "Log", offset: int) -> None:
    if offset > log.start_offset:
        log.start_offset = Offset(offset)
        log.epochs.truncate_start(offset)


def _below_start(log: "Log") -> int:
    """How many segments end at or below the start offset; the active one never does."""
    count = 0
    while count + 1 < len(log.bases) and log.bases[count + 1] <= log.start_offset:
        count += 1
    return count


def _expired(log: "Log", high_watermark: int, predicate: Callable[[Segment], bool]) -> int:
    """How many segments from the first on lie below the high watermark and satisfy the predicate; an empty active one stays."""
    for count, segment in enumerate(log.segments):
        last = count + 1 == len(log.segments)
        end = log.end_offset if last else log.bases[count + 1]
        if high_watermark < end or (last and not segment.size) or not predicate(segment):
            return count
    return len(log.segments)


def _drop(log: "Log", count: int, now_ms: int) -> list[str]:
    """Takes the first ``count`` segments out; when that is all of them, a new one is begun first.

    A segment stays until the name of the one behind it is durable, or a power cut could take both and with them the end offset. Its
    records are gone from the log all the same, and a later call finds it below the start offset.
    """
    if not count:
        return []
    if count == len(log.segments):
        try:
            log.roll(now_ms)
        except OSError as error:
            if error.errno != ENOSPC:
                raise
            count -= 1  # No room for an empty file; the rest goes all the same, which makes room.
    _raise_start(log, log.bases[count])
    removed = []
    while count and not log.pending.holds(log.segments[0]):
        removed += _rename(log, log.segments[0])
        del log.segments[0], log.bases[0]
        count -= 1
    return removed


def _rename(log: "Log", segment: Segment) -> list[str]:
    log.pending.forget(segment)
    paths = segment.rename_deleted()
    path = f"{log.directory}/{segment_name(segment.base_offset, SNAPSHOT)}"
    if log.disk.exists(path):
        log.disk.rename(path, path + DELETED)
        paths.append(path + DELETED)
    return paths
