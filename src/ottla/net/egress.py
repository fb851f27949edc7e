"""Sends the answers of a connection: bytes through the transport, file ranges with sendfile.

An answer is a list of chunks: buffers and ranges of log files. Below ``SENDFILE_MIN_BYTES`` the ranges are read, and all bytes go through
the transport. Above, ranges go by ``sendfile`` on a duplicate of the connection's socket, of which the transport does not know. The order
holds because the transport gets nothing meanwhile, and the duplicate is used only while the transport's buffer is empty.

Over TLS the bytes must pass through OpenSSL: ranges are read in steps and given to the transport, each when the last one is sent.

The loop never waits for the disk. A range is read or sent only when its pages are in memory (``preadv`` with RWF_NOWAIT tells); otherwise a
thread reads it first. A range that ends early was truncated after the answer began, so the connection is closed.
"""

import asyncio
import errno
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from typing import Any, Literal, Protocol, TypeGuard

from ottla.base.units import KiB, MiB
from ottla.net.buffers import unwritten

SENDFILE_MIN_BYTES = 64 * KiB
#: Buffers of so many bytes together are copied into one, which the transport takes at less cost than several.
JOINED_BYTES_MAX = 4 * KiB
#: Limit of the bytes that one connection sends per turn of the loop, and that it encrypts: about 0.3 ms both.
TURN_BYTES, ENCRYPTED_TURN_BYTES = MiB, 256 * KiB
#: Bytes per sendfile, after the check that their pages are in memory.
STEP_BYTES = 256 * KiB
#: Chunks up to this size are read and copied together: a system call for each would cost more. At most so many at a time.
GATHERED_BYTES, GATHERED_AT_ONCE = 8 * KiB, 64
#: What a chunk counts as, at least, of a turn's bytes: that many take about as long as the reading of a small range.
CHUNK_TURN_BYTES = 8 * KiB
#: The check probes one page per so many bytes: the kernel's smallest readahead.
PROBE_BYTES = 64 * KiB
#: Cold bytes that a thread reads at a time, and bytes announced to the kernel's readahead.
AHEAD_BYTES = MiB
ANNOUNCED_BYTES = 4 * MiB

Buffer = bytes | bytearray | memoryview


class FileRange(Protocol):
    """``size`` bytes of a file from ``position`` on; the log's ``Slice``. Its ``file`` may have a ``fileno()``."""

    file: Any
    position: int
    size: int

    def __len__(self) -> int: ...

    def read(self) -> bytes: ...


Chunk = Buffer | FileRange


class AnswerTruncated(Exception):
    """The rest of an answer cannot be sent; the connection must be closed."""


def descriptor(chunk: FileRange) -> int | None:
    """The descriptor of a range's file; None for a file in memory. Raises: OSError or ValueError when it is closed."""
    fileno = getattr(chunk.file, "fileno", None)
    return None if fileno is None else int(fileno())


def read_warm(chunk: FileRange) -> Buffer | None:
    """The range's bytes if they are in memory; None if a read could wait for the disk. Raises: OSError, ValueError, AnswerTruncated."""
    fd = descriptor(chunk)
    if fd is None:
        return chunk.read()
    buffer = bytearray(chunk.size)
    try:
        count = os.preadv(fd, [buffer], chunk.position, os.RWF_NOWAIT)
    except BlockingIOError:
        return None
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        # Memory file systems do not support the flag and never wait.
        return _whole(chunk)
    return buffer if count == len(buffer) else None


def _whole(chunk: FileRange) -> bytes:
    data = chunk.read()
    if len(data) != chunk.size:
        raise AnswerTruncated(f"{chunk!r} ends after {len(data)} bytes")
    return data


def _is_buffer(chunk: Chunk) -> TypeGuard[Buffer]:
    return isinstance(chunk, (bytes, bytearray, memoryview))


def _read_all(chunks: Iterable[Chunk]) -> list[Buffer]:
    return [chunk if _is_buffer(chunk) else _whole(chunk) for chunk in chunks]  # type: ignore[arg-type]


def warm(fd: int, position: int, size: int) -> bool:
    """Whether all sampled pages of a file range are in memory."""
    probe = bytearray(1)
    try:
        for at in (*range(position, position + size - 1, PROBE_BYTES), position + size - 1):
            os.preadv(fd, [probe], at, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
    return True


def read_ahead(fd: int, position: int, size: int) -> None:
    """Reads bytes of a file into the page cache; runs in a thread. Closes the descriptor."""
    try:
        os.posix_fadvise(fd, position, min(size, ANNOUNCED_BYTES), os.POSIX_FADV_WILLNEED)
        scratch = bytearray(STEP_BYTES)
        end = position + min(size, AHEAD_BYTES)
        while position < end and (count := os.preadv(fd, [scratch], position)):
            position += count
    finally:
        os.close(fd)


class Egress:
    """Sends the answers of one connection, one at a time.

    Calls ``done`` when an answer that could not be sent at once is sent, ``failed`` when it cannot be sent.
    """

    __slots__ = (
        "_fd",
        "_left",
        "_loop",
        "_parts",
        "_position",
        "_socket",
        "_streams",
        "_waits_for",
        "_writer",
        "busy",
        "done",
        "executor",
        "failed",
        "sent_bytes",
        "transport",
    )

    def __init__(self, transport: asyncio.Transport, executor: Executor, done: Callable[[], None], failed: Callable[[str], None]) -> None:
        self.transport = transport
        self.executor = executor
        self.done = done
        self.failed = failed
        #: Bytes sent by sendfile or passed to the transport since the connection began.
        self.sent_bytes = 0
        #: Whether an answer is partly outside the transport; nothing else may be sent meanwhile.
        self.busy = False
        self._loop = asyncio.get_running_loop()
        #: Its unsent chunks; the first may be partly sent.
        self._parts: deque[Chunk] = deque()
        #: Whether ranges go through the transport, because it encrypts.
        self._streams = transport.get_extra_info("sslcontext") is not None
        #: What it waits for: the transport's buffer, the peer, the disk, or the next turn of the loop.
        self._waits_for: Literal["", "drained", "writable", "disk", "turn"] = ""
        #: Duplicate of the connection's socket, from the first sendfile on.
        self._socket: socket.socket | None = None
        #: Whether the loop watches that socket.
        self._writer = False
        #: Duplicate of the descriptor of the file being sent, which may be closed meanwhile, and the rest of its range.
        self._fd = -1
        self._position = self._left = 0

    def send(self, chunks: Sequence[Chunk]) -> bool:
        """True: all is sent or in the transport's buffer. False: ``done`` or ``failed`` is called later, or ``failed`` was called."""
        assert not self.busy, "answers are sent one after another"
        if len(chunks) == 1 and type(chunks[0]) is bytes:  # Nearly every small answer.
            self.sent_bytes += len(chunks[0])
            self.transport.write(chunks[0])
            return True
        few = len(chunks) <= GATHERED_AT_ONCE
        size = sum(map(len, chunks))
        if all(map(_is_buffer, chunks)) and not (self._streams and size > ENCRYPTED_TURN_BYTES):
            self._write(chunks, size)  # type: ignore[arg-type]
            return True
        self.busy = True
        if (size >= SENDFILE_MIN_BYTES or not few) and (self._streams or self.transport.get_extra_info("socket") is not None):
            self._parts.extend(chunks)
            if self.transport.get_write_buffer_size():
                self._waits_for = "drained"
            else:
                self._go_on()
        else:
            self._send_small(chunks, size)
        return not self.busy

    def drained(self) -> None:
        """The transport's buffer is empty."""
        if self._waits_for == "drained":
            self._resume()

    def close(self) -> None:
        """Drops unsent chunks, closes all descriptors and calls nothing back afterwards."""
        self._parts.clear()
        self._close_file()
        self.close_socket()
        self.done, self.failed, self._waits_for = _nothing, _ignore, ""

    def close_socket(self) -> None:
        """Closes the duplicate of the socket. Call between two answers."""
        self._watch_socket(False)
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _write(self, buffers: Sequence[Buffer], size: int) -> None:
        """``size``: of the buffers together."""
        self.sent_bytes += size
        if size <= JOINED_BYTES_MAX:
            self.transport.write(b"".join(buffers))
        else:
            self.transport.writelines(buffers)

    def _send_small(self, chunks: Sequence[Chunk], size: int) -> None:
        ready: list[Buffer] = []
        try:
            for chunk in chunks:
                data = chunk if _is_buffer(chunk) else read_warm(chunk)  # type: ignore[arg-type]
                if data is None:
                    break
                ready.append(data)
        except (OSError, ValueError, AnswerTruncated) as error:
            self.failed(str(error))
            return
        if len(ready) < len(chunks):
            self._waits_for = "disk"
            reading = self._loop.run_in_executor(self.executor, _read_all, chunks)
            reading.add_done_callback(self._have_read)
            return
        self._write(ready, size)
        self.busy = False

    def _have_read(self, reading: asyncio.Future[list[Buffer]]) -> None:
        if self._waits_for != "disk":
            reading.cancelled() or reading.exception()
            return
        self._waits_for = ""
        error = reading.exception()
        if error is not None:
            self.failed(str(error))
            return
        read = reading.result()
        self._write(read, sum(map(len, read)))
        self.busy = False
        self.done()

    def _resume(self) -> None:
        """Goes on after a wait, and tells when all is out."""
        self._go_on()
        if not self.busy:
            self.done()

    def _go_on(self) -> None:
        try:
            self._waits_for = self._stream_turn() if self._streams else self._send_turn()
        except BlockingIOError:
            self._waits_for = "writable"
        except (OSError, ValueError, AnswerTruncated) as error:
            self._watch_socket(False)
            self.failed(str(error))
            return
        self._watch_socket(self._waits_for == "writable")
        self.busy = bool(self._parts)
        if self._waits_for == "turn":
            self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        if self._waits_for == "turn":
            self._resume()

    def _gather(self) -> int:
        """Makes one buffer of the next small chunks, as far as they are in memory. Returns what they count as of a turn's bytes.

        Raises: OSError, ValueError, AnswerTruncated.
        """
        parts = self._parts
        found: list[Buffer] = []
        if self._fd < 0 and len(parts) > 1:
            while parts and len(found) < GATHERED_AT_ONCE and len(parts[0]) <= GATHERED_BYTES:
                data = parts[0] if _is_buffer(parts[0]) else read_warm(parts[0])  # type: ignore[arg-type]
                if data is None:
                    break
                found.append(data)
                parts.popleft()
        if found:
            parts.appendleft(found[0] if len(found) == 1 else b"".join(found))
        return CHUNK_TURN_BYTES * len(found)

    def _stream_turn(self) -> Literal["", "drained", "disk", "turn"]:
        """Gives the transport bytes until it holds some, the turn is over or the disk is needed. Raises: OSError, ValueError,
        AnswerTruncated.
        """
        budget = ENCRYPTED_TURN_BYTES
        while self._parts:
            if self.transport.get_write_buffer_size():
                return "drained"
            if budget <= 0:
                return "turn"
            budget -= self._gather()
            part = self._parts[0]
            if _is_buffer(part):
                piece: Buffer = memoryview(part)[:STEP_BYTES]
                self._parts[0] = memoryview(part)[STEP_BYTES:]
                left = len(part) - len(piece)
            else:
                read, left = self._read_step(part)  # type: ignore[arg-type]
                if read is None:
                    return "disk"
                piece = read
            if not left:
                self._parts.popleft()
                self._close_file()
            self.sent_bytes += len(piece)
            budget -= len(piece)
            self.transport.write(piece)
        return ""

    def _read_step(self, part: FileRange) -> tuple[Buffer | None, int]:
        """The next bytes of a range, and how many are left; None while a thread reads from the disk."""
        if self._fd < 0:
            source = descriptor(part)
            if source is None or not part.size:
                return _whole(part), 0
            self._fd = os.dup(source)
            self._position, self._left = part.position, part.size
        buffer = unwritten(min(self._left, STEP_BYTES))
        try:
            count = os.preadv(self._fd, [buffer], self._position, os.RWF_NOWAIT)
        except BlockingIOError:
            self._read_in_thread()
            return None, self._left
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            count = os.preadv(self._fd, [buffer], self._position)
        if not count:
            raise AnswerTruncated(f"{part!r} ends at {self._position}; {self._left} bytes of the answer are missing")
        self._position += count
        self._left -= count
        return memoryview(buffer)[:count], self._left

    def _read_in_thread(self) -> None:
        reading = self._loop.run_in_executor(self.executor, read_ahead, os.dup(self._fd), self._position, self._left)
        reading.add_done_callback(self._is_warm)

    def _send_turn(self) -> Literal["", "writable", "disk"]:
        """Sends until all is sent, the turn is over or the disk is needed. Raises: BlockingIOError when the peer is slow."""
        budget = TURN_BYTES
        if self._socket is None:
            self._socket = socket.socket(fileno=os.dup(self.transport.get_extra_info("socket").fileno()))
        while self._parts:
            if budget <= 0:
                return "writable"
            budget -= self._gather()
            part = self._parts[0]
            if _is_buffer(part):
                sent = self._socket.send(part, socket.MSG_MORE if len(self._parts) > 1 else 0)
                self._parts[0] = memoryview(part)[sent:]
                left = len(part) - sent
            else:
                sent, left = self._send_range(part)  # type: ignore[arg-type]
                if sent < 0:
                    return "disk"
            self.sent_bytes += sent
            budget -= sent
            if not left:
                self._parts.popleft()
                self._close_file()
        return ""

    def _send_range(self, part: FileRange) -> tuple[int, int]:
        """Bytes sent of a range, and bytes left; -1 sent while a thread reads from the disk."""
        assert self._socket is not None, "the socket is duplicated before a range is sent"
        if self._fd < 0:
            source = descriptor(part)
            if source is None or not part.size:
                self._parts[0] = _whole(part)
                return 0, part.size
            self._fd = os.dup(source)
            self._position, self._left = part.position, part.size
        step = min(self._left, STEP_BYTES)
        if not warm(self._fd, self._position, step):
            self._read_in_thread()
            return -1, self._left
        sent = os.sendfile(self._socket.fileno(), self._fd, self._position, step)
        if not sent:
            raise AnswerTruncated(f"{part!r} ends at {self._position}; {self._left} bytes of the answer are missing")
        self._position += sent
        self._left -= sent
        return sent, self._left

    def _is_warm(self, reading: asyncio.Future[None]) -> None:
        error = reading.exception()
        if self._waits_for != "disk":
            return
        if error is not None:
            self.failed(str(error))
            return
        self._resume()

    def _watch_socket(self, watch: bool) -> None:
        if watch is not self._writer and self._socket is not None:
            self._writer = watch
            if watch:
                self._loop.add_writer(self._socket.fileno(), self._resume)
            else:
                self._loop.remove_writer(self._socket.fileno())

    def _close_file(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _nothing() -> None:
    """Callback of a closed connection."""


def _ignore(reason: str) -> None:
    """Callback of a closed connection."""
