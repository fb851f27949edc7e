"""Server-side assignors: complete, disjoint, balanced, sticky, and fast enough for the broker."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from consumer_groups import topic_id
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.groups.consumer.assignors import ASSIGNORS, Subscriber, assign_range, assign_uniform
from ottla.broker.groups.consumer.reconciliation import Assignment

T1, T2, T3 = (topic_id(name) for name in ("t1", "t2", "t3"))


def subscriber(member_id: str, *topics: bytes, target: Assignment | None = None, instance_id: str | None = None) -> Subscriber:
    return Subscriber(member_id=member_id, instance_id=instance_id, topics=frozenset(topics), target=target or {})


def parts(found: dict[str, Assignment]) -> dict[str, dict[bytes, list[int]]]:
    return {member: {topic: sorted(numbers) for topic, numbers in assignment.items()} for member, assignment in found.items()}


def loads(found: dict[str, Assignment]) -> list[int]:
    return [sum(map(len, assignment.values())) for assignment in found.values()]


def with_targets(subscribers: Sequence[Subscriber], found: dict[str, Assignment]) -> list[Subscriber]:
    return [
        Subscriber(member_id=each.member_id, instance_id=each.instance_id, topics=each.topics, target=found.get(each.member_id, {}))
        for each in subscribers
    ]


def check_complete_and_disjoint(subscribers: Sequence[Subscriber], sizes: dict[bytes, int], found: dict[str, Assignment]) -> None:
    wants = {each.member_id: each.topics for each in subscribers}
    assert found.keys() == wants.keys()
    given_out = [(topic, number) for assignment in found.values() for topic, numbers in assignment.items() for number in numbers]
    assert len(given_out) == len(set(given_out)), "no partition has two readers"
    wanted = set().union(*wants.values()) if wants else set()
    assert set(given_out) == {(topic, number) for topic in wanted for number in range(sizes[topic])}
    assert all(topic in wants[member] and numbers for member, assignment in found.items() for topic, numbers in assignment.items())


SIZES = {topic_id(f"t{n}"): n for n in (1, 2, 3, 5, 8)}
subscriptions = st.lists(st.sets(st.sampled_from(sorted(SIZES))), min_size=1, max_size=9)


@given(subscriptions, st.sampled_from(sorted(ASSIGNORS)))
def test_every_partition_is_assigned_to_exactly_one_subscriber(topics: list[set[bytes]], name: str) -> None:
    members = [subscriber(f"m{index}", *each) for index, each in enumerate(topics)]
    check_complete_and_disjoint(members, SIZES, ASSIGNORS[name](members, SIZES))


@given(subscriptions, st.sampled_from(sorted(ASSIGNORS)), st.randoms(use_true_random=False))
def test_the_order_of_members_does_not_change_the_assignment(topics: list[set[bytes]], name: str, random: object) -> None:
    members = [subscriber(f"m{index}", *each) for index, each in enumerate(topics)]
    shuffled = list(members)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert ASSIGNORS[name](members, SIZES) == ASSIGNORS[name](shuffled, SIZES)


@given(subscriptions, subscriptions)
def test_uniform_is_balanced_as_far_as_subscriptions_permit(before: list[set[bytes]], after: list[set[bytes]]) -> None:
    first = assign_uniform([subscriber(f"m{index}", *each) for index, each in enumerate(before)], SIZES)
    members = [subscriber(f"m{index}", *each, target=first.get(f"m{index}")) for index, each in enumerate(after)]
    found = assign_uniform(members, SIZES)
    check_complete_and_disjoint(members, SIZES, found)
    load = {member: sum(map(len, assignment.values())) for member, assignment in found.items()}
    for owner, assignment in found.items():
        for other in members:
            if other.topics & assignment.keys():
                assert load[owner] - load[other.member_id] <= 1


@given(subscriptions)
def test_uniform_moves_nothing_when_nothing_changed(topics: list[set[bytes]]) -> None:
    members = [subscriber(f"m{index}", *each) for index, each in enumerate(topics)]
    found = assign_uniform(members, SIZES)
    assert assign_uniform(with_targets(members, found), SIZES) == found


@given(st.integers(1, 12), st.integers(1, 40))
def test_uniform_moves_only_what_a_joining_or_leaving_member_requires(count: int, size: int) -> None:
    members = [subscriber(f"m{index:02}", T1) for index in range(count)]
    found = assign_uniform(members, {T1: size})
    more = [*with_targets(members, found), subscriber("m50", T1)]
    grown = assign_uniform(more, {T1: size})
    for member in members:
        assert grown[member.member_id].get(T1, frozenset()) <= found[member.member_id].get(T1, frozenset()), "who stays only gives"
    fewer = with_targets(more, grown)[:-1]
    shrunk = assign_uniform(fewer, {T1: size})
    for member in members:
        assert shrunk[member.member_id].get(T1, frozenset()) >= grown[member.member_id].get(T1, frozenset()), "who stays only gets"


def test_uniform_keeps_the_extra_partition_where_it_is() -> None:
    members = [subscriber("a", T1, target={T1: frozenset({0})}), subscriber("b", T1, target={T1: frozenset({1, 2})})]
    assert parts(assign_uniform(members, {T1: 3})) == {"a": {T1: [0]}, "b": {T1: [1, 2]}}


def test_uniform_assigns_a_new_topic_to_the_members_with_least_partitions() -> None:
    members = [subscriber("a", T1, T2, target={T1: frozenset({0, 1})}), subscriber("b", T1, T2)]
    assert parts(assign_uniform(members, {T1: 2, T2: 2})) == {"a": {T1: [0, 1]}, "b": {T2: [0, 1]}}


def test_the_uniform_assignor_drops_partitions_that_do_not_exist_any_more() -> None:
    members = [subscriber("a", T1, target={T1: frozenset({0, 7}), T3: frozenset({0})})]
    assert parts(assign_uniform(members, {T1: 2})) == {"a": {T1: [0, 1]}}


def test_uniform_balances_members_that_share_only_some_topics() -> None:
    members = [subscriber("a", T1), subscriber("b", T1, T2), subscriber("c", T1, T2, T3)]
    found = assign_uniform(members, {T1: 1, T2: 2, T3: 3})
    assert parts(found) == {"a": {T1: [0]}, "b": {T2: [0, 1]}, "c": {T3: [0, 1, 2]}}


def test_range_assigns_equal_partition_numbers_of_topics_of_equal_size() -> None:
    found = assign_range([subscriber("b", T1, T2), subscriber("a", T1, T2)], {T1: 3, T2: 3})
    assert parts(found) == {"a": {T1: [0, 1], T2: [0, 1]}, "b": {T1: [2], T2: [2]}}


def test_the_range_assignor_splits_each_topic_among_its_subscribers() -> None:
    found = assign_range([subscriber("a", T1, T2), subscriber("b", T1), subscriber("c", T2)], {T1: 4, T2: 3})
    assert parts(found) == {"a": {T1: [0, 1], T2: [0, 1]}, "b": {T1: [2, 3]}, "c": {T2: [2]}}


def test_range_puts_static_members_first_so_that_a_new_member_id_changes_nothing() -> None:
    before = assign_range([subscriber("m1", T1, instance_id="i1"), subscriber("m2", T1, instance_id="i2"), subscriber("a", T1)], {T1: 3})
    after = assign_range([subscriber("m9", T1, instance_id="i1"), subscriber("m2", T1, instance_id="i2"), subscriber("a", T1)], {T1: 3})
    assert before["m1"] == after["m9"] == {T1: frozenset({0})}
    assert before["m2"] == after["m2"]
    assert before["a"] == after["a"] == {T1: frozenset({2})}


def test_range_leaves_members_without_partitions_when_there_are_too_few() -> None:
    assert parts(assign_range([subscriber("a", T1), subscriber("b", T1)], {T1: 1})) == {"a": {T1: [0]}, "b": {}}


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
@pytest.mark.parametrize("shape", ["all alike", "two kinds", "each their own"])
def test_ten_thousand_partitions_go_to_five_hundred_members(name: str, shape: str) -> None:
    sizes = {topic_id(f"topic-{n}"): 100 for n in range(100)}
    topics = sorted(sizes)
    all_topics = frozenset(topics)
    members = []
    for index in range(500):
        match shape:
            case "all alike":
                wanted = all_topics
            case "two kinds":
                wanted = all_topics if index % 2 else frozenset(topics[:60])
            case _:
                wanted = frozenset(topics[(index + step * step) % 100] for step in range(10))
        members.append(Subscriber(member_id=f"m{index:03}", topics=wanted))
    found = ASSIGNORS[name](members, sizes)
    again = ASSIGNORS[name]([*with_targets(members, found), Subscriber(member_id="new", topics=all_topics)], sizes)
    check_complete_and_disjoint([*members, Subscriber(member_id="new", topics=all_topics)], sizes, again)
    if name == "uniform":
        assert all(abs(more - less) <= 1 for more, less in pairwise(sorted(loads(found))))
