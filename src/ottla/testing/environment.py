"""The ground under a broker in a test: its disks in memory or in a directory, its clock the test's, and a door before its shell."""

import resource
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from ottla.base.ports import Disk
from ottla.net.server_connection import Handler
from ottla.server.environment import DirectoryLock, Environment, LogMaintenance, LoopWatch
from ottla.server.metrics import Counters
from ottla.server.store_factory import StoreFactory
from ottla.testing.clock import Clock


class Staged:
    """Another ground, but for time and the door. A ``Environment``."""

    def __init__(self, under: Environment, clock: Clock, door: Callable[[Handler], Handler]) -> None:
        self._under = under
        self._clock = clock
        self._door = door

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def wall_ms(self) -> int:
        return self._clock.wall_ms()

    def request_handler(self, shell: Handler) -> Handler:
        return self._door(self._under.request_handler(shell))

    def watch_loop(self, counters: Counters) -> LoopWatch | None:
        """Nobody: in a test's process it is the test that keeps the loop from its turn."""
        return None

    def descriptors(self) -> int:
        """As many as there are: the limits of a test's process are not ours to change."""
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    def lock_directory(self, path: Path) -> DirectoryLock:
        return self._under.lock_directory(path)

    def disk(self, path: Path, *, descriptors_max: int) -> Disk:
        return self._under.disk(path, descriptors_max=descriptors_max)

    def take_over(self, disk: Disk) -> None:
        self._under.take_over(disk)

    def store_factory(self, options: Any, data_dir: Path, failed: Callable[[str], None]) -> StoreFactory:
        return self._under.store_factory(options, data_dir, failed)

    def threads(self, count: int, name: str) -> Executor:
        return self._under.threads(count, name)

    def lanes(self, count: int) -> int:
        return self._under.lanes(count)

    def cleaners(self, counters: Counters) -> LogMaintenance:
        return self._under.cleaners(counters)
