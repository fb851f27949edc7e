"""Partitioners: the choice of a partition for records that name none.

    "default"        with a key: Java's murmur2 of its bytes, as in all Kafka clients; without, `sticky_partitioning`
    "round_robin"    one after the other, whatever the key
    "random"         any, whatever the key
    a function       (topic, key, value, info) -> partition, of the serialized key and value; or an object with that as method
                     `partition`, and perhaps `configure(settings)` and `close()`

`info` is a `TopicInfo`: `len(info.partitions)` partitions, each with its `leader`. A partitioner is called in the thread of `send`, by many
threads at once if many send.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from itertools import count
from random import Random
from typing import Any

from ottla.base.options import suggestion
from ottla.client.transport.cluster import NO_NODE, TopicInfo

Choice = Callable[[str, bytes | None, bytes | None, TopicInfo], int]


class RoundRobin:
    """Round robin over a topic's partitions with a leader, or over all if none has. Like Java's RoundRobinPartitioner."""

    def __init__(self) -> None:
        self._next: defaultdict[str, count[int]] = defaultdict(count)

    def partition(self, topic: str, key: bytes | None, value: bytes | None, info: TopicInfo) -> int:
        available = [one for one in info.partitions if one.leader != NO_NODE] or info.partitions
        return available[next(self._next[topic]) % len(available)].partition


class AtRandom:
    """A random partition with a leader for each record."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def partition(self, topic: str, key: bytes | None, value: bytes | None, info: TopicInfo) -> int:
        available = [one for one in info.partitions if one.leader != NO_NODE] or info.partitions
        return self._rng.choice(available).partition


NAMES = ("default", "round_robin", "random")


def as_choice(given: Any, settings: Mapping[str, Any], rng: Random) -> Choice | None:
    """The function behind a partitioner in any of its forms; None: the default. An object is configured.

    Raises: ValueError for an unknown name, TypeError for a value that is not a partitioner.
    """
    match given:
        case None | "default":
            return None
        case "round_robin":
            return RoundRobin().partition
        case "random":
            return AtRandom(rng).partition
        case str():
            raise ValueError(f"no partitioner is called {given!r}{suggestion(given, NAMES)}; there are {', '.join(NAMES)}")
    method = getattr(given, "partition", None)
    if isinstance(given, type) or not callable(method or given):
        raise TypeError(f"{given!r} is no name of a partitioner, no function, and no object with a method partition")
    configure = getattr(given, "configure", None)
    if configure is not None:
        configure(settings)
    return checked(method or given)


def checked(choice: Choice) -> Choice:
    """The same, when it chooses a partition that there is. Raises: ValueError otherwise."""

    def partition(topic: str, key: bytes | None, value: bytes | None, info: TopicInfo) -> int:
        chosen = choice(topic, key, value, info)
        if not isinstance(chosen, int) or not 0 <= chosen < len(info.partitions):
            raise ValueError(f"the partitioner chose {chosen!r} for topic {topic}, which has partitions 0 to {len(info.partitions) - 1}")
        return chosen

    return partition
