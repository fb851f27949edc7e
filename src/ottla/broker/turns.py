"""Answers of large requests in several steps, so that other clients wait for a turn and not for the whole request.

A handler of a request with very many elements returns ``context.turns.begin(call, work)``. ``work`` is a generator: each ``yield`` ends a
turn, and its return value is the response. There is one turn of one request per ``TurnDue``, whatever the number of such requests, and they
take turns in the order of their arrival. The response is encoded in turns, too::

    step      request of 1,200 topics     other requests    TurnDue      other requests    TurnDue     TurnDue
    effects   ScheduleTurn                                  ScheduleTurn                   ScheduleTurn  Respond

Between two turns the broker's state may change, so a generator keeps names and not what belongs to them. The order of responses on a
connection does not change: the request waits like a delayed one. When its connection closes, its generator is closed.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, Protocol, TypeVar

from ottla.broker import effects
from ottla.broker.delayed import DelayedOperation
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import Deferred, refused
from ottla.broker.isolation import Isolation
from ottla.wire.errors import KafkaError

#: Elements of a request that are handled in a turn; a request with fewer is answered in the step of its arrival. About 0.5 ms.
TURN_ELEMENTS = 500

Work = Generator[None, None, Any]
T = TypeVar("T")


class Requests(Protocol):
    """What this module uses of the broker's context."""

    effects: list[effects.Effect]
    isolation: Isolation

    def delay(self, call: RequestArrived[Any], operation: DelayedOperation, deadline_ms: int | None) -> Deferred:
        """Delays a request until its operation completes or its connection closes."""

    def cancel_delayed(self, call: RequestArrived[Any]) -> None:
        """Cancels a request's delayed operation, if it has one."""

    def respond(self, call: RequestArrived[Any], message: Any) -> None:
        """Sends the response of a request."""


def portions(elements: Iterable[T], weight: Callable[[T], int], weight_max: int = TURN_ELEMENTS) -> Iterator[list[T]]:
    """The elements in lists for a turn each: one element, or several that weigh at most ``weight_max`` together."""
    found: list[T] = []
    heavy = 0
    for element in elements:
        one = weight(element)
        if found and heavy + one > weight_max:
            yield found
            found, heavy = [], 0
        found.append(element)
        heavy += one
    if found:
        yield found


class Turns:
    """The requests of one broker that are answered in turns."""

    __slots__ = ("_context", "_waiting", "elements")

    def __init__(self, context: Requests) -> None:
        self._context = context
        #: Elements of a turn; the simulator has fewer.
        self.elements = TURN_ELEMENTS
        #: Requests with the rest of their work; the first has the next turn. A TurnDue event is expected unless it is empty.
        self._waiting: deque[tuple[RequestArrived[Any], DelayedOperation, Work]] = deque()

    def begin(self, call: RequestArrived[Any], work: Work) -> Deferred:
        """Answers a request with the return value of ``work``, in turns. Returns PENDING, for the handler to return."""
        context = self._context

        def finish(expired: bool) -> None:
            raise AssertionError("it has no deadline and no key")

        operation = DelayedOperation("its turn", finish)
        pending = context.delay(call, operation, None)
        self._waiting.append((call, operation, work))
        if len(self._waiting) == 1:
            self._schedule()
        return pending

    def take_turn(self) -> None:
        """A TurnDue event: takes one turn."""
        call, operation, work = self._waiting.popleft()
        if operation.done:
            work.close()
        else:
            self._context.isolation.run(call, self._take, call, operation, work)
        if self._waiting:
            self._schedule()

    def _take(self, call: RequestArrived[Any], operation: DelayedOperation, work: Work) -> None:
        try:
            next(work)
        except StopIteration as ended:
            answer = ended.value
        except KafkaError as error:
            answer = refused(call, error)
        else:
            self._waiting.append((call, operation, work))
            return
        self._context.cancel_delayed(call)
        self._context.respond(call, answer)
        response = self._context.effects[-1]
        if isinstance(response, effects.Respond):
            response.in_turns = True

    def _schedule(self) -> None:
        self._context.effects.append(effects.ScheduleTurn(call=self._waiting[0][0]))
