"""The asyncio event loop of one simulated process, in virtual time.

The server's shell, performer, flusher and connections run on it unchanged. Callbacks and timers are scheduled in the world. What a server
gives to threads runs after a random delay, in one piece. While the process is paused (``pause``), everything waits and then happens in
order. After ``end``, nothing happens any more, as after ``kill -9``.
"""

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from heapq import heappop, heappush
from math import ceil
from typing import Any, NoReturn, cast
from weakref import WeakSet

from ottla.sim.world import INSTANT_MAX, Gate, Livelock, World


class Scheduled:
    """A callback of a process, with the part of ``asyncio.TimerHandle`` that is used."""

    __slots__ = ("act", "arguments", "at_ms", "revoked")

    def __init__(self, at_ms: int, act: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self.at_ms = at_ms
        self.act = act
        self.arguments = arguments
        self.revoked = False

    def cancel(self) -> None:
        self.revoked = True

    def when(self) -> float:
        return self.at_ms / 1000


class ProcessLoop:
    """The part of ``asyncio.AbstractEventLoop`` that the server uses besides sockets. Belongs to one process, which is not restarted."""

    def __init__(self, world: World, *, thread_ms: Callable[[], int]) -> None:
        """``thread_ms`` draws how long the next operation takes in a thread."""
        self._world = world
        self._thread_ms = thread_ms
        self._gate = Gate(world)
        #: Time, order and callback.
        self._schedule: list[tuple[int, int, Scheduled]] = []
        self._order = 0
        #: Where the clock of this loop is ahead of the world's.
        self._now_ms = 0
        self.ended = False
        self._failure: BaseException | None = None
        self._tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        self._asyncio = cast(asyncio.AbstractEventLoop, self)
        world.processes.add(self)

    # The process

    def end(self) -> None:
        """Nothing happens any more. Called for each process, at the latest when the history ends."""
        self.ended = True
        # The schedule may hold the only reference to a task.
        tasks = list(self._tasks)
        self._schedule.clear()
        for task in tasks:
            work = task.get_coro()
            if inspect.iscoroutine(work) and inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
                # It never runs, which Python would warn of.
                work.close()

    def fail(self, error: BaseException) -> NoReturn:
        """An internal error, which ends a server. Here the history fails, even if the caller catches the exception."""
        self._failure = self._failure or error
        raise error

    def pause(self, duration_ms: int) -> None:
        self._gate.shut(duration_ms)

    def enter(self, act: Callable[[], None]) -> None:
        """Runs ``act``, an input of the process, now or when it resumes."""
        self._gate.enter(lambda: self._enter(act))

    def _enter(self, act: Callable[[], None]) -> None:
        if not self.ended:
            with self:
                act()

    def __enter__(self) -> None:
        """Makes this the running loop, on which nothing else runs meanwhile."""
        asyncio._set_running_loop(self._asyncio)

    def __exit__(self, *raised: object) -> None:
        """Raises: the error given to ``fail``."""
        asyncio._set_running_loop(None)
        if self._failure is not None:
            raise self._failure

    def finish(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs callbacks in order until ``work`` is done or the process has ended. The world's clock stands still meanwhile; the clock of
        this loop continues, so that timers which repeat do not run endlessly.
        """
        with self:
            task = self.create_task(work)
        for _ in range(INSTANT_MAX):
            if self.ended or task.done():
                break
            self._now_ms = max(self._schedule[0][0], self._now_ms)
            self._run_first()
        else:
            raise Livelock("a process does not finish")
        if task.done():
            task.result()

    @property
    def now_ms(self) -> int:
        return max(self._world.now_ms, self._now_ms)

    # asyncio

    def time(self) -> float:
        return self.now_ms / 1000

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Any = None) -> Scheduled:
        return self.after(0, callback, *args)

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None) -> Scheduled:
        return self.after(int(delay * 1000), callback, *args)

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Any = None) -> Scheduled:
        # Never early, as on a real loop.
        return self.after(ceil(round(when * 1000 - self.now_ms, 6)), callback, *args)

    def after(self, delay_ms: int, callback: Callable[..., object], *args: Any) -> Scheduled:
        """Schedules a call in ``delay_ms``."""
        self._order += 1
        scheduled = Scheduled(self.now_ms + delay_ms, callback, args)
        if not self.ended:
            heappush(self._schedule, (scheduled.at_ms, self._order, scheduled))
            self._world.after(delay_ms, self._due)
        return scheduled

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self._asyncio)

    def create_task(self, coro: Any, *, name: Any = None, context: Any = None, **options: Any) -> asyncio.Task[Any]:
        if self.ended:
            coro.close()
            return cast(asyncio.Task[Any], self.create_future())
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self._asyncio, name="task")
        self._tasks.add(task)
        # The tasks of a process that was killed never end.
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        return task

    def run_in_executor(self, executor: Executor, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Submits the call after a delay. ``executor`` runs it at once."""
        future = self.create_future()
        self.after(self._thread_ms(), _work, future, executor, func, args)
        return future

    def get_debug(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        raise AssertionError(context["message"]) from context.get("exception")

    def _due(self) -> None:
        if self._gate.open:
            self._run_due()
        else:
            self._gate.enter(self._run_due)

    def _run_due(self) -> None:
        # Nothing is due when ``finish`` has run it before its time.
        if self._schedule and self._schedule[0][0] <= self._world.now_ms:
            self._run_first()

    def _run_first(self) -> None:
        _, _, scheduled = heappop(self._schedule)
        if not scheduled.revoked:
            with self:
                scheduled.act(*scheduled.arguments)


def _work(future: asyncio.Future[Any], executor: Executor, func: Callable[..., Any], args: tuple[Any, ...]) -> None:
    done = executor.submit(func, *args)
    error = done.exception()
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(done.result())
