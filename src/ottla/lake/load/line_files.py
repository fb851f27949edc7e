"""Files of lines: csv, JSON lines, text. They are read in blocks of complete lines, and compiled code parses each block at once.

If a block cannot be parsed, it is parsed again line by line, to find the invalid line and keep the others.
"""

from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from ottla.base.units import MiB
from ottla.lake.load.inputs import CannotLoad
from ottla.lake.load.reader import LINE, PORTION_BYTES, RowBatch

#: Maximum length of a line; a longer one means an unclosed quote, or a file of another format.
LINE_MAX_BYTES = 64 * MiB
BOM = b"\xef\xbb\xbf"


class LineSource:
    """A source of bytes in pieces. ``tell`` is the position in the file if it differs from the bytes read, as for compressed files."""

    def __init__(self, stream: BinaryIO | Any, tell: Callable[[], int] | None = None, *, limit: int | None = None) -> None:
        self._read = getattr(stream, "read1", stream.read)
        self._tell = tell
        #: Maximum bytes to read: later additions to the file are left for the next run.
        self._limit = limit
        self._came = 0

    @property
    def done(self) -> int:
        return self._came if self._tell is None else self._tell()

    def pieces(self) -> Iterator[bytes]:
        while piece := self._read(PORTION_BYTES if self._limit is None else min(PORTION_BYTES, self._limit - self._came)):
            self._came += len(piece)
            yield piece


def blocks(source: LineSource, quote: bytes | None = None) -> Iterator[tuple[int, bytes]]:
    """(number of the first line, complete lines). Line ends within quotes are part of the field.

    The last line may lack a line end. Raises: CannotLoad for a line longer than `LINE_MAX_BYTES`.
    """
    number, held, began = 1, b"", False
    for piece in source.pieces():
        if not began:
            piece, began = piece.removeprefix(BOM), True
        held += piece
        end = _last_end(held, quote)
        if end < 0:
            if len(held) > LINE_MAX_BYTES:
                raise CannotLoad(f"line {number} is longer than 64 MiB{', or has a quote that is not closed' if quote else ''}")
            continue
        yield number, held[: end + 1]
        number += held.count(b"\n", 0, end + 1)
        held = held[end + 1 :]
    if held and quote is not None and held.count(quote) % 2:
        raise CannotLoad(f"a quote is opened and not closed, in line {number} or later; where quotes mean nothing, say --quote none")
    if held:
        yield number, held


def _last_end(held: bytes, quote: bytes | None) -> int:
    """End of the last complete line; -1 without one."""
    end = held.rfind(b"\n")
    if quote is None or end < 0:
        return end
    odd = held.count(quote, 0, end) % 2
    while odd and end >= 0:
        before = held.rfind(b"\n", 0, end)
        odd ^= held.count(quote, max(before, 0), end) % 2
        end = before
    return end


def records(first_line: int, block: bytes, quote: bytes | None) -> list[tuple[int, bytes]]:
    """The lines of a block with their numbers, joined where a quote is open at the end, without empty ones."""
    found: list[tuple[int, bytes]] = []
    parts: list[bytes] = []
    open_quotes = 0
    for number, line in enumerate(block.split(b"\n"), first_line):
        parts.append(line)
        open_quotes += 0 if quote is None else line.count(quote)
        if open_quotes % 2 == 0:
            whole = b"\n".join(parts).removesuffix(b"\r")
            if whole:
                found.append((number - len(parts) + 1, whole))
            parts, open_quotes = [], 0
    if parts and any(parts):
        found.append((first_line + block.count(b"\n") - len(parts) + 1, b"\n".join(parts)))
    return found


def lines_of(block: bytes) -> Any:
    """The lines of a block as a binary column, without line ends."""
    if b"\r\n" in block:
        block = block.replace(b"\r\n", b"\n")
    block = block.removesuffix(b"\n")
    ends = pa.array([0, len(block)], pa.int64()).buffers()[1]
    whole = pa.Array.from_buffers(pa.large_binary(), 1, [None, ends, pa.py_buffer(block)])
    return pc.split_pattern(whole, b"\n").flatten()


class TextReader:
    """Each line is a value of any bytes; an empty one, too."""

    columns = {LINE: "text"}
    value: str | None = LINE
    skipped = 0

    def __init__(self, source: LineSource) -> None:
        self._source = source

    def portions(self, skip: int) -> Iterator[RowBatch]:
        for _, block in blocks(self._source):
            yield RowBatch(pa.RecordBatch.from_arrays([lines_of(block)], [LINE]), [], self._source.done)
