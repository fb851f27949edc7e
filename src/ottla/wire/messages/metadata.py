"""Metadata, key 3: brokers, topics, and the leader of each partition.

| version | change |
|-|-|
| 0 | an empty list of topics means all of them; from 1 on null does, and empty means none |
| 1 | rack, controller, internal topics |
| 2 | cluster id |
| 4 | the client says whether topics may be created |
| 5 | offline replicas |
| 7 | leader epoch (KIP-320) |
| 8 | authorized operations (KIP-430); those of the cluster end with 10 (KIP-700) |
| 9 | flexible |
| 10 | topic ids in the response; 12: in the request too (KIP-516) |
| 13 | an error for the whole response (KIP-1102) |
"""

from typing import Annotated

from ottla.base.acls import NOT_REQUESTED as NOT_REQUESTED
from ottla.wire.declare import ZERO_UUID, Ignorable, Int16, Int32, NullableSince, Since, Struct, Until, Uuid, message


class MetadataRequestTopic(Struct):
    """A requested topic, by name or, with a null name, by id."""

    topic_id: Annotated[Uuid, Since(10), Ignorable] = ZERO_UUID
    name: Annotated[str | None, NullableSince(10)] = ""


@message(key=3, since=0, until=13, flexible_since=9)
class MetadataRequest(Struct):
    """Null topics: all of them."""

    topics: Annotated[list[MetadataRequestTopic] | None, NullableSince(1)] = []
    allow_auto_topic_creation: Annotated[bool, Since(4)] = True
    include_cluster_authorized_operations: Annotated[bool, Since(8), Until(10)] = False
    include_topic_authorized_operations: Annotated[bool, Since(8)] = False


class MetadataResponseBroker(Struct):
    """A live broker with the address of the listener that received the request."""

    node_id: Int32 = 0
    host: str = ""
    port: Int32 = 0
    rack: Annotated[str | None, Since(1), Ignorable] = None


class MetadataResponsePartition(Struct):
    """One partition: leader -1 means that it has none now."""

    error_code: Int16 = 0
    partition_index: Int32 = 0
    leader_id: Int32 = 0
    leader_epoch: Annotated[Int32, Since(7), Ignorable] = -1
    replica_nodes: list[Int32] = []
    isr_nodes: list[Int32] = []
    offline_replicas: Annotated[list[Int32], Since(5), Ignorable] = []


class MetadataResponseTopic(Struct):
    """One topic; the name is null only for an unknown requested id."""

    error_code: Int16 = 0
    name: Annotated[str | None, NullableSince(12)] = ""
    topic_id: Annotated[Uuid, Since(10), Ignorable] = ZERO_UUID
    is_internal: Annotated[bool, Since(1), Ignorable] = False
    partitions: list[MetadataResponsePartition] = []
    topic_authorized_operations: Annotated[Int32, Since(8)] = NOT_REQUESTED


@message(key=3, since=0, until=13, flexible_since=9)
class MetadataResponse(Struct):
    """The cluster as one broker sees it."""

    throttle_time_ms: Annotated[Int32, Since(3), Ignorable] = 0
    brokers: list[MetadataResponseBroker] = []
    cluster_id: Annotated[str | None, Since(2), Ignorable] = None
    controller_id: Annotated[Int32, Since(1), Ignorable] = -1
    topics: list[MetadataResponseTopic] = []
    cluster_authorized_operations: Annotated[Int32, Since(8), Until(10)] = NOT_REQUESTED
    error_code: Annotated[Int16, Since(13), Ignorable] = 0
