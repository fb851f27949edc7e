"""The interface of client-side assignors, with which the group leader assigns partitions. Pure.

Members are ordered by instance id, then by member id, as in Java's client: a static member that rejoins gets the same partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol, TypeAlias

from ottla.base.ids import TopicPartition

#: Partitions by member.
Assignment: TypeAlias = dict[str, list[TopicPartition]]


class Member(NamedTuple):
    """A member in the view of the group leader."""

    topics: frozenset[str]
    #: Data of its assignor with the same name.
    user_data: bytes | None = None
    #: Owned partitions, and the generation of their assignment; -1 if not sent.
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1
    rack: str | None = None
    instance_id: str | None = None


class Assignor(Protocol):
    """Base class of custom assignors: set a name, and pass the class or an instance to `partition_assignment_strategy`.

    All members of a group need an assignor with this name and the same result.
    """

    #: Name in the protocol.
    name: str
    #: Whether members keep reading during a rebalance. Partitions that move are then assigned only after their owner revoked them;
    #: `assign` need not handle that.
    cooperative: bool = False

    def assign(self, partitions: Mapping[str, int], members: Mapping[str, Member]) -> Assignment:
        """Partitions by member id. `partitions` has the number of partitions of each existing subscribed topic."""
        ...

    def user_data(self, topics: Iterable[str]) -> bytes | None:
        """Data for the leader's assignor; called before each join."""
        return None

    def assigned(self, partitions: Iterable[TopicPartition], generation: int) -> None:
        """Called with the member's assignment."""
        return None


def in_order(members: Mapping[str, Member]) -> list[str]:
    """Member ids: static members by instance id, then the others."""
    return sorted(members, key=lambda one: (members[one].instance_id is None, members[one].instance_id or one))


def readers_of(members: Mapping[str, Member]) -> dict[str, list[str]]:
    """Subscribers by topic, in order."""
    readers: dict[str, list[str]] = {}
    for member in in_order(members):
        for topic in members[member].topics:
            readers.setdefault(topic, []).append(member)
    return readers


def without_moving(made: Assignment, members: Mapping[str, Member]) -> Assignment:
    """The assignment without partitions that another member must revoke first (KIP-429)."""
    owners: dict[TopicPartition, set[str]] = {}
    for member, told in members.items():
        for tp in told.owned:
            owners.setdefault(tp, set()).add(member)
    return {member: [tp for tp in partitions if tp not in owners or owners[tp] <= {member}] for member, partitions in made.items()}


def by_topic(partitions: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    """The numbers of partitions by topic, in the order given."""
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return topics
