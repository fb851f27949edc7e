"""Sessions of classic members: each expires its session timeout after the member's last request.

A request changes only a number: the running timer fires at the old deadline and is then set to the new one.
"""

from collections.abc import Callable
from typing import Any

from ottla.broker.coordinator import Shard
from ottla.broker.groups.classic.members import GroupMember


class Sessions:
    """Sessions of one group's members."""

    __slots__ = ("_lost", "_shard")

    def __init__(self, shard: Shard[Any], lost: Callable[[GroupMember], None]) -> None:
        """``lost`` is called for a member whose session expired."""
        self._shard = shard
        self._lost = lost

    def alive(self, member: GroupMember, timeout_ms: int | None = None) -> None:
        """The member sent a request or got a response: its session starts again, with its own timeout or another one."""
        member.expires_ms = self._shard.now_ms + (member.session_timeout_ms if timeout_ms is None else timeout_ms)
        if member.timer is None or member.expires_ms < member.timer_ms:
            self._shard.cancel(member.timer)
            self._expect(member)

    def end(self, member: GroupMember) -> None:
        """The member is gone."""
        self._shard.cancel(member.timer)
        member.timer = None

    def _expect(self, member: GroupMember) -> None:
        member.timer_ms = member.expires_ms
        member.timer = self._shard.after(member.expires_ms - self._shard.now_ms, lambda: self._due(member))

    def _due(self, member: GroupMember) -> None:
        member.timer = None
        if self._shard.now_ms < member.expires_ms:
            self._expect(member)
        elif not member.excused:
            self._lost(member)
