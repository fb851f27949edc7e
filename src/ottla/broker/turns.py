"""Answers of large requests in several steps, so that other clients wait for a turn and not for the whole request.

A handler of a request with a list returns ``context.turns.answer(call, work)``. ``work`` is a generator, whose return value is the
response. It yields after each element, or after some, what they weigh; a turn is over at ``TURN_ELEMENTS``. Effects have a weight, too. A
request that is done in its first turn is answered in the step of its arrival. There is one turn of one request per ``TurnDue``, whatever
the number of such requests, and they take turns in the order of their arrival. The response is encoded in turns, too::

    step      request of 1,200 topics     other requests    TurnDue      other requests    TurnDue
    effects   ScheduleTurn                                  ScheduleTurn                   Respond

Between two turns the broker's state may change, so a generator keeps names and not what belongs to them, and the response is not of one
moment. The order of responses on a connection does not change: the request waits like a delayed one. When its connection closes, its
generator is closed. See ``docs/decisions/0071``.
"""

from collections import Counter, deque
from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any, Protocol, TypeVar

from ottla.base.units import KiB
from ottla.broker import effects
from ottla.broker.delayed import DelayedOperation
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import HANDLERS, PENDING, Deferred, refused
from ottla.broker.isolation import Isolation, Shard
from ottla.wire.errors import KafkaError

#: Weight of the elements of a turn. An element that takes about a microsecond weighs 1, so this is about 0.2 ms.
TURN_ELEMENTS = 200

#: Weight of an effect of an element, such as a line of the audit log.
EFFECT_WEIGHT = 15

#: A larger request has elements for more than a turn.
LARGE_REQUEST_BYTES = 4 * KiB

#: What yields the weight of the elements since its last yield, and returns a response.
Work = Generator[int, None, Any]
#: Makes the response, or PENDING, of what the work returned.
Then = Callable[[Any], Any]
T = TypeVar("T")
H = TypeVar("H", bound=Hashable)
#: Elements that ``counted`` counts without a pause, and their weight.
COUNTED_AT_ONCE, COUNTED_WEIGHT = 500, 100


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


def counted(elements: Iterable[H]) -> Generator[int, None, Counter[H]]:
    """How often each element occurs. Work of a turn: yields its weight."""
    found: Counter[H] = Counter()
    waiting = iter(elements)
    while some := list(islice(waiting, COUNTED_AT_ONCE)):
        found.update(some)
        yield COUNTED_WEIGHT
    return found


def free_counted(context: Requests, found: Collection[Any]) -> None:
    """Frees in steps what ``counted`` has counted: the end of the work would free all of it at once."""
    if len(found) > COUNTED_AT_ONCE:
        context.effects.append(effects.Free(objects=[list(found)]))


class Turns:
    """The requests of one broker that are answered in turns."""

    __slots__ = ("_context", "_due", "_waiting", "elements", "large_bytes")

    def __init__(self, context: Requests) -> None:
        self._context = context
        #: Weight of a turn; the simulator has less.
        self.elements = TURN_ELEMENTS
        #: A request with more bytes may be answered in turns, where others never are; the simulator has less.
        self.large_bytes = LARGE_REQUEST_BYTES
        #: Whether a TurnDue event is expected: outside of ``take_turn``, while requests wait.
        self._due = False
        #: Requests, or None, and what takes a turn of their work and returns whether there is more; the first has the next turn.
        self._waiting: deque[tuple[RequestArrived[Any] | None, Callable[[], bool]]] = deque()

    def answer(self, call: RequestArrived[Any], work: Work, then: Then | None = None) -> Any:
        """Takes the first turn now. Returns the response if the work ends with it, otherwise PENDING; both are for the handler to return.

        ``then`` makes the response of what the work returned, or delays the request and returns PENDING.
        """
        try:
            self._advance(work)
        except StopIteration as ended:
            return ended.value if then is None else then(ended.value)
        return self.begin(call, work, then)

    def begin(self, call: RequestArrived[Any], work: Work, then: Then | None = None) -> Deferred:
        """Answers a request in turns, the first of which is not now. Returns PENDING, for the handler to return."""
        context = self._context
        call.in_turns = True

        def finish(expired: bool) -> None:
            raise AssertionError("it has no deadline and no key")

        operation = DelayedOperation("its turn", finish)
        pending = context.delay(call, operation, None)
        self._waiting.append((call, partial(self._go_on, call, operation, work, then)))
        self._schedule()
        return pending

    def work_off(self, work: Generator[int, None, None], shard: Shard | None = None) -> None:
        """Does work of the broker itself in turns, the first of which is not now. Work of a ``shard`` ends when its shard has ended."""

        def go_on() -> bool:
            if shard is None:
                return self.advanced(work)
            # After an unexpected exception the shard is loaded again.
            left = False

            def take() -> None:
                nonlocal left
                left = self.advanced(work)

            self._context.isolation.run_shard(shard, take)
            return left

        self._waiting.append((None, go_on))
        self._schedule()

    def take_turn(self) -> None:
        """A TurnDue event: takes one turn."""
        self._due = False
        call, go_on = self._waiting.popleft()
        if go_on():
            self._waiting.append((call, go_on))
        self._schedule()

    def advanced(self, work: Work) -> bool:
        """Takes a turn of work without a result. Returns whether there is more."""
        try:
            self._advance(work)
        except StopIteration:
            return False
        return True

    def _go_on(self, call: RequestArrived[Any], operation: DelayedOperation, work: Work, then: Then | None) -> bool:
        if operation.done:
            work.close()
            return False
        return bool(self._context.isolation.run(call, self._take, call, operation, work, then))

    def _advance(self, work: Work) -> None:
        """Takes a turn of the work. Raises: StopIteration with its result, KafkaError."""
        left, carried_out = self.elements, self._context.effects
        while left > 0:
            before = len(carried_out)
            left -= next(work) + EFFECT_WEIGHT * (len(carried_out) - before)

    def _take(self, call: RequestArrived[Any], operation: DelayedOperation, work: Work, then: Then | None) -> bool:
        """Returns whether there is more."""
        refusal: KafkaError | None = None
        try:
            self._advance(work)
        except StopIteration as ended:
            done = ended.value
        except KafkaError as error:
            refusal = error
        else:
            return True
        self._context.cancel_delayed(call)
        try:
            done = self.refused(call, refusal) if refusal is not None else done if then is None else then(done)
        except KafkaError as error:
            done = self.refused(call, error)
        if done is not PENDING:
            self._context.respond(call, done)
        return False

    def refused(self, call: RequestArrived[Any], error: KafkaError) -> Any:
        """The response that refuses a request, or PENDING if it takes turns."""
        in_turns = HANDLERS[call.api_key].refuse_in_turns
        return refused(call, error) if in_turns is None else self.answer(call, in_turns(call, error))

    def _schedule(self) -> None:
        if self._waiting and not self._due:
            self._due = True
            self._context.effects.append(effects.ScheduleTurn(call=self._waiting[0][0]))
