"""Looking whether a log is what was written: batches are read off the loop and held against their checksums.

Nobody reads what is served: files go to the socket as they lie. So damage shows when it is met: by a follower that comes back for the same
batch again and again, by an index or a header that makes no sense, by compaction. Then the log is read from there, chunk by chunk, and if a
batch turns out damaged the replica is not fit to lead (``unfit.py``).

One inspection of a partition is under way at most. It ends with its replica, or when the log is cut.
"""

from typing import TYPE_CHECKING

from ottla.base.ids import TopicPartition
from ottla.base.units import MiB
from ottla.broker.follower import Follower
from ottla.broker.leader import Leader
from ottla.log.errors import LogError
from ottla.records.batch import LOG_OVERHEAD, crc_ok, parse_header
from ottla.records.errors import RecordsError

if TYPE_CHECKING:
    from ottla.broker.node import Node

#: Bytes read at once; one batch is read whole.
CHUNK_BYTES = MiB


class Inspections:
    """See the module's theory."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._under_way: dict[TopicPartition, Leader | Follower] = {}

    def begin(self, replica: Leader | Follower, offset: int, *, whole: bool) -> None:
        """Look at the batches from ``offset`` on: all of them, or the next chunk. Of a partition of one replica nobody could copy them."""
        if isinstance(replica, Leader) and not replica.insync.standings:
            return
        if self._under_way.get(replica.partition) is None and offset >= replica.log.start_offset:
            self._under_way[replica.partition] = replica
            self._read(replica, offset, whole, replica.log.truncations)

    def _read(self, replica: Leader | Follower, offset: int, whole: bool, truncations: int) -> None:
        log = replica.log
        try:
            found = log.locate(offset, max_bytes=CHUNK_BYTES, upto=log.end_offset) if offset < log.end_offset else None
        except LogError:
            self._end(replica, offset)
            return
        if found is None:
            self._end(replica, None)
            return

        def read(data: bytes | None) -> None:
            current = self._node.partitions.replica(replica.partition) is replica and log.truncations == truncations
            if not current or data is None:
                self._end(replica, None)
                return
            after, sound = _sound_upto(data, offset)
            if not sound:
                self._end(replica, after)
            elif whole and after > offset:
                self._read(replica, after, whole, truncations)
            else:
                self._end(replica, None)

        self._node.read_log(replica.directory.root, found, read)

    def _end(self, replica: Leader | Follower, damaged_at: int | None) -> None:
        self._under_way.pop(replica.partition, None)
        if damaged_at is not None:
            self._node.unfit.damaged(replica, damaged_at)


def _sound_upto(data: bytes, offset: int) -> tuple[int, bool]:
    """Offset behind the last whole batch, or of the first one that is damaged; and whether there is none such. The last may be cut off."""
    view, position = memoryview(data), 0
    while position + LOG_OVERHEAD <= len(view):
        try:
            header = parse_header(view, position) if position + 61 <= len(view) else None
        except RecordsError:
            return offset, False
        if header is None or position + header.size > len(view):
            return offset, position > 0
        if header.base_offset > header.last_offset or header.last_offset < offset or not crc_ok(view, position):
            return max(offset, header.base_offset) if position else offset, False
        offset = header.last_offset + 1
        position += header.size
    return offset, True
