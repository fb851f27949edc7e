"""Members of a classic group, their sessions, and the member ids that are pending.

A *dynamic* member is identified by a member id from the coordinator. A *static* member has a group.instance.id: it keeps its place when it
rejoins under a new member id, and requests with the old id are fenced. Source: KIP-345.

The table keeps counts that would otherwise need a loop over all members: waiting JoinGroups, members per protocol, bytes.
"""

from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from random import Random
from typing import Any

from ottla.broker.coordinator import Reply, Shard
from ottla.broker.delayed import DelayedOperation
from ottla.broker.groups.group import GroupClient
from ottla.broker.groups.memory_limits import MEMBER_BYTES, PENDING_BYTES, Footprint, protocols_bytes, text_bytes
from ottla.broker.groups.records import MemberMetadata
from ottla.wire import errors

Protocols = tuple[tuple[str, bytes], ...]


@dataclass(slots=True, eq=False)
class GroupMember:
    """A member's last request, assignment, and waiting requests."""

    member_id: str
    _: KW_ONLY
    instance_id: str | None
    client: GroupClient
    rebalance_timeout_ms: int
    session_timeout_ms: int
    #: (name, metadata) in the member's order of preference.
    protocols: Protocols
    assignment: bytes = b""
    #: Has not been in a generation yet, so it cannot send heartbeats.
    new: bool = False
    #: The JoinGroup that waits for the end of the join phase; changed only by ``GroupMembers.await_join``.
    joining: Reply | None = None
    #: The SyncGroup that waits for the leader's assignment.
    syncing: Reply | None = None
    #: End of its session.
    expires_ms: int = 0
    #: Fires at or before ``expires_ms``, so that a heartbeat need not move it.
    timer: DelayedOperation | None = None
    timer_ms: int = 0

    @classmethod
    def recorded(cls, value: MemberMetadata, protocol: str | None) -> "GroupMember":
        """A member from a record."""
        return cls(
            value.member_id,
            instance_id=value.group_instance_id,
            client=GroupClient(value.client_id, value.client_host),
            rebalance_timeout_ms=value.session_timeout if value.rebalance_timeout == -1 else value.rebalance_timeout,
            session_timeout_ms=value.session_timeout,
            protocols=((protocol or "", value.subscription),),
            assignment=value.assignment,
        )

    def record(self, protocol: str | None, assignment: bytes) -> MemberMetadata:
        return MemberMetadata(
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            client_id=self.client.client_id,
            client_host=self.client.host,
            rebalance_timeout=self.rebalance_timeout_ms,
            session_timeout=self.session_timeout_ms,
            subscription=self.metadata(protocol),
            assignment=assignment,
        )

    @property
    def size_bytes(self) -> int:
        """Memory of the member with its assignment."""
        return said_bytes(self.member_id, self.instance_id, self.client, self.protocols) + len(self.assignment)

    @property
    def excused(self) -> bool:
        """Whether it cannot send heartbeats because it waits for a response."""
        return not self.new and (self.joining is not None or self.syncing is not None)

    def metadata(self, protocol: str | None) -> bytes:
        """Its metadata for a protocol."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def vote(self, candidates: set[str]) -> str:
        """Its preferred protocol among these; it supports at least one."""
        return next(name for name, _ in self.protocols if name in candidates)


class GroupMembers:
    """Members of one group in the order of joining."""

    __slots__ = ("_knowing", "by_id", "by_instance", "footprint", "joining")

    def __init__(self, footprint: Footprint) -> None:
        #: Counts ``GroupMember.size_bytes`` of each.
        self.footprint = footprint
        self.by_id: dict[str, GroupMember] = {}
        #: Member ids of static members.
        self.by_instance: dict[str, str] = {}
        #: Number of waiting JoinGroups.
        self.joining = 0
        #: Number of members per protocol.
        self._knowing: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.by_id)

    def __iter__(self) -> Iterator[GroupMember]:
        return iter(self.by_id.values())

    def add(self, member: GroupMember) -> None:
        self.by_id[member.member_id] = member
        if member.instance_id is not None:
            self.by_instance[member.instance_id] = member.member_id
        self._count(member.protocols, 1)
        self.footprint.add(member.size_bytes)
        self.joining += member.joining is not None

    def remove(self, member: GroupMember) -> None:
        del self.by_id[member.member_id]
        if member.instance_id is not None:
            self.by_instance.pop(member.instance_id, None)
        self._count(member.protocols, -1)
        self.footprint.add(-member.size_bytes)
        self.joining -= member.joining is not None

    def rename(self, member: GroupMember, member_id: str) -> None:
        """A static member rejoined under a new id and keeps its place."""
        assert member.instance_id is not None, "only static members come back under another id"
        old = member.member_id
        self.footprint.add(text_bytes(member_id) - text_bytes(old))
        member.member_id = self.by_instance[member.instance_id] = member_id
        self.by_id = {(member_id if key == old else key): value for key, value in self.by_id.items()}

    def set_protocols(self, member: GroupMember, protocols: Protocols) -> None:
        self._count(member.protocols, -1)
        self.footprint.add(protocols_bytes(protocols) - protocols_bytes(member.protocols))
        member.protocols = protocols
        self._count(protocols, 1)

    def assign(self, member: GroupMember, assignment: bytes) -> None:
        """Sets the member's assignment, empty for none."""
        self.footprint.add(len(assignment) - len(member.assignment))
        member.assignment = assignment

    def await_join(self, member: GroupMember, reply: Reply | None) -> None:
        """Sets the member's waiting JoinGroup, None for none."""
        self.joining += (reply is not None) - (member.joining is not None)
        member.joining = reply

    def find(self, member_id: str, instance_id: str | None) -> GroupMember:
        """The member named by a request.

        Raises: UnknownMemberId, FencedInstanceId.
        """
        if instance_id is not None:
            present = self.by_instance.get(instance_id)
            if present is not None and present != member_id:
                raise errors.FencedInstanceId(f"{instance_id!r} is member {present} now, no longer {member_id}")
            if present is None:
                raise errors.UnknownMemberId(f"the group has no static member {instance_id!r}")
        member = self.by_id.get(member_id)
        if member is None:
            raise errors.UnknownMemberId(f"the group has no member {member_id!r}")
        return member

    def agree(self, protocols: Protocols) -> bool:
        """Whether every member supports one of these protocols."""
        return any(self._knowing.get(name, 0) == len(self.by_id) for name, _ in protocols)

    def elected_protocol(self) -> str:
        """Of the common protocols the one that most members prefer; the first one if votes are equal."""
        candidates = {name for name, count in self._knowing.items() if count == len(self.by_id)}
        votes: dict[str, int] = {}
        for member in self.by_id.values():
            name = member.vote(candidates)
            votes[name] = votes.get(name, 0) + 1
        return max(votes, key=lambda name: votes[name])

    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of the members."""
        return max((member.rebalance_timeout_ms for member in self.by_id.values()), default=0)

    def _count(self, protocols: Protocols, by: int) -> None:
        for name, _ in protocols:
            self._knowing[name] = self._knowing.get(name, 0) + by
            if not self._knowing[name]:
                del self._knowing[name]


class Sessions:
    """Sessions of one group's members: each expires its session timeout after the member's last request.

    A request changes only a number: the running timer fires at the old deadline and is then set to the new one.
    """

    __slots__ = ("_lost", "_shard")

    def __init__(self, shard: Shard[Any], lost: Callable[[GroupMember], None]) -> None:
        """``lost`` is called for a member whose session expired."""
        self._shard = shard
        self._lost = lost

    def alive(self, member: GroupMember, timeout_ms: int | None = None) -> None:
        """The member sent a request or got a response: its session starts again, with its own timeout or another one."""
        member.expires_ms = self._shard.now_ms + (member.session_timeout_ms if timeout_ms is None else timeout_ms)
        if member.timer is None or member.expires_ms < member.timer_ms:
            self._shard.cancel(member.timer)
            self._expect(member)

    def end(self, member: GroupMember) -> None:
        """The member is gone."""
        self._shard.cancel(member.timer)
        member.timer = None

    def _expect(self, member: GroupMember) -> None:
        member.timer_ms = member.expires_ms
        member.timer = self._shard.after(member.expires_ms - self._shard.now_ms, lambda: self._due(member))

    def _due(self, member: GroupMember) -> None:
        member.timer = None
        if self._shard.now_ms < member.expires_ms:
            self._expect(member)
        elif not member.excused:
            self._lost(member)


class PendingMembers:
    """Pending member ids of one group: allocated, but not joined yet; oldest first, each with its deadline.

    A client gets an id and joins with it in its next request. A client that never does would leave an entry for its session timeout, up to
    half an hour. So there is a limit, ``ottla.group.pending.members.max``: a further id replaces the oldest. A client with a replaced id
    gets UNKNOWN_MEMBER_ID, and all clients then get a new id.

    Pending ids count towards no other limit, as in Kafka: otherwise a client that reconnects could be refused because of its former id.
    Source: KIP-394.
    """

    __slots__ = ("_expired", "_footprint", "_shard", "_timers")

    def __init__(self, shard: Shard[Any], footprint: Footprint, expired: Callable[[], None]) -> None:
        """``expired`` is called after the deadline of an id."""
        self._shard = shard
        self._footprint = footprint
        self._expired = expired
        self._timers: dict[str, DelayedOperation] = {}

    def __len__(self) -> int:
        return len(self._timers)

    def __iter__(self) -> Iterator[str]:
        return iter(self._timers)

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._timers

    def add(self, member_id: str, timeout_ms: int) -> None:
        """Adds an id."""
        while len(self._timers) >= self._shard.options.group_pending_members_max:
            self.discard(next(iter(self._timers)))
        self._timers[member_id] = self._shard.after(timeout_ms, lambda: self._due(member_id))
        self._footprint.add(PENDING_BYTES + text_bytes(member_id))

    def discard(self, member_id: str) -> None:
        """Removes an id that joined or left; unknown ids are ignored."""
        timer = self._timers.pop(member_id, None)
        if timer is not None:
            self._shard.cancel(timer)
            self._footprint.add(-PENDING_BYTES - text_bytes(member_id))

    def clear(self) -> None:
        """Removes all ids."""
        for member_id in list(self._timers):
            self.discard(member_id)

    def _due(self, member_id: str) -> None:
        self.discard(member_id)
        self._expired()


def said_bytes(member_id: str, instance_id: str | None, client: GroupClient, protocols: Protocols) -> int:
    """Memory of a member with these values."""
    names = (member_id, instance_id, client.client_id, client.host)
    return MEMBER_BYTES + sum(map(text_bytes, names)) + protocols_bytes(protocols)


#: Characters of a client id or instance id in a member id. A client id may have 32,767 bytes, as many as a member id.
NAME_CHARS_MAX = 1_000


def new_member_id(begin: str, rng: Random) -> str:
    """A new id: 128 random bits after the name of the member, or its beginning."""
    digits = rng.randbytes(16).hex()
    return f"{begin[:NAME_CHARS_MAX]}-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
