"""OffsetFetch, key 9: how far groups have read.

| version | change |
|-|-|
| 2 | null asks for all topics; an error for the whole group |
| 3 | throttle time |
| 5 | the leader epoch of the offset (KIP-320) |
| 6 | flexible |
| 7 | offsets that an open transaction may change can be waited for (KIP-447) |
| 8 | several groups at a time, each with its own topics and error (KIP-709) |
| 9 | members of the new group protocol say who they are and their epoch (KIP-848) |
| 10 | topics by id (KIP-848) |

Until version 7 a message is about one group, in `group_id` and `topics`; from 8 on `groups` holds all. As in Kafka, the structures of the
older form are named in the singular (`OffsetFetchRequestTopic`), those of the newer in the plural (`OffsetFetchRequestTopics`).
"""

from typing import Annotated

from ottla.wire.declare import ZERO_UUID, Ignorable, Int16, Int32, Int64, NullableSince, Since, Struct, Until, Uuid, message


class OffsetFetchRequestTopic(Struct):
    """One topic of the one group; until version 7."""

    name: str = ""
    partition_indexes: list[Int32] = []


class OffsetFetchRequestTopics(Struct):
    """One topic of one of several groups, by name or, from version 10 on, by id."""

    name: Annotated[str, Until(9), Ignorable] = ""
    topic_id: Annotated[Uuid, Since(10), Ignorable] = ZERO_UUID
    partition_indexes: list[Int32] = []


class OffsetFetchRequestGroup(Struct):
    """One group; topics null: all that it has offsets for. Member id and epoch are those of the new group protocol, or null and -1."""

    group_id: str = ""
    member_id: Annotated[str | None, Since(9), Ignorable] = None
    member_epoch: Annotated[Int32, Since(9), Ignorable] = -1
    topics: list[OffsetFetchRequestTopics] | None = []


@message(key=9, since=1, until=10, flexible_since=6)
class OffsetFetchRequest(Struct):
    """One group with its topics until version 7, groups from 8 on."""

    group_id: Annotated[str, Until(7)] = ""
    topics: Annotated[list[OffsetFetchRequestTopic] | None, Until(7), NullableSince(2)] = []
    groups: Annotated[list[OffsetFetchRequestGroup], Since(8)] = []
    require_stable: Annotated[bool, Since(7)] = False


class OffsetFetchResponsePartition(Struct):
    """Where the group is in one partition, -1 where it has no offset; until version 7."""

    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Annotated[Int32, Since(5), Ignorable] = -1
    metadata: str | None = ""
    error_code: Int16 = 0


class OffsetFetchResponseTopic(Struct):
    """The answers for one topic; until version 7."""

    name: str = ""
    partitions: list[OffsetFetchResponsePartition] = []


class OffsetFetchResponsePartitions(Struct):
    """Where a group is in one partition, -1 where it has no offset."""

    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Int32 = -1
    metadata: str | None = ""
    error_code: Int16 = 0


class OffsetFetchResponseTopics(Struct):
    """The answers for one topic of a group."""

    name: Annotated[str, Until(9), Ignorable] = ""
    topic_id: Annotated[Uuid, Since(10), Ignorable] = ZERO_UUID
    partitions: list[OffsetFetchResponsePartitions] = []


class OffsetFetchResponseGroup(Struct):
    """The answers for one group."""

    group_id: str = ""
    topics: list[OffsetFetchResponseTopics] = []
    error_code: Int16 = 0


@message(key=9, since=1, until=10, flexible_since=6)
class OffsetFetchResponse(Struct):
    """One group until version 7, groups from 8 on. Version 1 has no error for the group: it is said at every partition."""

    throttle_time_ms: Annotated[Int32, Since(3), Ignorable] = 0
    topics: Annotated[list[OffsetFetchResponseTopic], Until(7)] = []
    error_code: Annotated[Int16, Since(2), Until(7), Ignorable] = 0
    groups: Annotated[list[OffsetFetchResponseGroup], Since(8)] = []
