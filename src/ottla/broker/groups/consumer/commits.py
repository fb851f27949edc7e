"""Permission to commit, fetch and delete offsets of a consumer group: its members in their epoch; every client while it is empty.

Source: Kafka's ConsumerGroup.validateOffsetCommit and validateOffsetFetch, KIP-848.
"""

from ottla.broker.groups.consumer.group import ConsumerGroup
from ottla.broker.groups.consumer.reconciliation import ConsumerGroupMember
from ottla.wire import errors

#: The first OffsetCommit version for members of the consumer protocol: it has STALE_MEMBER_EPOCH.
COMMIT_SINCE = 9


def check_commit(group: ConsumerGroup, member_id: str, epoch: int, version: int, *, transactional: bool = False) -> None:
    """Raises: UnknownMemberId, StaleMemberEpoch, IllegalGeneration (of a classic member), UnsupportedVersion."""
    if epoch < 0 and not group.members:
        return
    member = _member(group, member_id)
    if member.classic is None and version < COMMIT_SINCE and not transactional:
        raise errors.UnsupportedVersion(f"members of the new protocol commit with version {COMMIT_SINCE} or later")
    _check_epoch(member, epoch)


def check_fetch(group: ConsumerGroup, member_id: str | None, epoch: int) -> None:
    """A client without a member id may fetch. Raises: UnknownMemberId, StaleMemberEpoch, IllegalGeneration (of a classic member)."""
    if not member_id and epoch < 0:
        return
    _check_epoch(_member(group, member_id or ""), epoch)


def _member(group: ConsumerGroup, member_id: str) -> ConsumerGroupMember:
    member = group.members.get(member_id)
    if member is None:
        raise errors.UnknownMemberId(f"group {group.group_id!r} has no member {member_id!r}")
    return member


def _check_epoch(member: ConsumerGroupMember, epoch: int) -> None:
    if epoch != member.epoch:
        wrong = errors.StaleMemberEpoch if member.classic is None else errors.IllegalGeneration
        raise wrong(f"member {member.member_id!r} is in epoch {member.epoch}, not {epoch}")
