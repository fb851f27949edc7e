"""Client-side assignors, with which the group leader assigns partitions. Pure.

    name                  | rule
    range                 | per topic, consecutive partitions; the first members get one more
    roundrobin            | all partitions in turn, to members that subscribe to the topic
    sticky                | balanced, with as few moves as possible                                (`sticky_assignor.py`)
    cooperative-sticky    | the same, and members keep reading partitions that do not move (KIP-429)

Each member sends its assignors in order of preference, and the coordinator selects one that all support. If all assignors of a member are
cooperative, it revokes only what it must; otherwise it revokes everything before it joins.

Members are ordered by instance id, then by member id, as in Java's client: a static member that rejoins gets the same partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import cycle
from typing import Any, NamedTuple, Protocol, TypeAlias

from ottla.base.ids import TopicPartition
from ottla.base.options import ConfigError, suggestion

#: Partitions by member.
Assignment: TypeAlias = dict[str, list[TopicPartition]]
JAVA_PACKAGE = "org.apache.kafka.clients.consumer."


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


class Range(Assignor):
    """Per topic: consecutive partitions for members in order; the first members get one more if it does not divide."""

    name = "range"

    def assign(self, partitions: Mapping[str, int], members: Mapping[str, Member]) -> Assignment:
        made: Assignment = {member: [] for member in members}
        readers = readers_of(members)
        for topic in sorted(partitions):
            reading = readers.get(topic, [])
            if not reading:
                continue
            least, more = divmod(partitions[topic], len(reading))
            at = 0
            for index, member in enumerate(reading):
                count = least + (index < more)
                made[member] += [TopicPartition(topic, partition) for partition in range(at, at + count)]
                at += count
        return made


class RoundRobin(Assignor):
    """All partitions of all topics in turn; members that do not subscribe to the topic are skipped."""

    name = "roundrobin"

    def assign(self, partitions: Mapping[str, int], members: Mapping[str, Member]) -> Assignment:
        made: Assignment = {member: [] for member in members}
        readers = readers_of(members)
        turn = cycle(in_order(members)) if members else iter(())
        for topic in sorted(partitions):
            if not readers.get(topic):
                continue
            for partition in range(partitions[topic]):
                member = next(member for member in turn if topic in members[member].topics)
                made[member].append(TopicPartition(topic, partition))
        return made


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


def assignors_from(given: Any) -> list[Assignor]:
    """The assignors of a setting: names of Ottla or Java, classes, or instances; each with its own state.

    Raises: ConfigError.
    """
    from ottla.client.group.sticky_assignor import CooperativeSticky, Sticky

    known: dict[str, type[Assignor]] = {one.name: one for one in (Range, RoundRobin, Sticky, CooperativeSticky)}
    java = {
        "RangeAssignor": Range, "RoundRobinAssignor": RoundRobin, "StickyAssignor": Sticky, "CooperativeStickyAssignor": CooperativeSticky,
    }  # fmt: skip
    setting = "partition_assignment_strategy"
    parts: list[Any] = given.split(",") if isinstance(given, str) else list(given) if isinstance(given, list | tuple) else [given]
    made: list[Assignor] = []
    for part in parts:
        if isinstance(part, str):
            name = part.strip()
            found = known.get(name) or java.get(name.removeprefix(JAVA_PACKAGE))
            if found is None:
                raise ConfigError(
                    setting,
                    f"no assignor is called {name!r}{suggestion(name, known)}; known are {', '.join(known)}, or give a class of your own",
                )
            made.append(found())
        else:
            one: Any = part() if isinstance(part, type) else part
            if not (isinstance(getattr(one, "name", None), str) and callable(getattr(one, "assign", None))):
                raise ConfigError(setting, f"{part!r} has no name or no assign(partitions, members); derive it from ottla.Assignor")
            made.append(one)
    names = [one.name for one in made]
    if not made or len(set(names)) < len(names):
        raise ConfigError(setting, "name at least one assignor, and each once")
    return made
