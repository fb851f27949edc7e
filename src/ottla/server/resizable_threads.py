"""Threads for operations that wait for a disk, whose number changes while they work."""

from abc import abstractmethod
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from ottla.server.batch_thread import enter_batch_thread

P = ParamSpec("P")
T = TypeVar("T")


class Threads(Executor):
    """An executor whose number of threads can change."""

    @abstractmethod
    def resize(self, count: int) -> None:
        """Changes the largest number of threads."""


class ResizableThreads(Threads):
    """Runs calls in up to ``count`` threads. A changed number applies to calls from then on: the old threads finish theirs and end."""

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._pools = [ThreadPoolExecutor(count, name, enter_batch_thread)]

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Raises: RuntimeError after ``shutdown``."""
        return self._pools[-1].submit(fn, *args, **kwargs)

    def resize(self, count: int) -> None:
        """Call in the thread that calls ``submit``."""
        if count != self._count:
            self._count = count
            self._pools[-1].shutdown(wait=False)
            self._pools.append(ThreadPoolExecutor(count, self._name, enter_batch_thread))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the threads after the calls that wait."""
        for pool in self._pools:
            pool.shutdown(wait, cancel_futures=cancel_futures)
