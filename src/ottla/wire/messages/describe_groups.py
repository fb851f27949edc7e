"""DescribeGroups, key 15: groups of the classic protocol, with their members.

| version | change |
|-|-|
| 1 | throttle time |
| 3 | the operations the caller may perform, on request (KIP-430) |
| 4 | the names of static members (KIP-345) |
| 5 | flexible |
| 6 | an error message; an unknown group is GROUP_ID_NOT_FOUND instead of dead (KIP-1043) |
"""

from typing import Annotated

from ottla.wire.declare import Ignorable, Int16, Int32, Since, Struct, message

__all__ = ["DescribeGroupsRequest", "DescribeGroupsResponse", "DescribedGroupMember"]


@message(key=15, since=0, until=6, flexible_since=5)
class DescribeGroupsRequest(Struct):
    """The ids of the groups."""

    groups: list[str] = []
    include_authorized_operations: Annotated[bool, Since(3)] = False


class DescribedGroupMember(Struct):
    """A member; metadata and assignment only while the group is stable."""

    member_id: str = ""
    group_instance_id: Annotated[str | None, Since(4), Ignorable] = None
    client_id: str = ""
    client_host: str = ""
    member_metadata: bytes = b""
    member_assignment: bytes = b""


class DescribedGroup(Struct):
    """One group, or why not. The message has no place before version 6, and is refused there. Operations are a set of bits."""

    error_code: Int16 = 0
    error_message: Annotated[str | None, Since(6)] = None
    group_id: str = ""
    group_state: str = ""
    protocol_type: str = ""
    protocol_data: str = ""
    members: list[DescribedGroupMember] = []
    authorized_operations: Annotated[Int32, Since(3)] = -(2**31)


@message(key=15, since=0, until=6, flexible_since=5)
class DescribeGroupsResponse(Struct):
    """One answer per group of the request."""

    throttle_time_ms: Annotated[Int32, Since(1), Ignorable] = 0
    groups: list[DescribedGroup] = []
