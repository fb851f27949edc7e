"""Reconciliation of a member with its target, such that no partition ever has two owners.

    STABLE ---- target differs, partitions to revoke -----> UNREVOKED_PARTITIONS
       |                                                        | the member no longer reports them as owned
       |------- nothing to revoke -----------------+            v
       |                                           +----> next step towards the target
       |                                                        |
       |<------ the whole target is free -----------------------+
       +------> UNRELEASED_PARTITIONS <--- others still own part of the target: take the rest, heartbeat again

A member that must revoke partitions stays in its epoch until it has; then it moves to the epoch of the target assignment and gets what is
free. A partition is free if no member has it assigned or pending revocation. Source: KIP-848.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import msgspec

from ottla.broker.groups.consumer.record_schemas import ClassicMemberMetadata
from ottla.wire.errors import FencedMemberEpoch

#: Partitions by topic id. Topics without a partition are absent. Immutable.
Assignment: TypeAlias = Mapping[bytes, frozenset[int]]

STABLE, UNREVOKED_PARTITIONS, UNRELEASED_PARTITIONS = 0, 1, 2
STATE_NAMES = {STABLE: "STABLE", UNREVOKED_PARTITIONS: "UNREVOKED_PARTITIONS", UNRELEASED_PARTITIONS: "UNRELEASED_PARTITIONS"}

NOTHING: Assignment = {}


class ConsumerGroupMember(msgspec.Struct, frozen=True, kw_only=True):
    """A member as in its records."""

    member_id: str
    #: Its member epoch; 0 before it has joined, -2 while a static member is away.
    epoch: int = 0
    #: The previous epoch, accepted if the response with the new one was lost.
    previous_epoch: int = 0
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    #: Subscription by regular expression, in addition to ``topics``.
    pattern: str | None = None
    assignor: str | None = None
    state: int = STABLE
    assigned: Assignment = msgspec.field(default_factory=dict)
    #: Partitions that the member must revoke and still owns.
    revoking: Assignment = msgspec.field(default_factory=dict)
    #: The member epoch in which the member got each partition of ``assigned`` and ``revoking``, by topic id and number. Source: KIP-1251.
    assignment_epochs: Mapping[bytes, Mapping[int, int]] = msgspec.field(default_factory=dict)
    #: Null for a consumer member.
    classic: ClassicMemberMetadata | None = None


#: Owner of a partition by topic id and number: the member id, or None.
Owner: TypeAlias = Callable[[bytes, int], str | None]


def reconcile(
    member: ConsumerGroupMember, *, target_epoch: int, target: Assignment, owner: Owner, owned: Assignment | None, force: bool = False
) -> ConsumerGroupMember:
    """The member one step on; the same object without changes.

    ``owned`` has the partitions that the member reports, None if it did not. ``force`` takes a step even in the target's epoch, because the
    member unsubscribed from topics of its target. Raises: FencedMemberEpoch for a member in an unknown state.
    """
    match member.state:
        case 0:
            if member.epoch == target_epoch and not force:
                return member
            epoch = member.epoch
        case 1:
            if owned is None or overlap(owned, member.revoking):
                return member
            epoch = min(member.epoch + 1, target_epoch)
        case 2:
            epoch = member.epoch
        case _:
            if owned is None or owned:
                raise FencedMemberEpoch("the member is in a state this broker does not know; it must give up its partitions and join again")
            epoch = target_epoch
    return _step(member, epoch=epoch, target_epoch=target_epoch, target=target, owner=owner, owned=owned)


def _step(
    member: ConsumerGroupMember, *, epoch: int, target_epoch: int, target: Assignment, owner: Owner, owned: Assignment | None
) -> ConsumerGroupMember:
    kept: dict[bytes, frozenset[int]] = {}
    revoking: dict[bytes, frozenset[int]] = {}
    for topic, partitions in member.assigned.items():
        stays = partitions & target.get(topic, frozenset())
        if stays:
            kept[topic] = stays
        if len(stays) < len(partitions):
            revoking[topic] = partitions - stays
    if revoking and (owned is None or overlap(owned, revoking)):
        return _moved(member, epoch, UNREVOKED_PARTITIONS, kept, revoking)
    unreleased = False
    for topic, wanted in target.items():
        missing = wanted - kept.get(topic, frozenset())
        if missing:
            free = frozenset(number for number in missing if owner(topic, number) in (None, member.member_id))
            unreleased = unreleased or len(free) < len(missing)
            if free:
                kept[topic] = kept.get(topic, frozenset()) | free
    return _moved(member, target_epoch, UNRELEASED_PARTITIONS if unreleased else STABLE, kept, NOTHING)


def _moved(member: ConsumerGroupMember, epoch: int, state: int, assigned: Assignment, revoking: Assignment) -> ConsumerGroupMember:
    if (member.epoch, member.state, member.assigned, member.revoking) == (epoch, state, assigned, revoking):
        return member
    return msgspec.structs.replace(
        member,
        epoch=epoch,
        previous_epoch=member.epoch,
        state=state,
        assigned=dict(assigned),
        revoking=dict(revoking),
        assignment_epochs=_assignment_epochs(member, epoch, assigned, revoking),
    )


def _assignment_epochs(member: ConsumerGroupMember, epoch: int, assigned: Assignment, revoking: Assignment) -> dict[bytes, dict[int, int]]:
    """Partitions that the member had assigned keep their assignment epoch; the others are assigned in ``epoch``."""
    found: dict[bytes, dict[int, int]] = {}
    for assignment in (assigned, revoking):
        for topic, partitions in assignment.items():
            had, epochs = member.assigned.get(topic, frozenset()), member.assignment_epochs.get(topic, {})
            found.setdefault(topic, {}).update({one: epochs.get(one, member.epoch) if one in had else epoch for one in partitions})
    return found


def overlap(some: Assignment, others: Assignment) -> bool:
    """Whether the two share a partition."""
    return any(not partitions.isdisjoint(others.get(topic, frozenset())) for topic, partitions in some.items())


def within(some: Assignment, others: Assignment) -> bool:
    """Whether each partition of the first is in the second."""
    return all(partitions <= others.get(topic, frozenset()) for topic, partitions in some.items())
