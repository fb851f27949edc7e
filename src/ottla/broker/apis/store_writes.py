"""Requests that write several things to the store and are answered when all writes are done."""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any

from ottla.base.ports import Op, StoreResult
from ottla.broker.delayed import DelayedOperation
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import PENDING, Deferred, Resp
from ottla.broker.node import Node
from ottla.wire import errors
from ottla.wire.errors import KafkaError

#: Executes operations and passes on the result.
Write = Callable[[Sequence[Op], Callable[[StoreResult], None]], None]
#: Writes of one request in flight at a time.
UNDER_WAY_MAX = 20
NO_ANSWER = "the change may still be made: the store did not answer"
#: Store errors after a conflicting change.
OVERTAKEN = ("exists", "missing", "version")


class Writes:
    """Store writes of one request on the controller.

    ``add`` adds one; its ``done`` gets None or the error. ``answer_when_done`` answers the request after all of them, at most after
    ``timeout_ms``; writes still open then get RequestTimedOut (those in flight may still be executed).

    The number of writes in flight is limited, so that a request for thousands of topics leaves time for others.
    """

    def __init__(self, node: Node, call: RequestArrived[Any]) -> None:
        self._context = node.context
        self._write = node.controller.writes.write
        self._call = call
        self._open: dict[int, Callable[[KafkaError | None], None]] = {}
        self._begun = 0
        #: Writes that are not in flight yet: the last ones in ``_open``.
        self._waiting: deque[Callable[[], None]] = deque()

    def add(
        self,
        ops: Sequence[Op],
        done: Callable[[KafkaError | None], None],
        *,
        changed: type[KafkaError] = errors.UnknownServerError,
        again: Callable[[], Sequence[Op]] | None = None,
        write: Write | None = None,
    ) -> None:
        """Writes ``ops`` atomically. ``changed``: the error after a conflict, if ``again`` is not given.

        ``again``: the operations after a conflict, computed from the new image; none if nothing is left to do. It may raise a KafkaError.
        ``write``: the function that executes operations, if one multi may not be enough.
        """
        self._begun += 1
        self._open[self._begun] = done
        carry_out = write or self._write
        written = partial(self._written, self._begun, carry_out, changed, again)
        self._waiting.append(partial(self._carry_out, carry_out, ops, written))
        self._go_on()

    def _carry_out(self, write: Write, ops: Sequence[Op], written: Callable[[StoreResult], None]) -> None:
        write(ops, partial(self._context.isolation.run, self._call, written))

    def _written(
        self,
        number: int,
        write: Write,
        changed: type[KafkaError],
        again: Callable[[], Sequence[Op]] | None,
        result: StoreResult,
    ) -> None:
        # A method with its arguments, not a function that refers to itself: thousands of those are work for the garbage collector.
        if number not in self._open:
            return
        if again is None or result.error not in OVERTAKEN or result.failed_op == -1:
            self._finish(number, self._error(result, changed))
            return
        try:
            anew = again()
        except KafkaError as error:
            self._finish(number, error)
            return
        if anew:
            self._carry_out(write, anew, partial(self._written, number, write, changed, again))
        else:
            self._finish(number, None)

    def _finish(self, number: int, error: KafkaError | None) -> None:
        self._open.pop(number)(error)
        self._go_on()
        self._context.delayed.poke(self)

    def _go_on(self) -> None:
        """Starts writes up to the limit."""
        while self._waiting and len(self._open) - len(self._waiting) < UNDER_WAY_MAX:
            self._waiting.popleft()()

    def answer_when_done(self, response: Resp, timeout_ms: int) -> Resp | Deferred:
        """The ``done`` functions complete ``response``, which is sent after the last of them."""

        def finish(expired: bool) -> None:
            for done in self._open.values():
                done(errors.RequestTimedOut(f"{NO_ANSWER} in time"))
            self._open = {}
            self._waiting.clear()
            self._context.answer(self._call, response)

        if not self._open:
            return response
        self._context.delay(
            self._call,
            DelayedOperation("store writes", finish, keys=(self,), ready=lambda: not self._open),
            self._context.now_ms + max(timeout_ms, 0),
        )
        return PENDING

    def answer_in_turns(self, work: Generator[int, None, Resp], timeout_ms: int) -> Resp | Deferred:
        """The same for a response that is made in turns (``turns.py``), while the first writes are in flight."""
        turns = self._context.turns
        answer: Resp | Deferred = turns.answer(self._call, work, lambda response: self.answer_when_done(response, timeout_ms))
        return answer

    @staticmethod
    def _error(result: StoreResult, changed: type[KafkaError]) -> KafkaError | None:
        if result.error is None:
            return None
        if result.failed_op == -1:
            return errors.NotController("this broker is the controller no longer")
        match result.error:
            case "exists" | "version" | "missing":
                return changed("what was to be changed had changed meanwhile; try again")
            case "too_large":
                return errors.PolicyViolation("that is more than the store takes at once")
            case "unavailable" | "session":
                return errors.RequestTimedOut(f"{NO_ANSWER}; the store is unavailable")
            case _:
                return errors.UnknownServerError(f"the store refused: {result.error}")


def note(result: Any, error: KafkaError | None) -> None:
    """Writes the outcome into a result."""
    if error is not None:
        result.error_code, result.error_message = error.code, str(error)
