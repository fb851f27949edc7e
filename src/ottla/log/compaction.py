"""Compaction of a log: selects the dirty range, and swaps the result in. Between them ``compactor.carry_out`` works off the loop.

::

    start       clean offset           up to        last stable    end
    |-- clean --|------- dirty --------|------ not yet ------------|
    | b  b   b  | b b b b | b b b b b  | b b b b b | b b b b (active)
                                       `- a segment begins here

``up to`` is the base of the first segment that is active, not wholly below the last stable offset, not yet on disk, or younger than
min.compaction.lag.ms. A log is due when dirty / (clean + dirty) bytes exceed min.cleanable.dirty.ratio, or when its oldest dirty segment is
older than max.compaction.lag.ms.

New files replace old ones in three renames, in this order for each new segment, lowest offsets first::

    0.log.cleaned -> 0.log.swap      all of its files: from now on a start completes the swap
    0.log -> 0.log.150.deleted       and 40.log, 110.log ...: the segments that it replaces; open readers keep theirs
    0.log.swap -> 0.log

A crash between two renames leaves either the old segments or the new one (``recovery`` decides). Names in a directory become durable in the
order of their changes. The clean offset is raised when they are durable. Source: KAFKA-6264.
"""

import msgspec

from ottla.base.ids import Offset
from ottla.base.units import INT64_MAX
from ottla.log.compactor import CleanedSegment, CompactionPlan, CompactionResult, SourceSegment
from ottla.log.filenames import CLEANED, DELETED, SEGMENT_FILES, SNAPSHOT, SWAP, segment_name
from ottla.log.log import Log
from ottla.log.segment import Segment


class DirtyRange(msgspec.Struct, frozen=True):
    """The dirty part of a log, and the segments to compact."""

    first_dirty: Offset
    upto: Offset
    #: Closed segments below ``upto``.
    segments: tuple[Segment, ...]
    #: The log's ``truncations`` at that time.
    truncations: int
    dirty_bytes: int
    total_bytes: int
    #: Whether max.compaction.lag.ms has passed.
    overdue: bool

    @property
    def ratio(self) -> float:
        return self.dirty_bytes / self.total_bytes if self.total_bytes else 0.0


class CompactionResources(msgspec.Struct, frozen=True):
    #: Memory for the map of keys, and its largest load factor.
    buffer_bytes: int
    load_factor: float
    chunk_bytes: int
    #: Key of the map's hash: 16 bytes that no client knows.
    secret: bytes


def dirty_range(log: Log, *, high_watermark: int, now_ms: int) -> DirtyRange | None:
    """The range that can be compacted now; None without one. Raises: CorruptLog, OSError."""
    options = log.options
    count = _closed_below(log, min(log.last_stable_offset(high_watermark), log.recovery_point))
    clean = log.clean_offset
    first_dirty = clean if clean is not None and log.start_offset <= clean <= log.end_offset else log.start_offset
    first = log.segment_of(first_dirty)
    if options.min_compaction_lag_ms > 0:
        youngest_ms = now_ms - options.min_compaction_lag_ms
        count = next((index for index in range(first, count) if log.segments[index].max_timestamp[0] > youngest_ms), count)
    upto = log.bases[count]
    if upto <= first_dirty:
        return None
    segments = tuple(log.segments[:count])
    overdue = False
    if options.max_compaction_lag_ms < INT64_MAX:
        stamps = [stamp for segment in segments[first:] if (stamp := segment.first_timestamp) > 0]
        overdue = min(stamps, default=now_ms) < now_ms - options.max_compaction_lag_ms
    dirty = sum(segment.size for segment in segments[first:])
    return DirtyRange(first_dirty, upto, segments, log.truncations, dirty, sum(segment.size for segment in segments), overdue)


def is_due(log: Log, found: DirtyRange) -> bool:
    """Whether a log is dirty enough to be compacted."""
    return found.dirty_bytes > 0 and (found.overdue or found.ratio > log.options.min_cleanable_dirty_ratio)


def _closed_below(log: Log, bound: int) -> int:
    """Number of closed segments below the offset whose next segment has a durable name."""
    count = min(log.segment_of(bound), len(log.segments) - 1)
    return next((index for index in range(count) if log.pending.holds(log.segments[index])), count)


def plan(log: Log, found: DirtyRange, *, means: CompactionResources, now_ms: int) -> CompactionPlan:
    """The plan for a log. Raises: OSError."""
    options = log.options
    ends = [*log.bases[1 : len(found.segments)], found.upto]
    producers = {
        producer_id: (tuple(batch.last_offset for batch in producer.batches), producer.epoch)
        for producer_id, producer in log.producers.by_id.items()
    }
    return CompactionPlan(
        directory=log.directory,
        sources=tuple(
            SourceSegment(segment.base_offset, end_offset, segment.size) for segment, end_offset in zip(found.segments, ends, strict=True)
        ),
        first_dirty=found.first_dirty,
        upto=found.upto,
        holes_below=log.holes_below,
        aborted=tuple(log.aborted_transactions(log.bases[0], found.upto)),
        producers=producers,
        now_ms=now_ms,
        delete_retention_ms=options.delete_retention_ms,
        segment_bytes=options.segment_bytes_max,
        segment_index_bytes=options.segment_index_bytes,
        interval_bytes=options.index_interval_bytes,
        buffer_bytes=means.buffer_bytes,
        load_factor=means.load_factor,
        secret=means.secret,
        chunk_bytes=means.chunk_bytes,
    )


def cleaned_paths(work: CompactionPlan) -> tuple[str, ...]:
    """Paths that an unfinished compaction may leave behind."""
    return tuple(
        f"{work.directory}/{segment_name(source.base_offset, suffix)}{CLEANED}" for source in work.sources for suffix in SEGMENT_FILES
    )


def swap(log: Log, found: DirtyRange, cleaned: CompactionResult, now_ms: int) -> tuple[str, ...] | None:
    """Replaces segments by their compacted ones; returns the renamed files, which the caller removes later.

    ``found`` is the range of the plan. None, and no change, when the log was truncated meanwhile or retention removed a part of a group. A
    group that was removed completely is skipped. Raises: OSError.
    """
    if log.truncations != found.truncations:
        return None
    present = {id(segment) for segment in log.segments}
    known: dict[int, Segment] = {segment.base_offset: segment for segment in found.segments}
    todo: list[tuple[CleanedSegment, list[Segment]]] = []
    removed: list[str] = []
    for group in cleaned.groups:
        segments = [known[base] for base in group.bases]
        remaining = [segment for segment in segments if id(segment) in present]
        if len(remaining) == len(segments):
            todo.append((group, segments))
        elif remaining or group.end_offset > log.start_offset:
            return None
        else:
            removed += [f"{log.directory}/{segment_name(group.bases[0], suffix)}{CLEANED}" for suffix in SEGMENT_FILES]
    for group, segments in todo:
        removed += _swap_group(log, group, segments, mark=f".{cleaned.upto}", now_ms=now_ms)
    log.pending.directory(log.directory)
    log.save_damage()
    log.mark_cleaned(cleaned.upto)
    log.holes_below = max(log.holes_below, Offset(cleaned.groups[-1].end_offset)) if cleaned.groups else log.holes_below
    return tuple(removed)


def _swap_group(log: Log, group: CleanedSegment, segments: list[Segment], *, mark: str, now_ms: int) -> list[str]:
    base = group.bases[0]
    final = [f"{log.directory}/{segment_name(base, suffix)}" for suffix in SEGMENT_FILES]
    made = [path for path in final if log.disk.exists(path + CLEANED)]
    for path in made:
        log.disk.rename(path + CLEANED, path + SWAP)
    removed: list[str] = []
    for segment in segments:
        log.pending.forget(segment)
        removed += segment.rename_deleted(mark)
        snapshot = f"{log.directory}/{segment_name(segment.base_offset, SNAPSHOT)}"
        if segment.base_offset != base and log.disk.exists(snapshot):
            log.disk.rename(snapshot, snapshot + mark + DELETED)
            removed.append(snapshot + mark + DELETED)
    for path in made:
        log.disk.rename(path + SWAP, path)
    new = Segment(log.disk, log.directory, base, size=group.size, interval_bytes=log.options.index_interval_bytes, now_ms=now_ms)
    first = log.segments.index(segments[0])
    log.segments[first : first + len(segments)] = [new]
    log.bases[first : first + len(segments)] = [new.base_offset]
    return removed
