"""Which segment of a log is scrubbed, and whether what a scrub found still holds. In between ``scrub.carry_out`` works off the loop."""

from contextlib import suppress

import msgspec

from ottla.log.errors import CorruptLog
from ottla.log.log import Log
from ottla.log.scrub import ScrubPlan, ScrubResult
from ottla.log.segment import Segment


class SegmentScrub(msgspec.Struct, frozen=True):
    """A segment under scrub, as it was when that was planned."""

    segment: Segment
    #: The log's, then.
    truncations: int
    plan: ScrubPlan


def plan(log: Log, index: int) -> ScrubPlan | None:
    """The plan for one segment; None for an empty one at the end. What is in the page cache only is read there, as readers get it."""
    segment = log.segments[index]
    active = index + 1 == len(log.segments)
    bound = log.end_offset if active else log.bases[index + 1]
    # A segment before the last one that has no bytes is damaged, unless compaction left nothing of it.
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
    """As ``plan``, with what must not change meanwhile."""
    found = plan(log, index)
    return None if found is None else SegmentScrub(log.segments[index], log.truncations, found)


def still_holds(log: Log, scrubbed: SegmentScrub) -> bool:
    """Whether the log still has the segment as it was: nothing of it was cut off, and compaction has not replaced it."""
    return log.truncations == scrubbed.truncations and any(segment is scrubbed.segment for segment in log.segments)


def repair_index(scrubbed: SegmentScrub, found: ScrubResult) -> None:
    """Builds the indexes of a segment anew where one did not fit; damage in the log keeps them as they are. Raises: OSError."""
    if found.index and not found.damages:
        with suppress(CorruptLog):
            scrubbed.segment.rebuild()
