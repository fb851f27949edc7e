"""Known damage of a log.

::

    segment 40   | b b b | ? ? | b b b |
    position     0       8100  9000
    offset       40      61    66                Damage(40, 8100, 9000, 61, 66, "...")

A log that no other replica can heal keeps its damage. Reads of offsets 61 to 65 fail with CorruptLog. Reads of all other offsets work:
a read before the damage ends there, a read after it begins at the position behind the damage.

The list is stored in ``damage-checkpoint`` in the partition's directory: JSON, one array per damage in the order of the fields. A malformed
file counts as absent: the next scrub finds the damage again.
"""

import json
from collections.abc import Iterable

import msgspec


class Damage(msgspec.Struct, frozen=True, order=True):
    """Bytes of one segment that differ from what was written."""

    #: Base offset of the segment.
    base: int
    #: Bytes ``position`` to ``end_position`` (exclusive).
    position: int
    end_position: int
    #: Offsets ``first`` to ``end`` (exclusive) cannot be read.
    first: int
    end: int
    #: Description for messages.
    reason: str

    def __str__(self) -> str:
        where = f"bytes {self.position} to {self.end_position - 1} of {self.base:020d}.log"
        return f"offsets {self.first} to {self.end - 1}, {where}: {self.reason}"


def damage_file(found: Iterable[Damage]) -> bytes:
    """Content of a damage-checkpoint."""
    return json.dumps([msgspec.structs.astuple(one) for one in found]).encode()


def read_damage(data: bytes) -> list[Damage]:
    """Parses a damage-checkpoint; empty when it is malformed."""
    try:
        return [
            Damage(int(base), int(position), int(end_position), int(first), int(end), str(reason))
            for base, position, end_position, first, end, reason in json.loads(data)
        ]
    except (ValueError, TypeError):
        return []
