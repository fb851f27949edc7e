"""Rebalances of groups, step by step per member, from the changes that the coordinator noted.

A rebalance begins with its cause: a member joined, left or changed, or its session ended. It ends when the group is stable or empty.

==========  ============================================================================================
classic     cause, ``rebalance started``, ``rejoined`` of each member, ``generation``, ``synced``, ``stable``
consumer    cause, ``new assignment``, each member with what it keeps, revokes and gets, ``state Stable``
==========  ============================================================================================

Followers of a classic group may send SyncGroup after the leader: such a step belongs to the rebalance that ended.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ottla.console.timelines.reader import TimelineEntry

#: Changes of the whole group, besides causes.
_STARTED, _GENERATION, _ASSIGNMENT = "rebalance started", "generation", "new assignment"
_LATE = ("synced", "assigned")
_MEMBER_STEPS = ("rejoined", "synced", "assigned", "stable", "unrevoked partitions", "unreleased partitions")


class RebalanceStep(msgspec.Struct, frozen=True):
    """One step: of a member, or of the group."""

    after_ms: int
    what: str
    detail: str = ""


class MemberSteps(msgspec.Struct):
    """The way of one member through a rebalance."""

    member: str
    client_id: str = ""
    host: str = ""
    steps: list[RebalanceStep] = []
    partitions: str = ""
    #: Time of its last step after the start.
    last_ms: int = 0
    is_gone: bool = False


class Rebalance(msgspec.Struct):
    """One rebalance. None: unknown, because it is older than the timeline or still going on."""

    group: str
    broker: int
    began_ms: int
    causes: list[str] = []
    generation: int | None = None
    ended_ms: int | None = None
    outcome: str = ""
    members: dict[str, MemberSteps] = {}
    steps: list[RebalanceStep] = []

    @property
    def took_ms(self) -> int | None:
        """From the cause to the end."""
        return None if self.ended_ms is None else self.ended_ms - self.began_ms

    @property
    def length_ms(self) -> int:
        """The time that the picture of the members covers."""
        return max([self.took_ms or 0, *(one.last_ms for one in self.members.values()), 1])


def rebalances(changes: Iterable[TimelineEntry]) -> list[Rebalance]:
    """Rebalances of all groups, the latest first. `changes` are in the order of time."""
    current: dict[tuple[str, int], Rebalance] = {}
    found: list[Rebalance] = []
    for change in changes:
        key = change.name, change.broker
        now = current.get(key)
        if now is None or (now.ended_ms is not None and not _is_late(change, now)):
            if now is None and change.what in _LATE:
                # Its begin is older than the timeline.
                continue
            now = current[key] = Rebalance(change.name, change.broker, change.wall_ms)
            found.append(now)
        _add(now, change)
    found.sort(key=lambda one: -one.began_ms)
    return found


def _is_late(change: TimelineEntry, ended: Rebalance) -> bool:
    return change.what in _LATE and change.fields.get("generation") == ended.generation


def _add(now: Rebalance, change: TimelineEntry) -> None:
    fields, after_ms = change.fields, max(change.wall_ms - now.began_ms, 0)
    member_id = fields.get("member")
    if isinstance(member_id, str) and member_id:
        _add_member(now, change, now.members.setdefault(member_id, MemberSteps(member_id)), after_ms)
        return
    generation = fields.get("generation")
    if change.what in (_GENERATION, _ASSIGNMENT) and isinstance(generation, int):
        now.generation = generation
    if change.what in ("stable", "empty", "state Stable", "state Empty"):
        now.ended_ms, now.outcome = change.wall_ms, change.what.removeprefix("state ").lower()
        now.generation = generation if isinstance(generation, int) else now.generation
    now.steps.append(RebalanceStep(after_ms, change.what, _group_detail(change)))


def _add_member(now: Rebalance, change: TimelineEntry, member: MemberSteps, after_ms: int) -> None:
    fields = change.fields
    member.client_id = str(fields.get("client_id") or member.client_id)
    member.host = str(fields.get("host") or member.host)
    member.last_ms = max(member.last_ms, after_ms)
    detail = ""
    if change.what in _MEMBER_STEPS:
        if "partitions" in fields:
            member.partitions = str(fields["partitions"])
        if fields.get("revoking"):
            detail = f"revokes {fields['revoking']}"
    else:
        # A cause: "joined", "left", "sent no heartbeat in its session timeout and is removed from".
        detail = str(fields.get("reason") or "")
        what = change.what.removesuffix(" from").removesuffix(" in").removesuffix(" of")
        now.causes.append(f"{member.client_id or member.member} {what}" + (f": {detail}" if detail else ""))
        member.is_gone = member.is_gone or "removed" in change.what or change.what.startswith("left")
        member.steps.append(RebalanceStep(after_ms, what, detail))
        return
    member.steps.append(RebalanceStep(after_ms, change.what, detail))


def _group_detail(change: TimelineEntry) -> str:
    fields = change.fields
    parts = []
    if change.what in (_GENERATION, _ASSIGNMENT):
        parts.append(f"{fields.get('generation')}")
    if "members" in fields:
        parts.append(f"{fields['members']} members")
    if fields.get("protocol"):
        parts.append(str(fields["protocol"]))
    return ", ".join(parts)
