"""DeleteTopics, key 20: delete topics by name or by id.

| version | change |
|-|-|
| 3 | TOPIC_DELETION_DISABLED may be answered |
| 4 | flexible |
| 5 | an error message; may be throttled (KIP-599) |
| 6 | topics by id (KIP-516) |
"""

from typing import Annotated

from ottla.wire.declare import ZERO_UUID, Ignorable, Int16, Int32, NullableSince, Since, Struct, Until, Uuid, message


class DeleteTopicState(Struct):
    """A topic to delete: a name, or null and an id."""

    name: Annotated[str | None, Since(6)] = None
    topic_id: Annotated[Uuid, Since(6)] = ZERO_UUID


@message(key=20, since=1, until=6, flexible_since=4)
class DeleteTopicsRequest(Struct):
    """Names until version 5, states from 6 on."""

    topics: Annotated[list[DeleteTopicState], Since(6)] = []
    topic_names: Annotated[list[str], Until(5), Ignorable] = []
    timeout_ms: Int32 = 0


class DeletableTopicResult(Struct):
    """One topic deleted, or why not."""

    name: Annotated[str | None, NullableSince(6)] = ""
    topic_id: Annotated[Uuid, Since(6), Ignorable] = ZERO_UUID
    error_code: Int16 = 0
    error_message: Annotated[str | None, Since(5), Ignorable] = None


@message(key=20, since=1, until=6, flexible_since=4)
class DeleteTopicsResponse(Struct):
    """One answer per topic of the request."""

    throttle_time_ms: Int32 = 0
    responses: list[DeletableTopicResult] = []
