"""The timeline of a broker: the latest changes of groups, partitions, transactions and the controller, in memory.

::

    kind          name                changes
    group         group id            joined, left, rebalance started, generation, synced, assigned, stable
    partition     topic-partition     elected, leads, follows, ISR changes
    transaction   transactional id    Ongoing, PrepareCommit, markers, CompleteCommit
    controller    broker              elections of the controller, registrations, sessions

Log lines are aggregated and leave out details; the timeline has each change. Each kind has a ring of ``ottla.timeline.entries`` entries, so
that many transactions do not replace the changes of groups. Numbers increase over all kinds: a reader asks for the entries after the last
number that it has. The HTTP listener reads the rings from a thread, so an entry never changes. A restart empties them.

A leader knows the producer id of a marker, and not its transactional id: such entries have the name ``producer 4001``.
"""

from collections import deque
from typing import Any, Literal, Protocol

import msgspec

Kind = Literal["group", "partition", "transaction", "controller"]
KINDS: tuple[Kind, ...] = ("group", "partition", "transaction", "controller")
#: Characters of a text that a client chose, and of a name: that of a partition has 260.
TEXT_MAX, NAME_MAX = 200, 300


class Clock(Protocol):
    """What this module uses of the broker's context."""

    @property
    def wall_ms(self) -> int: ...


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One change."""

    number: int
    #: Wall clock of the broker.
    wall_ms: int
    kind: Kind
    name: str
    what: str
    #: Numbers and texts.
    fields: dict[str, Any]


class Timeline:
    """The timeline of one broker."""

    __slots__ = ("_clock", "_number", "began_ms", "rings")

    def __init__(self, clock: Clock, entries_max: int) -> None:
        self._clock = clock
        #: Tells this life of the broker from an earlier one, whose numbers began anew.
        self.began_ms = clock.wall_ms
        self._number = 0
        self.rings: dict[Kind, deque[Entry]] = {kind: deque(maxlen=entries_max) for kind in KINDS}

    def note(self, kind: Kind, name: str, what: str, **fields: Any) -> None:
        """Adds a change; the oldest one of its kind goes."""
        self._number += 1
        self.rings[kind].append(Entry(self._number, self._clock.wall_ms, kind, name[:NAME_MAX], what, fields))


def shortened(text: str | None) -> str:
    """A text that a client chose."""
    return (text or "")[:TEXT_MAX]


def producer_name(producer_id: int) -> str:
    """The name of changes of a transaction on the leaders of its partitions."""
    return f"producer {producer_id}"
