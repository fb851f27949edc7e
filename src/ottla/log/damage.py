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
from errno import ENOSPC
from typing import TYPE_CHECKING

import msgspec

from ottla.log.filenames import DAMAGE

if TYPE_CHECKING:
    from ottla.log.log import Log


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


def note(log: "Log", base_offset: int, damages: Iterable[Damage]) -> None:
    """Sets the damage of a segment: reads of these offsets raise CorruptLog, also after a restart.

    Raises: OSError; a full disk keeps the former file.
    """
    segment = log.segments[log.segment_of(base_offset)]
    assert segment.base_offset == base_offset, "damage is in a segment of the log"
    segment.damages = tuple(sorted(damages))
    log.damage_noted |= bool(segment.damages)
    save(log)


def save(log: "Log") -> None:
    """Writes the known damage after segments changed. Raises: OSError."""
    if not log.damage_noted:
        return
    path, damages = f"{log.directory}/{DAMAGE}", log.damages
    if not damages:
        log.damage_noted = False
        log.disk.unlink(path)
        log.pending.directory(log.directory)
        return
    try:
        log.disk.replace_file(path, damage_file(damages))
    except OSError as error:
        if error.errno != ENOSPC:
            raise


def recall(log: "Log", damages: Iterable[Damage]) -> None:
    """Applies the damage-checkpoint that was read at open."""
    by_base: dict[int, list[Damage]] = {}
    for one in damages:
        by_base.setdefault(one.base, []).append(one)
    for segment in log.segments:
        segment.damages = tuple(sorted(one for one in by_base.get(segment.base_offset, ()) if one.position < segment.size))
    log.damage_noted = True
