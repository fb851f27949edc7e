"""DeleteAcls, key 31: deletes access rules that match filters (KIP-140). Flexible from version 2 on; 1 has pattern types (KIP-290), 3 users
as resources (KIP-373).
"""

from ottla.wire.declare import Int8, Int16, Int32, Struct, message

__all__ = ["DeleteAclsFilter", "DeleteAclsFilterResult", "DeleteAclsMatchingAcl", "DeleteAclsRequest", "DeleteAclsResponse"]


class DeleteAclsFilter(Struct):
    """A filter; null and 1 (ANY) match all."""

    resource_type_filter: Int8 = 0
    resource_name_filter: str | None = ""
    pattern_type_filter: Int8 = 3
    principal_filter: str | None = ""
    host_filter: str | None = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


@message(key=31, since=1, until=3, flexible_since=2)
class DeleteAclsRequest(Struct):
    """Rules that match any of the filters are deleted."""

    filters: list[DeleteAclsFilter] = []


class DeleteAclsMatchingAcl(Struct):
    """A rule that matched, and the outcome of its deletion."""

    error_code: Int16 = 0
    error_message: str | None = ""
    resource_type: Int8 = 0
    resource_name: str = ""
    pattern_type: Int8 = 3
    principal: str = ""
    host: str = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


class DeleteAclsFilterResult(Struct):
    """The outcome for one filter."""

    error_code: Int16 = 0
    error_message: str | None = ""
    matching_acls: list[DeleteAclsMatchingAcl] = []


@message(key=31, since=1, until=3, flexible_since=2)
class DeleteAclsResponse(Struct):
    """One outcome per filter, in the order of the request."""

    throttle_time_ms: Int32 = 0
    filter_results: list[DeleteAclsFilterResult] = []
