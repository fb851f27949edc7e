"""Memory for frames: who may read the next one, and into which buffer.

``RequestMemory`` bounds the bytes of all frames being read. A frame asks before its first byte is read into a buffer of its own; those
that must wait are served in the order of their asking, so that a large frame is not overtaken for ever by small ones. A frame larger
than the whole memory is let through when nothing else holds any. It cannot deadlock: a holder waits for its own peer alone, and not long.

``BufferPool`` keeps buffers for reuse in power-of-two sizes: a fresh bytearray of a mebibyte costs 250 page faults, a used one none.
"""

from collections import deque
from collections.abc import Callable
from functools import cache
from typing import Any, cast

from ottla.base.units import KiB, MiB

#: Smaller buffers are not worth keeping apart.
SMALLEST = 4 * KiB
#: Larger buffers are made to measure and not kept.
LARGEST = 8 * MiB


def unwritten(size: int) -> bytearray:
    """A bytearray with whatever the memory holds, for who writes all of it: clearing it takes half as long as receiving into it."""
    return cast(bytearray, _made_bytearray()(None, size))


@cache
def _made_bytearray() -> Any:
    # Not at import: most programs never receive as much.
    import ctypes

    make = ctypes.pythonapi.PyByteArray_FromStringAndSize
    make.restype, make.argtypes = ctypes.py_object, (ctypes.c_char_p, ctypes.c_ssize_t)
    return make


class BufferPool:
    """Buffers by size class, each at least as large as asked for."""

    __slots__ = ("_free", "_kept_bytes", "kept_bytes_max")

    def __init__(self, kept_bytes_max: int = 16 * MiB) -> None:
        self.kept_bytes_max = kept_bytes_max
        #: Bytes of the buffers in ``_free``; at most ``kept_bytes_max``.
        self._kept_bytes = 0
        self._free: dict[int, list[bytearray]] = {}

    @staticmethod
    def rounded(size: int) -> int:
        """Bytes of the buffer that a frame of ``size`` bytes gets."""
        return size if size > LARGEST else max(SMALLEST, 1 << (size - 1).bit_length())

    def take(self, size: int) -> bytearray:
        size = self.rounded(size)
        free = self._free.get(size)
        if not free:
            return bytearray(size)
        self._kept_bytes -= size
        return free.pop()

    def give(self, buffer: bytearray) -> None:
        """The buffer may be handed out again at once; nobody may read it any more."""
        size = len(buffer)
        if size <= LARGEST and self._kept_bytes + size <= self.kept_bytes_max:
            self._kept_bytes += size
            self._free.setdefault(size, []).append(buffer)


class RequestMemory:
    """A bound on the bytes of frames being read; first come, first served."""

    __slots__ = ("_waiting", "bytes_max", "used_bytes")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used_bytes = 0
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    @property
    def waiting(self) -> int:
        """How many frames wait for memory."""
        return len(self._waiting)

    def take(self, size: int, granted: Callable[[], None]) -> bool:
        """True: the bytes are yours until ``give``. False: ``granted`` is called when they are."""
        if not self._waiting and self._fits(size):
            self.used_bytes += size
            return True
        self._waiting.append((size, granted))
        return False

    def give(self, size: int) -> None:
        """Returns bytes taken, and grants what now fits."""
        self.used_bytes -= size
        assert self.used_bytes >= 0, "nobody returns more request memory than was taken"
        self._grant()

    def cancel(self, granted: Callable[[], None]) -> None:
        """Someone who waited does so no longer."""
        self._waiting = deque(entry for entry in self._waiting if entry[1] != granted)
        self._grant()

    def _fits(self, size: int) -> bool:
        return self.used_bytes + size <= self.bytes_max or not self.used_bytes

    def _grant(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            size, granted = self._waiting.popleft()
            self.used_bytes += size
            granted()
