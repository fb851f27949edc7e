"""Admin requests about access rules.

    await admin.create_acls([Acl(principal="User:alice", operation=Operation.READ, resource_type=ResourceType.TOPIC, name="orders")])
    await admin.describe_acls(AclFilter(principal="User:alice"))
    await admin.delete_acls([AclFilter(principal="User:alice")])

A rule counts at a broker when the change has reached it, a moment after the answer. Source: KIP-140, KIP-290.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ottla.base.acls import Operation, PatternType, Permission, ResourceType
from ottla.client.admin.acl_results import Acl, AclFilter
from ottla.client.admin.calls import ANY_BROKER, HasCalls, Outcome, each_once, failed
from ottla.wire import messages as m
from ottla.wire.errors import KafkaError

#: Any rule.
ALL_ACLS = AclFilter()


async def describe_acls(self: HasCalls, filter: AclFilter = ALL_ACLS, *, timeout_ms: float | None = None) -> list[Acl]:
    """The access rules that a filter selects. Raises: SecurityDisabled if the broker has no authorizer, ClusterAuthorizationFailed.

    Example: `admin.describe_acls(AclFilter(resource_type=AclResourceType.TOPIC, name="orders"))`.
    """
    request = m.DescribeAclsRequest(**_fields(filter))
    response = await self._calls.any_broker(request, timeout_ms, "describing access rules")
    return [
        _acl(resource.resource_type, resource.resource_name, resource.pattern_type, one)
        for resource in response.resources
        for one in resource.acls
    ]


async def create_acls(self: HasCalls, acls: Iterable[Acl], *, timeout_ms: float | None = None) -> dict[Acl, Outcome[None]]:
    """Add access rules; one that exists succeeds. Errors: InvalidRequest, ClusterAuthorizationFailed, SecurityDisabled.

    Example: `admin.create_acls([Acl(principal="User:ann", operation=Operation.READ, resource_type=AclResourceType.TOPIC, name="orders")])`.
    """

    async def ask(share: list[Acl], left_ms: float) -> dict[Acl, Outcome[None]]:
        request = m.CreateAclsRequest(creations=[_creation(one) for one in share])
        response = await self._calls.node(ANY_BROKER, request, left_ms)
        return {one: failed(result) for one, result in zip(share, response.results, strict=True)}

    return await self._calls.each(list(each_once(acls)), ask, timeout_ms, "adding the access rule")


async def delete_acls(
    self: HasCalls, filters: Iterable[AclFilter], *, timeout_ms: float | None = None
) -> dict[AclFilter, Outcome[dict[Acl, KafkaError | None]]]:
    """Delete the access rules that each filter selects; returns them, with the error of each that could not be deleted.

    Example: `admin.delete_acls([AclFilter(principal="User:ann")])`.
    """

    async def ask(share: list[AclFilter], left_ms: float) -> dict[AclFilter, Outcome[dict[Acl, KafkaError | None]]]:
        request = m.DeleteAclsRequest(filters=[m.DeleteAclsFilter(**_fields(one)) for one in share])
        response = await self._calls.node(ANY_BROKER, request, left_ms)
        return {one: failed(result) or _deleted(result) for one, result in zip(share, response.filter_results, strict=True)}

    return await self._calls.each(list(each_once(filters)), ask, timeout_ms, "deleting the access rules of")


async def describe_denied_accesses(
    self: HasCalls, brokers: Iterable[int] | None = None, *, timeout_ms: float | None = None
) -> dict[int, Outcome[dict[str, int] | None]]:
    """Accesses that access rules refused in the last hour, by broker and principal; None: the broker has none, or is not Ottla.

    Example: `admin.describe_denied_accesses([1])`.
    """
    limit_ms = self._calls.limit_ms(timeout_ms)
    nodes = await self._calls.brokers(limit_ms) if brokers is None else list(brokers)

    def counts(response: m.DescribeLogDirsResponse) -> dict[str, int] | None:
        denied = response.denied_accesses
        return None if denied is None else {one.principal: one.count for one in denied}

    doing = "asking for denied accesses at broker"
    return await self._calls.each_broker(nodes, m.DescribeLogDirsRequest(topics=[]), counts, timeout_ms, doing)


def _creation(one: Acl) -> m.AclCreation:
    return m.AclCreation(
        resource_type=one.resource_type,
        resource_name=one.name,
        resource_pattern_type=one.pattern_type,
        principal=one.principal,
        host=one.host,
        operation=one.operation,
        permission_type=one.permission,
    )


def _deleted(result: m.DeleteAclsFilterResult) -> dict[Acl, KafkaError | None]:
    return {_acl(each.resource_type, each.resource_name, each.pattern_type, each): failed(each) for each in result.matching_acls}


def _fields(filter: AclFilter) -> dict[str, Any]:
    return {
        "resource_type_filter": filter.resource_type,
        "resource_name_filter": filter.name,
        "pattern_type_filter": filter.pattern_type,
        "principal_filter": filter.principal,
        "host_filter": filter.host,
        "operation": filter.operation,
        "permission_type": filter.permission,
    }


def _acl(resource_type: int, name: str, pattern_type: int, one: Any) -> Acl:
    return Acl(
        principal=one.principal,
        operation=Operation(one.operation),
        resource_type=ResourceType(resource_type),
        name=name,
        pattern_type=PatternType(pattern_type),
        host=one.host,
        permission=Permission(one.permission_type),
    )
