"""Client-side assignors, with which the group leader assigns partitions. Pure.

    name                  | rule
    range                 | per topic, consecutive partitions; the first members get one more
    roundrobin            | all partitions in turn, to members that subscribe to the topic
    sticky                | balanced, with as few moves as possible                                (`sticky_assignor.py`)
    cooperative-sticky    | the same, and members keep reading partitions that do not move (KIP-429)

Each member sends its assignors in order of preference, and the coordinator selects one that all support. If all assignors of a member are
cooperative, it revokes only what it must; otherwise it revokes everything before it joins.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from typing import Any

from ottla.base.ids import TopicPartition
from ottla.base.options import ConfigError, suggestion
from ottla.client.group.assignor import Assignment, Assignor, Member, in_order, readers_of
from ottla.client.group.sticky_assignor import CooperativeSticky, Sticky

JAVA_PACKAGE = "org.apache.kafka.clients.consumer."


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


def assignors_from(given: Any) -> list[Assignor]:
    """The assignors of a setting: names of Ottla or Java, classes, or instances; each with its own state.

    Raises: ConfigError.
    """
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
