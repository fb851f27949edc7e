"""The check of ``python -m chaos.transactions`` finds what it looks for."""

from collections import Counter
from typing import Any

from chaos.transactions import Copy, TransactionsResult, judge

ALL: tuple[Copy, ...] = (("one-1", 4, 1), ("one-1", 4, 2), ("two-1", 2, 3))


def judged(a: tuple[Copy, ...] = ALL, b: tuple[Copy, ...] = ALL, **given: Any) -> TransactionsResult:
    outcome = TransactionsResult(seed=0)
    judge(outcome, {"a": Counter(a), "b": Counter(b)}, **{"inputs": {1, 2, 3}, "committed": set(), "aborted": set(), **given})
    return outcome


def test_units_that_are_whole_and_there_once_are_no_problem() -> None:
    found = judged(committed={"one-1", "two-1"}, aborted={"one-2"})
    assert (found.units, found.problems) == (2, [])


def test_an_input_record_without_an_output_is_lost() -> None:
    found = judged(inputs={1, 2, 3, 4})
    assert (found.lost, found.doubled, found.torn) == (2, 0, 0)


def test_a_committed_unit_that_nobody_sees_is_lost() -> None:
    assert judged(committed={"one-9"}).lost == 1


def test_an_input_record_with_two_outputs_is_doubled() -> None:
    again: tuple[Copy, ...] = (*ALL, ("three-1", 2, 3))
    assert judged(again, again).doubled == 2
    assert judged((*ALL, ALL[2])).doubled == 1


def test_a_unit_of_which_a_part_is_visible_is_torn() -> None:
    found = judged(b=ALL[1:])
    assert (found.torn, found.lost) == (1, 1)
    assert judged((*ALL, ALL[0])).torn == 1


def test_an_aborted_unit_that_is_visible_is_a_problem() -> None:
    assert judged(aborted={"two-1"}).aborted_seen == 1


def test_an_output_without_an_input_record_is_a_problem() -> None:
    assert judged(inputs={1, 2}).problems == ["1 records in a have no input record", "1 records in b have no input record"]
