"""What an admin client answers about groups: plain structures, each with the names Kafka's users know."""

from __future__ import annotations

from enum import StrEnum
from typing import Self

import msgspec

from ottla.base.ids import TopicPartition
from ottla.client.admin.results import Node, Operation


class _Word(StrEnum):
    """A word of the protocol, in whatever case; one that a later broker may bring is UNKNOWN."""

    @classmethod
    def _missing_(cls, value: object) -> Self:
        wanted = str(value).lower()
        return next((one for one in cls if one.value.lower() == wanted), cls("Unknown"))


class GroupState(_Word):
    """Where a group stands. The rebalances are of the classic protocol, ASSIGNING and RECONCILING of the new one. Source: KIP-518, 848."""

    UNKNOWN = "Unknown"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    EMPTY = "Empty"
    DEAD = "Dead"
    NOT_READY = "NotReady"

    @property
    def has_members(self) -> bool:
        """Whether somebody is in it, so that its offsets are theirs to change."""
        return self not in (GroupState.EMPTY, GroupState.DEAD)


class GroupType(_Word):
    """The protocol that a group follows: classic (JoinGroup), consumer (KIP-848), share (KIP-932), streams (KIP-1071)."""

    UNKNOWN = "Unknown"
    CLASSIC = "Classic"
    CONSUMER = "Consumer"
    SHARE = "Share"
    STREAMS = "Streams"


class GroupListing(msgspec.Struct, frozen=True):
    """A group. `protocol_type` says what its members are: "consumer", "connect", or nothing where only offsets were ever committed. State
    and type are UNKNOWN where the broker is too old to tell.
    """

    group_id: str
    protocol_type: str
    state: GroupState
    type: GroupType


class GroupMember(msgspec.Struct, frozen=True):
    """A member. `epoch`, `rack` and `target_assignment` belong to the new protocol; the target is what it shall read, once others have
    given it up.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    #: Empty too where the members of a group share something else than partitions.
    assignment: list[TopicPartition]
    topics: list[str] = []
    topic_pattern: str | None = None
    epoch: int | None = None
    rack: str | None = None
    target_assignment: list[TopicPartition] | None = None


class GroupDescription(msgspec.Struct, frozen=True):
    """A group with its members. Epochs are those of the new protocol. `assignor` is empty while there is none chosen."""

    group_id: str
    type: GroupType
    state: GroupState
    protocol_type: str
    assignor: str
    coordinator: Node
    members: list[GroupMember]
    epoch: int | None = None
    assignment_epoch: int | None = None
    #: What this client may do with it, where that was asked.
    authorized_operations: frozenset[Operation] | None = None
