"""The checker of histories finds each planted anomaly, and none in correct histories."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from ottla.sim.checkers.client_history import HistoryIsSound
from ottla.sim.checkers.log_history import ANOMALIES, Findings, check
from ottla.sim.checkers.recorder import Key, Operation, Recorder, outcome_of
from ottla.wire import errors

UNKNOWN = errors.RequestTimedOut.code
REFUSED = errors.MessageTooLarge.code


class Told(Recorder):
    """A history written in few words; each operation takes one tick, unless it is left open."""

    def __init__(self) -> None:
        clock = count(1)
        super().__init__(lambda: next(clock))
        self.idempotent |= {"p", "q"}

    def sent(self, value: str, offset: int | None, *, process: str = "p", key: Key = 0) -> Operation:
        send = self.send(process, key, value)
        self.acknowledged(send, offset)
        return send

    def refused(self, value: str, code: int, *, process: str = "p", key: Key = 0) -> Operation:
        send = self.send(process, key, value)
        self.failed(send, code)
        return send

    def read(
        self, *found: tuple[int, str], process: str = "c", key: Key = 0, ok: bool = True, rebalanced: tuple[Key, ...] = ()
    ) -> Operation:
        poll = self.polling(process)
        self.polled(poll, {key: found}, ok=ok, rebalanced=rebalanced)
        return poll


def abc() -> Told:
    """Three records, acknowledged at 0 to 2."""
    told = Told()
    for offset, value in enumerate("abc"):
        told.sent(value, offset)
    return told


def inconsistent_between_readers(told: Told) -> None:
    told.read((0, "a"), (1, "b"), (2, "c"), (3, "x"))
    told.read((3, "y"), process="d")


def inconsistent_with_what_was_acknowledged(told: Told) -> None:
    told.sent("d", 3)
    told.sent("e", 4)
    told.read((0, "a"), (1, "b"), (2, "e"), (3, "d"), (4, "e"))


def standing_twice(told: Told) -> None:
    told.read((0, "a"), (1, "b"), (2, "c"), (3, "b"))


def acknowledged_elsewhere_than_read(told: Told) -> None:
    told.sent("d", 7)
    told.read((0, "a"), (1, "b"), (2, "c"), (3, "d"))


def read_though_refused(told: Told) -> None:
    told.refused("d", REFUSED)
    told.read((0, "a"), (1, "b"), (2, "c"), (3, "d"))


def read_though_never_sent(told: Told) -> None:
    told.read((0, "a"), (1, "b"), (2, "c"), (3, "d"))


def lost_in_the_middle(told: Told) -> None:
    told.read((0, "a"), (2, "c"))


def lost_and_its_offset_used_again(told: Told) -> None:
    told.sent("d", 1, process="q")
    told.read((0, "a"), (1, "d"), (2, "c"))


def lost_in_a_failed_poll(told: Told) -> None:
    told.read((0, "a"), (1, "b"), ok=False)
    told.read((0, "a"), (2, "c"))


def lost_at_the_end(told: Told) -> None:
    told.read((0, "a"), (1, "b"))


def lost_without_an_offset(told: Told) -> None:
    told.sent("d", None)
    told.read((0, "a"), (1, "b"), (2, "c"))


def skipped_between_polls(told: Told) -> None:
    told.read((0, "a"))
    told.read((2, "c"))
    told.read((0, "a"), (1, "b"), (2, "c"), process="d")


def skipped_at_the_beginning(told: Told) -> None:
    told.assigned("c", {0: 0})
    told.read((1, "b"), (2, "c"))
    told.read((0, "a"), (1, "b"), (2, "c"), process="d")


def skipped_behind_a_failed_poll(told: Told) -> None:
    told.read((0, "a"))
    told.read((1, "b"), ok=False)
    told.read((2, "c"))
    told.read((0, "a"), (1, "b"), (2, "c"), process="d")


def polled_again(told: Told) -> None:
    told.read((0, "a"), (1, "b"))
    told.read((1, "b"), (2, "c"))


def polled_from_before(told: Told) -> None:
    told.read((0, "a"), (1, "b"), (2, "c"))
    told.read((0, "a"))


def skipped_within(told: Told) -> None:
    told.read((0, "a"), (2, "c"))
    told.read((0, "a"), (1, "b"), (2, "c"), process="d")


def disordered_within(told: Told) -> None:
    told.read((0, "a"), (1, "b"), (2, "c"), (2, "c"))


def disordered_sends_of_an_idempotent_producer(told: Told) -> None:
    first, second = told.send("p", 0, "d"), told.send("p", 0, "e")
    told.acknowledged(first, 4)
    told.acknowledged(second, 3)
    told.read((0, "a"), (1, "b"), (2, "c"), (3, "e"), (4, "d"))


def disordered_sends_one_after_the_other(told: Told) -> None:
    told.sent("d", 4, process="plain")
    told.sent("e", 3, process="plain")
    told.read((0, "a"), (1, "b"), (2, "c"), (3, "e"), (4, "d"))


PLANTED: list[tuple[Callable[[Told], None], set[str]]] = [
    (inconsistent_between_readers, {"inconsistent offset", "invented"}),
    (inconsistent_with_what_was_acknowledged, {"inconsistent offset", "duplicate", "lost write"}),
    (standing_twice, {"duplicate"}),
    (acknowledged_elsewhere_than_read, {"duplicate"}),
    (read_though_refused, {"failed read"}),
    (read_though_never_sent, {"invented"}),
    (lost_in_the_middle, {"lost write", "skip within a poll"}),
    (lost_and_its_offset_used_again, {"lost write", "inconsistent offset"}),
    (lost_in_a_failed_poll, {"lost write", "skip within a poll"}),
    (lost_at_the_end, {"unseen"}),
    (lost_without_an_offset, {"unseen"}),
    (skipped_between_polls, {"poll skip"}),
    (skipped_at_the_beginning, {"poll skip"}),
    (skipped_behind_a_failed_poll, {"poll skip"}),
    (polled_again, {"nonmonotonic poll"}),
    (polled_from_before, {"nonmonotonic poll"}),
    (skipped_within, {"skip within a poll"}),
    (disordered_within, {"nonmonotonic within a poll"}),
    (disordered_sends_of_an_idempotent_producer, {"nonmonotonic send"}),
    (disordered_sends_one_after_the_other, {"nonmonotonic send"}),
]


@pytest.mark.parametrize(("plant", "found"), PLANTED, ids=lambda one: one.__name__ if callable(one) else "")
def test_a_planted_anomaly_is_found_and_no_other(plant: Callable[[Told], None], found: set[str]) -> None:
    told = abc()
    plant(told)
    findings = check(told)
    assert set(findings.counts) == found
    assert not findings.sound and len(findings.lines()) == len(found)


def test_every_anomaly_is_planted_somewhere() -> None:
    assert set().union(*(found for _, found in PLANTED)) == set(ANOMALIES)


def judged(told: Told) -> Findings:
    findings = check(told)
    assert findings.lines() == []
    return findings


def test_of_a_sound_history_nothing_is_said() -> None:
    told = abc()
    told.assigned("c", {0: 0})
    told.read((0, "a"))
    told.read((1, "b"), (2, "c"))
    told.sent("d", 0, key=1)
    told.read((0, "d"), key=1)
    findings = judged(told)
    assert (findings.acknowledged, findings.unknown, findings.polled) == (4, 0, 4)


def test_an_empty_history_is_sound() -> None:
    judged(Told())


def test_gaps_between_offsets_are_no_skips() -> None:
    told = Told()
    told.sent("a", 0)
    told.sent("b", 5)
    told.assigned("c", {0: 0})
    told.read((0, "a"))
    told.read((5, "b"))
    told.assigned("d", {0: 3})
    told.read((5, "b"), process="d")
    judged(told)


def test_a_send_of_which_nobody_knows_may_be_there_or_not() -> None:
    told = abc()
    told.refused("there", UNKNOWN)
    told.refused("not there", UNKNOWN)
    told.send("p", 0, "open")
    told.read((0, "a"), (1, "b"), (2, "c"), (3, "there"))
    findings = judged(told)
    assert findings.unknown == 3


def test_an_unclear_send_is_not_lost_though_it_was_told_where_by_a_poll_that_failed() -> None:
    told = abc()
    told.refused("d", UNKNOWN)
    told.read((3, "d"), ok=False, process="d")
    told.read((0, "a"), (1, "b"), (2, "c"))
    judged(told)


def test_a_refused_send_is_not_missed() -> None:
    told = abc()
    told.refused("d", REFUSED)
    told.read((0, "a"), (1, "b"), (2, "c"))
    judged(told)


def test_a_producer_without_idempotence_may_write_twice_and_overtake_itself() -> None:
    told = Told()
    first, second = told.send("plain", 0, "a"), told.send("plain", 0, "b")
    told.acknowledged(first, 2)
    told.acknowledged(second, 1)
    told.read((0, "a"), (1, "b"), (2, "a"))
    judged(told)


def test_nothing_is_unseen_while_not_everything_was_read() -> None:
    told = abc()
    told.read((0, "a"))
    assert check(told, complete=False).sound
    assert not check(told, complete=True).sound


def test_a_failed_poll_does_not_move_the_position() -> None:
    told = abc()
    told.read((0, "a"))
    told.read((1, "b"), ok=False)
    told.read((1, "b"), (2, "c"))
    judged(told)


@pytest.mark.parametrize("again", ["assigned", "subscribed", "crashed"])
def test_who_begins_anew_may_begin_anywhere(again: str) -> None:
    told = abc()
    told.read((0, "a"), (1, "b"), (2, "c"))
    if again == "assigned":
        told.assigned("c", {0: None})
    elif again == "subscribed":
        told.subscribed("c", [0])
    else:
        told.crashed("c")
    told.read((1, "b"))
    judged(told)


def test_who_is_in_a_group_may_jump_between_polls_and_not_within_one() -> None:
    told = abc()
    told.subscribed("c", [0])
    told.read((0, "a"))
    told.read((2, "c"))
    told.read((0, "a"), (1, "b"))
    judged(told)
    told.read((0, "a"), (2, "c"))
    assert set(check(told).counts) == {"skip within a poll"}


def test_a_partition_that_came_back_during_a_poll_may_jump_within_it() -> None:
    told = abc()
    told.subscribed("c", [0])
    told.read((0, "a"), (1, "b"), (0, "a"), (1, "b"), (2, "c"), rebalanced=(0,))
    judged(told)


def test_the_lag_is_how_long_a_record_was_known_before_a_poll_that_passed_it_by() -> None:
    told = Told()
    told.assigned("c", {0: 0})
    told.sent("a", 0)  # known at 3
    told.read((0, "a"))
    assert check(told).lag_ns == 0
    told.sent("b", 1)  # 6 and 7
    told.read()  # asked at 8
    told.read()  # asked at 10
    told.read((1, "b"))
    findings = judged(told)
    assert findings.lag_ns == 3
    assert findings.laggard == "c in 0, 1 records from the start"
    told.assigned("d", {0: 0})
    told.read((0, "a"), (1, "b"), process="d")
    assert judged(told).lag_ns == 3, "who begins late is not late"


def test_a_value_is_sent_once() -> None:
    told = abc()
    told.sent("a", 3)
    with pytest.raises(AssertionError, match="'a' is sent to 0 once in a history"):
        check(told)


def test_only_what_a_broker_refuses_for_good_has_definitely_not_happened() -> None:
    for unclear in (errors.NotLeaderOrFollower, errors.RequestTimedOut, errors.NetworkError, errors.UnknownServerError):
        assert outcome_of(unclear.code) == "info", unclear
    for unclear in (errors.NotEnoughReplicas, errors.NotEnoughReplicasAfterAppend, errors.KafkaStorageError, errors.CorruptMessage):  # type: ignore[assignment]
        assert outcome_of(unclear.code) == "info", unclear
    for definite in (errors.TopicAuthorizationFailed, errors.InvalidTopic, errors.InvalidProducerEpoch, errors.OutOfOrderSequenceNumber):
        assert outcome_of(definite.code) == "fail", definite
    for definite in (errors.ProducerFenced, errors.UnknownTopicOrPartition, errors.MessageTooLarge):  # type: ignore[assignment]
        assert outcome_of(definite.code) == "fail", definite
    librdkafka_timed_out, librdkafka_queue_full = -192, -184
    assert outcome_of(librdkafka_timed_out) == "info"
    assert outcome_of(librdkafka_queue_full) == "fail"


def test_a_long_history_takes_no_longer_per_operation_than_a_short_one() -> None:
    """Linear: what would be quadratic runs into the time limit."""
    told = Told()
    for number in range(60_000):
        told.sent(f"v{number}", number // 4, key=number % 4)
    for key in range(4):
        for begin in range(0, 15_000, 100):
            told.read(*((offset, f"v{offset * 4 + key}") for offset in range(begin, begin + 100)), key=key)
    assert judged(told).polled == 60_000


def heard() -> HistoryIsSound:
    checker = HistoryIsSound()
    checker.sent(0, 0, [b"a", b"b"], idempotent=True)
    checker.sent(1, 0, [b"c"], idempotent=False)
    checker.acknowledged(0, 0, [b"a", b"b"])
    checker.read(0, 0, 0, b"a")
    return checker


def test_what_simulated_users_tell_is_judged_too() -> None:
    sound = heard()
    sound.finish({0: [(0, b"a"), (1, b"b"), (2, b"c")]})
    assert sound.problems == []
    lost = heard()
    lost.finish({0: [(0, b"a")]})
    assert lost.problems == ["unseen: 1 (" + ANOMALIES["unseen"] + "); b'b' of 0, acknowledged at 1"]
    replaced = heard()
    replaced.finish({0: [(0, b"c"), (1, b"b")]})
    assert [line.partition(":")[0] for line in replaced.problems] == ["inconsistent offset"]
