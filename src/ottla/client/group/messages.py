"""Requests of a classic member, and the assignor data inside of them. Pure functions.

Brokers do not read assignor data: `ConsumerProtocolSubscription` in each protocol of a join, `ConsumerProtocolAssignment` in a sync, in
the last known version; readers of older versions ignore unknown fields.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ottla.base.ids import TopicPartition
from ottla.client.group.assignor import Assignment, Assignor, Member, by_topic
from ottla.client.options import ConsumerOptions
from ottla.wire.declare import MalformedMessage
from ottla.wire.messages import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from ottla.wire.messages.consumer_protocol import (
    PROTOCOL_TYPE,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    decode_subscription,
    encode_embedded,
)
from ottla.wire.messages.consumer_protocol import TopicPartition as TopicPartitions
from ottla.wire.messages.leave_group import MemberIdentity

#: LeaveGroup: first version with a list of members.
LEAVE_LIST_SINCE = 3


def protocol(
    options: ConsumerOptions, assignor: Assignor, topics: Iterable[str], owned: Iterable[TopicPartition], generation: int
) -> JoinGroupRequestProtocol:
    """Data for the leader's assignor of this name."""
    told = ConsumerProtocolSubscription(
        topics=sorted(topics),
        user_data=assignor.user_data(topics),
        owned_partitions=grouped(owned),
        generation_id=generation,
        rack_id=options.client_rack or None,
    )
    return JoinGroupRequestProtocol(name=assignor.name, metadata=encode_embedded(told))


def join_request(
    options: ConsumerOptions, member_id: str, protocols: list[JoinGroupRequestProtocol], reason: str, version: int
) -> JoinGroupRequest:
    """Joins or rejoins; without a member id, to get one."""
    return JoinGroupRequest(
        group_id=options.group_id,
        session_timeout_ms=options.session_timeout_ms,
        rebalance_timeout_ms=options.max_poll_interval_ms,
        member_id=member_id,
        group_instance_id=options.group_instance_id or None,
        protocol_type=PROTOCOL_TYPE,
        protocols=protocols,
        reason=reason or None,
    )


def sync_request(
    options: ConsumerOptions, member_id: str, generation: int, chosen: str, made: Assignment, version: int
) -> SyncGroupRequest:
    """Requests the assignment; the leader sends the assignment of all."""
    return SyncGroupRequest(
        group_id=options.group_id,
        generation_id=generation,
        member_id=member_id,
        group_instance_id=options.group_instance_id or None,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=chosen,
        assignments=[
            SyncGroupRequestAssignment(
                member_id=member, assignment=encode_embedded(ConsumerProtocolAssignment(assigned_partitions=grouped(partitions)))
            )
            for member, partitions in made.items()
        ],
    )


def heartbeat_request(options: ConsumerOptions, member_id: str, generation: int, version: int) -> HeartbeatRequest:
    """Heartbeat."""
    return HeartbeatRequest(
        group_id=options.group_id, generation_id=generation, member_id=member_id, group_instance_id=options.group_instance_id or None
    )


def leave_request(options: ConsumerOptions, member_id: str, reason: str, version: int) -> LeaveGroupRequest:
    """Leaves the group."""
    if version >= LEAVE_LIST_SINCE:
        who = MemberIdentity(member_id=member_id, group_instance_id=options.group_instance_id or None, reason=reason)
        return LeaveGroupRequest(group_id=options.group_id, members=[who])
    return LeaveGroupRequest(group_id=options.group_id, member_id=member_id)


def member_told(one: Any) -> Member:
    """A member from its own data. Unreadable data means no subscription, so that one member does not stop the group."""
    try:
        told = decode_subscription(one.metadata)
    except MalformedMessage:
        return Member(frozenset(), instance_id=one.group_instance_id)
    owned = tuple(TopicPartition(some.topic, partition) for some in told.owned_partitions for partition in some.partitions)
    return Member(frozenset(told.topics), told.user_data, owned, told.generation_id, told.rack_id, one.group_instance_id)


def grouped(partitions: Iterable[TopicPartition]) -> list[TopicPartitions]:
    """Partitions by topic, as in messages."""
    return [TopicPartitions(topic=topic, partitions=sorted(some)) for topic, some in sorted(by_topic(partitions).items())]
