"""An in-memory cluster with partition reassignment as administrators see it. Moves start at once and end when the test permits it."""

from __future__ import annotations

from typing import Any

from memory_cluster import MemoryCluster, MemoryNode

from ottla.wire import messages as m
from ottla.wire.messages import incremental_alter_configs

Place = tuple[str, int]
NO_REASSIGNMENT, UNKNOWN_TOPIC, BAD_REPLICAS, NOT_CONTROLLER, NOT_NEEDED, NOT_AVAILABLE = 85, 3, 39, 41, 84, 80


class ReassigningNode(MemoryNode):
    """A broker that can be the controller."""

    cluster: ReassigningCluster

    def on_AlterPartitionReassignments(self, request: Any, header: Any) -> Any:
        if self.cluster.controller != self.node_id:
            return m.AlterPartitionReassignmentsResponse(error_code=NOT_CONTROLLER)
        topics = []
        for topic in request.topics:
            answers = []
            for one in topic.partitions:
                code = self.cluster.alter((topic.name, one.partition_index), one.replicas)
                answers.append(m.ReassignablePartitionResponse(partition_index=one.partition_index, error_code=code))
            topics.append(m.ReassignableTopicResponse(name=topic.name, partitions=answers))
        return m.AlterPartitionReassignmentsResponse(responses=topics)

    def on_ListPartitionReassignments(self, request: Any, header: Any) -> Any:
        asked = None if request.topics is None else {(one.name, index) for one in request.topics for index in one.partition_indexes}
        topics: dict[str, Any] = {}
        for place, target in self.cluster.moving.items():
            if asked is not None and place not in asked:
                continue
            before = self.cluster.replicas[place]
            topic = topics.setdefault(place[0], m.OngoingTopicReassignment(name=place[0], partitions=[]))
            topic.partitions.append(
                m.OngoingPartitionReassignment(
                    partition_index=place[1],
                    replicas=[*target, *(broker for broker in before if broker not in target)],
                    adding_replicas=[broker for broker in target if broker not in before],
                    removing_replicas=[broker for broker in before if broker not in target],
                )
            )
        return m.ListPartitionReassignmentsResponse(topics=list(topics.values()))

    def on_ElectLeaders(self, request: Any, header: Any) -> Any:
        if self.cluster.controller != self.node_id:
            return m.ElectLeadersResponse(error_code=NOT_CONTROLLER if header.api_version else 0)
        asked = (
            [place for place in self.cluster.replicas if self.cluster.leaders[place] != self.cluster.replicas[place][0]]
            if request.topic_partitions is None
            else [(one.topic, number) for one in request.topic_partitions for number in one.partitions]
        )
        topics: dict[str, Any] = {}
        for place in asked:
            topic = topics.setdefault(place[0], m.ReplicaElectionResult(topic=place[0], partition_result=[]))
            topic.partition_result.append(m.PartitionResult(partition_id=place[1], error_code=self.cluster.elect(place)))
        return m.ElectLeadersResponse(replica_election_results=list(topics.values()))

    def on_DescribeCluster(self, request: Any, header: Any) -> Any:
        return m.DescribeClusterResponse(
            controller_id=self.cluster.controller,
            brokers=[
                m.DescribeClusterBroker(broker_id=number, host=f"node{number}", port=9092, rack=self.cluster.racks.get(number))
                for number, node in self.cluster.nodes.items()
                if node.up
            ],
        )

    def _topic(self, name: str) -> Any:
        made = super()._topic(name)
        for one in made.partitions:
            place = (name, one.partition_index)
            target = self.cluster.moving.get(place, [])
            one.isr_nodes = [broker for broker in self.cluster.replicas[place] if self.cluster.nodes[broker].up]
            one.replica_nodes = [*target, *(broker for broker in self.cluster.replicas[place] if broker not in target)]
        return made

    def on_DescribeConfigs(self, request: Any, header: Any) -> Any:
        results = []
        for one in request.resources:
            source = 1 if one.resource_type == 2 else 2
            found = self.cluster.settings.get((one.resource_type, one.resource_name), {})
            configs = [m.DescribeConfigsResourceResult(name=name, value=value, config_source=source) for name, value in found.items()]
            results.append(m.DescribeConfigsResult(resource_type=one.resource_type, resource_name=one.resource_name, configs=configs))
        return m.DescribeConfigsResponse(results=results)

    def on_IncrementalAlterConfigs(self, request: Any, header: Any) -> Any:
        answers = []
        for one in request.resources:
            settings = self.cluster.settings.setdefault((one.resource_type, one.resource_name), {})
            for change in one.configs:
                if change.config_operation == 1:
                    settings.pop(change.name, None)
                else:
                    settings[change.name] = change.value
            answers.append(
                incremental_alter_configs.AlterConfigsResourceResponse(resource_type=one.resource_type, resource_name=one.resource_name)
            )
        return m.IncrementalAlterConfigsResponse(responses=answers)


class ReassigningCluster(MemoryCluster):
    """Nodes that know the current and the target replicas."""

    def __init__(self, nodes: int) -> None:
        super().__init__()
        self.nodes = {node_id: ReassigningNode(self, node_id) for node_id in range(1, nodes + 1)}
        self.replicas: dict[Place, list[int]] = {}
        self.moving: dict[Place, list[int]] = {}
        self.racks: dict[int, str] = {}
        #: By resource type and name.
        self.settings: dict[tuple[int, str], dict[str, str | None]] = {}

    def place(self, name: str, *replicas: list[int]) -> None:
        """Create a topic whose partitions have these replicas."""
        self.create(name, len(replicas))
        for number, ids in enumerate(replicas):
            self.replicas[name, number] = ids
            self.leaders[name, number] = ids[0]

    def alter(self, place: Place, target: list[int] | None) -> int:
        if place not in self.replicas:
            return UNKNOWN_TOPIC
        if target is None:
            return 0 if self.moving.pop(place, None) is not None else NO_REASSIGNMENT
        if not target or any(broker not in self.nodes for broker in target):
            return BAD_REPLICAS
        self.moving[place] = target
        return 0

    def elect(self, place: Place) -> int:
        if place not in self.replicas:
            return UNKNOWN_TOPIC
        first = self.replicas[place][0]
        if self.leaders[place] == first:
            return NOT_NEEDED
        if not self.nodes[first].up:
            return NOT_AVAILABLE
        self.leaders[place] = first
        return 0

    def finish(self) -> None:
        """Complete all moves."""
        self.replicas.update(self.moving)
        self.moving = {}

    def has(self, kind: int, name: str) -> dict[str, str | None]:
        return self.settings.get((kind, name), {})
