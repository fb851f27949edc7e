"""The interface of a group that does not depend on its protocol.

A group is of one kind at a time, ``classic`` or ``consumer``. ``Groups`` has one object per group id and uses it through ``Group``: for
admin requests, permission to commit, and expiry of offsets. Requests of the classic protocol go to the group too, because classic members
may belong to a group of either kind.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeAlias

from ottla.broker.coordinator import Record, Reply, Shard
from ottla.broker.groups.memory_limits import Footprint
from ottla.broker.groups.records import OffsetCommitValue
from ottla.wire.errors import KafkaError

CLASSIC, CONSUMER = "classic", "consumer"
#: Protocol type of consumers.
CONSUMER_PROTOCOL = "consumer"


class GroupClient(NamedTuple):
    """The sender of a request."""

    client_id: str
    host: str
    #: Which topics a regular expression of the client may match; None: all, because there are no access rules.
    describes: Callable[[str], bool] | None = None


#: Why an offset of a partition (topic name, number) is not stored, or None.
PartitionCheck: TypeAlias = Callable[[str, int], KafkaError | None]


class Group(Protocol):
    """A group of any kind. A method that raises a KafkaError has changed nothing."""

    group_id: str
    #: CLASSIC or CONSUMER.
    kind: str

    @property
    def footprint(self) -> Footprint:
        """Memory of its members; a response that describes them takes about as much."""

    @property
    def state_name(self) -> str:
        """State as shown to clients."""

    @property
    def protocol_type(self) -> str | None:
        """Protocol type of its members; None for a group that only stores offsets."""

    @property
    def member_count(self) -> int:
        """Number of members."""

    @property
    def empty(self) -> bool:
        """Whether it has no members."""

    def subscribed(self, topic: str) -> bool:
        """Whether a member subscribes to the topic, as far as known."""

    def join(self, request: Any, client: GroupClient, reply: Reply) -> None:
        """JoinGroup; answered now or later."""

    def sync(self, request: Any, reply: Reply) -> None:
        """SyncGroup; answered now or later."""

    def heartbeat(self, request: Any) -> None:
        """Heartbeat of the classic protocol. Returns if there is no error."""

    def leave(self, members: list[Any]) -> list[Any]:
        """LeaveGroup: a MemberResponse for each MemberIdentity."""

    def check_commit(self, request: Any, version: int) -> PartitionCheck | None:
        """Checks that the sender of an OffsetCommit may commit; extends its session. None if it may commit every partition."""

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Checks that the sender of an OffsetFetch may fetch."""

    def check_offset_delete(self) -> None:
        """Checks that offsets of topics without subscription may be deleted."""

    def check_delete(self) -> None:
        """Checks that the group may be deleted. Raises: NonEmptyGroup."""

    def expiry_base(self, committed: OffsetCommitValue) -> int | None:
        """Start of an offset's retention, wall clock in ms; None while it cannot expire."""

    def tombstones(self) -> list[Record]:
        """Records that delete the group; its offsets have their own."""

    def described(self) -> Any:
        """A DescribedGroup for DescribeGroups. Raises: GroupIdNotFound for a kind with its own API."""

    def loaded(self) -> None:
        """The log was loaded: sessions of members start."""

    def topic_changed(self, topic: str) -> None:
        """A topic was created, expanded or deleted."""

    def close(self) -> None:
        """The object is dropped, because the group was deleted or converted: timers are cancelled and waiting requests refused."""


class GroupTable(Protocol):
    """The groups of one shard, as a group sees them; ``groups.py`` implements it."""

    shard: Shard[Any]
    #: Groups of all kinds by id.
    by_id: dict[str, Group]
    #: Memory of groups without offsets, see ``memory_limits.py``; and the time of the last logged refusal.
    footprint: Footprint
    warned_ms: int

    @property
    def loading(self) -> bool:
        """Whether the log is being loaded."""

    def join(self, request: Any, client: GroupClient, reply: Reply) -> None:
        """JoinGroup. Raises: KafkaError."""

    def forget_unused(self, group: Group) -> None:
        """Drops a group that was never persisted."""
