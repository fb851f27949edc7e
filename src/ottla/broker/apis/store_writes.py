"""A request that writes several things to the store and answers when all of them are done."""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ottla.base.ports import Op, StoreResult
from ottla.broker.delayed import Parked
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import PARKED
from ottla.wire import errors
from ottla.wire.errors import KafkaError

if TYPE_CHECKING:
    from ottla.broker.node import Node


#: Carries out operations and tells the outcome.
Write = Callable[[Sequence[Op], Callable[[StoreResult], None]], None]
#: Writes of one request that are under way at a time.
UNDER_WAY_MAX = 20
NO_ANSWER = "the change may still be made: the store did not answer"
#: The store refuses because a node is no longer, or not yet, as it was when the operations were made.
OVERTAKEN = ("exists", "missing", "version")


class Writes:
    """The store writes of one request, made under the controller's office.

    ``add`` begins one; its ``done`` hears None or what went wrong. ``answer_when_done`` lets the request wait for all of them, at most
    ``timeout_ms``; those still open then hear RequestTimedOut (they may yet be carried out, but for those that have not begun).

    Some are under way at a time: a request for thousands of topics leaves the broker, and the store, time for others.
    """

    def __init__(self, node: "Node", call: RequestArrived) -> None:
        self._node = node
        self._call = call
        self._open: dict[int, Callable[[KafkaError | None], None]] = {}
        self._begun = 0
        #: Writes that have not begun yet, which are the last ones in ``_open``.
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
        """Write ``ops`` atomically. ``changed``: what it means that a node is not as it was, where ``again`` is not given.

        ``again``: what to write instead when somebody else changed the same nodes first, which the image shows by then; nothing to write
        means that all is as it should be. It may raise a KafkaError. ``write``: how, where one multi may not be enough.
        """
        self._begun += 1
        number = self._begun
        self._open[number] = done

        def finish(error: KafkaError | None) -> None:
            self._open.pop(number)(error)
            self._go_on()
            self._node.purgatory.poke(self)

        def written(result: StoreResult) -> None:
            if number not in self._open:
                return
            if again is None or result.error not in OVERTAKEN or result.failed_op == -1:
                finish(self._error(result, changed))
                return
            try:
                anew = again()
            except KafkaError as error:
                finish(error)
                return
            if anew:
                carry_out(anew, partial(run, self._call, written))
            else:
                finish(None)

        run, carry_out = self._node.isolation.run, write or self._node.controller.write
        self._waiting.append(lambda: carry_out(ops, partial(run, self._call, written)))
        self._go_on()

    def _go_on(self) -> None:
        """Begin what waits, as far as the limit allows."""
        while self._waiting and len(self._open) - len(self._waiting) < UNDER_WAY_MAX:
            self._waiting.popleft()()

    def answer_when_done(self, response: Any, timeout_ms: int) -> Any:
        """``response`` is completed by the ``done`` functions and sent when the last of them ran."""

        def finish(expired: bool) -> None:
            for done in self._open.values():
                done(errors.RequestTimedOut(f"{NO_ANSWER} in time"))
            self._open = {}
            self._waiting.clear()
            self._node.answer(self._call, response)

        if not self._open:
            return response
        self._node.park(self._call, Parked((self,), lambda: not self._open, finish), self._node.now_ms + max(timeout_ms, 0))
        return PARKED

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
