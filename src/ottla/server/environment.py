"""What a process of brokers stands on: clocks, disks, the store, threads. A server stands on the operating system; others on memory.

``Process`` asks its ground for everything that is not decided by the settings, so that the same process runs in a test: on a disk that is
gone afterwards, with a clock that can be put forward, behind a door that lets some requests through and others not.
"""

import resource
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from threading import get_ident
from typing import Protocol

from ottla.base.ports import Disk
from ottla.broker import effects, events
from ottla.broker.metadata.configs import ServerOptions
from ottla.net.server_connection import Handler
from ottla.server.data_directory import HeldDirectory
from ottla.server.disk import RealDisk
from ottla.server.log_maintenance import Cleaners
from ottla.server.metrics import Counters, Watchdog
from ottla.server.store_factory import Coordination, coordination


class Held(Protocol):
    """A directory that no other process may use."""

    def release(self) -> None: ...


class Watch(Protocol):
    """Somebody who looks whether the loop stands still."""

    def stop(self) -> None: ...


class Cleaning(Protocol):
    """Who carries out compactions and scrubs."""

    def stop(self) -> None:
        """Compactions under way end soon."""
        ...

    async def clean(self, effect: effects.Clean, disk: Disk) -> events.Cleaned:
        """Raises: OSError when the directory failed."""
        ...

    async def scrub(self, effect: effects.Scrub, disk: Disk) -> events.Scrubbed:
        """Raises: OSError when the directory failed."""
        ...


class Ground(Protocol):
    """See the module's theory."""

    def now_ms(self) -> int:
        """The brokers' time: never goes back."""
        ...

    def wall_ms(self) -> int:
        """The calendar's, in milliseconds since 1970."""
        ...

    def descriptors(self) -> int:
        """How many the process may have open."""
        ...

    def hold(self, path: Path) -> Held:
        """Takes a directory, and makes it if need be. Raises: CannotStart."""
        ...

    def disk(self, path: Path, *, descriptors_max: int) -> Disk:
        """The disk under a log directory. Raises: OSError."""
        ...

    def take_over(self, disk: Disk) -> None:
        """The calling thread owns a disk from now on that another thread has used to open the logs."""
        ...

    def coordination(self, options: ServerOptions, data_dir: Path, failed: Callable[[str], None]) -> Coordination:
        """The store; ``failed`` is told when it cannot be worked with any more. Raises: ConfigError, CannotStart."""
        ...

    def threads(self, count: int, name: str) -> Executor:
        """For what may have to wait for a disk."""
        ...

    def lanes(self, count: int) -> int:
        """How many files are synced at once, of ``count`` that may be; 0: on the loop itself, since no disk is waited for."""
        ...

    def cleaners(self, counters: Counters) -> Cleaning:
        """For one broker."""
        ...

    def watch(self, counters: Counters) -> Watch | None:
        """Watches the loop that it is called on."""
        ...

    def door(self, shell: Handler) -> Handler:
        """Who hears the requests that come over the network to a broker: its shell, or somebody before it."""
        ...


def wall_ms() -> int:
    """The machine's calendar."""
    return time.time_ns() // 1_000_000


class OperatingSystem:
    """The ground of a server."""

    def __init__(self) -> None:
        self._began_ns = time.monotonic_ns()

    def now_ms(self) -> int:
        return (time.monotonic_ns() - self._began_ns) // 1_000_000

    def wall_ms(self) -> int:
        return wall_ms()

    def descriptors(self) -> int:
        """As many as the system lets us have."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < hard:
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            except (OSError, ValueError):
                return soft
        return hard

    def hold(self, path: Path) -> Held:
        return HeldDirectory(path)

    def disk(self, path: Path, *, descriptors_max: int) -> Disk:
        return RealDisk(path, descriptors_max=descriptors_max)

    def take_over(self, disk: Disk) -> None:
        assert isinstance(disk, RealDisk), "the operating system's disks are real"
        disk.owner = get_ident()

    def coordination(self, options: ServerOptions, data_dir: Path, failed: Callable[[str], None]) -> Coordination:
        return coordination(options, data_dir, failed)

    def threads(self, count: int, name: str) -> Executor:
        return ThreadPoolExecutor(count, thread_name_prefix=name)

    def lanes(self, count: int) -> int:
        return count

    def cleaners(self, counters: Counters) -> Cleaning:
        return Cleaners(counters)

    def watch(self, counters: Counters) -> Watch | None:
        return Watchdog(counters)

    def door(self, shell: Handler) -> Handler:
        return shell
