"""CreateAcls, key 30: adds access rules (KIP-140). Flexible from version 2 on; 1 has pattern types (KIP-290), 3 users as resources
(KIP-373).
"""

from ottla.wire.declare import Int8, Int16, Int32, Struct, message

__all__ = ["AclCreation", "AclCreationResult", "CreateAclsRequest", "CreateAclsResponse"]


class AclCreation(Struct):
    """One rule."""

    resource_type: Int8 = 0
    resource_name: str = ""
    resource_pattern_type: Int8 = 3
    principal: str = ""
    host: str = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


@message(key=30, since=1, until=3, flexible_since=2)
class CreateAclsRequest(Struct):
    """The rules to add; one that exists stays."""

    creations: list[AclCreation] = []


class AclCreationResult(Struct):
    """The outcome for one rule."""

    error_code: Int16 = 0
    error_message: str | None = ""


@message(key=30, since=1, until=3, flexible_since=2)
class CreateAclsResponse(Struct):
    """One outcome per rule, in the order of the request."""

    throttle_time_ms: Int32 = 0
    results: list[AclCreationResult] = []
