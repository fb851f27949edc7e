"""Delayed operations, and fetch sessions on their own."""

from collections.abc import Hashable
from random import Random
from weakref import WeakSet

import pytest
from garbage import garbage_of

from ottla.broker.delayed import DelayedOperation, DelayedOperations
from ottla.broker.replica.fetch_sessions import FetchSessions
from ottla.wire import errors
from ottla.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic


class Waiting:
    """A parked request that notes how it ended."""

    def __init__(self, *keys: Hashable) -> None:
        self.ready = False
        self.ended: list[bool] = []
        self.operation = DelayedOperation("test", self.ended.append, keys=keys, ready=lambda: self.ready)


class Ended:
    """What a parked request does at its end, which is nothing."""

    def __call__(self, expired: bool) -> None:
        pass


def test_a_request_is_finished_by_the_poke_that_finds_it_ready() -> None:
    delayed, waiting = DelayedOperations(), Waiting("a", "b")
    delayed.delay(waiting.operation, 1000)
    delayed.poke("a")
    assert waiting.ended == []
    waiting.ready = True
    delayed.poke("c")
    assert waiting.ended == []
    delayed.poke("b")
    assert waiting.ended == [False] and delayed.count == 0


def test_a_request_is_finished_once() -> None:
    delayed, waiting = DelayedOperations(), Waiting("a")
    delayed.delay(waiting.operation, 1000)
    waiting.ready = True
    delayed.poke("a")
    delayed.poke("a")
    delayed.expire(5000)
    delayed.cancel(waiting.operation)
    assert waiting.ended == [False] and delayed.count == 0


@pytest.mark.parametrize("end", ["expire", "cancel", "poke"])
def test_an_operation_that_its_end_refers_to_leaves_nothing_to_the_garbage_collector(end: str) -> None:
    delayed = DelayedOperations()
    ended: list[str] = []

    def act() -> None:
        def finish(expired: bool) -> None:
            ended.append(operation.name)

        operation = DelayedOperation("test", finish, keys=["a"], ready=lambda: True)
        delayed.delay(operation, 1000)
        if end == "cancel":
            delayed.cancel(operation)
        elif end == "poke":
            delayed.poke("a")
        else:
            delayed.expire(1000)

    assert garbage_of(act) == []
    assert ended == ([] if end == "cancel" else ["test"])


def test_a_deadline_finishes_a_request_never_before_its_time_and_at_most_a_tick_after() -> None:
    delayed = DelayedOperations()
    waiting = {deadline: Waiting() for deadline in (5, 10, 11, 1234)}
    for deadline, one in waiting.items():
        delayed.delay(one.operation, deadline)
    for now in range(1300):
        delayed.expire(now)
        for deadline, one in waiting.items():
            assert one.ended == [] or now >= deadline
            assert one.ended == [True] or now < deadline + 10


def test_a_request_without_a_deadline_waits_for_its_poke_alone() -> None:
    delayed, waiting = DelayedOperations(), Waiting("a")
    delayed.delay(waiting.operation, None)
    delayed.expire(10**12)
    assert waiting.ended == [] and delayed.next_deadline_ms() is None
    waiting.ready = True
    delayed.poke("a")
    assert waiting.ended == [False]


def test_deadlines_are_served_in_their_order() -> None:
    delayed, order = DelayedOperations(), []
    for deadline in (300, 100, 200):
        delayed.delay(DelayedOperation("test", lambda expired, deadline=deadline: order.append(deadline)), deadline)  # type: ignore[misc]
    assert delayed.next_deadline_ms() == 100
    delayed.expire(250)
    assert order == [100, 200] and delayed.next_deadline_ms() == 300


def test_cancelled_and_answered_operations_leave_no_deadline() -> None:
    delayed, waiting = DelayedOperations(), Waiting("a")
    delayed.delay(waiting.operation, 100)
    delayed.cancel(waiting.operation)
    assert delayed.next_deadline_ms() is None and delayed.count == 0
    delayed.expire(200)
    assert waiting.ended == []


def test_an_operation_answered_early_is_not_kept_until_its_deadline() -> None:
    delayed = DelayedOperations()
    kept: WeakSet[Ended] = WeakSet()
    for number in range(5000):
        finish = Ended()
        kept.add(finish)
        delayed.delay(DelayedOperation("test", finish, keys=("a",), ready=lambda: True), 30_000 + 10 * number)
        delayed.poke("a")
    assert list(kept) == [finish]
    assert len(delayed._ticks) < 100


def test_a_slot_that_was_left_and_entered_again_is_served_once() -> None:
    delayed, order = DelayedOperations(), []
    first, second = (DelayedOperation("test", lambda expired, name=name: order.append(name)) for name in "ab")  # type: ignore[misc]
    delayed.delay(first, 100)
    delayed.cancel(first)
    delayed.delay(second, 100)
    assert delayed.next_deadline_ms() == 100
    delayed.expire(1000)
    assert order == ["b"] and delayed.next_deadline_ms() is None


def test_operations_that_expire_together_may_cancel_each_other() -> None:
    delayed, other = DelayedOperations(), Waiting()
    delayed.delay(DelayedOperation("test", lambda expired: delayed.cancel(other.operation)), 100)
    delayed.delay(other.operation, 100)
    delayed.expire(100)
    assert other.ended == [] and delayed.count == 0


def test_finishing_one_request_may_finish_or_park_another() -> None:
    delayed, other, later = DelayedOperations(), Waiting("a"), Waiting("b")

    def finish(expired: bool) -> None:
        delayed.cancel(other.operation)
        delayed.delay(later.operation, 500)

    first = DelayedOperation("test", finish, keys=("a",), ready=lambda: True)
    delayed.delay(first, 100)
    delayed.delay(other.operation, 100)
    other.ready = True
    delayed.poke("a")
    assert other.ended == [] and delayed.count == 1
    delayed.expire(500)
    assert later.ended == [True]


def test_a_broker_that_stops_finishes_everything_with_a_deadline() -> None:
    delayed, waiting = DelayedOperations(), Waiting("a")
    delayed.delay(waiting.operation, 10**9)
    delayed.expire_all()
    assert waiting.ended == [True]


# Fetch sessions.


def asking(*partitions: int, session_id: int = 0, epoch: int = 0) -> FetchRequest:
    asks = [FetchPartition(partition=partition) for partition in partitions]
    return FetchRequest(session_id=session_id, session_epoch=epoch, topics=[FetchTopic(topic="t", partitions=asks)] if asks else [])


def test_session_epochs_increase_by_one_and_wrap_to_1() -> None:
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
