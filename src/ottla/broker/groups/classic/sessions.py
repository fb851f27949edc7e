"""When members are given up: each lives on for its session timeout after it was last heard of.

Hearing of a member moves a number, no timer: the timer that stands fires when the session would have ended, and is set anew if it ends
later.
"""

from collections.abc import Callable
from typing import Any

from ottla.broker.coordinator import Shard
from ottla.broker.groups.classic.members import Member


class Sessions:
    """The sessions of one group's members."""

    __slots__ = ("_lost", "_shard")

    def __init__(self, shard: Shard[Any], lost: Callable[[Member], None]) -> None:
        """``lost`` is told of a member whose session ended though it could have been heard of."""
        self._shard = shard
        self._lost = lost

    def alive(self, member: Member, timeout_ms: int | None = None) -> None:
        """We have heard of the member, or answered it: its session begins anew, for its own timeout or another."""
        member.expires_ms = self._shard.now_ms + (member.session_timeout_ms if timeout_ms is None else timeout_ms)
        if member.timer is None or member.expires_ms < member.timer_ms:
            self._shard.cancel(member.timer)
            self._expect(member)

    def end(self, member: Member) -> None:
        """The member is gone."""
        self._shard.cancel(member.timer)
        member.timer = None

    def _expect(self, member: Member) -> None:
        member.timer_ms = member.expires_ms
        member.timer = self._shard.after(member.expires_ms - self._shard.now_ms, lambda: self._due(member))

    def _due(self, member: Member) -> None:
        member.timer = None
        if self._shard.now_ms < member.expires_ms:
            self._expect(member)
        elif not member.excused:
            self._lost(member)
