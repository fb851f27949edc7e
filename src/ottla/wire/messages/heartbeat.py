"""Heartbeat, key 12: a member is alive, and learns whether its group rebalances.

| version | change |
|-|-|
| 1 | throttle time |
| 3 | static members name themselves (KIP-345) |
| 4 | flexible |
"""

from typing import Annotated

from ottla.wire.declare import Ignorable, Int16, Int32, Since, Struct, message


@message(key=12, since=0, until=4, flexible_since=4)
class HeartbeatRequest(Struct):
    """The generation is the one the member joined in."""

    group_id: str = ""
    generation_id: Int32 = 0
    member_id: str = ""
    group_instance_id: Annotated[str | None, Since(3)] = None


@message(key=12, since=0, until=4, flexible_since=4)
class HeartbeatResponse(Struct):
    """REBALANCE_IN_PROGRESS asks the member to join again."""

    throttle_time_ms: Annotated[Int32, Since(1), Ignorable] = 0
    error_code: Int16 = 0
