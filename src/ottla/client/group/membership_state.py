"""What both machines of a group know of their user: what is read now, what the user has to do or to hear, and whether the user polls. Pure.

    poll() begins      the user is alive; changes are carried out, an error is raised      poll_began, change, changed, error
    poll() ends        the user works on records, for max_poll_interval_ms at most         poll_ended
    longer than that   the user is stuck: the member leaves, what it had is lost           step

`membership` and `reconciliation` derive from it, since what they have in common is the face they show to the user.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque

from ottla.base.ids import TopicPartition
from ottla.client.group.coordinator_search import Call, Change, Kind
from ottla.client.options import ConsumerOptions
from ottla.wire.errors import FencedInstanceId, KafkaError


class Polled(ABC):
    """See the module. `now_ms` is monotonic."""

    def __init__(self, options: ConsumerOptions) -> None:
        self._options = options
        #: What the user reads now.
        self.owned: list[TopicPartition] = []
        self._changes: deque[Change] = deque()
        #: The user polled, and not too long ago.
        self._alive = False
        self._poll_until_ms = float("inf")
        self._error: KafkaError | None = None

    def poll_began(self) -> None:
        """The user waits for records: there is no need to fear for it."""
        self._alive = True
        self._poll_until_ms = float("inf")

    def poll_ended(self, now_ms: float) -> None:
        """The user works on records."""
        self._poll_until_ms = now_ms + self._options.max_poll_interval_ms

    def error(self) -> KafkaError | None:
        """What the user has to know, once; that another has its instance id, always."""
        error = self._error
        if not isinstance(error, FencedInstanceId):
            self._error = None
        return error

    def change(self) -> Change | None:
        """What the user has to carry out next; `changed` must follow."""
        return self._changes[0] if self._changes else None

    def changed(self, change: Change) -> None:
        """The change was carried out. It may have been overtaken by a loss."""
        if self._changes and self._changes[0] is change:
            self._changes.popleft()
        if change.kind is Kind.ASSIGNED:
            self.owned += [tp for tp in change.partitions if tp not in self.owned]
        else:
            gone = set(change.partitions)
            self.owned = [tp for tp in self.owned if tp not in gone]

    @abstractmethod
    def leave(self, reason: str, for_good: bool | None = None) -> Call | None:
        """Leave the group: what to send, if anybody has to be told. Nothing is owned and nothing is to be done after that.

        `for_good` False: the coordinator is not to be told; None: only if the member is not static.
        """

    def _leave_if_stuck(self, calls: list[Call], now_ms: float) -> None:
        """Whoever does not poll any more leaves, and learns with the next poll what that cost."""
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
        """What the user reads is another's by now."""
        self._changes.clear()
        if self.owned:
            self._changes.append(Change(Kind.LOST, tuple(self.owned)))

    def _tell(self, error: KafkaError) -> None:
        """This does not pass by itself: nothing more is done until the user, who is told, polls again."""
        self._error, self._alive = error, False
