"""Returns freed memory to the system.

glibc keeps freed memory: after a burst of large requests a process may hold a gigabyte that is not in use. ``malloc_trim`` returns it, and
blocks other threads that allocate for about 25 ms per 100 MiB. So a thread checks periodically, and trims when much more memory is free,
or resident, than after the last trim::

    free      bytes that the allocator holds and that are not in use; returned pages still count
    resident  bytes of the process in RAM

    trim when free >= STEP, and (free >= least free since the last trim + STEP, or resident >= least resident since + STEP)

The first condition detects memory freed since the last check, the second memory allocated and freed between two checks. With another C
library (musl, macOS) nothing is done.
"""

import ctypes
import os
import threading
from typing import Protocol

from ottla.base.units import MiB

#: Less than this is not worth the pause.
STEP_BYTES = 32 * MiB


class Heap(Protocol):
    """The allocator of the process."""

    def free_bytes(self) -> int: ...

    def resident_bytes(self) -> int: ...

    def trim(self) -> None: ...


class _Mallinfo2(ctypes.Structure):
    """Source: mallinfo(3)."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    ]


class GlibcHeap:
    """glibc 2.33 or later. Calls into it leave other Python threads running."""

    def __init__(self) -> None:
        """Raises: OSError or AttributeError with another C library."""
        library = ctypes.CDLL(None)
        self._info, self._trim = library.mallinfo2, library.malloc_trim
        self._info.restype = _Mallinfo2
        self._trim.argtypes, self._trim.restype = (ctypes.c_size_t,), ctypes.c_int
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        #: Stays open: there may be no descriptor left when it is read.
        self._statm = os.open("/proc/self/statm", os.O_RDONLY)
        self.resident_bytes()

    def free_bytes(self) -> int:
        return int(self._info().fordblks)

    def resident_bytes(self) -> int:
        return int(os.pread(self._statm, 200, 0).split()[1]) * self._page_bytes

    def trim(self) -> None:
        self._trim(0)


def heap_of_process() -> Heap | None:
    """None when the C library cannot trim."""
    try:
        return GlibcHeap()
    except (OSError, AttributeError):
        return None


class TrimPolicy:
    """Decides when to trim. ``look`` is called in one thread."""

    def __init__(self, heap: Heap) -> None:
        self._heap = heap
        #: Minimum since the last trim.
        self._free_bytes = heap.free_bytes()
        self._resident_bytes = heap.resident_bytes()

    def look(self) -> bool:
        """Trims if the condition holds; returns whether it did."""
        heap = self._heap
        free, resident = heap.free_bytes(), heap.resident_bytes()
        self._free_bytes, self._resident_bytes = min(self._free_bytes, free), min(self._resident_bytes, resident)
        more = max(free - self._free_bytes, resident - self._resident_bytes)
        if free < STEP_BYTES or more < STEP_BYTES:
            return False
        heap.trim()
        self._free_bytes, self._resident_bytes = heap.free_bytes(), heap.resident_bytes()
        return True


class Trimmer:
    """A thread that checks once per interval."""

    def __init__(self, heap: Heap, interval_ms: int) -> None:
        self._trimming = TrimPolicy(heap)
        self._interval_s = interval_ms / 1000
        self._over = threading.Event()
        threading.Thread(target=self._run, name="ottla-trim", daemon=True).start()

    def stop(self) -> None:
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(self._interval_s):
            self._trimming.look()


def start_trimmer(interval_ms: int) -> Trimmer | None:
    """A trimmer for this process; None if trimming is not possible, or with an interval of -1."""
    heap = heap_of_process() if interval_ms > 0 else None
    return None if heap is None else Trimmer(heap, interval_ms)
