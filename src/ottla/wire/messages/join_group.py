"""JoinGroup, key 11: join a group, and learn its leader.

| version | change |
|-|-|
| 1 | a timeout for the rebalance apart from the session's (KIP-62) |
| 2 | throttle time |
| 4 | a new member is given its id with error MEMBER_ID_REQUIRED, and joins again with it (KIP-394) |
| 5 | static members name themselves (KIP-345) |
| 6 | flexible |
| 7 | the response says the type of protocol, and its name may be null (KIP-559) |
| 8 | why the member joins (KIP-800) |
| 9 | the leader may be told not to assign (KIP-814) |

What a member says in `metadata` is its own affair; a consumer's is a `ConsumerProtocolSubscription`.
"""

from typing import Annotated

from ottla.wire.declare import Ignorable, Int16, Int32, NullableSince, Since, Struct, message


class JoinGroupRequestProtocol(Struct):
    """An assignor that the member supports, with its metadata for the group leader."""

    name: str = ""
    metadata: bytes = b""


@message(key=11, since=0, until=9, flexible_since=6)
class JoinGroupRequest(Struct):
    """Protocols in the member's order of preference. In version 0 the session timeout is the rebalance timeout, too."""

    group_id: str = ""
    session_timeout_ms: Int32 = 0
    rebalance_timeout_ms: Annotated[Int32, Since(1), Ignorable] = -1
    member_id: str = ""
    group_instance_id: Annotated[str | None, Since(5)] = None
    protocol_type: str = ""
    protocols: list[JoinGroupRequestProtocol] = []
    reason: Annotated[str | None, Since(8), Ignorable] = None


class JoinGroupResponseMember(Struct):
    """A member and its metadata for the selected protocol."""

    member_id: str = ""
    group_instance_id: Annotated[str | None, Since(5), Ignorable] = None
    metadata: bytes = b""


@message(key=11, since=0, until=9, flexible_since=6)
class JoinGroupResponse(Struct):
    """Only the leader's response has the members. Generation -1 with an error; where the protocol name cannot be null it is empty."""

    throttle_time_ms: Annotated[Int32, Since(2), Ignorable] = 0
    error_code: Int16 = 0
    generation_id: Int32 = -1
    protocol_type: Annotated[str | None, Since(7), Ignorable] = None
    protocol_name: Annotated[str | None, NullableSince(7)] = ""
    leader: str = ""
    skip_assignment: Annotated[bool, Since(9)] = False
    member_id: str = ""
    members: list[JoinGroupResponseMember] = []
