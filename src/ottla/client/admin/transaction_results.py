"""Results of admin requests about transactions, with Kafka's names."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from ottla.base.ids import TopicPartition
from ottla.client.admin.results import Node, ProtocolName

#: Timeout of a transaction of two-phase commit: none. Source: KIP-939.
NO_TIMEOUT_MS = 2**31 - 1


class TransactionState(ProtocolName):
    """State of a transactional id. PREPARE_*: decided, and markers are being written. Source: KIP-664."""

    UNKNOWN = "Unknown"
    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"

    @property
    def is_decided(self) -> bool:
        """Whether markers are being written."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)


class ProducerIdentity(msgspec.Struct, frozen=True):
    """A producer id and epoch."""

    producer_id: int
    producer_epoch: int


class TransactionListing(msgspec.Struct, frozen=True):
    """A transactional id, and the broker id of its coordinator."""

    transactional_id: str
    coordinator: int
    producer_id: int
    state: TransactionState


class TransactionDescription(msgspec.Struct, frozen=True):
    """A transactional id. Once the outcome is decided, `partitions` are those without a marker.

    `client_id` and `client_host`: the client that used the id last, from coordinators of Ottla. None: another broker, or the client sent no
    request since the coordinator changed.
    """

    transactional_id: str
    coordinator: Node
    state: TransactionState
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    #: Milliseconds since 1970; None without a transaction.
    start_ms: int | None
    partitions: list[TopicPartition]
    client_id: str | None = None
    client_host: str | None = None

    @property
    def has_timeout(self) -> bool:
        """False for two-phase commit: the coordinator never aborts such a transaction by itself."""
        return self.timeout_ms < NO_TIMEOUT_MS


class OpenTransaction(msgspec.Struct, frozen=True):
    """An open transaction in the producer state of a partition. `coordinator_epoch` is -1 before the producer's first marker there."""

    topic: str
    partition: int
    #: Offset of its first record.
    start_offset: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    #: Time of the last write, in milliseconds since 1970; -1: unknown.
    last_timestamp: int
    #: The transactional id with this producer id; None: no coordinator knows the producer id.
    transactional_id: str | None = None

    @property
    def place(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)


class TransactionStatus(StrEnum):
    """What happens to an open transaction of a partition.

    ONGOING: its producer has not ended it, and its timeout is not over. OVERDUE: its timeout is over, and its coordinator has not aborted
    it. PREPARED: two-phase commit, without a timeout. COMPLETING: decided, and the marker is not written yet. HANGING: no coordinator will
    write a marker.
    """

    ONGOING = "ongoing"
    OVERDUE = "overdue"
    PREPARED = "prepared"
    COMPLETING = "completing"
    HANGING = "hanging"


class BlockingTransaction(msgspec.Struct, frozen=True):
    """An open transaction of a partition, with what its coordinator knows about it."""

    transaction: OpenTransaction
    status: TransactionStatus
    #: Start of the transaction, or if it hangs, timestamp of its first record; None: unknown.
    since_ms: int | None
    #: The transactional id, which may have another transaction if this one hangs. None: no coordinator has the producer id.
    description: TransactionDescription | None = None


class BlockedGroup(msgspec.Struct, frozen=True):
    """A group that waits for a partition's last stable offset.

    In a partition of a topic: a group with a committed offset there of at most the last stable offset; it waits if it reads committed
    records. In a partition of `__consumer_offsets`: a group with `pending` offsets, which its members cannot fetch until the transaction
    ends; `committed_offset` is None.
    """

    group_id: str
    committed_offset: int | None
    pending: list[TopicPartition] = []


class BlockedPartition(msgspec.Struct, frozen=True):
    """A partition with records at or above its last stable offset. Consumers with `isolation.level=read_committed` do not read these."""

    topic: str
    partition: int
    last_stable_offset: int
    end_offset: int
    #: The open transactions by start offset; the first one holds the last stable offset.
    transactions: list[BlockingTransaction]
    groups: list[BlockedGroup] = []

    @property
    def place(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def held_back(self) -> int:
        """Number of offsets that are held back."""
        return max(self.end_offset - self.last_stable_offset, 0)
