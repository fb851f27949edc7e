"""What a broker knows of the schema registry: whether a schema is registered under a subject.

A question is an effect, ``LookUpSchemas``; its answer an event. Answers are cached, for a time, because versions come and go::

    registered       relied on for ottla.schema.registry.cache.ms
    not registered   relied on for 1 s: a producer may register the schema at any moment
    no answer        lost after ottla.schema.registry.timeout.ms; a late one is used all the same

After a lost answer nothing is asked for 1 s: producers that try again cost nothing while the registry is down. An outage begins with the
first lost answer and ends with the next answer. Both are logged.

The cache, the questions in progress and the ids of one question have limits. Only the default context of the registry is asked about.
"""

from collections.abc import Iterable

from ottla.base.ids import ConnectionId
from ottla.base.log_levels import REPLICA
from ottla.base.units import SECOND_MS
from ottla.broker import effects
from ottla.broker.context import BrokerContext
from ottla.broker.delayed import DelayedOperation
from ottla.broker.events import SchemasLookedUp
from ottla.broker.isolation import indivisible

#: How long it counts that a schema is not registered, and how long nothing is asked after a lost answer.
UNKNOWN_MS = PAUSE_MS = SECOND_MS
#: Questions in progress, as pairs of subject and id.
ASKED_MAX = 1_000
#: Key of operations that wait for answers.
LOOKED_UP = "schemas looked up"
#: Ids in a frame are signed; the registry begins with 1.
ID_MAX = 2**31 - 1

#: A subject and a schema id.
Schema = tuple[str, int]


class WaitingBatches:
    """The batches of a request that wait for the registry, or behind another request of their connection."""

    __slots__ = ("ahead", "asked", "operation")

    def __init__(self, ahead: "WaitingBatches | None", asked: Iterable[Schema], operation: DelayedOperation) -> None:
        #: The request of the connection before this one.
        self.ahead = ahead
        self.asked = tuple(asked)
        self.operation = operation

    def ready(self, schemas: "SchemaRegistry") -> bool:
        """Whether no answer is expected any more, for this request and those before it."""
        waiting: WaitingBatches | None = self
        while waiting is not None:
            if not waiting.operation.done and any(map(schemas.is_asked, waiting.asked)):
                return False
            waiting = waiting.ahead
        return True


class SchemaRegistry:
    """The registry's answers."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        #: Topics whose settings ask for validation. Changed by ``Node``.
        self.topics: set[str] = set()
        #: Until when each answer counts. A schema is in at most one of them.
        self._registered: dict[Schema, int] = {}
        self._unknown: dict[Schema, int] = {}
        #: Questions in progress, with the ticket of the look-up.
        self._asked: dict[Schema, int] = {}
        self._timers: dict[int, DelayedOperation] = {}
        self._tickets = 0
        #: The last request of each connection that waits for answers, or behind another one.
        self.waiting: dict[ConnectionId, WaitingBatches] = {}
        #: Nothing is asked before this time.
        self._paused_until_ms = 0
        #: Why the last answer was lost; empty if it was not.
        self.outage = ""
        #: Counters for metrics: answers of each kind, and refused batches.
        self.found = self.not_found = self.lost = self.refused_batches = 0

    def registered(self, schema: Schema) -> bool | None:
        """Whether a schema is registered, as far as it is known now."""
        now_ms = self._context.now_ms
        if self._registered.get(schema, 0) > now_ms:
            return True
        if self._unknown.get(schema, 0) > now_ms or not 0 < schema[1] <= ID_MAX:
            return False
        return None

    def is_asked(self, schema: Schema) -> bool:
        """Whether an answer is still expected."""
        return schema in self._asked

    @property
    def paused(self) -> bool:
        """Whether nothing is asked now."""
        return self._context.now_ms < self._paused_until_ms

    @indivisible
    def ask(self, schemas: Iterable[Schema]) -> None:
        """Asks about schemas, as far as they are not asked about yet and the limits permit it."""
        if self.paused:
            return
        by_subject: dict[str, list[int]] = {}
        room = ASKED_MAX - len(self._asked)
        for subject, number in schemas:
            if room > 0 and (subject, number) not in self._asked:
                by_subject.setdefault(subject, []).append(number)
                room -= 1
        for subject, ids in by_subject.items():
            self._tickets += 1
            self._look_up(self._tickets, subject, ids)

    def _look_up(self, ticket: int, subject: str, ids: list[int]) -> None:
        context = self._context
        for number in ids:
            self._asked[subject, number] = ticket
        deadline_ms = context.now_ms + context.options.schema_registry_timeout_ms
        self._timers[ticket] = context.delayed.timer("look-up of schemas", lambda: self._expired(ticket), deadline_ms)
        context.effects.append(effects.LookUpSchemas(ticket=ticket, subject=subject, ids=tuple(ids)))

    @indivisible
    def looked_up(self, event: SchemasLookedUp) -> None:
        """Takes an answer, which may be late, and completes what waits for it."""
        timer = self._timers.pop(event.ticket, None)
        if timer is not None:
            self._context.delayed.cancel(timer)
        for number in event.registered:
            self._remember((event.subject, number), known=self._registered, other=self._unknown)
        for number in event.unknown:
            self._remember((event.subject, number), known=self._unknown, other=self._registered)
        self.found += len(event.registered)
        self.not_found += len(event.unknown)
        if event.problem or event.ticket in self._asked.values():
            self._fail(event.ticket, event.problem or "an answer is incomplete")
        elif self.outage:
            self.outage, self._paused_until_ms = "", 0
            self._context.log.info(REPLICA, "the schema registry answers again")
        self._context.delayed.poke(LOOKED_UP)

    def _remember(self, schema: Schema, *, known: dict[Schema, int], other: dict[Schema, int]) -> None:
        options = self._context.options
        self._asked.pop(schema, None)
        other.pop(schema, None)
        known.pop(schema, None)
        kept_ms = options.schema_registry_cache_ms if known is self._registered else UNKNOWN_MS
        known[schema] = self._context.now_ms + kept_ms
        if len(known) > options.schema_registry_cache_size:
            del known[next(iter(known))]

    def _expired(self, ticket: int) -> None:
        del self._timers[ticket]
        self._fail(ticket, f"no answer within {self._context.options.schema_registry_timeout_ms} ms (ottla.schema.registry.timeout.ms)")
        self._context.delayed.poke(LOOKED_UP)

    def _fail(self, ticket: int, problem: str) -> None:
        """The answers that a look-up still owes are lost."""
        for schema in [schema for schema, asked in self._asked.items() if asked == ticket]:
            del self._asked[schema]
            self.lost += 1
        self._paused_until_ms = self._context.now_ms + PAUSE_MS
        if not self.outage:
            text = "produce to topics with schema validation is refused until it answers"
            self._context.log.warn(REPLICA, f"the schema registry does not answer: {problem}; {text}", problem=problem)
        self.outage = problem
