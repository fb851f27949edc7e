"""One assigned partition as the fetcher sees it, and a fetch that it wants to be sent."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from ottla.base.ids import TopicPartition
from ottla.client.consumer.metrics import PartitionStanding
from ottla.client.fetch.chunk import Chunk
from ottla.client.fetch.session import Ask
from ottla.client.transport.backoff import Backoff
from ottla.wire.errors import KafkaError


@dataclass(slots=True)
class Position:
    """One assigned partition."""

    tp: TopicPartition
    backoff: Backoff
    #: Next offset for the user; None until it is known.
    offset: int | None = None
    fetch_offset: int = -1
    #: Leader epoch of the last batch fetched, -1 after a seek: lets the leader notice that it has another history.
    last_epoch: int = -1
    #: The time to look up when the offset is not known; None: a request is under way, or there is an offset.
    reset: int | None = None
    paused: bool = False
    #: Another number for each assignment and each seek, so that answers to what was before are told apart.
    generation: int = 0
    #: Neither sought nor begun by the policy yet.
    fresh: bool = True
    #: The group's offset has to be asked for first; None: it was asked for and has not come.
    committed: bool | None = True
    #: Leader epoch of the last batch given to the user, -1 when not known; goes into commits.
    taken_epoch: int = -1
    chunks: deque[Chunk] = field(default_factory=deque)
    blocked_until_ms: float = float("-inf")
    error: KafkaError | None = None
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1

    def standing(self, first_pending: int | None, read_committed: bool) -> PartitionStanding:
        """How far the user is from both ends of the log; `first_pending`: of records that were taken and not given."""
        at = self.offset if first_pending is None else first_pending
        end, start = self.last_stable_offset if read_committed else self.high_watermark, self.log_start_offset
        return PartitionStanding(
            None if end < 0 or at is None else max(end - at, 0), None if start < 0 or at is None else max(at - start, 0)
        )


@dataclass(slots=True)
class FetchPlan:
    """A fetch to send to one node."""

    node_id: int
    wanted: dict[TopicPartition, Ask]
    generations: dict[TopicPartition, int]
    max_wait_ms: int
    #: What it says of where we are.
    rack: str = ""
