"""Computes the placement of replicas, and reads and writes its files. Pure.

A plan moves as little as possible. Replicas stay unless their broker is excluded, has too many replicas, or shares its rack with more of
them than necessary. Missing replicas go to the broker with the fewest. Then first replicas are balanced, which moves no data. All in the
order of partitions and brokers, so that the same input has the same result.

The files are those of Kafka's kafka-reassign-partitions.sh and kafka-leader-election.sh::

    {"version":1,"partitions":[{"topic":"orders","partition":0,"replicas":[1,2,3]},...]}       a plan
    {"version":1,"topics":[{"topic":"orders"},...]}                                            topics to plan for
    {"partitions":[{"topic":"orders","partition":0},...]}                                      partitions to elect leaders of
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from ottla.base.ids import TopicPartition

Plan = dict[TopicPartition, tuple[int, ...]]


class _Placed(msgspec.Struct):
    topic: str
    partition: int
    replicas: tuple[int, ...]


class _PlanFile(msgspec.Struct):
    partitions: list[_Placed]
    version: int = 1


class _Named(msgspec.Struct):
    topic: str


class _Partition(msgspec.Struct):
    topic: str
    partition: int


class _PartitionsFile(msgspec.Struct):
    partitions: list[_Partition]


class _TopicsFile(msgspec.Struct):
    topics: list[_Named]
    version: int = 1


def read_plan(data: str | bytes) -> Plan:
    """Log directories in a plan are left out: each broker chooses its own.

    Raises: ValueError if the text is not a plan, or names a partition twice.
    """
    try:
        read = msgspec.json.decode(data, type=_PlanFile)
    except msgspec.DecodeError as error:
        raise ValueError(f"this is no plan of a reassignment: {error}") from None
    if read.version != 1:
        raise ValueError(f"plans are of version 1, not {read.version}")
    plan: Plan = {}
    for one in read.partitions:
        tp = TopicPartition(one.topic, one.partition)
        if tp in plan:
            raise ValueError(f"{tp} is named twice in this plan")
        plan[tp] = one.replicas
    return plan


def read_topics(data: str | bytes) -> list[str]:
    """Raises: ValueError."""
    try:
        return [one.topic for one in msgspec.json.decode(data, type=_TopicsFile).topics]
    except msgspec.DecodeError as error:
        raise ValueError(f"this is no list of topics: {error}") from None


def read_partitions(data: str | bytes) -> list[TopicPartition]:
    """Raises: ValueError."""
    try:
        return [TopicPartition(one.topic, one.partition) for one in msgspec.json.decode(data, type=_PartitionsFile).partitions]
    except msgspec.DecodeError as error:
        raise ValueError(f"this is no list of partitions: {error}") from None


def plan_json(plan: Mapping[TopicPartition, Sequence[int]]) -> dict[str, object]:
    """A plan in the format of its file."""
    return {
        "version": 1,
        "partitions": [{"topic": tp.topic, "partition": tp.partition, "replicas": list(ids)} for tp, ids in sorted(plan.items())],
    }


def planned(current: Mapping[TopicPartition, Sequence[int]], racks: Mapping[int, str | None], *, factor: int | None = None) -> Plan:
    """Balances these partitions over these brokers; returns the changed ones.

    ``factor`` None keeps each partition's number of replicas. Raises: ValueError if there are fewer brokers than replicas.
    """
    work = _Layout(racks)
    for tp, replicas in sorted(current.items()):
        wanted = factor or len(replicas)
        if wanted > len(racks):
            raise ValueError(f"{tp} has {wanted} replicas, for which {len(racks)} brokers are too few")
        work.keep(tp, replicas, wanted)
    work.fill()
    work.even_out()
    work.even_out_leaders()
    return {tp: tuple(ids) for tp, ids in work.replicas.items() if tuple(ids) != tuple(current[tp])}


class _Layout:
    """Replicas during placement."""

    def __init__(self, racks: Mapping[int, str | None]) -> None:
        self._brokers = sorted(racks)
        # A broker without a rack is a rack of its own.
        self._racks = {broker: rack or f"broker {broker}" for broker, rack in racks.items()}
        self._rack_count = len(set(self._racks.values()))
        self.replicas: dict[TopicPartition, list[int]] = {}
        self._factors: dict[TopicPartition, int] = {}
        #: By broker; True for replicas that are there already.
        self._held: dict[int, dict[TopicPartition, bool]] = {broker: {} for broker in self._brokers}

    def _crowd(self, tp: TopicPartition, broker: int, without: int | None = None) -> int:
        """Number of a partition's replicas in a broker's rack."""
        rack = self._racks[broker]
        return sum(1 for other in self.replicas[tp] if other != without and self._racks[other] == rack)

    def _rack_max(self, tp: TopicPartition) -> int:
        return -(-self._factors[tp] // self._rack_count)

    def keep(self, tp: TopicPartition, replicas: Sequence[int], factor: int) -> None:
        """Keeps replicas where they may stay."""
        self._factors[tp], kept = factor, self.replicas.setdefault(tp, [])
        for broker in replicas:
            if broker in self._racks and len(kept) < factor and self._crowd(tp, broker) < self._rack_max(tp):
                kept.append(broker)
                self._held[broker][tp] = True

    def fill(self) -> None:
        """Adds missing replicas."""
        for tp, replicas in self.replicas.items():
            while len(replicas) < self._factors[tp]:
                free = [broker for broker in self._brokers if broker not in replicas]
                chosen = min(free, key=lambda broker: (self._crowd(tp, broker), len(self._held[broker]), broker))
                replicas.append(chosen)
                self._held[chosen][tp] = False

    def even_out(self) -> None:
        """Moves replicas from brokers with many to brokers with few, while that helps."""
        while self._moved_one():
            pass

    def _moved_one(self) -> bool:
        by_load = sorted(self._brokers, key=lambda broker: (len(self._held[broker]), broker))
        for full in reversed(by_load):
            for empty in by_load:
                if len(self._held[full]) - len(self._held[empty]) < 2:
                    break
                # Prefer replicas that must be copied anyway.
                for tp in sorted(self._held[full], key=self._held[full].__getitem__):
                    replicas = self.replicas[tp]
                    if empty not in replicas and self._crowd(tp, empty, without=full) < self._rack_max(tp):
                        replicas[replicas.index(full)] = empty
                        del self._held[full][tp]
                        self._held[empty][tp] = False
                        return True
        return False

    def even_out_leaders(self) -> None:
        """Balances first replicas by changing their order only."""
        leads = Counter(replicas[0] for replicas in self.replicas.values() if replicas)
        changed = True
        while changed:
            changed = False
            for replicas in self.replicas.values():
                least = min(replicas, key=lambda broker: leads[broker])
                if leads[replicas[0]] - leads[least] >= 2:
                    leads[replicas[0]] -= 1
                    leads[least] += 1
                    replicas.remove(least)
                    replicas.insert(0, least)
                    changed = True
