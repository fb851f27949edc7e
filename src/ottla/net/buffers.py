"""Memory for incoming frames.

``RequestMemory`` limits the bytes of all frames being read. A frame takes memory before it gets its own buffer. Waiting frames are served
first come, first served, so small frames cannot starve a large one. A frame larger than the limit is admitted when no other holds memory.
There is no deadlock: a holder waits only for its own peer, and the wait has a timeout.

``BufferPool`` keeps buffers for reuse in power-of-two sizes: a new bytearray of 1 MiB costs 250 page faults, a reused one none.
"""

from collections import deque
from collections.abc import Callable
from functools import cache
from typing import Any, cast

from ottla.base.units import KiB, MiB

#: Smallest size class.
SMALLEST = 4 * KiB
#: Larger buffers have their exact size and are not kept.
LARGEST = 8 * MiB


def unwritten(size: int) -> bytearray:
    """An uninitialized bytearray, which the caller must fill: clearing it takes half as long as receiving into it."""
    return cast(bytearray, _made_bytearray()(None, size))


@cache
def _made_bytearray() -> Any:
    # Imported on use: most programs never receive large frames.
    import ctypes

    make = ctypes.pythonapi.PyByteArray_FromStringAndSize
    make.restype, make.argtypes = ctypes.py_object, (ctypes.c_char_p, ctypes.c_ssize_t)
    return make


class BufferPool:
    __slots__ = ("_free", "_kept_bytes", "kept_bytes_max")

    def __init__(self, kept_bytes_max: int = 16 * MiB) -> None:
        self.kept_bytes_max = kept_bytes_max
        #: Bytes of the buffers in ``_free``; at most ``kept_bytes_max``.
        self._kept_bytes = 0
        self._free: dict[int, list[bytearray]] = {}

    @staticmethod
    def rounded(size: int) -> int:
        """Size of the buffer for a frame of ``size`` bytes."""
        return size if size > LARGEST else max(SMALLEST, 1 << (size - 1).bit_length())

    def take(self, size: int) -> bytearray:
        size = self.rounded(size)
        free = self._free.get(size)
        if not free:
            # Zeroes for a large frame would take memory, and time of the event loop, before any of its bytes is there.
            return bytearray(size) if size <= LARGEST else unwritten(size)
        self._kept_bytes -= size
        return free.pop()

    def give(self, buffer: bytearray) -> None:
        """Returns a buffer. The caller must not use it afterwards."""
        size = len(buffer)
        if size <= LARGEST and self._kept_bytes + size <= self.kept_bytes_max:
            self._kept_bytes += size
            self._free.setdefault(size, []).append(buffer)


class RequestMemory:
    __slots__ = ("_waiting", "bytes_max", "used_bytes")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used_bytes = 0
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    @property
    def waiting(self) -> int:
        """Number of frames that wait for memory."""
        return len(self._waiting)

    def take(self, size: int, granted: Callable[[], None]) -> bool:
        """True: the bytes are taken until ``give``. False: ``granted`` is called when they are."""
        if not self._waiting and self._fits(size):
            self.used_bytes += size
            return True
        self._waiting.append((size, granted))
        return False

    def give(self, size: int) -> None:
        """Returns taken bytes, and grants waiting requests that fit now."""
        self.used_bytes -= size
        assert self.used_bytes >= 0, "no more request memory is returned than was taken"
        self._grant()

    def cancel(self, granted: Callable[[], None]) -> None:
        """Removes a waiting request."""
        self._waiting = deque(entry for entry in self._waiting if entry[1] != granted)
        self._grant()

    def _fits(self, size: int) -> bool:
        return self.used_bytes + size <= self.bytes_max or not self.used_bytes

    def _grant(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            size, granted = self._waiting.popleft()
            self.used_bytes += size
            granted()
