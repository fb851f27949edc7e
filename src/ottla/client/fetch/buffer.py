"""The fetch buffer: fetched chunks by partition, from which records are decoded batch by batch, or whole chunks are lent. Pure.

    row    A  C  B        partitions with chunks; the first is served until it is empty, paused, or the limit is reached
           ^ next

An error of a partition is raised once, when no records come before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from ottla.base.ids import TopicPartition
from ottla.client.consumer.metrics import Consumed, ConsumedChunk
from ottla.client.consumer.record import ConsumerRecord
from ottla.client.fetch.chunk import Chunk, Lent
from ottla.client.fetch.position import Position
from ottla.client.options import ConsumerOptions
from ottla.records.errors import RecordsError
from ottla.wire.errors import CorruptMessage, KafkaError


class FetchBuffer:
    """The fetch buffer of a consumer. `positions` are the fetcher's."""

    def __init__(self, positions: Mapping[TopicPartition, Position], options: ConsumerOptions) -> None:
        self._positions = positions
        self._check_crcs = options.check_crcs
        self._read_committed = options.isolation_level == "read_committed"
        #: Partitions with chunks, in the order of service.
        self.row: deque[TopicPartition] = deque()
        #: Records taken, for metrics.
        self.consumed: list[Consumed] = []

    def arrived(self, tp: TopicPartition) -> None:
        """A partition has chunks."""
        if tp not in self.row:
            self.row.append(tp)

    def forget(self, tp: TopicPartition) -> None:
        """A partition has no chunks any more."""
        if tp in self.row:
            self.row.remove(tp)

    def assigned(self) -> None:
        """Drops partitions without a position."""
        self.row = deque(tp for tp in self.row if tp in self._positions)

    def take(self, records_max: int) -> list[ConsumerRecord]:
        """Up to ``records_max`` records, in order per partition; the positions advance.

        Raises: an error of a partition, if no records come before it.
        """
        taken: list[ConsumerRecord] = []
        for _ in range(len(self.row)):
            tp = self.row[0]
            position = self._positions[tp]
            if position.paused:
                self.row.rotate(-1)
                continue
            while position.chunks and len(taken) < records_max and position.error is None:
                self._take_from(position, position.chunks[0], taken, records_max)
            if len(taken) >= records_max and position.chunks:
                self._begun(position, position.chunks[0])
                break
            self.row.popleft()
        if not taken:
            self._tell_error()
        return taken

    def _tell_error(self) -> None:
        """Raises: an error of a partition, and clears it."""
        for position in self._positions.values():
            if position.error is not None and not position.paused:
                error, position.error = position.error, None
                raise error

    def lend(self, records_max: int) -> list[Lent]:
        """Whole chunks with about ``records_max`` records, at least one, to be decoded elsewhere. The positions wait for `take_back`,
        which must follow for each, in reverse order.

        Raises: an error of a partition, if no chunks come before it.
        """
        lent: list[Lent] = []
        left = records_max
        for _ in range(len(self.row)):
            position = self._positions[self.row[0]]
            if position.paused:
                self.row.rotate(-1)
                continue
            while position.chunks and left > 0 and position.error is None:
                chunk = position.chunks.popleft()
                if chunk.decoded:
                    chunk.begin_at(position.offset or 0)
                lent.append(Lent(position.tp, position.generation, chunk, position.offset or 0))
                left -= sum(header.count for _, header in chunk.batches[chunk.next :])
            if position.chunks:
                break
            self.row.popleft()
        if not lent:
            self._tell_error()
        return lent

    def take_back(self, lent: Lent, next_offset: int | None, error: KafkaError | None = None) -> bool:
        """A lent chunk was read up to `next_offset`, the partition's new position; None: not at all. `error`: it cannot be read further.

        False if the position changed meanwhile: then the chunk does not count.
        """
        position, chunk = self._positions.get(lent.tp), lent.chunk
        if position is None or position.generation != lent.generation or position.fetch_offset < chunk.end_offset:
            return False
        if next_offset is not None and next_offset > (position.offset or 0):
            position.offset = next_offset
            position.taken_epoch = [header for _, header in chunk.batches if header.base_offset < next_offset][-1].leader_epoch
        if error is not None:
            position.error, position.fetch_offset = error, position.offset or 0
            position.chunks.clear()
        elif next_offset is None or next_offset < chunk.end_offset:
            chunk.begin_at(max(lent.start_offset, next_offset or 0))
            position.chunks.appendleft(chunk)
            if lent.tp not in self.row:
                self.row.appendleft(lent.tp)
        else:
            read = [header for _, header in chunk.batches if header.last_offset >= lent.start_offset]
            passed = min(max(lent.start_offset - read[0].base_offset, 0), read[0].count)
            chunk.given += sum(header.count for header in read) - passed
            self._consumed(position, chunk)
        return True

    def _begun(self, position: Position, chunk: Chunk) -> None:
        """Part of the chunk was taken when the limit was reached."""
        taken = chunk.given - len(chunk.decoded)
        if taken > chunk.counted:
            self.consumed.append(Consumed(position.tp, taken - chunk.counted))
            chunk.counted = taken

    def _consumed(self, position: Position, chunk: Chunk) -> None:
        """The chunk is used up."""
        at = position.progress(None, self._read_committed)
        whole = ConsumedChunk(chunk.given, len(chunk.buffer), at.lag or 0, at.lead or 0)
        self.consumed.append(Consumed(position.tp, chunk.given - chunk.counted, whole))

    def _take_from(self, position: Position, chunk: Chunk, taken: list[ConsumerRecord], records_max: int) -> None:
        """Moves records of the chunk's next batch; drops the chunk when it is empty."""
        if not chunk.decoded:
            if chunk.next == len(chunk.batches):
                self._consumed(position, position.chunks.popleft())
                return
            header = chunk.batches[chunk.next][1]
            try:
                chunk.decode(position.tp, position.offset or 0, check_crcs=self._check_crcs)
            except RecordsError as error:
                position.error = CorruptMessage(
                    f"{position.tp}: the batch at offset {header.base_offset} cannot be read: {error}; seek past it to continue"
                )
                position.fetch_offset = position.offset or 0
                position.chunks.clear()
                return
            chunk.next += 1
            chunk.given += len(chunk.decoded)
            if not chunk.decoded:
                position.offset = header.last_offset + 1
                return
        decoded = chunk.decoded
        position.taken_epoch = chunk.batches[chunk.next - 1][1].leader_epoch
        room = records_max - len(taken)
        if len(decoded) <= room:
            decoded.reverse()
            taken += decoded
            chunk.decoded = []
            position.offset = chunk.batches[chunk.next - 1][1].last_offset + 1
        else:
            part = decoded[: -room - 1 : -1]
            del decoded[-room:]
            taken += part
            position.offset = part[-1].offset + 1
