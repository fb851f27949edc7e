"""The checker of histories reports each planted anomaly and reports none in correct histories."""

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


class History(Recorder):
    """A recorder with short calls. Each operation takes one tick unless it stays open."""

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


def abc() -> History:
    """Three records, acknowledged at 0 to 2."""
    history = History()
    for offset, value in enumerate("abc"):
        history.sent(value, offset)
    return history


def inconsistent_between_readers(history: History) -> None:
    history.read((0, "a"), (1, "b"), (2, "c"), (3, "x"))
    history.read((3, "y"), process="d")


def inconsistent_with_acknowledgements(history: History) -> None:
    history.sent("d", 3)
    history.sent("e", 4)
    history.read((0, "a"), (1, "b"), (2, "e"), (3, "d"), (4, "e"))


def in_the_log_twice(history: History) -> None:
    history.read((0, "a"), (1, "b"), (2, "c"), (3, "b"))


def read_at_another_offset_than_acknowledged(history: History) -> None:
    history.sent("d", 7)
    history.read((0, "a"), (1, "b"), (2, "c"), (3, "d"))


def read_although_refused(history: History) -> None:
    history.refused("d", REFUSED)
    history.read((0, "a"), (1, "b"), (2, "c"), (3, "d"))


def read_although_never_sent(history: History) -> None:
    history.read((0, "a"), (1, "b"), (2, "c"), (3, "d"))


def lost_in_the_middle(history: History) -> None:
    history.read((0, "a"), (2, "c"))


def lost_and_its_offset_reused(history: History) -> None:
    history.sent("d", 1, process="q")
    history.read((0, "a"), (1, "d"), (2, "c"))


def lost_in_a_failed_poll(history: History) -> None:
    history.read((0, "a"), (1, "b"), ok=False)
    history.read((0, "a"), (2, "c"))


def lost_at_the_end(history: History) -> None:
    history.read((0, "a"), (1, "b"))


def lost_without_an_offset(history: History) -> None:
    history.sent("d", None)
    history.read((0, "a"), (1, "b"), (2, "c"))


def skipped_between_polls(history: History) -> None:
    history.read((0, "a"))
    history.read((2, "c"))
    history.read((0, "a"), (1, "b"), (2, "c"), process="d")


def skipped_at_the_beginning(history: History) -> None:
    history.assigned("c", {0: 0})
    history.read((1, "b"), (2, "c"))
    history.read((0, "a"), (1, "b"), (2, "c"), process="d")


def skipped_after_a_failed_poll(history: History) -> None:
    history.read((0, "a"))
    history.read((1, "b"), ok=False)
    history.read((2, "c"))
    history.read((0, "a"), (1, "b"), (2, "c"), process="d")


def polled_again(history: History) -> None:
    history.read((0, "a"), (1, "b"))
    history.read((1, "b"), (2, "c"))


def polled_from_an_earlier_offset(history: History) -> None:
    history.read((0, "a"), (1, "b"), (2, "c"))
    history.read((0, "a"))


def skipped_within(history: History) -> None:
    history.read((0, "a"), (2, "c"))
    history.read((0, "a"), (1, "b"), (2, "c"), process="d")


def disordered_within(history: History) -> None:
    history.read((0, "a"), (1, "b"), (2, "c"), (2, "c"))


def disordered_sends_of_an_idempotent_producer(history: History) -> None:
    first, second = history.send("p", 0, "d"), history.send("p", 0, "e")
    history.acknowledged(first, 4)
    history.acknowledged(second, 3)
    history.read((0, "a"), (1, "b"), (2, "c"), (3, "e"), (4, "d"))


def disordered_sends_one_after_the_other(history: History) -> None:
    history.sent("d", 4, process="plain")
    history.sent("e", 3, process="plain")
    history.read((0, "a"), (1, "b"), (2, "c"), (3, "e"), (4, "d"))


PLANTED: list[tuple[Callable[[History], None], set[str]]] = [
    (inconsistent_between_readers, {"inconsistent offset", "invented"}),
    (inconsistent_with_acknowledgements, {"inconsistent offset", "duplicate", "lost write"}),
    (in_the_log_twice, {"duplicate"}),
    (read_at_another_offset_than_acknowledged, {"duplicate"}),
    (read_although_refused, {"failed read"}),
    (read_although_never_sent, {"invented"}),
    (lost_in_the_middle, {"lost write", "skip within a poll"}),
    (lost_and_its_offset_reused, {"lost write", "inconsistent offset"}),
    (lost_in_a_failed_poll, {"lost write", "skip within a poll"}),
    (lost_at_the_end, {"unseen"}),
    (lost_without_an_offset, {"unseen"}),
    (skipped_between_polls, {"poll skip"}),
    (skipped_at_the_beginning, {"poll skip"}),
    (skipped_after_a_failed_poll, {"poll skip"}),
    (polled_again, {"nonmonotonic poll"}),
    (polled_from_an_earlier_offset, {"nonmonotonic poll"}),
    (skipped_within, {"skip within a poll"}),
    (disordered_within, {"nonmonotonic within a poll"}),
    (disordered_sends_of_an_idempotent_producer, {"nonmonotonic send"}),
    (disordered_sends_one_after_the_other, {"nonmonotonic send"}),
]


@pytest.mark.parametrize(("plant", "found"), PLANTED, ids=lambda one: one.__name__ if callable(one) else "")
def test_checker_reports_the_planted_anomaly_and_no_other(plant: Callable[[History], None], found: set[str]) -> None:
    history = abc()
    plant(history)
    findings = check(history)
    assert set(findings.counts) == found
    assert not findings.sound and len(findings.lines()) == len(found)


def test_every_anomaly_is_planted_somewhere() -> None:
    assert set().union(*(found for _, found in PLANTED)) == set(ANOMALIES)


def sound(history: History) -> Findings:
    findings = check(history)
    assert findings.lines() == []
    return findings


def test_sound_history_has_no_findings() -> None:
    history = abc()
    history.assigned("c", {0: 0})
    history.read((0, "a"))
    history.read((1, "b"), (2, "c"))
    history.sent("d", 0, key=1)
    history.read((0, "d"), key=1)
    findings = sound(history)
    assert (findings.acknowledged, findings.unknown, findings.polled) == (4, 0, 4)


def test_an_empty_history_is_sound() -> None:
    sound(History())


def test_gaps_between_offsets_are_no_skips() -> None:
    history = History()
    history.sent("a", 0)
    history.sent("b", 5)
    history.assigned("c", {0: 0})
    history.read((0, "a"))
    history.read((5, "b"))
    history.assigned("d", {0: 3})
    history.read((5, "b"), process="d")
    sound(history)


def test_send_with_unknown_outcome_may_be_in_the_log_or_not() -> None:
    history = abc()
    history.refused("there", UNKNOWN)
    history.refused("not there", UNKNOWN)
    history.send("p", 0, "open")
    history.read((0, "a"), (1, "b"), (2, "c"), (3, "there"))
    findings = sound(history)
    assert findings.unknown == 3


def test_send_with_unknown_outcome_is_not_lost_even_if_a_failed_poll_returned_its_offset() -> None:
    history = abc()
    history.refused("d", UNKNOWN)
    history.read((3, "d"), ok=False, process="d")
    history.read((0, "a"), (1, "b"), (2, "c"))
    sound(history)


def test_refused_send_is_not_expected_in_the_log() -> None:
    history = abc()
    history.refused("d", REFUSED)
    history.read((0, "a"), (1, "b"), (2, "c"))
    sound(history)


def test_producer_without_idempotence_may_duplicate_and_reorder_records() -> None:
    history = History()
    first, second = history.send("plain", 0, "a"), history.send("plain", 0, "b")
    history.acknowledged(first, 2)
    history.acknowledged(second, 1)
    history.read((0, "a"), (1, "b"), (2, "a"))
    sound(history)


def test_unread_records_are_findings_only_in_a_complete_history() -> None:
    history = abc()
    history.read((0, "a"))
    assert check(history, complete=False).sound
    assert not check(history, complete=True).sound


def test_a_failed_poll_does_not_move_the_position() -> None:
    history = abc()
    history.read((0, "a"))
    history.read((1, "b"), ok=False)
    history.read((1, "b"), (2, "c"))
    sound(history)


@pytest.mark.parametrize("again", ["assigned", "subscribed", "crashed"])
def test_consumer_may_start_at_any_offset_after_assignment_subscription_or_crash(again: str) -> None:
    history = abc()
    history.read((0, "a"), (1, "b"), (2, "c"))
    if again == "assigned":
        history.assigned("c", {0: None})
    elif again == "subscribed":
        history.subscribed("c", [0])
    else:
        history.crashed("c")
    history.read((1, "b"))
    sound(history)


def test_group_member_may_skip_offsets_between_polls_but_not_within_one() -> None:
    history = abc()
    history.subscribed("c", [0])
    history.read((0, "a"))
    history.read((2, "c"))
    history.read((0, "a"), (1, "b"))
    sound(history)
    history.read((0, "a"), (2, "c"))
    assert set(check(history).counts) == {"skip within a poll"}


def test_partition_that_is_reassigned_during_a_poll_may_repeat_offsets() -> None:
    history = abc()
    history.subscribed("c", [0])
    history.read((0, "a"), (1, "b"), (0, "a"), (1, "b"), (2, "c"), rebalanced=(0,))
    sound(history)


def test_lag_is_the_age_of_an_acknowledged_record_at_a_poll_that_missed_it() -> None:
    history = History()
    history.assigned("c", {0: 0})
    history.sent("a", 0)  # known at 3
    history.read((0, "a"))
    assert check(history).lag_ns == 0
    history.sent("b", 1)  # 6 and 7
    history.read()  # sent at 8
    history.read()  # sent at 10
    history.read((1, "b"))
    findings = sound(history)
    assert findings.lag_ns == 3
    assert findings.laggard == "c in 0, 1 records from the start"
    history.assigned("d", {0: 0})
    history.read((0, "a"), (1, "b"), process="d")
    assert sound(history).lag_ns == 3, "a consumer that starts later has no lag"


def test_value_that_is_sent_twice_is_refused() -> None:
    history = abc()
    history.sent("a", 3)
    with pytest.raises(AssertionError, match="'a' is sent to 0 once in a history"):
        check(history)


def test_only_final_errors_mean_that_a_send_failed() -> None:
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
    """Checking is linear. A quadratic check exceeds the time limit."""
    history = History()
    for number in range(60_000):
        history.sent(f"v{number}", number // 4, key=number % 4)
    for key in range(4):
        for begin in range(0, 15_000, 100):
            history.read(*((offset, f"v{offset * 4 + key}") for offset in range(begin, begin + 100)), key=key)
    assert sound(history).polled == 60_000


def checker_with_three_sends() -> HistoryIsSound:
    checker = HistoryIsSound()
    checker.sent(0, 0, [b"a", b"b"], idempotent=True)
    checker.sent(1, 0, [b"c"], idempotent=False)
    checker.acknowledged(0, 0, [b"a", b"b"])
    checker.read(0, 0, 0, b"a")
    return checker


def test_histories_of_simulated_clients_are_checked() -> None:
    complete = checker_with_three_sends()
    complete.finish({0: [(0, b"a"), (1, b"b"), (2, b"c")]})
    assert complete.problems == []
    lost = checker_with_three_sends()
    lost.finish({0: [(0, b"a")]})
    assert lost.problems == ["unseen: 1 (" + ANOMALIES["unseen"] + "); b'b' of 0, acknowledged at 1"]
    replaced = checker_with_three_sends()
    replaced.finish({0: [(0, b"c"), (1, b"b")]})
    assert [line.partition(":")[0] for line in replaced.problems] == ["inconsistent offset"]
