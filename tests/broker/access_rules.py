"""Clusters with access rules, for tests."""

from typing import Any

from cluster import Cluster

from ottla.base.acls import WILDCARD, Operation, PatternType, Permission, ResourceType
from ottla.wire.messages.create_acls import AclCreation, CreateAclsRequest
from ottla.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest

ALICE, ROOT = "User:alice", "User:root"
#: The principal of brokers is a super user, as usual; so is the administrator.
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": f"{ROOT};User:broker",
}
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TRANSACTIONAL_ID = ResourceType.TRANSACTIONAL_ID


def guarded(brokers: int = 1, *, topics: tuple[str, ...] = ("t",), partitions: int = 1, replicas: int = 1, **settings: str) -> Cluster:
    """A cluster with access rules, and topics that the administrator created."""
    cluster = Cluster(brokers, settings={**AUTHORIZER, **{name.replace("_", "."): value for name, value in settings.items()}})
    for topic in topics:
        create(cluster, topic, partitions=partitions, replicas=replicas)
    return cluster


def create(cluster: Cluster, topic: str, *, partitions: int = 1, replicas: int = 1) -> None:
    from ottla.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest

    wanted = CreatableTopic(name=topic, num_partitions=partitions, replication_factor=replicas)
    answer = cluster.controller.ask(CreateTopicsRequest(topics=[wanted], timeout_ms=1000), 7, principal=ROOT)
    assert answer.topics[0].error_code == 0, answer.topics[0].error_message


def rule(
    operation: Operation,
    resource: ResourceType = TOPIC,
    name: str = "t",
    *,
    principal: str = ALICE,
    host: str = WILDCARD,
    deny: bool = False,
    prefixed: bool = False,
) -> AclCreation:
    """A rule of a CreateAcls request."""
    return AclCreation(
        resource_type=resource,
        resource_name="kafka-cluster" if resource is CLUSTER else name,
        resource_pattern_type=PatternType.PREFIXED if prefixed else PatternType.LITERAL,
        principal=principal,
        host=host,
        operation=operation,
        permission_type=Permission.DENY if deny else Permission.ALLOW,
    )


def grant(cluster: Cluster, *rules: AclCreation) -> None:
    answer = cluster.controller.ask(CreateAclsRequest(creations=list(rules)), 3, principal=ROOT)
    assert all(result.error_code == 0 for result in answer.results), answer


def revoke(cluster: Cluster, **fields: Any) -> list[Any]:
    """Deletes rules by a filter; the deleted ones. No fields: all rules."""
    wanted = {
        "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1, "principal_filter": None, "host_filter": None,
        "operation": 1, "permission_type": 1, **fields,
    }  # fmt: skip
    answer = cluster.controller.ask(DeleteAclsRequest(filters=[DeleteAclsFilter(**wanted)]), 3, principal=ROOT)
    [result] = answer.filter_results
    assert result.error_code == 0, result
    return list(result.matching_acls)
