"""The environment of a process: clocks, disks, the store, threads. A server uses the operating system; tests can use memory.

``Process`` takes everything from its environment that settings do not decide. So the same process runs in a test: with a temporary disk, a
clock that the test sets, and a request handler that injects faults.
"""

import resource
import time
from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from typing import Protocol

from ottla.base.ports import Disk
from ottla.broker import effects, events
from ottla.broker.metadata.configs import ServerOptions
from ottla.net.server_connection import Handler
from ottla.server.data_directory import LockedDirectory
from ottla.server.disk import RealDisk
from ottla.server.flusher import FlushThread, Plans, Worker
from ottla.server.log_maintenance import Cleaners
from ottla.server.metrics.counters import Counters
from ottla.server.resizable_threads import ResizableThreads, Threads
from ottla.server.store_factory import StoreFactory, store_factory
from ottla.server.watchdog import Watchdog


class DirectoryLock(Protocol):
    """A lock that keeps other processes out of a directory."""

    def release(self) -> None: ...


class LoopWatch(Protocol):
    """A monitor that detects stalls of the event loop."""

    def stop(self) -> None: ...


class LogMaintenance(Protocol):
    """Performs compactions and scrubs."""

    def stop(self) -> None:
        """Ends running compactions and scrubs soon."""
        ...

    async def clean(self, effect: effects.Clean, disk: Disk) -> events.Cleaned:
        """Raises: OSError when the directory failed."""
        ...

    async def scrub(self, effect: effects.Scrub, disk: Disk) -> events.Scrubbed:
        """Raises: OSError when the directory failed."""
        ...


class Environment(Protocol):
    def now_ms(self) -> int:
        """The brokers' clock, which is monotonic."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        ...

    def descriptors(self) -> int:
        """The limit of open descriptors of the process."""
        ...

    def lock_directory(self, path: Path) -> DirectoryLock:
        """Locks a directory, which is created if missing. Raises: CannotStart."""
        ...

    def disk(self, path: Path, *, descriptors_max: int) -> Disk:
        """The disk under a log directory. Raises: OSError."""
        ...

    def take_over(self, disk: Disk) -> None:
        """Makes the calling thread the owner of a disk that another thread used to open the logs."""
        ...

    def store_factory(self, options: ServerOptions, data_dir: Path, failed: Callable[[str], None]) -> StoreFactory:
        """The store; ``failed`` gets the reason when it becomes unusable. Raises: ConfigError, CannotStart."""
        ...

    def threads(self, count: int, name: str) -> Threads:
        """For operations that may wait for a disk."""
        ...

    def flush_worker(self, name: str, act: Callable[[Plans], None]) -> Worker:
        """Performs flushes, which may wait for a disk."""
        ...

    def cleaners(self, counters: Counters) -> LogMaintenance:
        """For one broker."""
        ...

    def watch_loop(self, counters: Counters) -> LoopWatch | None:
        """Monitors the loop that it is called on."""
        ...

    def request_handler(self, shell: Handler) -> Handler:
        """The handler of a broker's network requests: its shell, or a wrapper around it."""
        ...


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


class OperatingSystem:
    """The environment of a server."""

    def __init__(self) -> None:
        self._began_ns = time.monotonic_ns()

    def now_ms(self) -> int:
        return (time.monotonic_ns() - self._began_ns) // 1_000_000

    def wall_ms(self) -> int:
        return wall_ms()

    def descriptors(self) -> int:
        """Raises the soft limit to the hard limit; returns the limit in effect."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < hard:
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            except (OSError, ValueError):
                return soft
        return hard

    def lock_directory(self, path: Path) -> DirectoryLock:
        return LockedDirectory(path)

    def disk(self, path: Path, *, descriptors_max: int) -> Disk:
        return RealDisk(path, descriptors_max=descriptors_max)

    def take_over(self, disk: Disk) -> None:
        assert isinstance(disk, RealDisk), "this environment makes RealDisks only"
        disk.owner = get_ident()

    def store_factory(self, options: ServerOptions, data_dir: Path, failed: Callable[[str], None]) -> StoreFactory:
        return store_factory(options, data_dir, failed)

    def threads(self, count: int, name: str) -> Threads:
        return ResizableThreads(count, name)

    def flush_worker(self, name: str, act: Callable[[Plans], None]) -> Worker:
        return FlushThread(name, act)

    def cleaners(self, counters: Counters) -> LogMaintenance:
        return Cleaners(counters)

    def watch_loop(self, counters: Counters) -> LoopWatch | None:
        return Watchdog(counters)

    def request_handler(self, shell: Handler) -> Handler:
        return shell
