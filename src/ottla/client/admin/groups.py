"""Admin requests about groups: members, assignments, offsets, lag.

    await admin.list_groups(states=["Empty"])
    await admin.describe_consumer_groups(["orders"])
    await admin.alter_consumer_group_offsets("orders", {("t", 0): 42})

Each broker lists the groups that it coordinates, so a list is requested from all of them, everything else from a group's coordinator, for
many groups per request if the version allows. Groups of the classic and the consumer protocol (KIP-848) have the same result types.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from ottla.base.ids import TopicPartition, as_partition
from ottla.client.admin import group_results as g
from ottla.client.admin.calls import AdminCalls, HasCalls, Outcome, each_once, failed, good
from ottla.client.admin.results import Node, Operation
from ottla.client.errors import BrokerIncompatible
from ottla.client.group.assignor import by_topic
from ottla.client.group.commits import GROUPS_SINCE, NAMES_UNTIL, STABLE_SINCE, Committed, OffsetAndMetadata, commit_topics, offsets_given
from ottla.client.group.coordinator_lookup import COORDINATOR_PASSES
from ottla.client.html_tables import HtmlRows, Outcomes
from ottla.wire import messages as m
from ottla.wire.declare import MalformedMessage
from ottla.wire.errors import GroupIdNotFound, KafkaError, UnknownServerError
from ottla.wire.messages import consumer_group_describe, describe_groups
from ottla.wire.messages.consumer_protocol import (
    PROTOCOL_TYPE,
    ConsumerProtocolAssignment,
    decode_embedded,
    decode_subscription,
)

if TYPE_CHECKING:
    from ottla.client.admin.group_lag import GroupLag

T = TypeVar("T")
Partition = TopicPartition | tuple[str, int]
#: First version of ListGroups with states, and with types; first version of LeaveGroup for other members.
STATES_SINCE = 4
TYPES_SINCE = 5
MEMBERS_SINCE = 3
#: UNSTABLE_OFFSET_COMMIT: an open transaction has pending offsets; retried.
UNSTABLE = 88


async def list_groups(
    self: HasCalls,
    *,
    states: Iterable[g.GroupState | str] = (),
    types: Iterable[g.GroupType | str] = (),
    protocol_types: Iterable[str] = (),
    timeout_ms: float | None = None,
) -> list[g.GroupListing]:
    """Groups by id; optionally only those in these states, of these types, or with these kinds of members ("consumer", "connect", ""
    for groups with committed offsets only).

    Raises: the error of a broker that does not answer, since the list would be incomplete; BrokerIncompatible if it cannot filter.

    Example: `admin.list_groups(states=["Stable", "Empty"], types=["consumer"])`.
    """
    request = m.ListGroupsRequest(states_filter=[str(one) for one in states], types_filter=[str(one).lower() for one in types])
    at_least = TYPES_SINCE if request.types_filter else STATES_SINCE if request.states_filter else 0
    nodes = await self._calls.brokers(self._calls.limit_ms(timeout_ms))
    answers = await self._calls.each_broker(
        nodes, request, lambda response: response.groups, timeout_ms, "listing groups of broker", at_least=at_least
    )
    # If its coordinator changes meanwhile, a group may be listed twice.
    kinds = set(protocol_types)
    found = {one.group_id: one for answer in answers.values() for one in good(answer) if not kinds or one.protocol_type in kinds}
    return HtmlRows(
        g.GroupListing(one.group_id, one.protocol_type, g.GroupState(one.group_state), g.GroupType(one.group_type))
        for _, one in sorted(found.items())
    )


async def describe_consumer_groups(
    self: HasCalls, groups: Iterable[str], *, authorized_operations: bool = False, timeout_ms: float | None = None
) -> dict[str, Outcome[g.GroupDescription]]:
    """State, members and assignments of groups of either protocol, optionally with authorized operations. GroupIdNotFound for a group
    that does not exist.

    Example: `admin.describe_consumer_groups(["billing", "shipping"])`.
    """

    async def ask(node: int, share: dict[str, None], left_ms: float) -> dict[str, Outcome[g.GroupDescription]]:
        broker = self._calls.network.cluster.brokers[node]
        where = Node(broker.node_id, broker.host, broker.port, broker.rack)
        found: dict[str, Outcome[g.GroupDescription]] = {}
        try:
            response = await self._calls.network.ask(
                node, m.ConsumerGroupDescribeRequest(group_ids=list(share), include_authorized_operations=authorized_operations)
            )
            found = {one.group_id: failed(one) or _described(one, where) for one in response.groups}
        except BrokerIncompatible:
            pass
        classic = [group for group in share if isinstance(found.get(group, GroupIdNotFound()), GroupIdNotFound)]
        if classic:
            request = m.DescribeGroupsRequest(groups=classic, include_authorized_operations=authorized_operations)
            old = await self._calls.network.ask(node, request)
            found |= {one.group_id: failed(one) or _described_classic(one, where) for one in old.groups}
        return found

    return Outcomes(await self._calls.by_coordinator(each_once(groups), ask, timeout_ms, "describing group"))


async def describe_consumer_group(
    self: HasCalls, group: str, *, authorized_operations: bool = False, timeout_ms: float | None = None
) -> g.GroupDescription:
    """One group. Raises: GroupIdNotFound and the like. Example: `admin.describe_consumer_group("billing")`."""
    found = await describe_consumer_groups(self, [group], authorized_operations=authorized_operations, timeout_ms=timeout_ms)
    return good(found[group])


async def delete_consumer_groups(self: HasCalls, groups: Iterable[str], *, timeout_ms: float | None = None) -> dict[str, Outcome[None]]:
    """Delete groups without members, and their offsets. Errors: NonEmptyGroup, GroupIdNotFound.

    Example: `admin.delete_consumer_groups(["billing"])`.
    """

    async def ask(node: int, share: dict[str, None], left_ms: float) -> dict[str, Outcome[None]]:
        response = await self._calls.network.ask(node, m.DeleteGroupsRequest(groups_names=list(share)))
        return {one.group_id: failed(one) for one in response.results}

    return await self._calls.by_coordinator(each_once(groups), ask, timeout_ms, "deleting group")


async def delete_consumer_group(self: HasCalls, group: str, *, timeout_ms: float | None = None) -> None:
    """Delete one group. Raises: NonEmptyGroup, GroupIdNotFound and the like. Example: `admin.delete_consumer_group("billing")`."""
    good((await delete_consumer_groups(self, [group], timeout_ms=timeout_ms))[group])


async def list_consumer_group_offsets(
    self: HasCalls,
    groups: Iterable[str] | Mapping[str, Iterable[Partition] | None],
    *,
    require_stable: bool = False,
    timeout_ms: float | None = None,
) -> dict[str, Outcome[dict[TopicPartition, Outcome[OffsetAndMetadata | None]]]]:
    """Committed offsets of groups: of all their partitions, or of these, with None if nothing is committed.

    `require_stable` waits for the pending offsets of open transactions. A group that does not exist has no offsets; that is no error.

    Example: `admin.list_consumer_group_offsets({"billing": [("orders", 0)], "shipping": None}, require_stable=True)`.
    """
    wanted: dict[str, list[TopicPartition] | None] = (
        {group: None if named is None else [as_partition(tp) for tp in named] for group, named in groups.items()}
        if isinstance(groups, Mapping)
        else dict.fromkeys(each_once(groups))
    )

    async def ask(node: int, share: dict[str, list[TopicPartition] | None], left_ms: float) -> dict[str, Any]:
        peer = await self._calls.network.peer(node)
        if peer.version(m.OffsetFetchRequest, at_most=NAMES_UNTIL) < GROUPS_SINCE:
            return {group: await _offsets_of_one(self._calls, node, group, named, require_stable) for group, named in share.items()}
        request = m.OffsetFetchRequest(groups=[_fetched(*one) for one in share.items()], require_stable=require_stable)
        response = await self._calls.network.ask(node, request, at_most=NAMES_UNTIL)
        return {one.group_id: failed(one) or _offsets(one.topics) for one in response.groups}

    return await self._calls.by_coordinator(wanted, ask, timeout_ms, "listing offsets of group")


async def _offsets_of_one(
    calls: AdminCalls, node: int, group: str, named: list[TopicPartition] | None, require_stable: bool
) -> Outcome[Any]:
    """The same from a broker before Kafka 3.0, with one group per request."""
    topics = None if named is None else [m.OffsetFetchRequestTopic(name=t, partition_indexes=ps) for t, ps in by_topic(named).items()]
    request = m.OffsetFetchRequest(group_id=group, topics=topics, require_stable=require_stable)
    at_least = STABLE_SINCE if require_stable else 2 if topics is None else 1
    try:
        response = await calls.network.ask(node, request, at_least=at_least, at_most=GROUPS_SINCE - 1)
    except KafkaError as error:
        return error
    return failed(response) or _offsets(response.topics)


async def alter_consumer_group_offsets(
    self: HasCalls, group: str, offsets: Mapping[Partition, Committed], *, timeout_ms: float | None = None
) -> dict[TopicPartition, Outcome[None]]:
    """Commit offsets for a group without members, which is created if needed. UnknownMemberId if it has members.

    Raises: ValueError for an offset below 0; CoordinatorNotAvailable, GroupAuthorizationFailed and the like, RequestTimedOut.

    Example: `admin.alter_consumer_group_offsets("billing", {("orders", 0): 1000})`.
    """
    wanted = offsets_given(offsets)

    async def ask(node: int, share: dict[str, None], left_ms: float) -> dict[str, Outcome[dict[TopicPartition, Outcome[None]]]]:
        request = m.OffsetCommitRequest(group_id=group, topics=commit_topics(wanted))
        return {group: _each_partition(await self._calls.network.ask(node, request, at_most=NAMES_UNTIL))}

    if not wanted:
        return {}
    return await _of_one(self._calls, group, ask, timeout_ms, "committing offsets of group")


async def delete_consumer_group_offsets(
    self: HasCalls, group: str, partitions: Iterable[Partition], *, timeout_ms: float | None = None
) -> dict[TopicPartition, Outcome[None]]:
    """Delete committed offsets of partitions. GroupSubscribedToTopic if the group reads the topic.

    Raises: GroupIdNotFound, NonEmptyGroup for members that are not consumers, and the like.

    Example: `admin.delete_consumer_group_offsets("billing", [("orders", 0)])`.
    """
    topics = [
        m.OffsetDeleteRequestTopic(
            name=topic, partitions=[m.OffsetDeleteRequestPartition(partition_index=partition) for partition in indexes]
        )
        for topic, indexes in by_topic(map(as_partition, partitions)).items()
    ]

    async def ask(node: int, share: dict[str, None], left_ms: float) -> dict[str, Outcome[dict[TopicPartition, Outcome[None]]]]:
        response = await self._calls.network.ask(node, m.OffsetDeleteRequest(group_id=group, topics=topics))
        return {group: failed(response) or _each_partition(response)}

    return await _of_one(self._calls, group, ask, timeout_ms, "deleting offsets of group")


async def remove_members_from_consumer_group(
    self: HasCalls,
    group: str,
    members: Iterable[str] | None = None,
    *,
    reason: str = "removed by an administrator",
    timeout_ms: float | None = None,
) -> dict[str, Outcome[None]]:
    """Remove static members from their group by instance id, or with None all members by member id.

    Raises: GroupIdNotFound, BrokerIncompatible before Kafka 2.4 and the like. Source: KIP-345, KIP-571, KIP-800.

    Example: `admin.remove_members_from_consumer_group("billing", reason="stuck")`.
    """
    if members is None:
        there = good((await describe_consumer_groups(self, [group], timeout_ms=timeout_ms))[group]).members
        leaving = [m.MemberIdentity(member_id=one.member_id, reason=reason) for one in there]
    else:
        leaving = [m.MemberIdentity(group_instance_id=one, reason=reason) for one in each_once(members)]

    async def ask(node: int, share: dict[str, None], left_ms: float) -> dict[str, Outcome[dict[str, Outcome[None]]]]:
        request = m.LeaveGroupRequest(group_id=group, members=leaving)
        response = await self._calls.network.ask(node, request, at_least=MEMBERS_SINCE)
        by_instance = members is not None
        return {
            group: failed(response)
            or {(one.group_instance_id or "") if by_instance else one.member_id: failed(one) for one in response.members}
        }

    if not leaving:
        return {}
    return await _of_one(self._calls, group, ask, timeout_ms, "removing members of group")


async def consumer_group_lag(
    self: HasCalls, groups: Iterable[str], *, times: bool = True, timeout_ms: float | None = None
) -> dict[str, Outcome[GroupLag]]:
    """The lag of groups in records and, with `times`, in time: see `ottla.client.admin.group_lag`.

    Example: `admin.consumer_group_lag(["billing"], times=False)`.
    """
    # Only this call reads records and needs the record codec.
    from ottla.client.admin.group_lag import lag_of

    names, limit_ms = list(each_once(groups)), self._calls.limit_ms(timeout_ms)
    described = await describe_consumer_groups(self, names, timeout_ms=limit_ms)
    there: dict[str, g.GroupDescription] = {name: one for name, one in described.items() if not isinstance(one, KafkaError)}
    committed = await list_consumer_group_offsets(self, list(there), timeout_ms=limit_ms)
    measured = await lag_of(self._calls.network, there, committed, times=times, timeout_ms=limit_ms)
    return Outcomes((name, one if isinstance(one, KafkaError) else measured[name]) for name, one in described.items())


async def _of_one(
    calls: AdminCalls,
    group: str,
    ask: Callable[[int, dict[str, None], float], Awaitable[Mapping[str, Outcome[T]]]],
    timeout_ms: float | None,
    doing: str,
) -> T:
    return good((await calls.by_coordinator({group: None}, ask, timeout_ms, doing))[group])


def _fetched(group: str, named: list[TopicPartition] | None) -> m.OffsetFetchRequestGroup:
    topics = None if named is None else [m.OffsetFetchRequestTopics(name=t, partition_indexes=ps) for t, ps in by_topic(named).items()]
    return m.OffsetFetchRequestGroup(group_id=group, topics=topics)


def _offsets(topics: Iterable[Any]) -> Outcome[dict[TopicPartition, Outcome[OffsetAndMetadata | None]]]:
    """The result of OffsetFetch for one group. An error that all partitions have is the group's error."""
    found: dict[TopicPartition, Outcome[OffsetAndMetadata | None]] = {}
    for topic in topics:
        for one in topic.partitions:
            error = failed(one)
            if error is not None and (error.code in COORDINATOR_PASSES or error.code == UNSTABLE):
                return error
            committed = OffsetAndMetadata(one.committed_offset, one.metadata or "", one.committed_leader_epoch)
            found[TopicPartition(topic.name, one.partition_index)] = error or (committed if one.committed_offset >= 0 else None)
    return found


def _each_partition(response: Any) -> Outcome[dict[TopicPartition, Outcome[None]]]:
    """Errors by partition. An error that all partitions have is the group's error."""
    found: dict[TopicPartition, Outcome[None]] = {}
    for topic in response.topics:
        for one in topic.partitions:
            error = failed(one)
            if error is not None and error.code in COORDINATOR_PASSES:
                return error
            found[TopicPartition(topic.name, one.partition_index)] = error
    return found


def _described(one: consumer_group_describe.DescribedGroup, where: Node) -> g.GroupDescription:
    members = [
        g.GroupMember(
            each.member_id,
            each.instance_id,
            each.client_id,
            each.client_host,
            _partitions(each.assignment),
            sorted(each.subscribed_topic_names),
            each.subscribed_topic_regex or None,
            each.member_epoch,
            each.rack_id,
            _partitions(each.target_assignment),
        )
        for each in one.members
    ]
    state = g.GroupState(one.group_state)
    return g.GroupDescription(
        one.group_id,
        g.GroupType.CONSUMER,
        state,
        PROTOCOL_TYPE,
        one.assignor_name,
        where,
        members,
        one.group_epoch,
        one.assignment_epoch,
        Operation.of_bits(one.authorized_operations),
    )


def _partitions(assignment: consumer_group_describe.Assignment) -> list[TopicPartition]:
    return sorted(TopicPartition(topic.topic_name, index) for topic in assignment.topic_partitions for index in topic.partitions)


def _described_classic(one: describe_groups.DescribedGroup, where: Node) -> Outcome[g.GroupDescription]:
    state = g.GroupState(one.group_state)
    if state is g.GroupState.DEAD:
        return GroupIdNotFound(f"there is no group {one.group_id}")
    consumers = one.protocol_type == PROTOCOL_TYPE
    try:
        members = [_member_classic(each, consumers) for each in one.members]
    except MalformedMessage as malformed:
        return UnknownServerError(f"group {one.group_id}: what its members tell each other cannot be read: {malformed}")
    return g.GroupDescription(
        one.group_id,
        g.GroupType.CLASSIC,
        state,
        one.protocol_type,
        one.protocol_data,
        where,
        members,
        authorized_operations=Operation.of_bits(one.authorized_operations),
    )


def _member_classic(one: m.DescribedGroupMember, consumers: bool) -> g.GroupMember:
    assignment: list[TopicPartition] = []
    topics: list[str] = []
    if consumers and one.member_assignment:
        told = decode_embedded(ConsumerProtocolAssignment, one.member_assignment).assigned_partitions
        assignment = sorted(TopicPartition(part.topic, index) for part in told for index in part.partitions)
    if consumers and one.member_metadata:
        topics = sorted(decode_subscription(one.member_metadata).topics)
    return g.GroupMember(one.member_id, one.group_instance_id, one.client_id, one.client_host, assignment, topics)
