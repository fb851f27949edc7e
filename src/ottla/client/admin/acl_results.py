"""Access rules (ACLs) as the admin client gives and takes them, with Kafka's names."""

from __future__ import annotations

import msgspec

from ottla.base.acls import CLUSTER_NAME, WILDCARD, Operation, PatternType, Permission, ResourceType

AclOperation, AclPatternType, AclPermission, AclResourceType = Operation, PatternType, Permission, ResourceType


class Acl(msgspec.Struct, frozen=True, kw_only=True):
    """An access rule: a principal may, or may not, carry out an operation on resources.

    `name` is that of the resource, `*` for all of the type, or with `PatternType.PREFIXED` the beginning of names. `host` is an address, or
    `*`. Kafka's AclBinding.
    """

    principal: str
    operation: Operation
    resource_type: ResourceType
    name: str = CLUSTER_NAME
    pattern_type: PatternType = PatternType.LITERAL
    host: str = WILDCARD
    permission: Permission = Permission.ALLOW

    def __str__(self) -> str:
        pattern = f"{self.resource_type.label} {self.name}{'*' if self.pattern_type is PatternType.PREFIXED else ''}"
        return f"{self.permission.label} {self.principal} from {self.host} {self.operation.label} on {pattern}"


class AclFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects access rules; None, or ANY: no condition.

    `PatternType.MATCH` selects the rules that apply to a resource called `name`, also those for prefixes and `*`. Kafka's AclBindingFilter.
    """

    principal: str | None = None
    operation: Operation = Operation.ANY
    resource_type: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    host: str | None = None
    permission: Permission = Permission.ANY
