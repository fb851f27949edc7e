"""Incremental fetch sessions: the broker remembers what a client fetches, so that requests and answers name only what changed.

==========  ===============  ==========================================================
session id  epoch            meaning
==========  ===============  ==========================================================
0           0                open a session with the partitions named
any         -1               no session; one that is named is closed
n           0                close n, open another
n           next of n        go on: partitions named are added or changed, forgotten ones go
==========  ===============  ==========================================================

A wrong epoch answers INVALID_FETCH_SESSION_EPOCH, an unknown id FETCH_SESSION_ID_NOT_FOUND; the client then opens a new one. With all slots
taken, a session idle for two minutes makes room; without such a one the client is served without a session (id 0). The same holds when
the sessions of all consumers remember as many partitions as they may. Followers always have room, and only one set of sessions per
registration. Source: KIP-227, KIP-516; Kafka bounds the number of sessions, not their partitions.

A partition of a session is *awake* while it may have something to tell, and is looked at by each request; one that has nothing sleeps until
something happens to it. So thousands of idle partitions cost nothing, neither on the wire nor here::

    named in a request ──▶ awake ──── read: no records, no error, at its end ────▶ asleep
                             ▲                                                        │
                             └──── appended, committed, cut, led by another ◀─────────┘
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from random import Random
from typing import Self

import msgspec

from ottla.base.ids import TopicPartition
from ottla.base.units import INT32_MAX, MINUTE_MS
from ottla.broker.isolation import indivisible
from ottla.broker.metadata.configs import ClusterOptions
from ottla.wire import errors
from ottla.wire.messages.fetch import FetchPartition, FetchRequest, PartitionData

IDLE_MS = 2 * MINUTE_MS
#: Partition of a session: topic name, or id from version 13 on, and number.
Key = tuple[str | bytes, int]


class Wanted(msgspec.Struct, eq=False, gc=False):
    """One partition that a fetch asks for, and what its reader knows: about 400 bytes with its places in dicts."""

    topic: str | bytes
    ask: FetchPartition
    #: As last answered; -1 before the first answer.
    high_watermark: int = -1
    log_start_offset: int = -1
    #: Whether it had nothing to give when it was read last, and will have nothing before something happens to its partition.
    quiet: bool = False
    #: The partition whose changes wake it; None while its topic is not known.
    partition: TopicPartition | None = None

    @property
    def key(self) -> Key:
        return (self.topic, self.ask.partition)

    def news(self, data: PartitionData) -> bool:
        """Whether an incremental answer must name this partition; notes what is told."""
        told = data.high_watermark == self.high_watermark and data.log_start_offset == self.log_start_offset
        empty = not data.records and data.error_code == 0 and data.diverging_epoch.epoch == -1 and data.preferred_read_replica == -1
        if told and empty:
            return False
        if data.error_code == 0:
            self.high_watermark, self.log_start_offset = data.high_watermark, data.log_start_offset
        return True


def _wanted(request: FetchRequest, *, by_id: bool) -> list[Wanted]:
    """What a whole request asks for. Of a partition that it names twice, the last entry counts. Source: Kafka's FetchRequest.fetchData."""
    wanted = [Wanted(topic.topic_id if by_id else topic.topic, ask) for topic in request.topics for ask in topic.partitions]
    return wanted if len(wanted) < 2 else list({one.key: one for one in wanted}.values())


@dataclass(slots=True, eq=False)
class Session:
    """One client's partitions, in the order in which they are served."""

    number: int
    by_id: bool
    #: When its last request came.
    used_ms: int
    #: The follower that it is of, and its registration; -1 for a consumer's.
    replica: int = -1
    replica_epoch: int = -1
    #: The epoch the next request must carry.
    epoch: int = 1
    wanted: dict[Key, Wanted] = field(default_factory=dict)
    awake: dict[Key, Wanted] = field(default_factory=dict)
    #: What was stirred since the fetch that waits looked last.
    stirred: dict[Wanted, None] = field(default_factory=dict)

    def told(self, wanted: Wanted, *, served: bool) -> None:
        """An answer was made for this partition: it sleeps now, or makes room for the others."""
        key = wanted.key
        if wanted.quiet and wanted.partition is not None:
            self.awake.pop(key, None)
        elif served and key in self.awake:
            self.awake[key] = self.awake.pop(key)


@dataclass(slots=True)
class Context:
    """What one fetch request asks for, whether by itself or through its session."""

    #: All partitions of a whole request.
    wanted: list[Wanted]
    #: 0: answered without a session.
    session_id: int
    session: Session | None
    incremental: bool

    def active(self) -> list[Wanted]:
        """What is to be looked at now."""
        return list(self.session.awake.values()) if self.session is not None and self.incremental else self.wanted


def _nothing(session: Session, wanted: Wanted) -> None:
    pass


class FetchSessions:
    """All sessions of a broker."""

    def __init__(self, slots: int, partitions_max: int, total_max: int) -> None:
        """``slots`` sessions at most; ``partitions_max`` partitions in one, and ``total_max`` in those of all consumers."""
        self._slots = slots
        self._partitions_max = partitions_max
        self._total_max = total_max
        #: Partitions in the sessions of consumers.
        self.partitions = 0
        #: Those fetches that wait and have no session.
        self.waiting = WaitingFetches(total_max, lambda connection: False)
        #: In the order of last use, longest idle first.
        self._sessions: dict[int, Session] = {}
        #: Who wants a partition, by session.
        self._watching: dict[TopicPartition, dict[Session, Wanted]] = {}
        #: Told when a partition of a follower's session wakes up: up to the session's last request it had all that there was.
        self.woken: Callable[[Session, Wanted], None] = _nothing
        #: Told of a session of which a partition was stirred.
        self.poke: Callable[[Hashable], None] = lambda session: None

    @classmethod
    def of(cls, options: ClusterOptions, waits: Callable[[int], bool]) -> Self:
        """None yet, as many as a broker's settings allow. ``waits`` is that of ``WaitingFetches``."""
        made = cls(options.fetch_sessions_max, options.fetch_session_partitions_max, options.fetch_sessions_partitions_max)
        made.waiting = WaitingFetches(options.fetch_waiting_partitions_max, waits)
        return made

    def __len__(self) -> int:
        return len(self._sessions)

    @indivisible
    def begin(self, request: FetchRequest, *, by_id: bool, now_ms: int, rng: Random, replica: int = -1, replica_epoch: int = -1) -> Context:
        """What this request asks for.

        Raises: FetchSessionIdNotFound, InvalidFetchSessionEpoch, FetchSessionTopicIdError.
        """
        if request.session_epoch > 0:
            return self._go_on(request, by_id=by_id, now_ms=now_ms)
        self._close(self._sessions.get(request.session_id))
        wanted = _wanted(request, by_id=by_id)
        none = request.session_epoch == -1 or not wanted or len(wanted) > self._partitions_max
        if none or not self._has_room(now_ms, replica, len(wanted)):
            return Context(wanted, 0, None, incremental=False)
        for session in [one for one in self._sessions.values() if one.replica >= 0]:
            # One of an earlier registration, or of a follower that has nothing left to ask for here.
            earlier = session.replica == replica and session.replica_epoch != replica_epoch
            if earlier or now_ms - session.used_ms > IDLE_MS:
                self._close(session)
        number = rng.randrange(1, INT32_MAX)
        while number in self._sessions:
            number = rng.randrange(1, INT32_MAX)
        session = Session(number, by_id, now_ms, replica, replica_epoch, wanted={one.key: one for one in wanted})
        session.awake = dict(session.wanted)
        self._sessions[number] = session
        self._count(session, len(session.wanted))
        return Context(list(session.wanted.values()), number, session, incremental=False)

    def _go_on(self, request: FetchRequest, *, by_id: bool, now_ms: int) -> Context:
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
        """Whether one more session may begin; sessions that are idle make room."""
        if replica >= 0:
            return True
        for session in list(self._sessions.values()):
            if self._fits(partitions) or now_ms - session.used_ms <= IDLE_MS:
                break
            if session.replica < 0:
                self._close(session)
        return self._fits(partitions)

    def _fits(self, partitions: int) -> bool:
        return len(self._sessions) < self._slots and self.partitions + partitions <= self._total_max

    def _count(self, session: Session, partitions: int) -> None:
        if session.replica < 0:
            self.partitions += partitions

    def _forget(self, session: Session, key: Key) -> None:
        wanted = session.wanted.pop(key, None)
        session.awake.pop(key, None)
        if wanted is not None:
            session.stirred.pop(wanted, None)
            self._unwatch(session, wanted)

    def _close(self, session: Session | None) -> None:
        if session is not None:
            del self._sessions[session.number]
            self._count(session, -len(session.wanted))
            for wanted in session.wanted.values():
                self._unwatch(session, wanted)

    # What happens to partitions.

    @indivisible
    def watch(self, session: Session, wanted: Wanted, partition: TopicPartition) -> None:
        """The name of a partition is known: what happens to it wakes it from now on."""
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

    @indivisible
    def heard(self, key: Hashable) -> None:
        """Something under a key of the purgatory changed: a partition, or what was appended to it, which only followers may see."""
        partition, appended = (key, False) if type(key) is TopicPartition else (_appended(key), True)
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
            self.poke(session)


class WaitingFetches:
    """How many partitions the fetches name that wait without a session: each takes about 600 bytes while its fetch waits.

    A fetch that finds no room is answered at once with what there is, as if it did not want to wait.
    """

    def __init__(self, partitions_max: int, waits: Callable[[int], bool]) -> None:
        """``waits`` tells whether a connection has a request that waits; nobody tells us of those whose client went away."""
        self._partitions_max = partitions_max
        self._waits = waits
        #: By connection, which has one fetch in work at a time.
        self._by_connection: dict[int, int] = {}
        self.partitions = 0

    @indivisible
    def admit(self, connection: int, partitions: int) -> bool:
        """Whether a fetch may wait; it is counted until ``leave``."""
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
    def leave(self, connection: int) -> None:
        """The connection's fetch waits no more."""
        self.partitions -= self._by_connection.pop(connection, 0)


def _appended(key: Hashable) -> TopicPartition | None:
    return key[1] if type(key) is tuple and len(key) == 2 and key[0] == "appended" else None
