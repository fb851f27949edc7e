"""`process` for code without an event loop: `ottla.process("orders", group="billing", to="invoices")(invoice)`.

The clients run on a loop in a thread of its own. The function is called in the caller's thread, for some records at a time.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Unpack

from ottla.client.process.plan import OnError, Plan, ProcessArguments, planned, several
from ottla.client.process.processing import FunctionFailed, Processing, Steps
from ottla.client.sync.loop_thread import Errands, LoopThread


class Processor:
    """The result of `process`: called with a function, it processes records until it is stopped. It can be called again."""

    def __init__(self, plan: Plan, signals: tuple[int, ...]) -> None:
        self._plan = plan
        self._signals = signals
        self._running: Processing | None = None

    def stop(self) -> None:
        """Ends the run after a commit of the processed records. Any thread may call it, and the function."""
        if self._running is not None:
            self._running.stop()

    def __call__(self, function: Callable[[Any], Any]) -> int:
        """Processes records with this function, in this thread. Returns the number of records that were committed.

        Raises: what the function raises, after the transaction was aborted; errors of the consumer; errors of transactions that cannot
        pass, or that did not pass in `max_attempts` attempts.
        """
        if self._running is not None:
            raise RuntimeError("this process() runs already; make another one for a second function")
        thread, errands = LoopThread("ottla-process"), Errands()

        async def call(steps: Steps) -> BaseException | None:
            done: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

            def run() -> None:
                failure = self._run(function, steps)
                thread.loop.call_soon_threadsafe(lambda: None if done.done() else done.set_result(failure))

            errands.put(run)
            return await done

        try:
            self._running = thread.run(lambda: Processing(self._plan, call))
            with self._stopped_by_signals():
                return thread.call(self._running.run(), errands)
        except FunctionFailed as failed:
            raise failed.error from None
        finally:
            self._running = None
            thread.stop()

    def _run(self, function: Callable[[Any], Any], steps: Steps) -> BaseException | None:
        """Calls the function for some records; returns the exception that it raised."""
        try:
            argument = next(steps, None)
            while argument is not None:
                argument = steps.send(self._called(function, argument))
        except StopIteration:
            pass
        except BaseException as error:
            # Also an interrupt: the loop's thread aborts the transaction, and raises it in this thread.
            return error
        return None

    def _called(self, function: Callable[[Any], Any], argument: Any) -> list[Any]:
        try:
            return several(function(argument))
        except Exception as error:
            if self._plan.on_error is None:
                raise
            return several(self._plan.on_error(argument, error))

    @contextmanager
    def _stopped_by_signals(self) -> Iterator[None]:
        """The first signal stops the run; a second one has its usual effect."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in self._signals}

        def restore() -> None:
            for number, handler in before.items():
                signal.signal(number, handler)

        def stop(number: int, frame: Any) -> None:
            restore()
            self.stop()

        for number in self._signals:
            signal.signal(number, stop)
        try:
            yield
        finally:
            restore()


def process(
    *topics: str,
    group: str,
    to: str | None = None,
    batch: bool = False,
    max_batch_records: int = 10_000,
    commit_interval_ms: float = 100,
    timeout_ms: float | None = None,
    max_attempts: int = 10,
    on_error: OnError | None = None,
    signals: Iterable[int] = (signal.SIGINT, signal.SIGTERM),
    **settings: Unpack[ProcessArguments],
) -> Processor:
    """Processes topics exactly once: `process("orders", group="billing", to="invoices")(function)`.

    The function gets each record, or a list with `batch`. It returns None, a value, a `ProducerRecord`, or several as a list or generator.
    A value becomes a record of `to` with the key and timestamp of the input. Outputs and offsets are committed in one transaction,
    `commit_interval_ms` after its first record or with `max_batch_records`. So each input record is in the output once for consumers at
    read_committed, whatever fails. Other effects of the function may happen more than once.

    It runs until `stop()`, a signal or, with `timeout_ms`, until no record arrived for so long. An exception of the function aborts the
    transaction and ends the run; `on_error(record, error)` returns outputs in its place. A transaction that fails is tried again,
    `max_attempts` times. `signals` stop the run in the main thread. `settings` are those of `Consumer` and `Producer`, with their
    serializers and deserializers.

    Raises: ConfigError, ValueError, TypeError for invalid arguments.
    """
    plan = planned(
        topics,
        group=group,
        to=to,
        batch=batch,
        max_batch_records=max_batch_records,
        commit_interval_ms=commit_interval_ms,
        timeout_ms=timeout_ms,
        max_attempts=max_attempts,
        on_error=on_error,
        settings=settings,
    )
    return Processor(plan, tuple(signals))
