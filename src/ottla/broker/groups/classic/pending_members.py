"""Pending member ids of a classic group: allocated, but not joined yet.

A client gets an id and joins with it in its next request. A client that never does would leave an entry for its session timeout, up to
half an hour. So there is a limit, ``ottla.group.pending.members.max``: a further id replaces the oldest. A client with a replaced id gets
UNKNOWN_MEMBER_ID, and all clients then get a new id.

Pending ids count towards no other limit, as in Kafka: otherwise a client that reconnects could be refused because of its former id.
Source: KIP-394.
"""

from collections.abc import Callable, Iterator
from typing import Any

from ottla.broker.coordinator import Shard
from ottla.broker.delayed import DelayedOperation
from ottla.broker.groups.memory_limits import PENDING_BYTES, Footprint, text_bytes


class PendingMembers:
    """Ids of one group, oldest first, each with its deadline."""

    __slots__ = ("_expired", "_footprint", "_shard", "_timers")

    def __init__(self, shard: Shard[Any], footprint: Footprint, expired: Callable[[], None]) -> None:
        """``expired`` is called after the deadline of an id."""
        self._shard = shard
        self._footprint = footprint
        self._expired = expired
        self._timers: dict[str, DelayedOperation] = {}

    def __len__(self) -> int:
        return len(self._timers)

    def __iter__(self) -> Iterator[str]:
        return iter(self._timers)

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._timers

    def add(self, member_id: str, timeout_ms: int) -> None:
        """Adds an id."""
        while len(self._timers) >= self._shard.options.group_pending_members_max:
            self.discard(next(iter(self._timers)))
        self._timers[member_id] = self._shard.after(timeout_ms, lambda: self._due(member_id))
        self._footprint.add(PENDING_BYTES + text_bytes(member_id))

    def discard(self, member_id: str) -> None:
        """Removes an id that joined or left; unknown ids are ignored."""
        timer = self._timers.pop(member_id, None)
        if timer is not None:
            self._shard.cancel(timer)
            self._footprint.add(-PENDING_BYTES - text_bytes(member_id))

    def clear(self) -> None:
        """Removes all ids."""
        for member_id in list(self._timers):
            self.discard(member_id)

    def _due(self, member_id: str) -> None:
        self.discard(member_id)
        self._expired()
