"""An ``Environment`` in memory: disks and a store without files, and no threads.

A sync costs nothing here and has its usual meaning: unsynced data can be lost in a crash. So a test can check durability without a disk.
"""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from pathlib import Path
from random import Random
from typing import Any, Literal

from ottla.base.ports import Disk, Store
from ottla.broker import effects, events
from ottla.broker.metadata.configs import ServerOptions
from ottla.log import scrub
from ottla.log.compactor import CompactionResult, carry_out
from ottla.log.errors import CorruptLog
from ottla.log.scrub import ScrubResult
from ottla.net.server_connection import Handler
from ottla.server.environment import DirectoryLock, LogMaintenance, LoopWatch, wall_ms
from ottla.server.flusher import Plans, Worker
from ottla.server.log_maintenance import failed_compaction
from ottla.server.metrics.counters import Counters
from ottla.server.resizable_threads import Threads
from ottla.server.store_factory import StoreFactory
from ottla.sim.disk import SimDisk
from ottla.store.memory import MemorySession, MemoryStore

#: Unsynced data of a process that was killed: kept, as when only the process dies; lost, as it may be after a power failure; or torn:
#: random sectors of it are lost.
Unsynced = Literal["kept", "lost", "torn"]
#: Free space of a disk; no test fills it.
CAPACITY_BYTES = 1 << 40
#: File descriptors of the process. Only connections use them.
DESCRIPTORS = 4096


class AtOnce(Threads):
    """Runs each call in ``submit``."""

    def resize(self, count: int) -> None:
        """There are no threads."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


class _FlushAtOnce:
    """Flushes in ``put``: no sync waits for a disk."""

    def __init__(self, act: Callable[[Plans], None]) -> None:
        self.put = act

    def close(self) -> None: ...


class CleanersOnTheLoop:
    """Compacts and scrubs in steps on the event loop, without a rate limit."""

    def __init__(self, rest: Callable[[], Awaitable[None]] = lambda: asyncio.sleep(0)) -> None:
        """``rest`` is awaited between two steps."""
        self._rest = rest
        self._stopping = False

    def stop(self) -> None:
        self._stopping = True

    async def clean(self, effect: effects.Clean, disk: Disk) -> events.Cleaned:
        try:
            for step in carry_out(disk, effect.plan):
                if isinstance(step, CompactionResult):
                    return events.Cleaned(partition=effect.partition, result=step)
                await self._rest()
                if self._stopping:
                    break
        except (OSError, CorruptLog) as error:
            return failed_compaction(effect, error)
        return events.Cleaned(partition=effect.partition)

    async def scrub(self, effect: effects.Scrub, disk: Disk) -> events.Scrubbed:
        try:
            for step in scrub.carry_out(disk, effect.plan):
                if isinstance(step, ScrubResult):
                    return events.Scrubbed(partition=effect.partition, result=step)
                await self._rest()
                if self._stopping:
                    break
        except FileNotFoundError:
            pass
        return events.Scrubbed(partition=effect.partition)


class _NoLock:
    """A lock without contention."""

    def release(self) -> None: ...


class _Sessions:
    """Opens sessions with the store, whose nodes outlive the process."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._opened: list[MemorySession] = []

    async def session(self) -> Store:
        self._opened.append(self._store.session())
        return self._opened[-1]

    async def close(self) -> None:
        for session in self._opened:
            session.close()
            self._store.sessions.remove(session)


class Memory:
    """Disks and store of a process and its successors."""

    def __init__(self, *, now_ms: Callable[[], int] | None = None, epoch_ms: Callable[[], int] = wall_ms) -> None:
        """``now_ms`` is monotonic; the default is the wall clock."""
        self._now_ms = now_ms or epoch_ms
        self._epoch_ms = epoch_ms
        self._disks: dict[Path, SimDisk] = {}
        self._store = MemoryStore(wake=_deliver_soon)

    def end(self, unsynced: Unsynced, random: Random) -> None:
        """Ends the process as ``kill -9`` or a power failure does; the next one opens the remaining data."""
        for path, disk in self._disks.items():
            match unsynced:
                case "kept":
                    self._disks[path] = disk.restart()
                case "lost":
                    self._disks[path] = disk.lose()
                case "torn":
                    self._disks[path] = disk.crash(random)

    # Environment

    def now_ms(self) -> int:
        return self._now_ms()

    def wall_ms(self) -> int:
        return self._epoch_ms()

    def descriptors(self) -> int:
        return DESCRIPTORS

    def lock_directory(self, path: Path) -> DirectoryLock:
        return _NoLock()

    def disk(self, path: Path, *, descriptors_max: int) -> Disk:
        if path not in self._disks:
            self._disks[path] = SimDisk(str(path), capacity_bytes=CAPACITY_BYTES, now_ms=self._epoch_ms)
        return self._disks[path]

    def take_over(self, disk: Disk) -> None:
        """Nothing to do: all work runs on the loop."""

    def store_factory(self, options: ServerOptions, data_dir: Path, failed: Callable[[str], None]) -> StoreFactory:
        return _Sessions(self._store)

    def threads(self, count: int, name: str) -> Threads:
        return AtOnce()

    def flush_worker(self, name: str, act: Callable[[Plans], None]) -> Worker:
        return _FlushAtOnce(act)

    def cleaners(self, counters: Counters) -> LogMaintenance:
        return CleanersOnTheLoop()

    def watch_loop(self, counters: Counters) -> LoopWatch | None:
        return None

    def request_handler(self, shell: Handler) -> Handler:
        return shell


def _deliver_soon(session: MemorySession) -> None:
    asyncio.get_running_loop().call_soon(session.deliver, 1)
