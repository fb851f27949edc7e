"""Reassignment plans: balanced, spread over racks, with the fewest copies."""

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random

import pytest

from ottla.base.ids import TopicPartition
from ottla.client.admin.reassignment_plan import Plan, plan_json, planned, read_plan, read_topics

Racks = dict[int, str | None]


def partitions(*replicas: Sequence[int]) -> dict[TopicPartition, Sequence[int]]:
    return {TopicPartition("t", number): ids for number, ids in enumerate(replicas)}


def plain(*brokers: int) -> Racks:
    return dict.fromkeys(brokers)


def after(current: Mapping[TopicPartition, Sequence[int]], plan: Plan) -> dict[TopicPartition, Sequence[int]]:
    return {**current, **plan}


def copies(current: Mapping[TopicPartition, Sequence[int]], plan: Plan) -> int:
    return sum(len(set(ids) - set(current[tp])) for tp, ids in plan.items())


def held(layout: Mapping[TopicPartition, Sequence[int]]) -> Counter[int]:
    return Counter(broker for ids in layout.values() for broker in ids)


def led(layout: Mapping[TopicPartition, Sequence[int]]) -> Counter[int]:
    return Counter(ids[0] for ids in layout.values())


def test_a_balanced_assignment_does_not_change() -> None:
    assert planned(partitions((1, 2), (2, 3), (3, 1)), plain(1, 2, 3)) == {}


def test_only_an_excluded_broker_loses_its_replicas() -> None:
    current = partitions((1, 2, 3), (2, 3, 1), (3, 1, 2), (1, 3, 2))
    plan = planned(current, plain(1, 2, 4))
    assert all(3 not in ids for ids in after(current, plan).values())
    assert copies(current, plan) == 4, "one for each replica of broker 3"


def test_a_new_broker_gets_its_share_and_no_more() -> None:
    current = partitions(*[((number % 3) + 1, (number + 1) % 3 + 1) for number in range(12)])
    plan = planned(current, plain(1, 2, 3, 4))
    assert held(after(current, plan)) == {1: 6, 2: 6, 3: 6, 4: 6}
    assert copies(current, plan) == 6
    assert led(after(current, plan)) == {1: 3, 2: 3, 3: 3, 4: 3}


def test_replicas_of_a_partition_are_in_different_racks() -> None:
    racks: Racks = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c", 6: "c"}
    current = partitions((1, 2, 3), (1, 2, 4), (3, 4, 5), (5, 6, 1))
    plan = planned(current, racks)
    for ids in after(current, plan).values():
        assert {racks[broker] for broker in ids} == {"a", "b", "c"}
    assert copies(current, plan) <= 5


def test_a_larger_factor_adds_to_the_existing_replicas() -> None:
    current = partitions((1,), (2,), (3,))
    plan = planned(current, plain(1, 2, 3), factor=2)
    assert all(len(ids) == 2 and set(current[tp]) <= set(ids) for tp, ids in plan.items()) and len(plan) == 3
    assert held(plan) == {1: 2, 2: 2, 3: 2}


def test_a_smaller_factor_copies_nothing() -> None:
    current = partitions((1, 2, 3), (2, 3, 1), (3, 1, 2))
    plan = planned(current, plain(1, 2, 3), factor=1)
    assert copies(current, plan) == 0 and held(after(current, plan)) == {1: 1, 2: 1, 3: 1}


def test_leaders_are_balanced_without_a_copy() -> None:
    current = partitions((1, 2), (1, 2), (1, 2), (1, 2))
    plan = planned(current, plain(1, 2))
    assert copies(current, plan) == 0 and led(after(current, plan)) == {1: 2, 2: 2}


def test_more_replicas_than_brokers_are_refused() -> None:
    with pytest.raises(ValueError, match="too few"):
        planned(partitions((1, 2, 3)), plain(1, 2))


@pytest.mark.parametrize("seed", range(60))
def test_any_plan_is_valid_balanced_and_final(seed: int) -> None:
    rng = Random(seed)
    brokers = rng.sample(range(1, 12), rng.randrange(1, 9))
    racks: Racks = {broker: rng.choice((None, "a", "b", "c")) for broker in brokers}
    factor = rng.randrange(1, len(brokers) + 1)
    everywhere = list(range(1, 14))
    current = partitions(*[rng.sample(everywhere, rng.randrange(1, 5)) for _ in range(rng.randrange(1, 30))])
    plan = planned(current, racks, factor=factor)
    layout = after(current, plan)
    zones = {broker: racks[broker] or broker for broker in brokers}
    for ids in layout.values():
        assert len(ids) == len(set(ids)) == factor and set(ids) <= set(brokers)
        crowded = max(Counter(zones[broker] for broker in ids).values())
        smallest = min(Counter(zones.values()).values())
        assert crowded <= max(-(-factor // len(set(zones.values()))), factor - (len(set(zones.values())) - 1) * smallest)
    assert planned(layout, racks, factor=factor) == {}, "a second plan has nothing to do"
    if len(set(zones.values())) == len(brokers):
        counts = [held(layout)[broker] for broker in brokers]
        assert max(counts) - min(counts) <= 1


# Files.


def test_a_plan_is_compatible_with_kafkas_tool() -> None:
    data = '{"version":1,"partitions":[{"topic":"t","partition":1,"replicas":[3,4],"log_dirs":["any","/data"]}]}'
    plan = read_plan(data)
    assert plan == {TopicPartition("t", 1): (3, 4)}
    assert plan_json(plan) == {"version": 1, "partitions": [{"topic": "t", "partition": 1, "replicas": [3, 4]}]}
    assert read_topics('{"topics":[{"topic":"a"},{"topic":"b"}],"version":1}') == ["a", "b"]


@pytest.mark.parametrize(
    "data",
    [
        "",
        "[]",
        "{}",
        '{"version":2,"partitions":[]}',
        '{"version":1,"partitions":[{"topic":"t","partition":"x","replicas":[1]}]}',
        '{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1]},{"topic":"t","partition":0,"replicas":[2]}]}',
    ],
)
def test_an_invalid_plan_is_refused(data: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        read_plan(data)
