"""Deadlines of a group's members. Extending one changes a number: a timer that fires too early is set again."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ottla.broker.coordinator import Shard
from ottla.broker.delayed import DelayedOperation
from ottla.broker.groups.consumer.changes import GroupDecision, StartTimer, Timer


@dataclass(slots=True, eq=False)
class Deadline:
    """A deadline of one member."""

    due_ms: int
    epoch: int
    #: When the timer fires: at or before ``due_ms``.
    fires_ms: int = 0
    operation: DelayedOperation | None = None


class Deadlines:
    """All deadlines of one group. ``missed(timer, member id, epoch)`` is called once for each that passes."""

    __slots__ = ("_by_member", "_missed", "_shard")

    def __init__(self, shard: Shard[Any], missed: Callable[[Timer, str, int], None]) -> None:
        self._shard = shard
        self._missed = missed
        self._by_member: dict[tuple[Timer, str], Deadline] = {}

    def carry_out(self, decision: GroupDecision) -> None:
        """Stops and starts the deadlines of a decision."""
        for timer, member_id in decision.disarm:
            self.disarm(timer, member_id)
        for arm in decision.arm:
            self.arm(arm)

    def arm(self, arm: StartTimer) -> None:
        """Starts or extends a deadline."""
        key = (arm.timer, arm.member_id)
        deadline = self._by_member.get(key)
        due_ms = self._shard.now_ms + arm.delay_ms
        if deadline is None:
            deadline = self._by_member[key] = Deadline(due_ms, arm.epoch)
            self._wait(key, deadline)
            return
        if arm.keep:
            return
        deadline.due_ms, deadline.epoch = due_ms, arm.epoch
        if due_ms < deadline.fires_ms:
            self._shard.cancel(deadline.operation)
            self._wait(key, deadline)

    def disarm(self, timer: Timer, member_id: str) -> None:
        """Removes a deadline, if there is one."""
        deadline = self._by_member.pop((timer, member_id), None)
        if deadline is not None:
            self._shard.cancel(deadline.operation)

    def clear(self) -> None:
        """Removes all deadlines."""
        for timer, member_id in list(self._by_member):
            self.disarm(timer, member_id)

    def _wait(self, key: tuple[Timer, str], deadline: Deadline) -> None:
        deadline.fires_ms = deadline.due_ms
        deadline.operation = self._shard.after(deadline.due_ms - self._shard.now_ms, lambda: self._fired(key, deadline))

    def _fired(self, key: tuple[Timer, str], deadline: Deadline) -> None:
        if self._shard.now_ms < deadline.due_ms:
            self._wait(key, deadline)
        else:
            del self._by_member[key]
            self._missed(*key, deadline.epoch)
