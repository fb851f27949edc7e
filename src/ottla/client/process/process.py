"""`process` for asyncio: `await ottla.aio.process("orders", group="billing", to="invoices")(invoice)`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Unpack

from ottla.client.process.plan import OnError, Plan, ProcessArguments, planned, several
from ottla.client.process.processing import FunctionFailed, Processing, Steps


class Processor:
    """The result of `process`: called with a function, it processes records until it is stopped. It can be called again."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._running: Processing | None = None

    def stop(self) -> None:
        """Ends the run after a commit of the processed records. Any thread may call it."""
        if self._running is not None:
            self._running.stop()

    async def __call__(self, function: Callable[[Any], Any]) -> int:
        """Processes records with this function, which may be a coroutine function. Returns the number of records that were committed.

        Raises: what the function raises, after the transaction was aborted; errors of the consumer; errors of transactions that cannot
        pass, or that did not pass in `max_attempts` attempts.
        """
        if self._running is not None:
            raise RuntimeError("this process() runs already; make another one for a second function")

        async def call(steps: Steps) -> BaseException | None:
            try:
                argument = next(steps, None)
                while argument is not None:
                    argument = steps.send(await self._called(function, argument))
            except StopIteration:
                pass
            except Exception as error:
                return error
            return None

        self._running = Processing(self._plan, call)
        try:
            return await self._running.run()
        except FunctionFailed as failed:
            raise failed.error from None
        finally:
            self._running = None

    async def _called(self, function: Callable[[Any], Any], argument: Any) -> list[Any]:
        try:
            returned = function(argument)
            return several(await returned if inspect.isawaitable(returned) else returned)
        except Exception as error:
            if self._plan.on_error is None:
                raise
            returned = self._plan.on_error(argument, error)
            return several(await returned if inspect.isawaitable(returned) else returned)


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
    **settings: Unpack[ProcessArguments],
) -> Processor:
    """Processes topics exactly once: `await process("orders", group="billing", to="invoices")(function)`.

    The function gets each record, or a list with `batch`. It returns None, a value, a `ProducerRecord`, or several as a list or generator.
    A value becomes a record of `to` with the key and timestamp of the input. Outputs and offsets are committed in one transaction,
    `commit_interval_ms` after its first record or with `max_batch_records`. So each input record is in the output once for consumers at
    read_committed, whatever fails. Other effects of the function may happen more than once.

    It runs until `stop()` or, with `timeout_ms`, until no record arrived for so long. An exception of the function aborts the transaction
    and ends the run; `on_error(record, error)` returns outputs in its place. A transaction that fails is tried again, `max_attempts` times.
    `settings` are those of `Consumer` and `Producer`, with their serializers and deserializers.

    Raises: ConfigError, ValueError, TypeError for invalid arguments.
    """
    return Processor(
        planned(
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
    )
