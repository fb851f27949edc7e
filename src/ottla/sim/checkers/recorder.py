"""What clients did and what came of it, written down for ``log_history`` to judge.

An operation is invoked, and later completed with one of three outcomes::

    ok      it happened, and this is what came of it
    fail    it did not happen and never will
    info    nobody knows; what is never completed counts as this

Which outcome an error stands for decides what a checker may conclude. A client that tries again by itself reports only its last error: the
attempt before may have been carried out. So only errors that a broker gives by looking at the request are ``fail`` (``DEFINITE``), and
everything else is ``info``; to be told by a broker that it is not the leader is no promise that it did not write, nor that an attempt
before did not (KAFKA-13574).

Times are nanoseconds of whatever clock the recorder was given; only their order matters, and for the lag their distance. Recording is
appending to a list, so threads may share a recorder.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ottla.wire import errors

#: A partition, by number or by topic and number; hashable.
Key = Any
Value = Hashable
Outcome = Literal["ok", "fail", "info"]
Action = Literal["send", "poll", "assign", "subscribe", "crash"]

#: By code, answers after which a record is not in the log and will not be.
DEFINITE: dict[int, str] = {
    kind.code: why
    for kind, why in (
        (errors.UnknownTopicOrPartition, "there was no such partition, for as long as the client looked for it"),
        (errors.InvalidTopic, "the name cannot be one of a topic"),
        (errors.TopicAuthorizationFailed, "refused before anything was written"),
        (errors.ClusterAuthorizationFailed, "refused before anything was written"),
        (errors.TransactionalIdAuthorizationFailed, "refused before anything was written"),
        (errors.MessageTooLarge, "refused for what it is, at every attempt"),
        (errors.RecordListTooLarge, "refused for what it is, at every attempt"),
        (errors.InvalidRecord, "refused for what it is, at every attempt"),
        (errors.InvalidTimestamp, "refused for what it is, at every attempt"),
        (errors.InvalidRequiredAcks, "refused for what it is, at every attempt"),
        (errors.UnsupportedCompressionType, "refused for what it is, at every attempt"),
        (errors.UnsupportedForMessageFormat, "refused for what it is, at every attempt"),
        (errors.PolicyViolation, "refused for what it is, at every attempt"),
        (errors.OutOfOrderSequenceNumber, "the log of this producer does not go on with it"),
        (errors.InvalidProducerEpoch, "another producer has taken its place"),
        (errors.ProducerFenced, "another producer has taken its place"),
    )
}
#: librdkafka's own errors, given before a record was put into a request: the queue was full, or it was purged while it waited there.
DEFINITE_OF_LIBRDKAFKA: dict[int, str] = {-184: "the queue was full", -152: "given up before it was sent"}


def outcome_of(code: int) -> Outcome:
    """What an error of a produce means for the record: ``fail`` or ``info``. Codes are Kafka's, or librdkafka's own, which are negative."""
    return "fail" if code in DEFINITE or code in DEFINITE_OF_LIBRDKAFKA else "info"


@dataclass(slots=True, eq=False)
class Operation:
    """One thing that one client did."""

    #: The client, in one of its lives.
    process: str
    action: Action
    invoked_ns: int
    #: 0 while it is open.
    completed_ns: int = 0
    outcome: Outcome = "info"
    #: Of a send: where, what, and at which offset it was acknowledged.
    key: Key = None
    value: Value = None
    offset: int | None = None
    #: Of a poll: offsets and values of each partition, in the order in which they came.
    polled: Mapping[Key, Sequence[tuple[int, Value]]] = field(default_factory=dict)
    #: Of a poll: partitions that were given to the client, or taken from it, meanwhile.
    rebalanced: frozenset[Key] = frozenset()
    #: Of an assign: the partitions, and the offset where reading begins; None where that is left open.
    starts: Mapping[Key, int | None] = field(default_factory=dict)


class Recorder:
    """The history as it is written. ``idempotent`` holds the processes whose records stand once each, in the order of their sends."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self.operations: list[Operation] = []
        self.idempotent: set[str] = set()
        self._now_ns = now_ns

    def send(self, process: str, key: Key, value: Value) -> Operation:
        """A send begins; a value is sent to a partition once in a history, by whatever process."""
        made = Operation(process, "send", self._now_ns(), key=key, value=value)
        self.operations.append(made)
        return made

    def acknowledged(self, send: Operation, offset: int | None) -> None:
        """The send is done; without an offset, the client was not told where."""
        send.offset, send.outcome = offset, "ok"
        send.completed_ns = self._now_ns()

    def failed(self, send: Operation, code: int) -> None:
        """The send came to an error, which says whether it was done or not, or does not say."""
        send.outcome = outcome_of(code)
        send.completed_ns = self._now_ns()

    def polling(self, process: str) -> Operation:
        """A poll begins. It is part of the history once ``polled`` was called, so polls that found nothing may be left out."""
        return Operation(process, "poll", self._now_ns())

    def polled(
        self, poll: Operation, found: Mapping[Key, Sequence[tuple[int, Value]]], *, ok: bool = True, rebalanced: Iterable[Key] = ()
    ) -> None:
        """The poll is done; one that is not ``ok`` gave records and then an error, and does not move the client's position."""
        poll.polled, poll.rebalanced, poll.outcome = found, frozenset(rebalanced), "ok" if ok else "info"
        poll.completed_ns = self._now_ns()
        self.operations.append(poll)

    def assigned(self, process: str, starts: Mapping[Key, int | None]) -> None:
        """The client chose its partitions, and where to begin."""
        self._add(Operation(process, "assign", self._now_ns(), starts=starts))

    def subscribed(self, process: str, keys: Iterable[Key]) -> None:
        """The client is given partitions by its group, from now on."""
        self._add(Operation(process, "subscribe", self._now_ns(), starts=dict.fromkeys(keys)))

    def crashed(self, process: str) -> None:
        """The client is no more, or forgot where it was."""
        self._add(Operation(process, "crash", self._now_ns()))

    def _add(self, done: Operation) -> None:
        done.completed_ns, done.outcome = done.invoked_ns, "ok"
        self.operations.append(done)
