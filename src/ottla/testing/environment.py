"""The environment of a broker in a test: the test's clock, and a fault injector in front of the shell."""

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ottla.base.ports import Disk
from ottla.net.server_connection import Handler
from ottla.server.environment import DirectoryLock, Environment, LogMaintenance, LoopWatch
from ottla.server.flusher import Plans, Worker
from ottla.server.metrics.counters import Counters
from ottla.server.resizable_threads import Threads
from ottla.server.store_factory import StoreFactory
from ottla.testing.clock import Clock


class BrokerEnvironment:
    """Replaces the clock and wraps the shell of another environment. An ``Environment``."""

    def __init__(self, base: Environment, clock: Clock, wrap: Callable[[Handler], Handler]) -> None:
        self._base = base
        self._clock = clock
        self._wrap = wrap

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def wall_ms(self) -> int:
        return self._clock.wall_ms()

    def request_handler(self, shell: Handler) -> Handler:
        return self._wrap(self._base.request_handler(shell))

    def watch_loop(self, counters: Counters) -> LoopWatch | None:
        """No watchdog: in a test's process the test itself may block the loop."""
        return None

    def descriptors(self) -> int:
        """The current limit: the limits of a test's process are not changed."""
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    def lock_directory(self, path: Path) -> DirectoryLock:
        return self._base.lock_directory(path)

    def disk(self, path: Path, *, descriptors_max: int) -> Disk:
        return self._base.disk(path, descriptors_max=descriptors_max)

    def take_over(self, disk: Disk) -> None:
        self._base.take_over(disk)

    def store_factory(self, options: Any, data_dir: Path, failed: Callable[[str], None]) -> StoreFactory:
        return self._base.store_factory(options, data_dir, failed)

    def threads(self, count: int, name: str) -> Threads:
        return self._base.threads(count, name)

    def flush_worker(self, name: str, act: Callable[[Plans], None]) -> Worker:
        return self._base.flush_worker(name, act)

    def cleaners(self, counters: Counters) -> LogMaintenance:
        return self._base.cleaners(counters)
