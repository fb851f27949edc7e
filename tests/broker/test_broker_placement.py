"""Placement of replicas: over as many racks as possible, evenly over brokers, with the load of a failed broker shared by the others."""

from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random

import pytest
from cluster import Cluster

from ottla.base.ids import BrokerId
from ottla.broker.controller.placement import place

Racks = dict[BrokerId, str | None]
#: Seeds, each with another start and shift.
SEEDS = range(12)


def racks(*sizes: int, without: int = 0) -> Racks:
    """Racks of so many brokers each, and brokers that name none."""
    named = [chr(ord("a") + rack) for rack, size in enumerate(sizes) for _ in range(size)]
    return {BrokerId(number): rack for number, rack in enumerate([*named, *[None] * without])}


def spread(counted: Iterable[object], over: Iterable[object]) -> int:
    """How many more the fullest has than the emptiest."""
    counts = Counter(counted)
    found = [counts[one] for one in over]
    return max(found) - min(found)


def replicas(placed: Sequence[tuple[BrokerId, ...]]) -> list[BrokerId]:
    return [broker for one in placed for broker in one]


#: Equal racks, unequal ones, none, and brokers without a rack beside others.
SHAPES = [
    racks(3, 3, 3),
    racks(1, 1, 1),
    racks(4, 1, 1),
    racks(3, 2, 1),
    racks(5, 2),
    racks(7, 1, 3, 2),
    racks(without=6),
    racks(2, 2, without=3),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("factor", [1, 2, 3])
def test_the_replicas_of_a_partition_lie_in_as_many_racks_as_possible_on_as_many_brokers_as_there_are_replicas(
    shape: Racks, factor: int
) -> None:
    there = len(set(shape.values())) if any(shape.values()) else len(shape)
    for seed in SEEDS:
        for partition in place(shape, partitions=60, replication_factor=factor, rng=Random(seed)):
            assert len(set(partition)) == factor
            if any(shape.values()):
                assert len({shape[broker] for broker in partition}) == min(factor, there)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("partitions", [1, 7, 60, 101])
def test_every_broker_leads_as_much_as_any_other(shape: Racks, partitions: int) -> None:
    for seed in SEEDS:
        placed = place(shape, partitions=partitions, replication_factor=min(3, len(shape)), rng=Random(seed))
        assert spread((partition[0] for partition in placed), shape) <= 1


@pytest.mark.parametrize("shape", [racks(3, 3, 3), racks(2, 2), racks(4, 4), racks(without=5), racks(without=10)], ids=str)
@pytest.mark.parametrize("factor", [2, 3])
def test_with_equal_racks_every_broker_holds_as_much_as_any_other(shape: Racks, factor: int) -> None:
    for seed in SEEDS:
        placed = place(shape, partitions=4 * len(shape) * len(shape), replication_factor=factor, rng=Random(seed))
        assert spread(replicas(placed), shape) == 0


@pytest.mark.parametrize("shape", [racks(4, 1, 1), racks(3, 2, 1), racks(5, 2), racks(7, 1, 3, 2), racks(2, 2, without=3)], ids=str)
@pytest.mark.parametrize("factor", [2, 3])
def test_with_unequal_racks_the_brokers_of_a_rack_hold_equally_much(shape: Racks, factor: int) -> None:
    for seed in SEEDS:
        placed = place(shape, partitions=240, replication_factor=factor, rng=Random(seed))
        for rack in set(shape.values()):
            assert spread(replicas(placed), [broker for broker, own in shape.items() if own == rack]) <= 4


def test_racks_of_unequal_size_have_equal_loads_per_broker_if_possible() -> None:
    """With fewer replicas than racks, and no rack that every partition needs."""
    shape = racks(3, 2, 1)
    for seed in SEEDS:
        placed = place(shape, partitions=240, replication_factor=2, rng=Random(seed))
        assert spread(replicas(placed), shape) <= 2, "Kafka's own placement is out by forty"


def test_the_partitions_of_a_failed_broker_are_shared_by_all_others() -> None:
    shape = racks(without=6)
    for seed in SEEDS:
        placed = place(shape, partitions=6 * 5 * 4, replication_factor=3, rng=Random(seed))
        for failed in shape:
            heirs = [partition[1] for partition in placed if partition[0] == failed]
            assert spread(heirs, [broker for broker in shape if broker != failed]) == 0


def test_the_partitions_of_a_failed_broker_are_shared_by_those_of_other_racks() -> None:
    shape = racks(2, 2, 2)
    for seed in SEEDS:
        placed = place(shape, partitions=6 * 5 * 4, replication_factor=2, rng=Random(seed))
        for failed in shape:
            heirs = Counter(partition[1] for partition in placed if partition[0] == failed)
            assert set(heirs) == {broker for broker in shape if shape[broker] != shape[failed]}


def test_brokers_that_name_no_rack_are_together_in_one_of_their_own() -> None:
    shape = racks(2, without=2)
    for seed in SEEDS:
        for partition in place(shape, partitions=20, replication_factor=2, rng=Random(seed)):
            assert {shape[broker] for broker in partition} == {"a", None}


def test_topics_and_their_growth_keep_to_racks() -> None:
    cluster = Cluster(brokers=4, racks={1: "a", 2: "a", 3: "a", 4: "b"})
    cluster.topic(partitions=12, replicas=2)
    assert all(4 in one for one in cluster.controller.node.context.image.topics["t"].replicas.values())
