"""CreateTopics, key 19: create topics, all or some of them.

| version | change |
|-|-|
| 4 | -1 partitions or replicas mean the broker's default (KIP-464) |
| 5 | flexible; the response says what was created (KIP-525) |
| 6 | may be throttled (KIP-599) |
| 7 | topic id in the response (KIP-516) |
"""

from typing import Annotated

from ottla.wire.declare import ZERO_UUID, Ignorable, Int8, Int16, Int32, NullableSince, Since, Struct, Tag, Uuid, message


class CreatableReplicaAssignment(Struct):
    """The brokers of one partition, the preferred leader first."""

    partition_index: Int32 = 0
    broker_ids: list[Int32] = []


class CreatableTopicConfig(Struct):
    """A setting of the new topic."""

    name: str = ""
    value: str | None = ""


class CreatableTopic(Struct):
    """A topic to create: either counts, or assignments and both counts -1."""

    name: str = ""
    num_partitions: Int32 = 0
    replication_factor: Int16 = 0
    assignments: list[CreatableReplicaAssignment] = []
    configs: list[CreatableTopicConfig] = []


@message(key=19, since=2, until=7, flexible_since=5)
class CreateTopicsRequest(Struct):
    """Validate_only runs every check and creates nothing."""

    topics: list[CreatableTopic] = []
    timeout_ms: Int32 = 60000
    validate_only: bool = False


class CreatableTopicConfigs(Struct):
    """A setting the new topic has; the source is numbered as in DescribeConfigs."""

    name: str = ""
    value: str | None = ""
    read_only: bool = False
    config_source: Int8 = -1
    is_sensitive: bool = False


class CreatableTopicResult(Struct):
    """One topic created, or why not; null configs where the client may not see them."""

    name: str = ""
    topic_id: Annotated[Uuid, Since(7), Ignorable] = ZERO_UUID
    error_code: Int16 = 0
    error_message: str | None = ""
    topic_config_error_code: Annotated[Int16, Since(5), Tag(0), Ignorable] = 0
    num_partitions: Annotated[Int32, Since(5), Ignorable] = -1
    replication_factor: Annotated[Int16, Since(5), Ignorable] = -1
    configs: Annotated[list[CreatableTopicConfigs] | None, Since(5), NullableSince(5), Ignorable] = []


@message(key=19, since=2, until=7, flexible_since=5)
class CreateTopicsResponse(Struct):
    """One answer per topic of the request."""

    throttle_time_ms: Int32 = 0
    topics: list[CreatableTopicResult] = []
