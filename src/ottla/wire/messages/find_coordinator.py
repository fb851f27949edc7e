"""FindCoordinator, key 10: which broker coordinates a group or a transactional id.

| version | change |
|-|-|
| 1 | the type of the key; throttle time, an error message |
| 3 | flexible |
| 4 | several keys of one type at a time (KIP-699) |
| 5 | TRANSACTION_ABORTABLE may be answered (KIP-890) |
| 6 | share groups, whose keys are "groupId:topicId:partition" (KIP-932) |

Until version 3 request and response are about one key, in fields of their own; from 4 on they are lists.
"""

from typing import Annotated

from ottla.wire.declare import Ignorable, Int8, Int16, Int32, Since, Struct, Until, message

#: Types of keys.
GROUP, TRANSACTION, SHARE = 0, 1, 2


@message(key=10, since=0, until=6, flexible_since=3)
class FindCoordinatorRequest(Struct):
    """A key until version 3, keys from 4 on."""

    key: Annotated[str, Until(3)] = ""
    key_type: Annotated[Int8, Since(1)] = GROUP
    coordinator_keys: Annotated[list[str], Since(4)] = []


class Coordinator(Struct):
    """The coordinator of one key; from version 4 on."""

    key: str = ""
    node_id: Int32 = 0
    host: str = ""
    port: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = ""


@message(key=10, since=0, until=6, flexible_since=3)
class FindCoordinatorResponse(Struct):
    """One coordinator until version 3, several from 4 on. With an error, Kafka returns node -1, an empty host and port -1."""

    throttle_time_ms: Annotated[Int32, Since(1), Ignorable] = 0
    error_code: Annotated[Int16, Until(3)] = 0
    error_message: Annotated[str | None, Since(1), Until(3), Ignorable] = ""
    node_id: Annotated[Int32, Until(3)] = 0
    host: Annotated[str, Until(3)] = ""
    port: Annotated[Int32, Until(3)] = 0
    coordinators: Annotated[list[Coordinator], Since(4)] = []
