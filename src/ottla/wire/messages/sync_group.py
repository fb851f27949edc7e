"""SyncGroup, key 14: the leader sends the assignment, and every member receives its part.

| version | change |
|-|-|
| 1 | throttle time |
| 3 | static members name themselves (KIP-345) |
| 4 | flexible |
| 5 | both sides say type and name of the protocol, and INCONSISTENT_GROUP_PROTOCOL is answered where they differ (KIP-559) |

The broker does not look into an assignment; a consumer's is a `ConsumerProtocolAssignment`.
"""

from typing import Annotated

from ottla.wire.declare import Ignorable, Int16, Int32, Since, Struct, message


class SyncGroupRequestAssignment(Struct):
    """The assignment of one member."""

    member_id: str = ""
    assignment: bytes = b""


@message(key=14, since=0, until=5, flexible_since=4)
class SyncGroupRequest(Struct):
    """Only the leader's request has assignments."""

    group_id: str = ""
    generation_id: Int32 = 0
    member_id: str = ""
    group_instance_id: Annotated[str | None, Since(3)] = None
    protocol_type: Annotated[str | None, Since(5), Ignorable] = None
    protocol_name: Annotated[str | None, Since(5), Ignorable] = None
    assignments: list[SyncGroupRequestAssignment] = []


@message(key=14, since=0, until=5, flexible_since=4)
class SyncGroupResponse(Struct):
    """Empty for a member that the leader gave nothing."""

    throttle_time_ms: Annotated[Int32, Since(1), Ignorable] = 0
    error_code: Int16 = 0
    protocol_type: Annotated[str | None, Since(5), Ignorable] = None
    protocol_name: Annotated[str | None, Since(5), Ignorable] = None
    assignment: bytes = b""
