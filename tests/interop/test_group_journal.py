"""The journal of group members detects violated invariants."""

from __future__ import annotations

from typing import Any

import pytest
from group_members import Journal, Member

pytestmark = pytest.mark.interop

A, B = "A", "B"


def member(name: str) -> Member:
    """A member without a process."""
    made = Member.__new__(Member)
    made.name, made.owned, made.assignments, made.stale = name, set(), 0, False
    return made


def journal(*lines: tuple[str, str, Any]) -> Journal:
    """A journal of entries of members A and B."""
    made, members = Journal(), {name: member(name) for name in (A, B)}
    for name, what, content in lines:
        if what == "thawed":
            members[name].stale = True
        else:
            made.enter(members[name], what, content)
    return made


def test_an_uncommitted_record_can_be_read_again() -> None:
    journal((A, "read", [0, 0]), (B, "read", [0, 0]), (B, "committed", [[0, 1]])).check({0: 1})


def test_a_stopped_member_can_read_its_buffer_and_its_commit_is_refused() -> None:
    lines = [(A, "frozen", None), (B, "read", [0, 0]), (B, "committed", [[0, 1]]), (A, "thawed", None), (A, "read", [0, 0])]
    journal(*lines, (A, "refused", "fenced"), (A, "revoked", [0])).check({0: 1})


def test_a_stopped_member_can_receive_a_late_acknowledgement() -> None:
    lines = [(A, "read", [0, 0]), (A, "frozen", None), (B, "read", [0, 1]), (A, "thawed", None), (A, "committed", [[0, 1]])]
    journal(*lines).check({0: 2})


@pytest.mark.parametrize("late", [A, B])
def test_lines_count_in_the_order_of_the_members_clock(late: str) -> None:
    """A busy machine may take down the lines of one member after later ones of another."""
    made, owner, next_owner = Journal(), member(A), member(B)
    first = [(owner, "read", [0, 0], 1), (owner, "committed", [[0, 1]], 2)]
    then = [(next_owner, "read", [0, 1], 3), (next_owner, "committed", [[0, 2]], 4)]
    for line in [*then, *first] if late == A else [*first, *then]:
        made.enter(*line)
    made.check({0: 2})


@pytest.mark.parametrize(
    ("lines", "story"),
    [
        ([(A, "read", [0, 0])], "1 records were never read"),
        ([(A, "read", [0, 0]), (A, "committed", [[0, 1]]), (B, "read", [0, 0])], "B reads offset 0 of partition 0; committed is 1"),
        ([(A, "read", [0, 1]), (A, "committed", [[0, 2]]), (B, "committed", [[0, 1]])], "B commits 1 of partition 0; committed was 2"),
        (
            [(A, "read", [0, 0]), (A, "frozen", None), (B, "read", [0, 0]), (A, "thawed", None), (A, "committed", [[0, 1]])],
            "A commits 1 of partition 0 though another has taken over from 0 on",
        ),
        (
            [(A, "read", [0, 0]), (A, "frozen", None), (A, "thawed", None), (A, "assigned", [0]), (B, "committed", [[0, 1]])]
            + [(A, "read", [0, 0])],
            "A reads offset 0",
        ),
    ],
)
def test_a_violation_is_detected(lines: list[tuple[str, str, Any]], story: str) -> None:
    with pytest.raises(AssertionError, match=story):
        journal(*lines).check({0: 2})
