"""Results of admin requests about groups, with Kafka's names."""

from __future__ import annotations

import msgspec

from ottla.base.ids import TopicPartition
from ottla.client.admin.results import Node, Operation, ProtocolName
from ottla.client.html_tables import html_table


class GroupState(ProtocolName):
    """State of a group. The rebalance states are the classic protocol's, ASSIGNING and RECONCILING the consumer protocol's. Source:
    KIP-518, 848."""

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
        """Whether it has members, which then own its offsets."""
        return self not in (GroupState.EMPTY, GroupState.DEAD)


class GroupType(ProtocolName):
    """The group's protocol: classic (JoinGroup), consumer (KIP-848), share (KIP-932), streams (KIP-1071)."""

    UNKNOWN = "Unknown"
    CLASSIC = "Classic"
    CONSUMER = "Consumer"
    SHARE = "Share"
    STREAMS = "Streams"


class GroupListing(msgspec.Struct, frozen=True):
    """A group. `protocol_type` is the kind of its members: "consumer", "connect", or empty if it only has committed offsets. State and type
    are UNKNOWN if the broker is too old to report them.
    """

    group_id: str
    protocol_type: str
    state: GroupState
    type: GroupType


class GroupMember(msgspec.Struct, frozen=True):
    """A member. `epoch`, `rack` and `target_assignment` belong to the consumer protocol; the target is what it will read after other
    members have released it.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    #: Also empty if the members are not consumers.
    assignment: list[TopicPartition]
    topics: list[str] = []
    topic_pattern: str | None = None
    epoch: int | None = None
    rack: str | None = None
    target_assignment: list[TopicPartition] | None = None


class GroupDescription(msgspec.Struct, frozen=True):
    """A group with its members. Epochs are the consumer protocol's. `assignor` is empty until one is chosen."""

    group_id: str
    type: GroupType
    state: GroupState
    protocol_type: str
    assignor: str
    coordinator: Node
    members: list[GroupMember]
    epoch: int | None = None
    assignment_epoch: int | None = None
    #: Operations this client is authorized for, if requested.
    authorized_operations: frozenset[Operation] | None = None

    def _repr_html_(self) -> str:
        return html_table(self.members, title=f"{self.group_id}  {self.state.value}")
