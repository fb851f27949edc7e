"""A request that writes several things to the store and answers when all of them are done."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ottla.base.ports import Op, StoreResult
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import PARKED
from ottla.broker.purgatory import Parked
from ottla.wire import errors
from ottla.wire.errors import KafkaError

if TYPE_CHECKING:
    from ottla.broker.node import Node


#: Carries out operations and tells the outcome.
Write = Callable[[Sequence[Op], Callable[[StoreResult], None]], None]
#: The store refuses because a node is no longer, or not yet, as it was when the operations were made.
OVERTAKEN = ("exists", "missing", "version")


class Writes:
    """The store writes of one request, made under the controller's office.

    ``add`` begins one; its ``done`` hears None or what went wrong. ``answer_when_done`` lets the request wait for all of them, at most
    ``timeout_ms``; those still open then hear RequestTimedOut (they may yet be carried out).
    """

    def __init__(self, node: "Node", call: RequestArrived) -> None:
        self._node = node
        self._call = call
        self._open: dict[int, Callable[[KafkaError | None], None]] = {}
        self._begun = 0

    def add(
        self,
        ops: Sequence[Op],
        done: Callable[[KafkaError | None], None],
        *,
        exists: type[KafkaError] = errors.InvalidRequest,
        again: Callable[[], Sequence[Op]] | None = None,
        write: Write | None = None,
    ) -> None:
        """Write ``ops`` atomically. ``exists``: what it means that a node to be created is already there.

        ``again``: what to write instead when somebody else changed the same nodes first, which the image shows by then; nothing to write
        means that all is as it should be. It may raise a KafkaError. ``write``: how, where one multi may not be enough.
        """
        self._begun += 1
        number = self._begun
        self._open[number] = done

        def finish(error: KafkaError | None) -> None:
            self._open.pop(number)(error)
            self._node.purgatory.poke(self)

        def written(result: StoreResult) -> None:
            if number not in self._open:
                return
            if again is None or result.error not in OVERTAKEN or result.failed_op == -1:
                finish(self._error(result, exists))
                return
            try:
                anew = again()
            except KafkaError as error:
                finish(error)
                return
            if anew:
                carry_out(anew, written)
            else:
                finish(None)

        carry_out = write or self._node.controller.write
        carry_out(ops, written)

    def answer_when_done(self, response: Any, timeout_ms: int) -> Any:
        """``response`` is completed by the ``done`` functions and sent when the last of them ran."""

        def finish(expired: bool) -> None:
            for done in self._open.values():
                done(errors.RequestTimedOut("the store did not answer in time; the change may still be made"))
            self._open = {}
            self._node.answer(self._call, response)

        if not self._open:
            return response
        self._node.park(self._call, Parked((self,), lambda: not self._open, finish), self._node.now_ms + max(timeout_ms, 0))
        return PARKED

    @staticmethod
    def _error(result: StoreResult, exists: type[KafkaError]) -> KafkaError | None:
        if result.error is None:
            return None
        if result.failed_op == -1:
            return errors.NotController("this broker is the controller no longer")
        match result.error:
            case "exists":
                return exists("somebody else was faster")
            case "version" | "missing":
                return errors.UnknownServerError("what was to be changed had changed meanwhile; try again")
            case "too_large":
                return errors.PolicyViolation("that is more than the store takes at once")
            case _:
                return errors.UnknownServerError(f"the store refused: {result.error}")
