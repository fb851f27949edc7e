"""An in-memory cluster whose nodes are group coordinators too, with the APIs that an administrator uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from memory_cluster import MemoryCluster, MemoryNode

from ottla.records.batch import headers
from ottla.records.build import build_batch
from ottla.records.read import records
from ottla.wire import messages as m
from ottla.wire.messages import consumer_group_describe as c
from ottla.wire.messages import describe_groups as d
from ottla.wire.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
    encode_embedded,
)

NOT_COORDINATOR, UNKNOWN_MEMBER, NON_EMPTY, NOT_FOUND, SUBSCRIBED = 16, 25, 68, 69, 86
MAX_TIMESTAMP, EARLIEST, LATEST = -3, -2, -1


@dataclass
class AdministeredGroup:
    """A group: its partitions by member id, and its offsets."""

    node_id: int = 1
    type: str = "Classic"
    members: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    offsets: dict[tuple[str, int], tuple[int, str, int]] = field(default_factory=dict)

    @property
    def state(self) -> str:
        return "Stable" if self.members else "Empty"

    @property
    def protocol_type(self) -> str:
        return "consumer" if self.members else ""


class GroupNode(MemoryNode):
    """A broker with the groups that it coordinates."""

    cluster: GroupCluster

    def coordinated(self, name: str) -> AdministeredGroup | int:
        """The group, or the error code."""
        group = self.cluster.by_name.get(name)
        if self.cluster.coordinator(name) != self.node_id:
            return NOT_COORDINATOR
        return NOT_FOUND if group is None else group

    def on_FindCoordinator(self, request: Any, header: Any) -> Any:
        if header.api_version < 4:
            node_id = self.cluster.coordinator(request.key)
            return m.FindCoordinatorResponse(node_id=node_id, host=f"node{node_id}", port=9092)
        where = [(key, self.cluster.coordinator(key)) for key in request.coordinator_keys]
        return m.FindCoordinatorResponse(
            coordinators=[m.Coordinator(key=key, node_id=node_id, host=f"node{node_id}", port=9092) for key, node_id in where]
        )

    def on_ListGroups(self, request: Any, header: Any) -> Any:
        states, types = ({one.lower() for one in wanted} for wanted in (request.states_filter, request.types_filter))
        return m.ListGroupsResponse(
            groups=[
                m.ListedGroup(group_id=name, protocol_type=group.protocol_type, group_state=group.state, group_type=group.type)
                for name, group in self.cluster.by_name.items()
                if group.node_id == self.node_id
                and (not states or group.state.lower() in states)
                and (not types or group.type.lower() in types)
            ]
        )

    def on_DescribeGroups(self, request: Any, header: Any) -> Any:
        return m.DescribeGroupsResponse(groups=[self._classic(name, header.api_version) for name in request.groups])

    def _classic(self, name: str, version: int) -> Any:
        group = self.coordinated(name)
        if group == NOT_FOUND and version < 6:
            return d.DescribedGroup(group_id=name, group_state="Dead")
        if isinstance(group, int):
            return d.DescribedGroup(group_id=name, error_code=group)
        members = []
        for member_id, assigned in group.members.items():
            partitions = [TopicPartition(topic=topic, partitions=numbers) for topic, numbers in assigned.items()]
            members.append(
                d.DescribedGroupMember(
                    member_id=member_id,
                    group_instance_id=f"i-{member_id}",
                    client_id=f"client-{member_id}",
                    client_host="/10.0.0.1",
                    member_metadata=encode_embedded(ConsumerProtocolSubscription(topics=list(assigned))),
                    member_assignment=encode_embedded(ConsumerProtocolAssignment(assigned_partitions=partitions)),
                )
            )
        return d.DescribedGroup(
            group_id=name,
            group_state=group.state,
            protocol_type=group.protocol_type,
            protocol_data="range" if members else "",
            members=members,
        )

    def on_ConsumerGroupDescribe(self, request: Any, header: Any) -> Any:
        return m.ConsumerGroupDescribeResponse(groups=[self._new(name) for name in request.group_ids])

    def _new(self, name: str) -> Any:
        group = self.coordinated(name)
        if isinstance(group, int) or group.type != "Consumer":
            return c.DescribedGroup(group_id=name, error_code=group if isinstance(group, int) else NOT_FOUND)
        members = []
        for member_id, assigned in group.members.items():
            partitions = [c.TopicPartitions(topic_name=topic, partitions=numbers) for topic, numbers in assigned.items()]
            members.append(
                c.Member(
                    member_id=member_id,
                    client_id=f"client-{member_id}",
                    client_host="/10.0.0.1",
                    member_epoch=4,
                    subscribed_topic_names=list(assigned),
                    assignment=c.Assignment(topic_partitions=partitions),
                    target_assignment=c.Assignment(topic_partitions=partitions),
                )
            )
        return c.DescribedGroup(
            group_id=name, group_state=group.state, group_epoch=5, assignment_epoch=4, assignor_name="uniform", members=members
        )

    def on_DeleteGroups(self, request: Any, header: Any) -> Any:
        results = []
        for name in request.groups_names:
            group = self.coordinated(name)
            code = group if isinstance(group, int) else NON_EMPTY if group.members else 0
            if not code:
                del self.cluster.by_name[name]
            results.append(m.DeletableGroupResult(group_id=name, error_code=code))
        return m.DeleteGroupsResponse(results=results)

    def on_OffsetFetch(self, request: Any, header: Any) -> Any:
        if header.api_version < 8:
            named = None if request.topics is None else [(topic.name, topic.partition_indexes) for topic in request.topics]
            code, found = self._offsets(request.group_id, named)
            return m.OffsetFetchResponse(
                error_code=code,
                topics=[
                    m.OffsetFetchResponseTopic(
                        name=topic,
                        partitions=[
                            m.OffsetFetchResponsePartition(
                                partition_index=number, committed_offset=offset, metadata=text, committed_leader_epoch=epoch
                            )
                            for number, (offset, text, epoch) in numbers.items()
                        ],
                    )
                    for topic, numbers in found.items()
                ],
            )
        groups = []
        for one in request.groups:
            named = None if one.topics is None else [(topic.name, topic.partition_indexes) for topic in one.topics]
            code, found = self._offsets(one.group_id, named)
            topics = [
                m.OffsetFetchResponseTopics(
                    name=topic,
                    partitions=[
                        m.OffsetFetchResponsePartitions(
                            partition_index=number, committed_offset=offset, metadata=text, committed_leader_epoch=epoch
                        )
                        for number, (offset, text, epoch) in numbers.items()
                    ],
                )
                for topic, numbers in found.items()
            ]
            groups.append(m.OffsetFetchResponseGroup(group_id=one.group_id, error_code=code, topics=topics))
        return m.OffsetFetchResponse(groups=groups)

    def _offsets(self, name: str, named: Any) -> tuple[int, dict[str, dict[int, tuple[int, str, int]]]]:
        group = self.coordinated(name)
        if group == NOT_COORDINATOR:
            return NOT_COORDINATOR, {}
        offsets = {} if isinstance(group, int) else group.offsets
        wanted = list(offsets) if named is None else [(topic, number) for topic, numbers in named for number in numbers]
        found: dict[str, dict[int, tuple[int, str, int]]] = {}
        for topic, number in wanted:
            found.setdefault(topic, {})[number] = offsets.get((topic, number), (-1, "", -1))
        return 0, found

    def on_OffsetCommit(self, request: Any, header: Any) -> Any:
        group = self.coordinated(request.group_id)
        if group == NOT_FOUND:
            group = self.cluster.by_name.setdefault(request.group_id, AdministeredGroup(self.node_id))
        code = group if isinstance(group, int) else UNKNOWN_MEMBER if group.members else 0
        response = m.OffsetCommitResponse(topics=[])
        for topic in request.topics:
            answers = []
            for one in topic.partitions:
                unknown = one.partition_index >= len(self.cluster.logs.get(topic.name, ()))
                if not code and not unknown and isinstance(group, AdministeredGroup):
                    committed = (one.committed_offset, one.committed_metadata or "", one.committed_leader_epoch)
                    group.offsets[topic.name, one.partition_index] = committed
                answers.append(m.OffsetCommitResponsePartition(partition_index=one.partition_index, error_code=code or 3 * unknown))
            response.topics.append(m.OffsetCommitResponseTopic(name=topic.name, partitions=answers))
        return response

    def on_OffsetDelete(self, request: Any, header: Any) -> Any:
        group = self.coordinated(request.group_id)
        if isinstance(group, int):
            return m.OffsetDeleteResponse(error_code=group)
        read = {topic for assigned in group.members.values() for topic in assigned}
        response = m.OffsetDeleteResponse(topics=[])
        for topic in request.topics:
            answers = []
            for one in topic.partitions:
                if topic.name not in read:
                    group.offsets.pop((topic.name, one.partition_index), None)
                code = SUBSCRIBED if topic.name in read else 0
                answers.append(m.OffsetDeleteResponsePartition(partition_index=one.partition_index, error_code=code))
            response.topics.append(m.OffsetDeleteResponseTopic(name=topic.name, partitions=answers))
        return response

    def leave(self, request: Any) -> Any:
        group = self.coordinated(request.group_id)
        if isinstance(group, int):
            return m.LeaveGroupResponse(error_code=group)
        answers = []
        for one in request.members:
            gone = group.members.pop(one.member_id or (one.group_instance_id or "").removeprefix("i-"), None)
            answers.append(
                m.MemberResponse(
                    member_id=one.member_id, group_instance_id=one.group_instance_id, error_code=UNKNOWN_MEMBER if gone is None else 0
                )
            )
        return m.LeaveGroupResponse(members=answers)

    def on_ListOffsets(self, request: Any, header: Any) -> Any:
        """Supports timestamps too."""
        response = m.ListOffsetsResponse(topics=[])
        for topic in request.topics:
            answers = []
            for one in topic.partitions:
                offset, timestamp = self.cluster.at(topic.name, one.partition_index, one.timestamp)
                answers.append(
                    m.ListOffsetsPartitionResponse(partition_index=one.partition_index, offset=offset, timestamp=timestamp, leader_epoch=0)
                )
            response.topics.append(m.ListOffsetsTopicResponse(name=topic.name, partitions=answers))
        return response


class Leaving:
    """LeaveGroup, the only request that administrators and members share. It is dispatched like those of members."""

    def __init__(self, cluster: GroupCluster) -> None:
        self._cluster = cluster

    def on_LeaveGroup(self, request: Any, answer: Callable[[Any], None]) -> None:
        answer(self._cluster.nodes[self._cluster.coordinator(request.group_id)].leave(request))


class GroupCluster(MemoryCluster):
    """Nodes, topics, and groups by name."""

    def __init__(self, nodes: int = 1) -> None:
        super().__init__(nodes)
        self.nodes: dict[int, Any] = {node_id: GroupNode(self, node_id) for node_id in self.nodes}
        self.by_name: dict[str, AdministeredGroup] = {}
        self.groups: Any = Leaving(self)
        #: Coordinator of groups that do not exist.
        self.others_at = 1

    def coordinator(self, name: str) -> int:
        """Node id of the group's coordinator."""
        return self.by_name[name].node_id if name in self.by_name else self.others_at

    def write(self, topic: str, partition: int, *times_ms: int) -> None:
        """Append a batch of records with these timestamps."""
        self.logs[topic][partition].append(bytes(build_batch([(when, None, b"v", ()) for when in times_ms])))

    def at(self, topic: str, partition: int, when: int) -> tuple[int, int]:
        """(offset, timestamp) for a timestamp, as ListOffsets returns it."""
        log = self.logs[topic][partition]
        if when in (EARLIEST, LATEST):
            return (log.start if when == EARLIEST else log.end), -1
        every = [(record[0], record[1]) for data in log.batches for position, _ in headers(data) for record in records(data, position)]
        if when == MAX_TIMESTAMP:
            return max(every, key=lambda pair: pair[1], default=(-1, -1))
        return next((pair for pair in every if pair[1] >= when), (-1, -1))
