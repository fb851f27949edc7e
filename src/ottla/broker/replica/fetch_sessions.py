"""Incremental fetch sessions: the broker remembers a client's partitions, so that requests and responses name only changes.

==========  ===============  ==========================================================
session id  epoch            meaning
==========  ===============  ==========================================================
0           0                open a session with these partitions
any         -1               no session; close the one that is named
n           0                close n, open another one
n           next of n        continue: partitions are added or changed, or forgotten
==========  ===============  ==========================================================

A wrong epoch is INVALID_FETCH_SESSION_EPOCH, an unknown id FETCH_SESSION_ID_NOT_FOUND; the client then opens a new session. If all slots
are used, sessions are evicted in this order: those that were idle for two minutes, the longest idle first; then those with fewer partitions
than the new one, the smallest first, if they are older than two minutes. Otherwise the client is served without a session (id 0). The same
applies if the sessions of all consumers have the maximum number of partitions. Followers always get a session, one set per registration,
and a consumer does not evict it. Source: KIP-227, KIP-516; Kafka limits the number of sessions, not of their partitions.

A partition of a session is *awake* while it may have news, and each request examines it. Otherwise it sleeps until an event. So thousands
of idle partitions cost nothing::

    named in a request ──▶ awake ──── read: no records, no error, at its end ────▶ asleep
                             ▲                                                        │
                             └──── appended, committed, truncated, new leader ◀───────┘
"""

from collections.abc import Callable, Generator, Hashable
from dataclasses import dataclass, field
from random import Random
from typing import Self

import msgspec

from ottla.base.ids import ConnectionId, TopicPartition
from ottla.base.units import INT32_MAX, MINUTE_MS
from ottla.broker.isolation import indivisible
from ottla.broker.metadata.configs import ClusterOptions
from ottla.wire import errors
from ottla.wire.messages.fetch import FetchPartition, FetchRequest, PartitionData

IDLE_MS = 2 * MINUTE_MS
#: Partitions that a large request adds between two yields.
SLICE = 100
#: Partition of a session: topic name, or id from version 13 on, and number.
Key = tuple[str | bytes, int]


class Wanted(msgspec.Struct, eq=False, gc=False):
    """One partition of a fetch, and what its reader knows: about 400 bytes with its dict entries."""

    topic: str | bytes
    ask: FetchPartition
    #: In the last response; -1 before the first.
    high_watermark: int = -1
    log_start_offset: int = -1
    #: Whether the last read found nothing, and nothing will be there before an event of the partition.
    quiet: bool = False
    #: The partition whose events wake it; None while its topic is unknown.
    partition: TopicPartition | None = None

    @property
    def key(self) -> Key:
        return (self.topic, self.ask.partition)

    def news(self, data: PartitionData) -> bool:
        """Whether an incremental response must name this partition; remembers the offsets of the response."""
        told = data.high_watermark == self.high_watermark and data.log_start_offset == self.log_start_offset
        empty = not data.records and data.error_code == 0 and data.diverging_epoch.epoch == -1 and data.preferred_read_replica == -1
        if told and empty:
            return False
        if data.error_code == 0:
            self.high_watermark, self.log_start_offset = data.high_watermark, data.log_start_offset
        return True


def wanted_in_turns(request: FetchRequest, *, by_id: bool) -> Generator[int, None, list[Wanted]]:
    """The same as ``_wanted``; yields the number of partitions since its last yield."""
    asked: dict[Key, FetchPartition] = {}
    for topic in request.topics:
        name = topic.topic_id if by_id else topic.topic
        for start in range(0, len(topic.partitions), SLICE):
            some = topic.partitions[start : start + SLICE]
            asked |= {(name, ask.partition): ask for ask in some}
            yield len(some)
    found: list[Wanted] = []
    while asked:
        for _ in range(min(SLICE, len(asked))):
            # Taken out, as freeing all of them at once is a step of milliseconds.
            (name, _), ask = asked.popitem()
            found.append(Wanted(name, ask))
        yield SLICE
    found.reverse()
    return found


def _wanted(request: FetchRequest, *, by_id: bool) -> list[Wanted]:
    """Partitions of a full request. If it names one twice, the last entry counts. Source: Kafka's FetchRequest.fetchData."""
    asked = {(topic.topic_id if by_id else topic.topic, ask.partition): ask for topic in request.topics for ask in topic.partitions}
    return [Wanted(topic, ask) for (topic, _), ask in asked.items()]


@dataclass(slots=True, eq=False)
class Session:
    """One client's partitions, in the order of service."""

    number: int
    by_id: bool
    #: Time of its last request.
    used_ms: int
    created_ms: int
    #: Its follower and registration; -1 for a consumer.
    replica: int = -1
    replica_epoch: int = -1
    #: Expected epoch of the next request.
    epoch: int = 1
    wanted: dict[Key, Wanted] = field(default_factory=dict)
    awake: dict[Key, Wanted] = field(default_factory=dict)
    #: Partitions with events since the waiting fetch last looked.
    stirred: dict[Wanted, None] = field(default_factory=dict)

    def told(self, wanted: Wanted, *, served: bool) -> None:
        """A response was made for this partition: it sleeps, or moves behind the others."""
        key = wanted.key
        if wanted.quiet and wanted.partition is not None:
            self.awake.pop(key, None)
        elif served and key in self.awake:
            self.awake[key] = self.awake.pop(key)


class Context(msgspec.Struct, gc=False):
    """Partitions of one fetch request, from itself or its session."""

    #: All partitions of a full request.
    wanted: list[Wanted]
    #: 0: without a session.
    session_id: int
    session: Session | None
    incremental: bool

    def active(self) -> list[Wanted]:
        """Partitions to examine now."""
        return list(self.session.awake.values()) if self.session is not None and self.incremental else self.wanted


def _nothing(session: Session, wanted: Wanted) -> None:
    pass


class FetchSessions:
    """All sessions of a broker."""

    def __init__(self, slots: int, partitions_max: int, total_max: int) -> None:
        """``slots``: number of sessions; ``partitions_max``: partitions of one; ``total_max``: partitions of all consumers' sessions."""
        self._slots = slots
        self._partitions_max = partitions_max
        self._total_max = total_max
        #: Partitions in consumers' sessions.
        self.partitions = 0
        #: Waiting fetches without a session.
        self.waiting = WaitingFetches(total_max, lambda connection: False)
        #: In the order of last use, longest idle first.
        self._sessions: dict[int, Session] = {}
        #: Sessions with this partition.
        self._watching: dict[TopicPartition, dict[Session, Wanted]] = {}
        #: Called when a partition of a follower's session wakes up: until its last request it had all records.
        self.woken: Callable[[Session, Wanted], None] = _nothing
        #: Called for a session whose partition had an event.
        self.poke: Callable[[Hashable], None] = lambda session: None
        #: Partitions with events since a consumer's fetch in turns began: one dict of each such fetch.
        self.changes: list[dict[TopicPartition, None]] = []

    @classmethod
    def of(cls, options: ClusterOptions, waits: Callable[[ConnectionId], bool]) -> Self:
        """No sessions yet, with the limits of the broker's settings. ``waits`` as in ``WaitingFetches``."""
        made = cls(options.fetch_sessions_max, options.fetch_session_partitions_max, options.fetch_sessions_partitions_max)
        made.waiting = WaitingFetches(options.fetch_waiting_partitions_max, waits)
        return made

    def __len__(self) -> int:
        return len(self._sessions)

    def awake(self, number: int) -> int:
        """How many partitions of a session the next request examines."""
        session = self._sessions.get(number)
        return 0 if session is None else len(session.awake)

    def begin(
        self,
        request: FetchRequest,
        *,
        by_id: bool,
        now_ms: int,
        rng: Random,
        replica: int = -1,
        replica_epoch: int = -1,
        wanted: list[Wanted] | None = None,
    ) -> Context:
        """The partitions of this request. ``wanted``: those of a full request, of ``wanted_in_turns``.

        Raises: FetchSessionIdNotFound, InvalidFetchSessionEpoch, FetchSessionTopicIdError.
        """
        if request.session_epoch > 0:
            return self._go_on(request, by_id, now_ms)
        if request.session_epoch == -1 and request.session_id == 0:
            return Context(_wanted(request, by_id=by_id) if wanted is None else wanted, 0, None, incremental=False)
        return self._begin(request, by_id, now_ms, rng, replica, replica_epoch, wanted)

    @indivisible
    def _begin(
        self, request: FetchRequest, by_id: bool, now_ms: int, rng: Random, replica: int, replica_epoch: int, given: list[Wanted] | None
    ) -> Context:
        self._close(self._sessions.get(request.session_id))
        wanted = _wanted(request, by_id=by_id) if given is None else given
        none = request.session_epoch == -1 or not wanted or len(wanted) > self._partitions_max
        if none or not self._has_room(now_ms, replica, len(wanted)):
            return Context(wanted, 0, None, incremental=False)
        for session in [one for one in self._sessions.values() if one.replica >= 0]:
            # Of an earlier registration, or of a follower without partitions here.
            earlier = session.replica == replica and session.replica_epoch != replica_epoch
            if earlier or now_ms - session.used_ms > IDLE_MS:
                self._close(session)
        number = rng.randrange(1, INT32_MAX)
        while number in self._sessions:
            number = rng.randrange(1, INT32_MAX)
        session = Session(number, by_id, now_ms, now_ms, replica, replica_epoch, wanted={one.key: one for one in wanted})
        session.awake = dict(session.wanted)
        self._sessions[number] = session
        self._count(session, len(session.wanted))
        return Context(list(session.wanted.values()), number, session, incremental=False)

    @indivisible
    def _go_on(self, request: FetchRequest, by_id: bool, now_ms: int) -> Context:
        session = self._sessions.get(request.session_id)
        if session is None:
            raise errors.FetchSessionIdNotFound(f"there is no fetch session {request.session_id}")
        if request.session_epoch != session.epoch:
            raise errors.InvalidFetchSessionEpoch(f"session {session.number} is at epoch {session.epoch}, not {request.session_epoch}")
        if by_id != session.by_id:
            raise errors.FetchSessionTopicIdError("a fetch session names topics by name or by id, never both")
        before = len(session.wanted)
        for topic in request.topics:
            for ask in topic.partitions:
                key: Key = (topic.topic_id if by_id else topic.topic, ask.partition)
                known = session.wanted.get(key)
                if known is None:
                    known = session.wanted[key] = Wanted(key[0], ask)
                else:
                    known.ask = ask
                    if 0 <= ask.log_start_offset < known.log_start_offset:
                        # The follower did not apply the response with the later log start.
                        known.log_start_offset = ask.log_start_offset
                session.awake[key] = known
        for gone in request.forgotten_topics_data:
            for number in gone.partitions:
                self._forget(session, (gone.topic_id if by_id else gone.topic, number))
        self._count(session, len(session.wanted) - before)
        del self._sessions[session.number]
        too_many = len(session.wanted) > before and session.replica < 0 and self.partitions > self._total_max
        if too_many or len(session.wanted) > self._partitions_max or not session.wanted:
            self._sessions[session.number] = session
            self._close(session)
            if session.wanted:
                raise errors.FetchSessionIdNotFound(
                    f"a session remembers {self._partitions_max} partitions at most, and those of all consumers {self._total_max}; "
                    "fetch without one"
                )
            return Context([], 0, None, incremental=True)
        session.epoch = session.epoch + 1 if session.epoch < INT32_MAX else 1
        session.used_ms = now_ms
        self._sessions[session.number] = session
        return Context([], session.number, session, incremental=True)

    def _has_room(self, now_ms: int, replica: int, partitions: int) -> bool:
        """Whether there is room for another session; evicts idle ones, then smaller ones."""
        if replica >= 0:
            return True
        if not self._fits(partitions):
            self._evict_idle(now_ms, partitions)
        if not self._fits(partitions):
            self._evict_smaller(now_ms, partitions)
        return self._fits(partitions)

    def _evict_idle(self, now_ms: int, partitions: int) -> None:
        for session in list(self._sessions.values()):
            if self._fits(partitions) or now_ms - session.used_ms <= IDLE_MS:
                break
            if session.replica < 0:
                self._close(session)

    def _evict_smaller(self, now_ms: int, partitions: int) -> None:
        """Evicts smaller sessions if that makes enough room, else none. Recent ones stay, or clients would evict each other in turns."""
        old = (one for one in self._sessions.values() if one.replica < 0 and now_ms - one.created_ms > IDLE_MS)
        evicted, freed = [], 0
        for session in sorted((one for one in old if len(one.wanted) < partitions), key=lambda one: len(one.wanted)):
            evicted.append(session)
            freed += len(session.wanted)
            if self._fits(partitions - freed, without=len(evicted)):
                for gone in evicted:
                    self._close(gone)
                return

    def _fits(self, partitions: int, *, without: int = 0) -> bool:
        return len(self._sessions) - without < self._slots and self.partitions + partitions <= self._total_max

    def _count(self, session: Session, partitions: int) -> None:
        if session.replica < 0:
            self.partitions += partitions

    def _forget(self, session: Session, key: Key) -> None:
        wanted = session.wanted.pop(key, None)
        session.awake.pop(key, None)
        if wanted is not None:
            session.stirred.pop(wanted, None)
            self._unwatch(session, wanted)

    @indivisible
    def close(self, session: Session) -> None:
        """Ends a session; its client learns that with its next request."""
        self._close(session)

    def _close(self, session: Session | None) -> None:
        if session is not None:
            del self._sessions[session.number]
            self._count(session, -len(session.wanted))
            for wanted in session.wanted.values():
                self._unwatch(session, wanted)

    # Events of partitions.

    @indivisible
    def watch(self, session: Session, wanted: Wanted, partition: TopicPartition) -> None:
        """The name of a partition is known: its events wake it from now on, unless the session was closed or forgot it between turns."""
        if self._sessions.get(session.number) is not session or session.wanted.get(wanted.key) is not wanted:
            return
        watching = self._watching.setdefault(partition, {})
        # Sessions share one object for the name.
        wanted.partition = next((other.partition for other in watching.values()), partition)
        watching[session] = wanted

    def _unwatch(self, session: Session, wanted: Wanted) -> None:
        watching = self._watching.get(wanted.partition) if wanted.partition is not None else None
        if wanted.partition is not None and watching is not None and watching.get(session) is wanted:
            del watching[session]
            if not watching:
                del self._watching[wanted.partition]

    def watched(self, session: Session, partition: TopicPartition) -> Wanted | None:
        """A partition of a session, if its name is known."""
        watching = self._watching.get(partition)
        return watching.get(session) if watching is not None else None

    @indivisible
    def poked(self, key: Hashable) -> None:
        """Something under a key of a delayed operation changed: a partition, or records appended to it, which only followers see."""
        partition, appended = (key, False) if type(key) is TopicPartition else (_appended(key), True)
        if self.changes and partition is not None:
            for changed in self.changes:
                changed[partition] = None
        watching = self._watching.get(partition) if partition is not None else None
        if not watching:
            return
        for session, wanted in list(watching.items()):
            if appended and session.replica < 0:
                continue
            if wanted.key not in session.awake:
                session.awake[wanted.key] = wanted
                if session.replica >= 0:
                    self.woken(session, wanted)
            session.stirred[wanted] = None
            # A fetch in turns that has read it before must not let it sleep.
            wanted.quiet = False
            self.poke(session)


class WaitingFetches:
    """Number of partitions in waiting fetches without a session: each takes about 600 bytes while it waits.

    A fetch that exceeds the limit is answered at once, as if it did not want to wait.
    """

    def __init__(self, partitions_max: int, waits: Callable[[ConnectionId], bool]) -> None:
        """``waits``: whether a connection has a waiting request; closed connections are not reported otherwise."""
        self._partitions_max = partitions_max
        self._waits = waits
        #: By connection, which has one fetch in progress at a time.
        self._by_connection: dict[ConnectionId, int] = {}
        self.partitions = 0

    @indivisible
    def admit(self, connection: ConnectionId, partitions: int) -> bool:
        """Whether a fetch may wait; it counts until ``leave``."""
        self.leave(connection)
        if self.partitions + partitions > self._partitions_max:
            for gone in [each for each in self._by_connection if not self._waits(each)]:
                self.leave(gone)
            if self.partitions + partitions > self._partitions_max:
                return False
        self._by_connection[connection] = partitions
        self.partitions += partitions
        return True

    @indivisible
    def leave(self, connection: ConnectionId) -> None:
        """The connection's fetch does not wait any more."""
        self.partitions -= self._by_connection.pop(connection, 0)


def _appended(key: Hashable) -> TopicPartition | None:
    return key[1] if type(key) is tuple and len(key) == 2 and key[0] == "appended" else None
