"""Records what clients did and its outcome, for ``log_history`` to check.

An operation starts and later completes with one of three outcomes::

    ok      it took effect, with this result
    fail    it did not and will not take effect
    info    unknown; also for operations that never complete

The outcome of an error decides what a checker may conclude. A client that retries reports only its last error, and an earlier attempt may
have taken effect. So only errors that a broker returns after examining the request are ``fail`` (``DEFINITE``); everything else is
``info``. NOT_LEADER_OR_FOLLOWER does not prove that this or an earlier attempt was not written (KAFKA-13574).

Times are nanoseconds of any clock; their order matters, and for the lag their difference. Recording appends to a list, so threads may share
a recorder.
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

#: By code, errors after which a record is not and will not be in the log.
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
#: librdkafka's own errors before a record was put into a request: the queue was full, or the record was purged from it.
DEFINITE_OF_LIBRDKAFKA: dict[int, str] = {-184: "the queue was full", -152: "given up before it was sent"}


def outcome_of(code: int) -> Outcome:
    """Outcome of a produce error: ``fail`` or ``info``. Codes are Kafka's, or librdkafka's own, which are negative."""
    return "fail" if code in DEFINITE or code in DEFINITE_OF_LIBRDKAFKA else "info"


@dataclass(slots=True, eq=False)
class Operation:
    """One operation of one client."""

    #: The client process.
    process: str
    action: Action
    invoked_ns: int
    #: 0 while it is not complete.
    completed_ns: int = 0
    outcome: Outcome = "info"
    #: For a send: partition, value, and the acknowledged offset.
    key: Key = None
    value: Value = None
    offset: int | None = None
    #: For a poll: offsets and values by partition, in order.
    polled: Mapping[Key, Sequence[tuple[int, Value]]] = field(default_factory=dict)
    #: For a poll: partitions that were assigned or revoked meanwhile.
    rebalanced: frozenset[Key] = frozenset()
    #: For an assign: partitions with their start offsets; None if not given.
    starts: Mapping[Key, int | None] = field(default_factory=dict)


class Recorder:
    """A history being recorded. ``idempotent`` has the processes whose records appear once and in order of their sends."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self.operations: list[Operation] = []
        self.idempotent: set[str] = set()
        self._now_ns = now_ns

    def send(self, process: str, key: Key, value: Value) -> Operation:
        """Starts a send; a value is sent to a partition once per history."""
        made = Operation(process, "send", self._now_ns(), key=key, value=value)
        self.operations.append(made)
        return made

    def acknowledged(self, send: Operation, offset: int | None) -> None:
        """Completes a send; without an offset if the client did not get one."""
        send.offset, send.outcome = offset, "ok"
        send.completed_ns = self._now_ns()

    def failed(self, send: Operation, code: int) -> None:
        """Completes a send with an error, whose code determines the outcome."""
        send.outcome = outcome_of(code)
        send.completed_ns = self._now_ns()

    def polling(self, process: str) -> Operation:
        """Starts a poll. It becomes part of the history with ``polled``, so empty polls can be omitted."""
        return Operation(process, "poll", self._now_ns())

    def polled(
        self, poll: Operation, found: Mapping[Key, Sequence[tuple[int, Value]]], *, ok: bool = True, rebalanced: Iterable[Key] = ()
    ) -> None:
        """Completes a poll. One that is not ``ok`` returned records and then an error, and does not advance the position."""
        poll.polled, poll.rebalanced, poll.outcome = found, frozenset(rebalanced), "ok" if ok else "info"
        poll.completed_ns = self._now_ns()
        self.operations.append(poll)

    def assigned(self, process: str, starts: Mapping[Key, int | None]) -> None:
        """The client chose its partitions and start offsets."""
        self._add(Operation(process, "assign", self._now_ns(), starts=starts))

    def subscribed(self, process: str, keys: Iterable[Key]) -> None:
        """The client's group assigns its partitions from now on."""
        self._add(Operation(process, "subscribe", self._now_ns(), starts=dict.fromkeys(keys)))

    def crashed(self, process: str) -> None:
        """The client ended, or forgot its position."""
        self._add(Operation(process, "crash", self._now_ns()))

    def _add(self, done: Operation) -> None:
        done.completed_ns, done.outcome = done.invoked_ns, "ok"
        self.operations.append(done)
