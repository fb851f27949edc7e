"""State shared by both memberships: owned partitions, pending changes and errors, and whether the user polls. Pure.

    poll() begins      the user is alive; changes are applied, an error is raised          poll_began, change, changed, error
    poll() ends        the user processes records, for at most max_poll_interval_ms        poll_ended
    longer than that   the member leaves, and its partitions are lost                      step

Both memberships derive from it, because they have the same interface to the consumer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from random import Random

from ottla.base.ids import TopicPartition
from ottla.client.group.coordinator_search import AssignmentChange, AssignmentChangeKind, CoordinatorRequest, CoordinatorSearch
from ottla.client.options import ConsumerOptions
from ottla.client.transport.backoff import Backoff
from ottla.wire.errors import FencedInstanceId, KafkaError


class PolledMembership(ABC):
    """Base of both memberships. `now_ms` is monotonic."""

    def __init__(self, options: ConsumerOptions, rng: Random) -> None:
        self._options = options
        self._backoff = Backoff(options.retry_backoff_ms, options.retry_backoff_max_ms, rng)
        self.coordinator = CoordinatorSearch(options, rng)
        #: Topics whose metadata is needed.
        self.wanted: frozenset[str] = frozenset()
        self._topics: frozenset[str] = frozenset()
        #: Partitions that the user reads.
        self.owned: list[TopicPartition] = []
        self._changes: deque[AssignmentChange] = deque()
        #: The user polled within max_poll_interval_ms.
        self._alive = False
        self._poll_until_ms = float("inf")
        self._error: KafkaError | None = None

    def poll_began(self) -> None:
        """The user waits for records."""
        self._alive = True
        self._poll_until_ms = float("inf")

    def poll_ended(self, now_ms: float) -> None:
        """The user processes records."""
        self._poll_until_ms = now_ms + self._options.max_poll_interval_ms

    def error(self) -> KafkaError | None:
        """An error for the user, returned once; a fenced instance id always."""
        error = self._error
        if not isinstance(error, FencedInstanceId):
            self._error = None
        return error

    def change(self) -> AssignmentChange | None:
        """The next change for the user to apply; `changed` must follow."""
        return self._changes[0] if self._changes else None

    def changed(self, change: AssignmentChange) -> None:
        """The change was applied. The partitions may have been lost meanwhile."""
        if self._changes and self._changes[0] is change:
            self._changes.popleft()
        if change.kind is AssignmentChangeKind.ASSIGNED:
            self.owned += [tp for tp in change.partitions if tp not in self.owned]
        else:
            gone = set(change.partitions)
            self.owned = [tp for tp in self.owned if tp not in gone]

    @property
    @abstractmethod
    def subscribed(self) -> bool:
        """Whether it is a member of the group, so that it must commit as a member."""

    def step(self, now_ms: float) -> list[CoordinatorRequest]:
        """Requests to send now."""
        calls: list[CoordinatorRequest] = []
        self._leave_if_stuck(calls, now_ms)
        if not self.subscribed or not self._alive or isinstance(self._error, FencedInstanceId):
            return calls
        question = self.coordinator.call(now_ms)
        if question is not None:
            calls.append(question)
        if self.coordinator.place is not None:
            self._request(calls, now_ms)
        return calls

    @abstractmethod
    def _request(self, calls: list[CoordinatorRequest], now_ms: float) -> None:
        """Adds the requests to the coordinator that are due."""

    def next_ms(self, now_ms: float) -> float:
        """Time of the next `step` without other events. Due actions that are not possible wait for an event."""
        if not self.subscribed or not self._alive:
            return float("inf")
        found = self.coordinator.place is not None
        times = [self._poll_until_ms, *self._due_ms(found)] + ([] if found else [self.coordinator.retry_at_ms])
        return min((at_ms for at_ms in times if at_ms > now_ms), default=float("inf"))

    @abstractmethod
    def _due_ms(self, found: bool) -> list[float]:
        """When requests to the coordinator are due; `found`: it is known."""

    @abstractmethod
    def leave(self, reason: str, for_good: bool | None = None) -> CoordinatorRequest | None:
        """Leaves the group: returns the request, if one is needed. Nothing is owned afterwards.

        `for_good` False: the coordinator is not informed; None: only if the member is not static.
        """

    def _leave_if_stuck(self, calls: list[CoordinatorRequest], now_ms: float) -> None:
        """Leaves if the user does not poll; the next poll reports the lost partitions."""
        if now_ms < self._poll_until_ms or not self._alive:
            return
        owned = self.owned
        told = self.leave(f"no poll within max.poll.interval.ms, {self._options.max_poll_interval_ms} ms")
        if told is not None:
            calls.append(told)
        self._poll_until_ms = float("inf")
        self.owned = owned
        self._lose()

    def _lose(self) -> None:
        """The owned partitions are lost."""
        self._changes.clear()
        if self.owned:
            self._changes.append(AssignmentChange(AssignmentChangeKind.LOST, tuple(self.owned)))

    def _tell(self, error: KafkaError) -> None:
        """Stops until the user, who gets the error, polls again."""
        self._error, self._alive = error, False
