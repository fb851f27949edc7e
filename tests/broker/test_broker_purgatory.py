"""Requests that wait, and fetch sessions by themselves."""

from collections.abc import Hashable
from random import Random
from weakref import WeakSet

import pytest

from ottla.broker.delayed import Parked, Purgatory
from ottla.broker.replica.fetch_sessions import FetchSessions
from ottla.wire import errors
from ottla.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic


class Waiting:
    """A parked request that notes how it ended."""

    def __init__(self, *keys: Hashable) -> None:
        self.ready = False
        self.ended: list[bool] = []
        self.parked = Parked(keys, lambda: self.ready, self.ended.append)


class Ended:
    """What a parked request does at its end, which is nothing."""

    def __call__(self, expired: bool) -> None:
        pass


def test_a_request_is_finished_by_the_poke_that_finds_it_ready() -> None:
    purgatory, waiting = Purgatory(), Waiting("a", "b")
    purgatory.park(waiting.parked, 1000)
    purgatory.poke("a")
    assert waiting.ended == []
    waiting.ready = True
    purgatory.poke("c")
    assert waiting.ended == []
    purgatory.poke("b")
    assert waiting.ended == [False] and purgatory.parked == 0


def test_a_request_is_finished_once() -> None:
    purgatory, waiting = Purgatory(), Waiting("a")
    purgatory.park(waiting.parked, 1000)
    waiting.ready = True
    purgatory.poke("a")
    purgatory.poke("a")
    purgatory.expire(5000)
    purgatory.cancel(waiting.parked)
    assert waiting.ended == [False] and purgatory.parked == 0


def test_a_deadline_finishes_a_request_never_before_its_time_and_at_most_a_tick_after() -> None:
    purgatory = Purgatory()
    waiting = {deadline: Waiting() for deadline in (5, 10, 11, 1234)}
    for deadline, one in waiting.items():
        purgatory.park(one.parked, deadline)
    for now in range(1300):
        purgatory.expire(now)
        for deadline, one in waiting.items():
            assert one.ended == [] or now >= deadline
            assert one.ended == [True] or now < deadline + 10


def test_a_request_without_a_deadline_waits_for_its_poke_alone() -> None:
    purgatory, waiting = Purgatory(), Waiting("a")
    purgatory.park(waiting.parked, None)
    purgatory.expire(10**12)
    assert waiting.ended == [] and purgatory.next_deadline_ms() is None
    waiting.ready = True
    purgatory.poke("a")
    assert waiting.ended == [False]


def test_deadlines_are_served_in_their_order() -> None:
    purgatory, order = Purgatory(), []
    for deadline in (300, 100, 200):
        purgatory.park(Parked((), lambda: False, lambda expired, deadline=deadline: order.append(deadline)), deadline)  # type: ignore[misc]
    assert purgatory.next_deadline_ms() == 100
    purgatory.expire(250)
    assert order == [100, 200] and purgatory.next_deadline_ms() == 300


def test_what_was_cancelled_or_answered_leaves_no_deadline_behind() -> None:
    purgatory, waiting = Purgatory(), Waiting("a")
    purgatory.park(waiting.parked, 100)
    purgatory.cancel(waiting.parked)
    assert purgatory.next_deadline_ms() is None and purgatory.parked == 0
    purgatory.expire(200)
    assert waiting.ended == []


def test_what_is_answered_long_before_its_deadline_is_not_kept_until_then() -> None:
    purgatory = Purgatory()
    kept: WeakSet[Ended] = WeakSet()
    for number in range(5000):
        finish = Ended()
        kept.add(finish)
        purgatory.park(Parked(("a",), lambda: True, finish), 30_000 + 10 * number)
        purgatory.poke("a")
    assert list(kept) == [finish]
    assert len(purgatory._ticks) < 100


def test_a_slot_that_was_left_and_entered_again_is_served_once() -> None:
    purgatory, order = Purgatory(), []
    first, second = (Parked((), lambda: False, lambda expired, name=name: order.append(name)) for name in "ab")  # type: ignore[misc]
    purgatory.park(first, 100)
    purgatory.cancel(first)
    purgatory.park(second, 100)
    assert purgatory.next_deadline_ms() == 100
    purgatory.expire(1000)
    assert order == ["b"] and purgatory.next_deadline_ms() is None


def test_what_expires_together_may_cancel_one_another() -> None:
    purgatory, other = Purgatory(), Waiting()
    purgatory.park(Parked((), lambda: False, lambda expired: purgatory.cancel(other.parked)), 100)
    purgatory.park(other.parked, 100)
    purgatory.expire(100)
    assert other.ended == [] and purgatory.parked == 0


def test_finishing_one_request_may_finish_or_park_another() -> None:
    purgatory, other, later = Purgatory(), Waiting("a"), Waiting("b")

    def finish(expired: bool) -> None:
        purgatory.cancel(other.parked)
        purgatory.park(later.parked, 500)

    first = Parked(("a",), lambda: True, finish)
    purgatory.park(first, 100)
    purgatory.park(other.parked, 100)
    other.ready = True
    purgatory.poke("a")
    assert other.ended == [] and purgatory.parked == 1
    purgatory.expire(500)
    assert later.ended == [True]


def test_a_broker_that_stops_finishes_everything_with_a_deadline() -> None:
    purgatory, waiting = Purgatory(), Waiting("a")
    purgatory.park(waiting.parked, 10**9)
    purgatory.expire_all()
    assert waiting.ended == [True]


# Fetch sessions.


def asking(*partitions: int, session_id: int = 0, epoch: int = 0) -> FetchRequest:
    asks = [FetchPartition(partition=partition) for partition in partitions]
    return FetchRequest(session_id=session_id, session_epoch=epoch, topics=[FetchTopic(topic="t", partitions=asks)] if asks else [])


def test_a_session_goes_on_in_steps_of_one_and_wraps_to_1() -> None:
    sessions = FetchSessions(2, 100, 1000)
    opened = sessions.begin(asking(0), by_id=False, now_ms=0, rng=Random(1)).session
    assert opened is not None and opened.epoch == 1
    for epoch in (1, 2):
        sessions.begin(asking(session_id=opened.number, epoch=epoch), by_id=False, now_ms=0, rng=Random(1))
    opened.epoch = 2**31 - 1
    sessions.begin(asking(session_id=opened.number, epoch=2**31 - 1), by_id=False, now_ms=0, rng=Random(1))
    assert opened.epoch == 1


def test_the_session_idle_longest_makes_room_after_two_minutes() -> None:
    sessions, rng = FetchSessions(2, 100, 1000), Random(1)
    first, second = (sessions.begin(asking(0), by_id=False, now_ms=now, rng=rng) for now in (0, 1000))
    assert sessions.begin(asking(0), by_id=False, now_ms=120_000, rng=rng).session is None
    sessions.begin(asking(session_id=first.session_id, epoch=1), by_id=False, now_ms=60_000, rng=rng)
    third = sessions.begin(asking(0), by_id=False, now_ms=121_001, rng=rng)
    assert third.session is not None and len(sessions) == 2
    with pytest.raises(errors.FetchSessionIdNotFound):
        sessions.begin(asking(session_id=second.session_id, epoch=1), by_id=False, now_ms=121_002, rng=rng)


def test_a_session_without_partitions_is_none() -> None:
    sessions = FetchSessions(2, 100, 1000)
    assert sessions.begin(asking(), by_id=False, now_ms=0, rng=Random(1)).session_id == 0
    assert len(sessions) == 0
