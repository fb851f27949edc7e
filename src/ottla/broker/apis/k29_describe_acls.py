"""DescribeAcls: access rules that match a filter, from this broker's image.

Behaviour: pattern type ANY finds patterns with the name itself, MATCH also those that cover it; null and ANY are no condition. Without
``authorizer.class.name`` the error is SECURITY_DISABLED. Difference from Kafka, which closes the connection: unknown values in a filter
are INVALID_REQUEST. Source: KIP-140, KIP-290.
"""

from ottla.broker.apis.acl_filters import filter_of
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import handles, whole_error
from ottla.broker.node import Node
from ottla.wire import errors
from ottla.wire.messages.describe_acls import AclDescription, DescribeAclsRequest, DescribeAclsResource, DescribeAclsResponse


@handles(DescribeAclsRequest, (1, 3), refuse=whole_error(DescribeAclsResponse))
def describe_acls(node: Node, call: RequestArrived[DescribeAclsRequest]) -> DescribeAclsResponse:
    if node.context.access is None:
        raise errors.SecurityDisabled("this broker has no access rules: authorizer.class.name is not set")
    wanted = filter_of(call.body)
    response = DescribeAclsResponse(error_message=None)
    for pattern, entries in sorted(node.context.image.acls.items()):
        if not wanted.matches_pattern(pattern):
            continue
        found = [
            AclDescription(principal=entry.principal, host=entry.host, operation=entry.operation, permission_type=entry.permission)
            for entry in entries
            if wanted.matches_entry(entry)
        ]
        if found:
            response.resources.append(
                DescribeAclsResource(
                    resource_type=pattern.resource_type, resource_name=pattern.name, pattern_type=pattern.pattern_type, acls=found
                )
            )
    return response
