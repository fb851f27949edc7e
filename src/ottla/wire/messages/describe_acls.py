"""DescribeAcls, key 29: access rules that match a filter (KIP-140). Flexible from version 2 on; 1 has pattern types (KIP-290), 3 users as
resources (KIP-373).
"""

from ottla.wire.declare import Int8, Int16, Int32, Struct, message

__all__ = ["AclDescription", "DescribeAclsRequest", "DescribeAclsResource", "DescribeAclsResponse"]


@message(key=29, since=1, until=3, flexible_since=2)
class DescribeAclsRequest(Struct):
    """The filter; null and 1 (ANY) match all."""

    resource_type_filter: Int8 = 0
    resource_name_filter: str | None = ""
    pattern_type_filter: Int8 = 3
    principal_filter: str | None = ""
    host_filter: str | None = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


class AclDescription(Struct):
    """One rule of a pattern."""

    principal: str = ""
    host: str = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


class DescribeAclsResource(Struct):
    """A resource pattern with its rules."""

    resource_type: Int8 = 0
    resource_name: str = ""
    pattern_type: Int8 = 3
    acls: list[AclDescription] = []


@message(key=29, since=1, until=3, flexible_since=2)
class DescribeAclsResponse(Struct):
    """The patterns with rules that match."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = ""
    resources: list[DescribeAclsResource] = []
