"""The states of a group of the classic protocol, and which may follow which.

::

    state                what is true                                                  members may
    Empty                nobody is a member; offsets may be kept                       join
    PreparingRebalance   members are asked to join again, and wait for one another     join, leave, commit
    CompletingRebalance  the generation has its members; the leader's assignment is    sync, leave
                         awaited
    Stable               every member has, or can have, its assignment                 sync, heartbeat, commit
    Dead                 the group is deleted; nothing follows                         nothing

``TRANSITIONS`` is the one place where this stands; the page docs/reference/group-states.md is made from it by ``diagram()``. Source:
Kafka's ClassicGroupState.
"""

from enum import Enum


class GroupState(Enum):
    """A state, with the name that clients see."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_E, _P, _C, _S, _D = GroupState

#: (from, to) -> why it happens.
TRANSITIONS: dict[tuple[GroupState, GroupState], str] = {
    (_E, _P): "a member joins",
    (_E, _D): "deleted, or its last offset expired",
    (_P, _E): "everybody left",
    (_P, _C): "all members joined, or the wait is over",
    (_P, _D): "becomes a group of the new protocol",
    (_C, _P): "a member joins, leaves or falls silent",
    (_C, _S): "the leader's assignment is written",
    (_C, _D): "becomes a group of the new protocol",
    (_S, _P): "a member joins, leaves or falls silent",
    (_S, _D): "becomes a group of the new protocol",
}


class IllegalTransition(AssertionError):
    """A group was about to go where no way leads."""


def check_transition(before: GroupState, after: GroupState, story: str) -> None:
    """Raises: IllegalTransition, with ``story``, unless the table has it."""
    if (before, after) not in TRANSITIONS:
        raise IllegalTransition(f"{story}: no way leads from {before.value} to {after.value}")


def diagram() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", f"    [*] --> {_E.value}"]
    lines += [f"    {before.value} --> {after.value}: {why}" for (before, after), why in TRANSITIONS.items()]
    return "\n".join([*lines, f"    {_D.value} --> [*]"])
