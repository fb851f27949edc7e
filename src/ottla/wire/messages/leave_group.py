"""LeaveGroup, key 13: members leave their group, or are removed from it.

| version | change |
|-|-|
| 1 | throttle time |
| 3 | several members at a time, static ones by their instance id (KIP-345) |
| 4 | flexible |
| 5 | why they leave (KIP-800) |
"""

from typing import Annotated

from ottla.wire.declare import Ignorable, Int16, Int32, Since, Struct, Until, message


class MemberIdentity(Struct):
    """A leaving member; the member id may be empty if there is an instance id."""

    member_id: str = ""
    group_instance_id: str | None = None
    reason: Annotated[str | None, Since(5), Ignorable] = None


@message(key=13, since=0, until=5, flexible_since=4)
class LeaveGroupRequest(Struct):
    """A member until version 2, members from 3 on."""

    group_id: str = ""
    member_id: Annotated[str, Until(2)] = ""
    members: Annotated[list[MemberIdentity], Since(3)] = []


class MemberResponse(Struct):
    """One member gone, or why not."""

    member_id: str = ""
    group_instance_id: str | None = ""
    error_code: Int16 = 0


@message(key=13, since=0, until=5, flexible_since=4)
class LeaveGroupResponse(Struct):
    """Until version 2 the one error is the member's; from 3 on it is the group's, and each member has its own."""

    throttle_time_ms: Annotated[Int32, Since(1), Ignorable] = 0
    error_code: Int16 = 0
    members: Annotated[list[MemberResponse], Since(3)] = []
