"""Filters of DescribeAcls and DeleteAcls. Both requests have them with the same fields."""

from typing import Any

from ottla.base.acls import Filter, Operation, PatternType, Permission, ResourceType
from ottla.wire import errors


def filter_of(asked: Any) -> Filter:
    """The filter in a request, or in a part of one. Raises: InvalidRequest for an unknown type, operation or permission."""
    try:
        return Filter(
            ResourceType(asked.resource_type_filter),
            asked.resource_name_filter,
            PatternType(asked.pattern_type_filter),
            asked.principal_filter,
            asked.host_filter,
            Operation(asked.operation),
            Permission(asked.permission_type),
        )
    except ValueError as error:
        raise errors.InvalidRequest(f"the filter of access rules has an unknown value: {error}") from None
