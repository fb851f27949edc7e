"""Plans the scrub of a segment, and checks that its result is still valid. Between them ``scrub.carry_out`` works off the loop."""

from contextlib import suppress

import msgspec

from ottla.log.errors import CorruptLog
from ottla.log.log import Log
from ottla.log.scrub import ScrubPlan, ScrubResult
from ottla.log.segment import Segment


class SegmentScrub(msgspec.Struct, frozen=True):
    """A segment and its scrub plan."""

    segment: Segment
    #: The log's ``truncations`` at that time.
    truncations: int
    plan: ScrubPlan


def plan(log: Log, index: int) -> ScrubPlan | None:
    """The plan for one segment; None for an empty one at the end. Unsynced bytes are read from the page cache, as consumers read them."""
    segment = log.segments[index]
    active = index + 1 == len(log.segments)
    bound = log.end_offset if active else log.bases[index + 1]
    # An empty segment before the last one is damaged, unless compaction emptied it.
    if bound <= segment.base_offset or (active and not segment.size):
        return None
    return ScrubPlan(
        directory=log.directory,
        base_offset=segment.base_offset,
        size=segment.size,
        bound=bound,
        holes_below=log.holes_below,
        epochs=tuple(log.epochs.entries),
        indexed=not active and not log.pending.holds(segment),
    )


def plan_scrub(log: Log, index: int) -> SegmentScrub | None:
    """As ``plan``, with the state that ``still_holds`` compares."""
    found = plan(log, index)
    return None if found is None else SegmentScrub(log.segments[index], log.truncations, found)


def still_holds(log: Log, scrubbed: SegmentScrub) -> bool:
    """Whether the segment is unchanged: the log was not truncated, and compaction did not replace the segment."""
    return log.truncations == scrubbed.truncations and any(segment is scrubbed.segment for segment in log.segments)


def repair_index(scrubbed: SegmentScrub, found: ScrubResult) -> None:
    """Rebuilds the indexes of a segment if one contradicts the log; keeps them if the log is damaged. Raises: OSError."""
    if found.index and not found.damages:
        with suppress(CorruptLog):
            scrubbed.segment.rebuild()
