"""DeleteGroups, key 42: remove groups without members, and their offsets.

| version | change |
|-|-|
| 1 | may be throttled after the answer (KIP-219) |
| 2 | flexible |
| 3 | error messages |

Source: KIP-229.
"""

from typing import Annotated

from ottla.wire.declare import Ignorable, Int16, Int32, Since, Struct, message


@message(key=42, since=0, until=3, flexible_since=2)
class DeleteGroupsRequest(Struct):
    """The ids of the groups; the field's two plurals are Kafka's."""

    groups_names: list[str] = []


class DeletableGroupResult(Struct):
    """One group deleted, or why not."""

    group_id: str = ""
    error_code: Int16 = 0
    error_message: Annotated[str | None, Since(3), Ignorable] = None


@message(key=42, since=0, until=3, flexible_since=2)
class DeleteGroupsResponse(Struct):
    """One answer per group of the request."""

    throttle_time_ms: Int32 = 0
    results: list[DeletableGroupResult] = []
