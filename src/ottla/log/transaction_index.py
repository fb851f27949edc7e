"""The transaction index: which transactions that end in a segment were aborted. 34 bytes each, in the order of their markers.

    offset  size  field
    0       2     version: 0
    2       8     producer id
    10      8     first offset of the transaction
    18      8     offset of its abort marker
    26      8     last stable offset when the marker was written

A reader at the read-committed level gets the producers whose records it must skip. The file exists only once a transaction was aborted
in the segment; it is a cache like the other indexes, rebuilt by replaying the segment.
"""

from struct import Struct
from typing import NamedTuple

from ottla.base.ids import Offset, ProducerId

ENTRY = Struct(">hqqqq")
_VERSION = 0


class AbortedTransaction(NamedTuple):
    """One aborted transaction. The offsets are inclusive; ``last_stable_offset`` holds for the time after the marker."""

    producer_id: ProducerId
    first_offset: Offset
    last_offset: Offset
    last_stable_offset: Offset

    def pack(self) -> bytes:
        return ENTRY.pack(_VERSION, *self)


def read_entries(data: bytes, base_offset: int) -> list[AbortedTransaction] | None:
    """The entries of a file; None when it cannot belong to a segment that begins at ``base_offset``."""
    if len(data) % ENTRY.size:
        return None
    entries = []
    before = base_offset - 1
    for version, *fields in ENTRY.iter_unpack(data):
        entry = AbortedTransaction(*fields)
        if version != _VERSION or entry.last_offset <= before or entry.first_offset > entry.last_offset:
            return None
        before = entry.last_offset
        entries.append(entry)
    return entries
