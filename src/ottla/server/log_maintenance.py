"""Runs compactions and scrubs in threads. All compactions share one limit of bytes per second, all scrubs another.

The work only touches files that nothing else writes, through its own ``RealDisk``, so it never uses descriptors of the log's owner. It
pauses between two steps: as long as the limit requires, and always long enough for the event loop to run. A stop ends it at such a pause.
"""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from errno import ENOSPC

from ottla.base.ports import Disk
from ottla.broker import effects, events
from ottla.log import scrub
from ottla.log.compactor import CompactionResult, carry_out
from ottla.log.errors import CorruptLog
from ottla.log.scrub import ScrubResult
from ottla.server.batch_thread import enter_batch_thread
from ottla.server.disk import RealDisk
from ottla.server.metrics.counters import Counters

#: More than the broker ever requests at once: it limits the number of compactions.
THREADS_MAX = 64
DESCRIPTORS_MAX = 64
REST_S = 0.0005


class Throttle:
    """Limits the bytes per second of all threads that share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Time at which all bytes so far are within the limit.
        self._paid_at_s = 0.0

    def pause_s(self, size: int, bytes_per_second: float) -> float:
        """How long to pause after ``size`` bytes."""
        now_s = time.monotonic()
        with self._lock:
            self._paid_at_s = max(self._paid_at_s, now_s) + size / max(bytes_per_second, 1.0)
            return self._paid_at_s - now_s


def failed_compaction(effect: effects.Clean, error: OSError | CorruptLog) -> events.Cleaned:
    """The outcome of a compaction that ended with ``error``. Raises: OSError when the directory failed."""
    if isinstance(error, CorruptLog):
        return events.Cleaned(partition=effect.partition, damage=str(error))
    # A missing file: the partition was removed meanwhile.
    if not isinstance(error, FileNotFoundError) and error.errno != ENOSPC:
        raise error
    return events.Cleaned(partition=effect.partition)


class Cleaners:
    """Runs the compactions and scrubs of one broker."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._threads: ThreadPoolExecutor | None = None
        self._throttle = Throttle()
        self._scrub_throttle = Throttle()
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Ends running compactions and scrubs soon."""
        self._stopping.set()
        if self._threads is not None:
            self._threads.shutdown(wait=False)

    async def clean(self, effect: effects.Clean, disk: Disk) -> events.Cleaned:
        """Performs a compaction. Raises: OSError when the directory failed."""
        if self._stopping.is_set():
            return events.Cleaned(partition=effect.partition)
        done = await asyncio.get_running_loop().run_in_executor(self._pool(), self._work, effect, disk)
        if done.result is not None:
            self._counters.compactions += 1
            self._counters.compaction_read_bytes += done.result.read_bytes
            self._counters.compaction_written_bytes += done.result.written_bytes
        return done

    async def scrub(self, effect: effects.Scrub, disk: Disk) -> events.Scrubbed:
        """Performs a scrub. Raises: OSError when the directory failed."""
        if self._stopping.is_set():
            return events.Scrubbed(partition=effect.partition)
        done = await asyncio.get_running_loop().run_in_executor(self._pool(), self._scrub, effect, disk.root)
        if done.result is not None:
            self._counters.scrubbed_bytes += done.result.read_bytes
            self._counters.scrub_damages += len(done.result.damages)
        return done

    def _pool(self) -> ThreadPoolExecutor:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS_MAX, "ottla-cleaner", enter_batch_thread)
        return self._threads

    def _scrub(self, effect: effects.Scrub, root: str) -> events.Scrubbed:
        try:
            for step in scrub.carry_out(RealDisk(root, descriptors_max=DESCRIPTORS_MAX), effect.plan):
                if isinstance(step, ScrubResult):
                    return events.Scrubbed(partition=effect.partition, result=step)
                if self._stopping.wait(max(self._scrub_throttle.pause_s(step, effect.bytes_per_second), REST_S)):
                    break
        except FileNotFoundError:
            # The segment was removed meanwhile.
            pass
        return events.Scrubbed(partition=effect.partition)

    def _work(self, effect: effects.Clean, disk: Disk) -> events.Cleaned:
        try:
            return events.Cleaned(partition=effect.partition, result=self._carry_out(effect, disk.root))
        except (OSError, CorruptLog) as error:
            return failed_compaction(effect, error)

    def _carry_out(self, effect: effects.Clean, root: str) -> CompactionResult | None:
        for step in carry_out(RealDisk(root, descriptors_max=DESCRIPTORS_MAX), effect.plan):
            if isinstance(step, CompactionResult):
                return step
            if self._stopping.wait(max(self._throttle.pause_s(step, effect.bytes_per_second), REST_S)):
                break
        return None
