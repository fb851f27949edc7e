"""Who of a group reads which partition: the rules by which the group's leader decides, and what an assignor of your own must be. Pure.

    name                  | rule
    range                 | per topic, each member a run of partitions; the first members one more
    roundrobin            | all partitions in a row, dealt out in turn to the members that read the topic
    sticky                | as even as it goes, moving as little as it goes                        (`sticky.py`)
    cooperative-sticky    | the same, and members keep reading what does not move (KIP-429)       (`sticky.py`)

The members choose the rule together: each says which ones it knows, in its order of preference, and the coordinator takes one that all
know. If all that a member knows are cooperative, it gives up only what it has to; otherwise it gives up everything before it joins.

Members are taken in the order of their instance ids, then of their member ids, as in Java's client: a static member that comes back gets
the same again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import cycle
from typing import Any, NamedTuple, Protocol, TypeAlias

from ottla.base.ids import TopicPartition
from ottla.base.options import ConfigError, suggestion

#: The partitions of each member.
Assignment: TypeAlias = dict[str, list[TopicPartition]]
JAVA_PACKAGE = "org.apache.kafka.clients.consumer."


class Member(NamedTuple):
    """A member as the group's leader sees it."""

    topics: frozenset[str]
    #: What its assignor of the same name had to say.
    user_data: bytes | None = None
    #: What it reads now, and the generation in which it was given that; -1: it does not say.
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1
    rack: str | None = None
    instance_id: str | None = None


class Assignor(Protocol):
    """A rule of your own: derive from this class, give it a name, and hand it (or an instance) to `partition_assignment_strategy`.

    All members of a group must know a rule of the same name that decides the same.
    """

    #: Under which the members agree on it.
    name: str
    #: Whether members keep what they read while the group settles. What changes hands is then left out until its owner gave it up; the
    #: rule itself need not care.
    cooperative: bool = False

    def assign(self, partitions: Mapping[str, int], members: Mapping[str, Member]) -> Assignment:
        """The partitions of each member, by member id. `partitions` counts those of each topic that exists and that somebody reads."""
        ...

    def user_data(self, topics: Iterable[str]) -> bytes | None:
        """What to tell the leader's assignor; called before each join."""
        return None

    def assigned(self, partitions: Iterable[TopicPartition], generation: int) -> None:
        """This member was given these partitions."""
        return None


class Range(Assignor):
    """Per topic: partitions in order, members in order, each member a run of them; where it does not divide, the first get one more."""

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
    """All partitions of all topics in order, dealt out in turn; a member that does not read the topic is passed over."""

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
    """Who reads a topic, in order."""
    readers: dict[str, list[str]] = {}
    for member in in_order(members):
        for topic in members[member].topics:
            readers.setdefault(topic, []).append(member)
    return readers


def without_moving(made: Assignment, members: Mapping[str, Member]) -> Assignment:
    """What can be given at once: without the partitions that another member still reads, which must give them up first (KIP-429)."""
    owners: dict[TopicPartition, set[str]] = {}
    for member, told in members.items():
        for tp in told.owned:
            owners.setdefault(tp, set()).add(member)
    return {member: [tp for tp in partitions if tp not in owners or owners[tp] <= {member}] for member, partitions in made.items()}


def assignors_from(given: Any) -> list[Assignor]:
    """The assignors that a setting names: names of ours or Java's, classes, instances, or several of them; each with its own state.

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
