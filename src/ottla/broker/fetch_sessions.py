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
taken, a session idle for two minutes makes room; without such a one the client is served without a session (id 0). Source: KIP-227,
KIP-516.
"""

from dataclasses import dataclass, field
from random import Random

from ottla.base.units import INT32_MAX, MINUTE_MS
from ottla.wire import errors
from ottla.wire.messages.fetch import FetchPartition, FetchRequest, PartitionData

IDLE_MS = 2 * MINUTE_MS
#: Partition of a session: topic name, or id from version 13 on, and number.
Key = tuple[str | bytes, int]


@dataclass(slots=True)
class Wanted:
    """One partition that a fetch asks for, and what its reader knows."""

    topic: str | bytes
    ask: FetchPartition
    #: As last answered; -1 before the first answer.
    high_watermark: int = -1
    log_start_offset: int = -1

    def news(self, data: PartitionData) -> bool:
        """Whether an incremental answer must name this partition; notes what is told."""
        told = data.high_watermark == self.high_watermark and data.log_start_offset == self.log_start_offset
        empty = not data.records and data.error_code == 0 and data.diverging_epoch.epoch == -1 and data.preferred_read_replica == -1
        if told and empty:
            return False
        if data.error_code == 0:
            self.high_watermark, self.log_start_offset = data.high_watermark, data.log_start_offset
        return True


@dataclass(slots=True)
class Session:
    """One client's partitions, in the order in which they are served."""

    number: int
    by_id: bool
    used_ms: int
    #: The epoch the next request must carry.
    epoch: int = 1
    wanted: dict[Key, Wanted] = field(default_factory=dict)


@dataclass(slots=True)
class Context:
    """What one fetch request asks for, whether by itself or through its session."""

    wanted: list[Wanted]
    #: 0: answered without a session.
    session_id: int
    session: Session | None
    incremental: bool


class FetchSessions:
    """All sessions of a broker; ``slots`` is their largest number, ``partitions_max`` that of the partitions of one."""

    def __init__(self, slots: int, partitions_max: int) -> None:
        self._slots = slots
        self._partitions_max = partitions_max
        #: In the order of last use, longest idle first.
        self._sessions: dict[int, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, request: FetchRequest, *, by_id: bool, now_ms: int, rng: Random) -> Context:
        """What this request asks for.

        Raises: FetchSessionIdNotFound, InvalidFetchSessionEpoch, FetchSessionTopicIdError.
        """
        if request.session_epoch > 0:
            return self._go_on(request, by_id=by_id, now_ms=now_ms)
        if request.session_id != 0:
            self._sessions.pop(request.session_id, None)
        wanted = [Wanted(topic.topic_id if by_id else topic.topic, ask) for topic in request.topics for ask in topic.partitions]
        if request.session_epoch == -1 or not wanted or len(wanted) > self._partitions_max or not self._has_room(now_ms):
            return Context(wanted, 0, None, incremental=False)
        number = rng.randrange(1, INT32_MAX)
        while number in self._sessions:
            number = rng.randrange(1, INT32_MAX)
        session = Session(number, by_id, now_ms, wanted={(one.topic, one.ask.partition): one for one in wanted})
        self._sessions[number] = session
        return Context(list(session.wanted.values()), number, session, incremental=False)

    def _go_on(self, request: FetchRequest, *, by_id: bool, now_ms: int) -> Context:
        session = self._sessions.get(request.session_id)
        if session is None:
            raise errors.FetchSessionIdNotFound(f"there is no fetch session {request.session_id}")
        if request.session_epoch != session.epoch:
            raise errors.InvalidFetchSessionEpoch(f"session {session.number} is at epoch {session.epoch}, not {request.session_epoch}")
        if by_id != session.by_id:
            raise errors.FetchSessionTopicIdError("a fetch session names topics by name or by id, never both")
        for topic in request.topics:
            for ask in topic.partitions:
                key: Key = (topic.topic_id if by_id else topic.topic, ask.partition)
                known = session.wanted.get(key)
                if known is None:
                    session.wanted[key] = Wanted(key[0], ask)
                else:
                    known.ask = ask
        for gone in request.forgotten_topics_data:
            for number in gone.partitions:
                session.wanted.pop((gone.topic_id if by_id else gone.topic, number), None)
        del self._sessions[session.number]
        if len(session.wanted) > self._partitions_max:
            raise errors.FetchSessionIdNotFound(f"a session remembers {self._partitions_max} partitions at most; fetch without one")
        if not session.wanted:
            return Context([], 0, None, incremental=True)
        session.epoch = session.epoch + 1 if session.epoch < INT32_MAX else 1
        session.used_ms = now_ms
        self._sessions[session.number] = session
        return Context(list(session.wanted.values()), session.number, session, incremental=True)

    def _has_room(self, now_ms: int) -> bool:
        if len(self._sessions) < self._slots:
            return True
        if self._sessions:
            oldest = next(iter(self._sessions.values()))
            if now_ms - oldest.used_ms > IDLE_MS:
                del self._sessions[oldest.number]
                return True
        return False


def rotated(session: Session, served: list[Key]) -> None:
    """Put the partitions that gave records behind the others, so that each gets its turn when the answer is full."""
    for key in served:
        session.wanted[key] = session.wanted.pop(key)
