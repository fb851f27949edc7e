"""ListGroups, key 16: the groups that this broker coordinates.

| version | change |
|-|-|
| 1 | throttle time |
| 3 | flexible |
| 4 | states, to choose by and in the answer (KIP-518) |
| 5 | types, to choose by and in the answer (KIP-848) |
"""

from typing import Annotated

from ottla.wire.declare import Ignorable, Int16, Int32, Since, Struct, message


@message(key=16, since=0, until=5, flexible_since=3)
class ListGroupsRequest(Struct):
    """An empty filter lets all pass."""

    states_filter: Annotated[list[str], Since(4)] = []
    types_filter: Annotated[list[str], Since(5)] = []


class ListedGroup(Struct):
    """A group: id, protocol type ("consumer", "connect", ...), state and type ("classic", "consumer", ...)."""

    group_id: str = ""
    protocol_type: str = ""
    group_state: Annotated[str, Since(4), Ignorable] = ""
    group_type: Annotated[str, Since(5), Ignorable] = ""


@message(key=16, since=0, until=5, flexible_since=3)
class ListGroupsResponse(Struct):
    """The groups that pass the filters."""

    throttle_time_ms: Annotated[Int32, Since(1), Ignorable] = 0
    error_code: Int16 = 0
    groups: list[ListedGroup] = []
