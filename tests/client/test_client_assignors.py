"""The assignors: Kafka's documented allocations, and invariants for any group."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.base.ids import TopicPartition
from ottla.base.options import ConfigError
from ottla.client.group.assignor import Assignment, Assignor, Member, without_moving
from ottla.client.group.assignors import Range, RoundRobin, assignors_from
from ottla.client.group.sticky_assignor import CooperativeSticky, Sticky, decode_claims, encode_claims

pytestmark = pytest.mark.slow

ALL = [Range, RoundRobin, Sticky, CooperativeSticky]


def reading(**topics: str) -> dict[str, Member]:
    """Members by name, each with its topics."""
    return {name: Member(frozenset(some.split())) for name, some in topics.items()}


def assigned_text(made: Assignment) -> dict[str, str]:
    return {member: " ".join(map(str, sorted(partitions))) for member, partitions in made.items()}


def rejoining(made: Assignment, members: dict[str, Member], generation: int = 1) -> dict[str, Member]:
    """The members as they rejoin: owned partitions are in both the field and the user data."""
    return {
        name: member._replace(
            owned=tuple(made.get(name, ())), generation=generation, user_data=encode_claims(made.get(name, ()), generation)
        )
        for name, member in members.items()
    }


@pytest.mark.parametrize(
    ("count", "first", "second"),
    [
        (4, "t0-0 t0-1 t1-0 t1-1", "t0-2 t0-3 t1-2 t1-3"),
        (3, "t0-0 t0-1 t1-0 t1-1", "t0-2 t1-2"),
    ],
)
def test_range_assigns_runs_of_each_topic_and_the_remainder_to_the_first(count: int, first: str, second: str) -> None:
    made = Range().assign({"t0": count, "t1": count}, reading(c0="t0 t1", c1="t0 t1"))
    assert assigned_text(made) == {"c0": first, "c1": second}


def test_round_robin_alternates_between_members() -> None:
    made = RoundRobin().assign({"t0": 3, "t1": 3}, reading(c0="t0 t1", c1="t0 t1"))
    assert assigned_text(made) == {"c0": "t0-0 t0-2 t1-1", "c1": "t0-1 t1-0 t1-2"}


def test_round_robin_skips_members_without_the_topic() -> None:
    made = RoundRobin().assign({"t0": 1, "t1": 2, "t2": 3}, reading(c0="t0", c1="t0 t1", c2="t0 t1 t2"))
    assert assigned_text(made) == {"c0": "t0-0", "c1": "t1-0", "c2": "t1-1 t2-0 t2-1 t2-2"}


@pytest.mark.parametrize("assignor", [Sticky, CooperativeSticky])
def test_sticky_gives_less_to_members_that_cannot_share_elsewhere(assignor: type[Assignor]) -> None:
    made = assignor().assign({"t0": 1, "t1": 2, "t2": 3}, reading(c0="t0", c1="t0 t1", c2="t0 t1 t2"))
    assert assigned_text(made) == {"c0": "t0-0", "c1": "t1-0 t1-1", "c2": "t2-0 t2-1 t2-2"}


@pytest.mark.parametrize("assignor", [Sticky, CooperativeSticky])
def test_when_one_of_three_leaves_the_others_keep_all_and_share_its_partitions(assignor: type[Assignor]) -> None:
    topics = dict.fromkeys(("t0", "t1", "t2", "t3"), 2)
    members = reading(c0="t0 t1 t2 t3", c1="t0 t1 t2 t3", c2="t0 t1 t2 t3")
    first = assignor().assign(topics, members)
    assert sorted(map(len, first.values())) == [2, 3, 3]
    left = rejoining(first, members)
    del left["c1"]
    second = assignor().assign(topics, left)
    assert sorted(map(len, second.values())) == [4, 4]
    assert all(set(first[member]) <= set(second[member]) for member in second)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("assignor", ALL)
def test_ten_thousand_partitions_go_to_five_hundred_members(assignor: type[Assignor]) -> None:
    topics = dict.fromkeys((f"t{number}" for number in range(100)), 100)
    members = reading(**{f"c{number}": " ".join(topics) for number in range(500)})
    first = assignor().assign(topics, members)
    left = rejoining(first, members)
    del left["c7"]
    made = assignor().assign(topics, left)
    assert sorted(tp for some in made.values() for tp in some) == [
        TopicPartition(topic, index) for topic in sorted(topics) for index in range(100)
    ]


@pytest.mark.parametrize("assignor", ALL)
def test_with_eight_members_and_seven_partitions_one_idles(assignor: type[Assignor]) -> None:
    made = assignor().assign({"t": 7}, reading(**{f"c{index}": "t" for index in range(8)}))
    assert sorted(map(len, made.values())) == [0, 1, 1, 1, 1, 1, 1, 1]


def test_static_members_come_first_in_the_order_of_their_instance_ids() -> None:
    members = reading(a="t", b="t", c="t")
    members["c"] = members["c"]._replace(instance_id="1")
    members["b"] = members["b"]._replace(instance_id="2")
    assert assigned_text(Range().assign({"t": 3}, members)) == {"c": "t-0", "b": "t-1", "a": "t-2"}


def test_ownership_of_an_older_generation_is_ignored() -> None:
    one, t = TopicPartition("t", 0), frozenset({"t"})
    members = {
        "new": Member(t, encode_claims([one], 5), (one,), 5),
        "old": Member(t, encode_claims([one, TopicPartition("t", 1)], 4), (one, TopicPartition("t", 1)), 4),
    }
    for assignor in (Sticky(), CooperativeSticky()):
        assert assigned_text(assignor.assign({"t": 2}, members)) == {"new": "t-0", "old": "t-1"}


def test_a_moving_partition_is_withheld_until_its_owner_revokes_it() -> None:
    members = reading(c0="t", c1="t")
    members["c0"] = members["c0"]._replace(owned=tuple(TopicPartition("t", index) for index in range(4)), generation=3)
    made = CooperativeSticky().assign({"t": 4}, members)
    assert assigned_text(made) == {"c0": "t-0 t-1", "c1": "t-2 t-3"}
    assert assigned_text(without_moving(made, members)) == {"c0": "t-0 t-1", "c1": ""}


def test_sticky_user_data_is_compatible_with_java() -> None:
    owned = [TopicPartition("ab", 0), TopicPartition("ab", 3), TopicPartition("c", 1)]
    data = bytes.fromhex("00000002 0002 6162 00000002 00000000 00000003 0001 63 00000001 00000001 00000007")
    assert encode_claims(owned, 7) == data
    assert decode_claims(data) == (owned, 7)
    assert decode_claims(data[:-4]) == (owned, -1), "version 0 has no generation"


@given(st.binary(max_size=60))
def test_invalid_user_data_is_ignored(data: bytes) -> None:
    decode_claims(data)


@st.composite
def groups(draw: st.DrawFn, *, same: bool = False) -> tuple[dict[str, int], dict[str, Member]]:
    topics = {f"t{index}": draw(st.integers(1, 8)) for index in range(draw(st.integers(1, 5)))}
    names = st.sets(st.sampled_from([*topics, "absent"]), min_size=1)
    shared = frozenset(draw(names))
    members = {f"m{index}": Member(shared if same else frozenset(draw(names))) for index in range(draw(st.integers(1, 8)))}
    return topics, members


def check(topics: dict[str, int], members: dict[str, Member], made: Assignment) -> None:
    given_out = [tp for some in made.values() for tp in some]
    read = {TopicPartition(topic, index) for topic, count in topics.items() for index in range(count)
            if any(topic in member.topics for member in members.values())}  # fmt: skip
    assert set(made) == set(members)
    assert len(given_out) == len(set(given_out)), "no partition has two owners"
    assert set(given_out) == read, "every subscribed partition has an owner"
    assert all(tp.topic in members[member].topics for member, some in made.items() for tp in some), (
        "no member gets a partition it did not subscribe to"
    )


def is_even(made: Assignment, members: dict[str, Member]) -> bool:
    return not any(
        len(made[giver]) - len(made[taker]) >= 2 and any(tp.topic in members[taker].topics for tp in made[giver])
        for giver in made
        for taker in made
    )


@pytest.mark.parametrize("assignor", ALL)
@given(group=groups())
def test_every_partition_has_one_owner_that_subscribes_to_it(assignor: type[Assignor], group: Any) -> None:
    check(*group, assignor().assign(*group))  # type: ignore[call-arg]


@pytest.mark.parametrize("assignor", [RoundRobin, Sticky, CooperativeSticky])
@given(group=groups(same=True))
def test_members_with_equal_subscriptions_differ_by_at_most_one_partition(assignor: type[Assignor], group: Any) -> None:
    sizes = [len(some) for some in assignor().assign(*group).values()]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("assignor", [Sticky, CooperativeSticky])
@given(group=groups(), seed=st.integers(0, 1000))
@settings(max_examples=200)
def test_sticky_stays_balanced_when_members_join_and_leave(assignor: type[Assignor], group: Any, seed: int) -> None:
    topics, members = group
    rng = Random(seed)
    made = assignor().assign(topics, members)
    for generation in range(1, 4):
        members = rejoining({name: some for name, some in made.items() if name in members}, members, generation)
        if len(members) > 1 and rng.random() < 0.5:
            del members[rng.choice(sorted(members))]
        if rng.random() < 0.5:
            members[f"n{generation}"] = Member(frozenset(rng.sample(sorted(topics), rng.randint(1, len(topics)))))
        made = assignor().assign(topics, members)
        check(topics, members, made)
        assert is_even(made, members)


@pytest.mark.parametrize("assignor", [Sticky, CooperativeSticky])
@given(group=groups(), same=groups(same=True))
def test_nothing_moves_without_a_change(assignor: type[Assignor], group: Any, same: Any) -> None:
    for topics, members in (group, same):
        first = assignor().assign(topics, members)
        second = assignor().assign(topics, rejoining(first, members))
        assert assigned_text(first) == assigned_text(second)


@pytest.mark.parametrize("assignor", [Sticky, CooperativeSticky])
@given(group=groups(same=True), joins=st.booleans())
def test_no_more_partitions_move_than_balance_requires(assignor: type[Assignor], group: Any, joins: bool) -> None:
    topics, members = group
    first = assignor().assign(topics, members)
    then = rejoining(first, members)
    if joins:
        then["new"] = Member(next(iter(members.values())).topics)
    elif len(then) > 1:
        del then[min(then)]
    second = assignor().assign(topics, then)
    least, more = divmod(sum(map(len, second.values())), len(then))
    sizes = sorted((len(first.get(member, ())) for member in then), reverse=True)
    could_keep = sum(min(size, least + (index < more)) for index, size in enumerate(sizes))
    assert sum(len(set(second[member]) & set(first.get(member, ()))) for member in then) == could_keep


class Alone(Assignor):
    """Assigns everything to the first member."""

    name = "alone"

    def assign(self, partitions: Any, members: Any) -> Assignment:
        every = [TopicPartition(topic, index) for topic, count in partitions.items() for index in range(count)]
        return {member: every if member == min(members) else [] for member in members}


def test_assignors_are_names_or_objects() -> None:
    names = [one.name for one in assignors_from("range, org.apache.kafka.clients.consumer.StickyAssignor")]
    assert names == ["range", "sticky"]
    assert [one.name for one in assignors_from([Alone, RoundRobin()])] == ["alone", "roundrobin"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [("rnage", "did you mean range"), ([int], "derive it from ottla.Assignor"), ([], "at least one"), (["range", Range], "each once")],
)
def test_an_invalid_assignor_is_refused_with_advice(wrong: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        assignors_from(wrong)
