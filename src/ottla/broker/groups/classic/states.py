"""States and transitions of a classic group.

::

    state                condition                                                    members may
    Empty                no members; offsets may be stored                            join
    PreparingRebalance   members must join again, and wait for each other             join, leave, commit
    CompletingRebalance  the generation has its members and waits for the leader's    sync, leave
                         assignment
    Stable               every member has, or can get, its assignment                 sync, heartbeat, commit
    Dead                 the group is deleted                                         nothing

``TRANSITIONS`` is the only definition; docs/reference/group-states.md is generated from it. Source: Kafka's ClassicGroupState.
"""

from enum import Enum


class GroupState(Enum):
    """A state, with Kafka's name."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_E, _P, _C, _S, _D = GroupState

#: (from, to) -> reason.
TRANSITIONS: dict[tuple[GroupState, GroupState], str] = {
    (_E, _P): "a member joins",
    (_E, _D): "deleted, or its last offset expired",
    (_P, _E): "all members left",
    (_P, _C): "all members joined, or the wait is over",
    (_P, _D): "becomes a group of the new protocol",
    (_C, _P): "a member joins, leaves or falls silent",
    (_C, _S): "the leader's assignment is written",
    (_C, _D): "becomes a group of the new protocol",
    (_S, _P): "a member joins, leaves or falls silent",
    (_S, _D): "becomes a group of the new protocol",
}


class IllegalTransition(AssertionError):
    """A transition that is not in the table."""


def check_transition(before: GroupState, after: GroupState, story: str) -> None:
    """Raises: IllegalTransition with ``story``, unless the table has the transition."""
    if (before, after) not in TRANSITIONS:
        raise IllegalTransition(f"{story}: no way leads from {before.value} to {after.value}")
