"""AlterPartition, key 56: a leader asks the controller for another ISR. Brokers send it; clients have no use for it.

| version | change |
|-|-|
| 2 | topics by id (KIP-841) |
| 3 | the broker epoch of each member of the ISR (KIP-903) |

Source: KIP-497.
"""

from typing import Annotated

from ottla.wire.declare import ZERO_UUID, Ignorable, Int8, Int16, Int32, Int64, Since, Struct, Until, Uuid, message


class BrokerState(Struct):
    """A member of the ISR, and the registration under which it is one."""

    broker_id: Int32 = 0
    broker_epoch: Int64 = -1


class AlterPartitionRequestPartition(Struct):
    """The ISR wanted, by a leader of this epoch, in place of the state of this version (the partition epoch)."""

    partition_index: Int32 = 0
    leader_epoch: Int32 = 0
    new_isr: Annotated[list[Int32], Until(2)] = []
    new_isr_with_epochs: Annotated[list[BrokerState], Since(3)] = []
    leader_recovery_state: Int8 = 0
    partition_epoch: Int32 = 0


class AlterPartitionRequestTopic(Struct):
    """The partitions of one topic."""

    topic_id: Annotated[Uuid, Ignorable] = ZERO_UUID
    partitions: list[AlterPartitionRequestPartition] = []


@message(key=56, since=2, until=3, flexible_since=2)
class AlterPartitionRequest(Struct):
    """The changes that one broker, with this registration, requests."""

    broker_id: Int32 = 0
    broker_epoch: Int64 = -1
    topics: list[AlterPartitionRequestTopic] = []


class AlterPartitionResponsePartition(Struct):
    """The present state, or the error."""

    partition_index: Int32 = 0
    error_code: Int16 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0
    isr: list[Int32] = []
    leader_recovery_state: Annotated[Int8, Ignorable] = 0
    partition_epoch: Int32 = 0


class AlterPartitionResponseTopic(Struct):
    """The answers for one topic."""

    topic_id: Annotated[Uuid, Ignorable] = ZERO_UUID
    partitions: list[AlterPartitionResponsePartition] = []


@message(key=56, since=2, until=3, flexible_since=2)
class AlterPartitionResponse(Struct):
    """An error of the whole request, or one for each partition."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    topics: list[AlterPartitionResponseTopic] = []
