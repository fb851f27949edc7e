"""The fetcher: assigned partitions, positions, fetches to send, and fetched records. Pure.

    log     ...|--------------|-----------------|-----------|...
               ^ position      ^ buffered chunks ^ fetch_offset
               next record     fetched, not      next to fetch
               for poll()      taken yet

A partition is fetched while it is not paused, has a position, and has fewer than `CHUNKS_MAX` chunks; so the next chunk is in flight while
the user processes one. Each broker has at most one fetch in flight. A fetch that must omit a full partition waits at most `FULL_WAIT_MS`,
so that it can be fetched soon after it was emptied.

A seek starts a new `generation` of the partition: responses to older requests are dropped. Chunks are decoded batch by batch when they are
taken. Control batches are skipped; with read_committed also batches of aborted transactions, which the response lists by producer and
first offset (KIP-98).

Errors of a leader change refresh metadata after a backoff; a position outside of the log is reset as `auto_offset_reset` says; other errors
are raised by the next `take`, once, and the partition is fetched again when the user polls again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Any

from ottla.base.acls import Operation
from ottla.base.ids import TopicPartition
from ottla.client.access_errors import refused_access
from ottla.client.consumer.metrics import FetchProgress
from ottla.client.consumer.record import ConsumerRecord
from ottla.client.errors import METADATA_IS_STALE, LogTruncated, NoOffsetToStart
from ottla.client.fetch.buffer import FetchBuffer
from ottla.client.fetch.chunk import Chunk
from ottla.client.fetch.offsets import EARLIEST, LATEST, SO_LONG_AGO
from ottla.client.fetch.position import FetchPlan, Position
from ottla.client.fetch.preferred_read_replica import PreferredReadReplicas
from ottla.client.fetch.session import FetchSession, PartitionFetch
from ottla.client.options import ConsumerOptions
from ottla.client.transport.backoff import Backoff
from ottla.records.batch import headers
from ottla.records.errors import RecordsError
from ottla.wire.errors import CorruptMessage, KafkaError, OffsetOutOfRange, error_for
from ottla.wire.messages import FetchResponse
from ottla.wire.messages.fetch import PartitionData

CHUNKS_MAX = 2
FULL_WAIT_MS = 20
RESET_TIMES = {"earliest": EARLIEST, "latest": LATEST}


class Fetcher:
    """The fetcher of one consumer. `now_ms` is monotonic."""

    def __init__(self, options: ConsumerOptions, rng: Random) -> None:
        self._options = options
        self._read_committed = options.isolation_level == "read_committed"
        self._rng = rng
        self._positions: dict[TopicPartition, Position] = {}
        self.buffer = FetchBuffer(self._positions, options)
        self._sessions: dict[int, FetchSession] = {}
        self._in_flight: dict[int, FetchPlan] = {}
        #: Preferred read replicas of partitions that are not read from their leaders.
        self.preferred_replicas = PreferredReadReplicas(options.client_rack, options.metadata_max_age_ms)
        self._generation = 0

    # -- Assignment and positions.

    @property
    def assignment(self) -> list[TopicPartition]:
        """Assigned partitions in order."""
        return list(self._positions)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Assigns exactly these; partitions assigned before keep their position."""
        was = dict(self._positions)
        self._positions.clear()
        for tp in partitions:
            backoff = Backoff(self._options.retry_backoff_ms, self._options.retry_backoff_max_ms, self._rng)
            self._positions[tp] = was.get(tp) or Position(
                tp, backoff, generation=self._next_generation(), committed=not self._options.group_id
            )
        self.buffer.assigned()

    def seek(self, tp: TopicPartition, offset: int, leader_epoch: int = -1) -> None:
        """Sets the next offset. Raises: ValueError if the partition is not assigned or the offset is negative."""
        if offset < 0:
            raise ValueError(f"cannot seek {tp} to {offset}: offsets are 0 or more; use seek_to_beginning or seek_to_end")
        position = self._renew(tp)
        position.offset = position.fetch_offset = offset
        position.last_epoch = position.taken_epoch = leader_epoch

    def seek_to(self, tp: TopicPartition, when: int) -> None:
        """Looks up the next offset by time, or by LATEST or EARLIEST."""
        position = self._renew(tp)
        position.offset, position.reset = None, when

    def position(self, tp: TopicPartition) -> int | None:
        """The next offset; None while it is looked up. Raises: ValueError, or the partition's error."""
        position = self._position(tp)
        if position.offset is None and position.error is not None:
            error, position.error = position.error, None
            raise error
        return position.offset

    def place(self, tp: TopicPartition) -> int | None:
        """`position` without errors of the partition. Raises: ValueError."""
        return self._position(tp).offset

    def pause(self, tp: TopicPartition, paused: bool = True) -> None:
        """Neither fetches nor returns records of this partition until it is resumed."""
        self._position(tp).paused = paused

    @property
    def paused(self) -> list[TopicPartition]:
        """Paused partitions."""
        return [tp for tp, position in self._positions.items() if position.paused]

    def ends(self, tp: TopicPartition) -> tuple[int, int, int]:
        """(log start offset, high watermark, last stable offset) of the last response; -1 before the first."""
        position = self._position(tp)
        return position.log_start_offset, position.high_watermark, position.last_stable_offset

    def _next_generation(self) -> int:
        self._generation += 1
        return self._generation

    def _position(self, tp: TopicPartition) -> Position:
        position = self._positions.get(tp)
        if position is None:
            raise ValueError(f"{tp} is not assigned to this consumer")
        return position

    def _renew(self, tp: TopicPartition) -> Position:
        position = self._position(tp)
        position.generation = self._next_generation()
        position.fresh = False
        position.committed = True
        position.taken_epoch = -1
        position.chunks.clear()
        position.error = None
        position.reset = None
        position.last_epoch = -1
        position.blocked_until_ms = float("-inf")
        self.buffer.forget(tp)
        return position

    # -- Start offsets.

    def lookups(self, answerable: Callable[[TopicPartition], bool] = lambda tp: True) -> dict[TopicPartition, tuple[int, int]]:
        """Partitions whose offset must be looked up: (time, generation). Each is returned once; `looked_up` or `lookup_failed` must
        follow.
        """
        wanted: dict[TopicPartition, tuple[int, int]] = {}
        for tp, position in self._positions.items():
            if position.offset is not None or position.error is not None or not position.committed:
                continue
            if position.reset is None and position.fresh:
                # No seek yet: the reset policy decides. Without one, each poll raises until a seek.
                nowhere = (
                    f"{tp} has no position" if not self._options.group_id else f"group {self._options.group_id} has no offset for {tp}"
                )
                self._reset(position, NoOffsetToStart(f"{nowhere} and auto_offset_reset is none: seek first"))
                position.fresh = position.reset is None
            if position.reset is not None and answerable(tp):
                wanted[tp] = (position.reset, position.generation)
                position.reset = None
        return wanted

    def looked_up(self, tp: TopicPartition, generation: int, offset: int) -> None:
        """An offset was found."""
        position = self._positions.get(tp)
        if position is not None and position.generation == generation and position.offset is None:
            position.offset = position.fetch_offset = offset

    def lookup_failed(self, tp: TopicPartition, generation: int, when: int, error: KafkaError) -> None:
        """A look-up failed: retried if the error is retriable, otherwise raised."""
        position = self._positions.get(tp)
        if position is not None and position.generation == generation and position.offset is None:
            if not error.retriable:
                position.error = error
            position.reset = when

    def _reset(self, position: Position, otherwise: KafkaError) -> None:
        if self._options.auto_offset_reset == "none":
            position.error = otherwise
            return
        when = RESET_TIMES.get(self._options.auto_offset_reset, SO_LONG_AGO)
        position.offset, position.reset = None, when
        position.last_epoch = -1

    # -- Committed offsets.

    def uncommitted(self) -> dict[TopicPartition, int]:
        """Partitions whose committed offset must be fetched: generation. Each is returned once; `begin_at` or `ask_again` must follow."""
        wanted = {tp: position.generation for tp, position in self._positions.items() if position.committed is False}
        for tp in wanted:
            self._positions[tp].committed = None
        return wanted

    def begin_at(self, tp: TopicPartition, generation: int, offset: int, leader_epoch: int) -> None:
        """The committed offset; -1 for none: the reset policy decides."""
        position = self._positions.get(tp)
        if position is None or position.generation != generation or position.committed is not None:
            return
        position.committed = True
        if offset >= 0:
            position.fresh = False
            position.offset = position.fetch_offset = offset
            position.last_epoch = position.taken_epoch = leader_epoch

    def ask_again(self, tp: TopicPartition, generation: int, error: KafkaError) -> None:
        """The committed offset could not be fetched; raised if the error is not retriable."""
        position = self._positions.get(tp)
        if position is not None and position.generation == generation and position.committed is None:
            position.committed = False
            if not error.retriable:
                position.error = error

    def committable(self) -> dict[TopicPartition, tuple[int, int]]:
        """Offsets to commit: (next offset, leader epoch of the record before) of each partition with a position."""
        return {tp: (position.offset, position.taken_epoch) for tp, position in self._positions.items() if position.offset is not None}

    # -- Fetches.

    def plans(
        self,
        now_ms: float,
        leader: Callable[[str, int], tuple[int, int] | None],
        topic_id: Callable[[str], bytes],
        ready: Callable[[int], bool],
    ) -> tuple[list[FetchPlan], list[TopicPartition], float]:
        """Fetches to send now, one per idle node; partitions without a leader; the end of the next backoff."""
        plans: dict[int, FetchPlan] = {}
        full: set[int] = set()
        leaderless: list[TopicPartition] = []
        next_ms = float("inf")
        for tp, position in self._positions.items():
            if position.paused or position.offset is None or position.error is not None:
                continue
            if position.blocked_until_ms > now_ms:
                next_ms = min(next_ms, position.blocked_until_ms)
                continue
            found = leader(*tp)
            if found is None:
                leaderless.append(tp)
                continue
            node_id, epoch = self.preferred_replicas.node(tp, found[0], now_ms), found[1]
            if node_id in self._in_flight or not ready(node_id):
                continue
            if len(position.chunks) >= CHUNKS_MAX:
                full.add(node_id)
                continue
            plan = plans.get(node_id)
            if plan is None:
                plan = plans[node_id] = FetchPlan(node_id, {}, {}, self._options.fetch_max_wait_ms, self._options.client_rack)
            plan.wanted[tp] = PartitionFetch(
                topic_id(tp.topic), position.fetch_offset, epoch, position.last_epoch, self._options.max_partition_fetch_bytes
            )
            plan.generations[tp] = position.generation
            plan.rack = plan.rack and self.preferred_replicas.rack(tp, now_ms)
        for node_id, plan in plans.items():
            if node_id in full:
                plan.max_wait_ms = min(plan.max_wait_ms, FULL_WAIT_MS)
            self._in_flight[node_id] = plan
        return list(plans.values()), leaderless, next_ms

    def session(self, node_id: int) -> FetchSession:
        """The fetch session with a node."""
        return self._sessions.setdefault(node_id, FetchSession())

    def failed(self, plan: FetchPlan, now_ms: float) -> None:
        """A fetch got no response."""
        del self._in_flight[plan.node_id]
        self.session(plan.node_id).failed()
        for tp in plan.wanted:
            self.preferred_replicas.failed(tp, plan.node_id, now_ms)
        self._hold_off(plan, now_ms)

    def answered(self, plan: FetchPlan, response: FetchResponse, now_ms: float) -> bool:
        """Handles a response. True if it shows that metadata is stale."""
        if response.error_code:
            self.failed(plan, now_ms)
            self.session(plan.node_id).answered(response.error_code, response.session_id)
            return response.error_code in METADATA_IS_STALE
        del self._in_flight[plan.node_id]
        self.session(plan.node_id).answered(0, response.session_id)
        # By the ids of the request: metadata may have changed meanwhile.
        names = {ask.topic_id: tp.topic for tp, ask in plan.wanted.items()}
        stale = False
        for topic in response.responses:
            name = topic.topic or names.get(topic.topic_id, "")
            for data in topic.partitions:
                tp = TopicPartition(name, data.partition_index)
                if tp not in plan.wanted:
                    self._hold_off(plan, now_ms)
                    stale = True
                    continue
                position = self._positions.get(tp)
                asked = (plan.generations[tp], plan.wanted[tp].offset)
                if position is None or asked != (position.generation, position.fetch_offset):
                    continue
                if data.error_code:
                    nearby = self.preferred_replicas.failed(tp, plan.node_id, now_ms)
                    if not nearby or data.error_code != OffsetOutOfRange.code:
                        stale |= self._partition_failed(position, data, now_ms)
                else:
                    if data.preferred_read_replica >= 0:
                        self.preferred_replicas.named(tp, data.preferred_read_replica, now_ms)
                    self._partition_fetched(position, data)
        return stale

    def _hold_off(self, plan: FetchPlan, now_ms: float) -> None:
        """The response does not match the request: waits before the next fetch."""
        for tp, generation in plan.generations.items():
            position = self._positions.get(tp)
            if position is not None and position.generation == generation and position.blocked_until_ms <= now_ms:
                position.blocked_until_ms = now_ms + position.backoff.failed()

    def _partition_failed(self, position: Position, data: PartitionData, now_ms: float) -> bool:
        refused = refused_access(data.error_code, self._options, Operation.READ, position.tp.topic)
        error = error_for(data.error_code, f"{position.tp}: {refused or error_for(data.error_code)}")
        if isinstance(error, OffsetOutOfRange):
            if not position.chunks:
                # Kafka's brokers omit the log start in this response; an earlier one may have had it.
                start = max(data.log_start_offset, position.log_start_offset)
                begins = f", which starts at {start}" if start >= 0 else ""
                story = f"{position.tp}: offset {position.fetch_offset} is not in the log{begins}"
                position.generation = self._next_generation()
                self._reset(position, NoOffsetToStart(f"{story}; auto_offset_reset is none, so seek to a position"))
            else:
                # Buffered records can still be returned; the next fetch would get the same error.
                position.blocked_until_ms = now_ms + position.backoff.failed()
            return False
        if error.retriable or error.code in METADATA_IS_STALE:
            position.blocked_until_ms = now_ms + position.backoff.failed()
            return error.code in METADATA_IS_STALE
        position.error = error
        return False

    def _partition_fetched(self, position: Position, data: PartitionData) -> None:
        position.backoff.succeeded()
        position.high_watermark = data.high_watermark
        position.last_stable_offset = data.last_stable_offset
        position.log_start_offset = data.log_start_offset
        if data.diverging_epoch.end_offset >= 0:
            self._truncated(position, data.diverging_epoch.end_offset)
            return
        buffer: Any = data.records
        if not buffer:
            return
        view = memoryview(buffer)
        try:
            batches = [(at, header) for at, header in headers(view) if header.last_offset >= position.fetch_offset]
        except RecordsError as error:
            position.error = CorruptMessage(f"{position.tp} at offset {position.fetch_offset}: {error}")
            return
        if not batches:
            return
        aborted = [(one.producer_id, one.first_offset) for one in data.aborted_transactions or ()]
        position.chunks.append(Chunk(view, batches, aborted if self._read_committed else []))
        self.buffer.arrived(position.tp)
        last = batches[-1][1]
        position.fetch_offset = last.last_offset + 1
        position.last_epoch = last.leader_epoch

    def _truncated(self, position: Position, end_offset: int) -> None:
        """The leader's log diverged: goes back to the divergence, or raises an error if that is before consumed records."""
        assert position.offset is not None, "only a partition with a position is fetched"
        position.chunks.clear()
        position.last_epoch = -1
        if end_offset < position.offset and self._options.auto_offset_reset == "none":
            position.error = LogTruncated(
                f"{position.tp}: the log now ends at {end_offset} before the consumed offset {position.offset}; seek to continue"
            )
            return
        position.offset = position.fetch_offset = min(position.offset, end_offset)

    # -- Records.

    def take(self, records_max: int) -> list[ConsumerRecord]:
        """Up to ``records_max`` records, in order per partition; the positions advance.

        Raises: an error of a partition, if no records come before it.
        """
        return self.buffer.take(records_max)

    def lag(self, tp: TopicPartition, first_pending: int | None = None) -> int | None:
        """Known lag; `first_pending`: first offset of records taken but not delivered. Raises: ValueError."""
        return self._position(tp).progress(first_pending, self._read_committed).lag

    def progress(self, pending: Mapping[TopicPartition, int]) -> dict[TopicPartition, FetchProgress]:
        """Progress of each partition; `pending`: first offsets of records taken but not delivered."""
        return {tp: position.progress(pending.get(tp), self._read_committed) for tp, position in self._positions.items()}
