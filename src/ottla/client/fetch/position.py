"""State of one assigned partition in the fetcher, and a fetch to send."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from ottla.base.ids import TopicPartition
from ottla.client.consumer.metrics import FetchProgress
from ottla.client.fetch.chunk import Chunk
from ottla.client.fetch.session import PartitionFetch
from ottla.client.transport.backoff import Backoff
from ottla.wire.errors import KafkaError


@dataclass(slots=True)
class Position:
    """One assigned partition."""

    tp: TopicPartition
    backoff: Backoff
    #: Next offset for the user; None while unknown.
    offset: int | None = None
    fetch_offset: int = -1
    #: Leader epoch of the last fetched batch, -1 after a seek: lets the leader detect a diverged log.
    last_epoch: int = -1
    #: The timestamp to look up while the offset is unknown; None: a request is in flight, or the offset is known.
    reset: int | None = None
    paused: bool = False
    #: Changes with each assignment and seek, to ignore outdated responses.
    generation: int = 0
    #: No seek and no reset yet.
    fresh: bool = True
    #: Whether the committed offset must be fetched first; None: the request is in flight.
    committed: bool | None = True
    #: Leader epoch of the last batch returned to the user, -1 if unknown; used in commits.
    taken_epoch: int = -1
    chunks: deque[Chunk] = field(default_factory=deque)
    blocked_until_ms: float = float("-inf")
    error: KafkaError | None = None
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1

    def progress(self, first_pending: int | None, read_committed: bool) -> FetchProgress:
        """Distance to both ends of the log; `first_pending`: first offset of records taken but not delivered."""
        at = self.offset if first_pending is None else first_pending
        end, start = self.last_stable_offset if read_committed else self.high_watermark, self.log_start_offset
        return FetchProgress(None if end < 0 or at is None else max(end - at, 0), None if start < 0 or at is None else max(at - start, 0))


@dataclass(slots=True)
class FetchPlan:
    """A fetch for one node."""

    node_id: int
    wanted: dict[TopicPartition, PartitionFetch]
    generations: dict[TopicPartition, int]
    max_wait_ms: int
    #: The client's rack.
    rack: str = ""
