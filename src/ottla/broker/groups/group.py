"""What a group is to everybody but its own protocol: the seam between kinds of groups.

A group is of one kind at a time, ``classic`` (``classic.py``) or ``consumer``. ``Groups`` keeps one object per group id and asks it through
``Group``, whatever its kind: for admin requests, for the right to commit, for when offsets expire. Requests of the classic protocol go to
the group too, since members that speak it may belong to a group of either kind.
"""

from typing import Any, NamedTuple, Protocol

from ottla.broker.coordinator import Record, Reply
from ottla.broker.groups.memory_limits import Footprint
from ottla.broker.groups.records import OffsetCommitValue

CLASSIC, CONSUMER = "classic", "consumer"
#: What the members of a group of consumers call their protocol type.
CONSUMER_PROTOCOL = "consumer"


class Client(NamedTuple):
    """Who made a request."""

    client_id: str
    host: str


class Group(Protocol):
    """See the module's theory. Methods that refuse raise KafkaErrors and then have changed nothing."""

    group_id: str
    #: CLASSIC or CONSUMER.
    kind: str

    @property
    def footprint(self) -> Footprint:
        """Memory for its members; an answer that describes them takes about as much."""

    @property
    def state_name(self) -> str:
        """As clients see it."""

    @property
    def protocol_type(self) -> str | None:
        """What its members are; None for a group that only keeps offsets."""

    @property
    def empty(self) -> bool:
        """Whether it has no members."""

    def subscribed(self, topic: str) -> bool:
        """Whether a member reads the topic, as far as the group can tell."""

    def join(self, request: Any, client: Client, reply: Reply) -> None:
        """JoinGroup; answered now or later."""

    def sync(self, request: Any, reply: Reply) -> None:
        """SyncGroup; answered now or later."""

    def heartbeat(self, request: Any) -> None:
        """Heartbeat of the classic protocol. Returns for a member that may go on."""

    def leave(self, members: list[Any]) -> list[Any]:
        """LeaveGroup: a MemberResponse for each MemberIdentity."""

    def check_commit(self, request: Any, version: int) -> None:
        """Whether the sender of an OffsetCommit may; one who may is alive."""

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Whether the sender of an OffsetFetch may."""

    def check_offset_delete(self) -> None:
        """Whether offsets of topics that nobody reads may be deleted now."""

    def check_delete(self) -> None:
        """Whether the group may be deleted now. Raises: NonEmptyGroup."""

    def expiry_base(self, committed: OffsetCommitValue) -> int | None:
        """When the retention of an offset begins, in the calendar's ms; None while it cannot expire."""

    def tombstones(self) -> list[Record]:
        """Records that end the group; its offsets have their own."""

    def described(self) -> Any:
        """A DescribedGroup for DescribeGroups. Raises: GroupIdNotFound for a kind that has an API of its own."""

    def loaded(self) -> None:
        """The log was read: members are alive from now on."""

    def topic_changed(self, topic: str) -> None:
        """A topic was created, grew or went away."""

    def close(self) -> None:
        """The group object goes, because its group was deleted or becomes one of another kind: no deadline fires, nobody waits."""
