"""Online migration of a group: from classic to consumer protocol with its first consumer member, and back when the last one leaves.

Upgrade: the last assignment of the classic group becomes target and assignment of its members, and the generation becomes the epoch. The
new member's change then moves partitions, and classic members must rejoin. Downgrade: targets become the assignments of a classic group
whose generation is the group epoch; its members must rejoin, and their leader assigns.

During a cooperative rebalance a classic member owns more than its assignment: the leader withholds the member's owned partitions from
others until the member has revoked them and joins again (KIP-429). So owned partitions outside of its assignment are pending revocation,
and no other member gets them. Difference from Kafka, which treats all members as STABLE and assigns such partitions while they are still
read.

Both conversions are one batch: tombstones of the old kind, then records of the new one. Source: KIP-848.
"""

from collections.abc import Iterable, Sequence

import msgspec

from ottla.broker.groups.classic.members import GroupMember
from ottla.broker.groups.consumer import records as writes
from ottla.broker.groups.consumer.changes import Topics
from ottla.broker.groups.consumer.classic_members import embedded, existing
from ottla.broker.groups.consumer.group import ConsumerGroup
from ottla.broker.groups.consumer.reconciliation import UNREVOKED_PARTITIONS, ConsumerGroupMember
from ottla.broker.groups.consumer.record_schemas import ClassicMemberMetadata, ClassicProtocol
from ottla.broker.groups.consumer.records import Record
from ottla.broker.groups.records import MemberMetadata
from ottla.wire.declare import MalformedMessage
from ottla.wire.errors import GroupIdNotFound
from ottla.wire.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    decode_embedded,
    decode_subscription,
)


def may_upgrade(policy: str) -> bool:
    """Whether the first consumer member may convert a classic group."""
    return policy in ("upgrade", "bidirectional")


def may_downgrade(policy: str) -> bool:
    """Whether the group becomes classic when its last consumer member leaves."""
    return policy in ("downgrade", "bidirectional")


def upgraded(
    group_id: str, generation: int, protocol: str | None, members: Iterable[GroupMember], topics: Topics
) -> tuple[ConsumerGroup, list[Record]]:
    """The consumer group made from a classic one, and its records.

    Raises: GroupIdNotFound if a member is not a consumer.
    """
    draft = ConsumerGroup(group_id)
    draft.epoch = draft.assignment_epoch = generation
    for converted in _unrevoked([_member(member, generation, protocol, topics) for member in members], topics):
        draft.members[converted.member_id] = converted
        draft.targets[converted.member_id] = converted.assigned
    records = writes.whole_group_records(draft)
    group = ConsumerGroup(group_id)
    for key, value in records:
        group.apply(key, value)
    return group, records


def _member(
    before: GroupMember, generation: int, protocol: str | None, topics: Topics
) -> tuple[ConsumerGroupMember, ConsumerProtocolSubscription]:
    try:
        subscription = decode_subscription(before.metadata(protocol) or before.protocols[0][1])
        given = decode_embedded(ConsumerProtocolAssignment, before.assignment).assigned_partitions if before.assignment else []
    except MalformedMessage as error:
        raise GroupIdNotFound(f"member {before.member_id!r} of the classic group does not say what consumers say: {error}") from None
    member = ConsumerGroupMember(
        member_id=before.member_id,
        epoch=generation,
        previous_epoch=generation,
        instance_id=before.instance_id,
        rack_id=subscription.rack_id,
        rebalance_timeout_ms=before.rebalance_timeout_ms,
        client_id=before.client.client_id,
        client_host=before.client.host,
        topics=frozenset(subscription.topics),
        assigned=existing(given, topics),
        classic=ClassicMemberMetadata(
            session_timeout_ms=before.session_timeout_ms,
            supported_protocols=[ClassicProtocol(name=name, metadata=bytes(metadata)) for name, metadata in before.protocols],
        ),
    )
    return member, subscription


def _unrevoked(told: Sequence[tuple[ConsumerGroupMember, ConsumerProtocolSubscription]], topics: Topics) -> list[ConsumerGroupMember]:
    """The members with owned partitions that were not assigned to them or others again; see the module's docstring."""
    taken = {(topic, number) for member, _ in told for topic, numbers in member.assigned.items() for number in numbers}
    found = {member.member_id: member for member, _ in told}
    # If two members claim a partition, the later generation counts.
    for member, subscription in sorted(told, key=lambda each: -each[1].generation_id):
        revoking = {}
        for topic, numbers in existing(subscription.owned_partitions, topics).items():
            left = frozenset(number for number in numbers if (topic, number) not in taken)
            if left:
                revoking[topic] = left
                taken.update((topic, number) for number in left)
        if revoking:
            found[member.member_id] = msgspec.structs.replace(member, state=UNREVOKED_PARTITIONS, revoking=revoking)
    return list(found.values())


def downgrades(group: ConsumerGroup, leaving: Iterable[str], *, members_max: int, policy: str) -> bool:
    """Whether a group becomes classic when these members are gone: only classic members remain."""
    gone = [group.members[member_id] for member_id in leaving if member_id in group.members]
    left = len(group.members) - len(gone)
    classic_left = group.classic_members - sum(1 for member in gone if member.classic is not None)
    newer_gone = any(member.classic is None for member in gone)
    return newer_gone and 0 < left == classic_left <= members_max and may_downgrade(policy)


def replacing_downgrades(group: ConsumerGroup, replaced: ConsumerGroupMember, *, members_max: int, policy: str) -> bool:
    """Whether a group becomes classic when a static member rejoins as a classic one: it was the last consumer member."""
    last = replaced.classic is None and group.classic_members == len(group.members) - 1
    return last and len(group.members) <= members_max and may_downgrade(policy)


def downgraded(group: ConsumerGroup, leaving: Iterable[str], topics: Topics) -> tuple[str, list[MemberMetadata]]:
    """Protocol and recorded members of the remaining classic group; its generation is the group epoch."""
    gone = set(leaving)
    stay = [member for member in group.members.values() if member.member_id not in gone]
    protocol = _elected(stay)
    return protocol, [_recorded(member, group, protocol, topics) for member in stay]


def _elected(members: Sequence[ConsumerGroupMember]) -> str:
    """The common protocol that most members prefer; of several, the first one's preference."""
    protocols = [[each.name for each in member.classic.supported_protocols] for member in members if member.classic is not None]
    common = set(protocols[0]).intersection(*protocols[1:])
    votes: dict[str, int] = {name: 0 for name in protocols[0] if name in common}
    for names in protocols:
        votes[next(name for name in names if name in common)] += 1
    return max(votes, key=lambda name: votes[name])


def _recorded(member: ConsumerGroupMember, group: ConsumerGroup, protocol: str, topics: Topics) -> MemberMetadata:
    classic = member.classic
    assert classic is not None, "only classic members are left in a group that becomes classic"
    subscription = next(each.metadata for each in classic.supported_protocols if each.name == protocol)
    return MemberMetadata(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout=member.rebalance_timeout_ms,
        session_timeout=classic.session_timeout_ms,
        subscription=subscription,
        assignment=embedded(group.targets.get(member.member_id, {}), topics, subscription),
    )
