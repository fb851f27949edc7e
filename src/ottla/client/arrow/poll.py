"""A consumer's next records as a table: like `poll` for records, in both APIs.

    on the event loop                    in the caller's thread, or a worker thread
    lend: chunks, positions unchanged    read: checksums, decompression, columns, values
    take back: positions move            the table

The next chunks are fetched meanwhile. If a table cannot be made, because a value is unreadable, no position moves.
"""

from __future__ import annotations

from dataclasses import dataclass

from ottla.base.ids import TopicPartition
from ottla.client.arrow.optional import pa
from ottla.client.arrow.read import Piece, Tables, in_order, portions
from ottla.client.fetch.chunk import Lent
from ottla.client.fetch.fetcher import Fetcher
from ottla.records.batch import crc_ok
from ottla.records.errors import RecordsError
from ottla.wire.errors import CorruptMessage, KafkaError


@dataclass(slots=True)
class ChunkRead:
    """The result of a chunk."""

    lent: Lent
    pieces: list[Piece]
    #: Position of its partition after it; None if nothing of it was read.
    next_offset: int | None
    #: The error that ended it early.
    error: KafkaError | None = None

    @property
    def rows(self) -> int:
        return sum(piece.batch.num_rows for piece in self.pieces)


class PolledTable:
    """One poll: the chunks, what was read, and the table."""

    def __init__(self, tables: Tables, lent: list[Lent], limit: int, *, several: bool, check_crcs: bool) -> None:
        self._tables = tables
        self._several = several
        self._schema = tables.read_schema(several=several)
        self._check_crcs = check_crcs
        self._limit = limit
        self._lent = lent
        self._reads = [ChunkRead(one, [], None) for one in lent]
        self.table: pa.Table = None

    def read(self) -> None:
        """Makes the table from the chunks. Runs in any thread. Raises: SerializationFailed."""
        reads = list(in_order(self._read, self._lent, sum(len(one.chunk.buffer) for one in self._lent)))
        self._cut(reads)
        self._make(reads)
        self._reads = reads

    def _make(self, reads: list[ChunkRead]) -> None:
        self.table = self._tables.table([piece for read in reads for piece in read.pieces], several=self._several)

    def take_back(self, fetcher: Fetcher) -> None:
        """On the event loop: moves the positions past the table. Partitions whose position changed meanwhile are removed from it."""
        kept = [fetcher.buffer.take_back(read.lent, read.next_offset, read.error) for read in reversed(self._reads)]
        if not all(kept) and self.table is not None:
            self._make([read for read, stays in zip(self._reads, reversed(kept), strict=True) if stays])

    def _read(self, lent: Lent) -> ChunkRead:
        chunk, read = lent.chunk, ChunkRead(lent, [], lent.start_offset)
        at = chunk.batches[chunk.next][0]
        end = self._enough(lent)
        try:
            if self._check_crcs:
                for position, _ in chunk.batches[chunk.next :]:
                    if not crc_ok(chunk.buffer, position):
                        raise RecordsError("its checksum does not fit")
            found = portions(
                chunk.buffer, lent.start_offset, end, position=at, aborted=chunk.hiding(), with_headers="headers" in self._schema.names
            )
            read.pieces = self._tables.read(found, self._schema, lent.tp)
            read.next_offset = min(end, chunk.end_offset)
        except RecordsError:
            self._read_one_by_one(read)
        return read

    def _enough(self, lent: Lent) -> int:
        """The offset after the batch with which there are enough rows."""
        rows = 0
        for _, header in lent.chunk.batches[lent.chunk.next :]:
            rows += header.count
            if rows >= self._limit and header.base_offset >= lent.start_offset:
                return header.last_offset + 1
        return lent.chunk.end_offset

    def _read_one_by_one(self, read: ChunkRead) -> None:
        """Keeps what comes before the unreadable batch."""
        lent, chunk = read.lent, read.lent.chunk
        hiding = chunk.hiding()
        for at, header in chunk.batches[chunk.next :]:
            try:
                if self._check_crcs and not crc_ok(chunk.buffer, at):
                    raise RecordsError("its checksum does not fit")
                whole = chunk.buffer[at : at + header.size]
                found = portions(whole, lent.start_offset, aborted=hiding, with_headers="headers" in self._schema.names)
                read.pieces += self._tables.read(found, self._schema, lent.tp)
            except RecordsError as error:
                story = f"{lent.tp}: the batch at offset {header.base_offset} cannot be read: {error}; seek past it to continue"
                read.error = CorruptMessage(story)
                return
            read.next_offset = header.last_offset + 1

    def _cut(self, reads: list[ChunkRead]) -> None:
        """Keeps the requested number of rows, and nothing of a partition after a gap."""
        left = self._limit
        ended: set[TopicPartition] = set()
        for read in reads:
            if read.lent.tp in ended or left <= 0:
                read.pieces, read.next_offset, read.error = [], None, None
                continue
            if read.rows > left:
                read.pieces, read.next_offset = _first(read.pieces, left)
                read.error = None
                ended.add(read.lent.tp)
            elif read.error is not None or (read.next_offset or 0) < read.lent.chunk.end_offset:
                ended.add(read.lent.tp)
            left -= read.rows


def _first(pieces: list[Piece], rows: int) -> tuple[list[Piece], int]:
    """The first rows of the pieces, and the offset after them."""
    kept = []
    for tp, batch in pieces:
        kept.append(Piece(tp, batch.slice(0, rows)))
        rows -= kept[-1].batch.num_rows
        if not rows:
            break
    last = kept[-1].batch.column("offset")
    return kept, last[len(last) - 1].as_py() + 1
