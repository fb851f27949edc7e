"""The schema registry of a history with schema validation: one schema is registered late, one never; it is slow, down or silent at times.

Values are framed as registries have it: a zero byte, the schema id in four bytes, the content.
"""

from collections.abc import Callable
from random import Random

from ottla.broker.effects import LookUpSchemas
from ottla.broker.events import SchemasLookedUp
from ottla.sim.checkers.checks import Checker, Log
from ottla.sim.event_loop import ProcessLoop
from ottla.sim.world import World

#: Schema ids: registered from the start, registered later, never registered.
FIRST, LATE, NEVER = 1, 2, 3
FAULT_KINDS = ("registry down", "registry silent", "registry slow")
#: Broker settings: answers are relied on for as short a time as possible.
SETTINGS = {
    "ottla.schema.registry.url": "http://registry:8081",
    "ottla.schema.registry.timeout.ms": "400",
    "ottla.schema.registry.cache.ms": "1000",
}
TOPIC_CONFIGS = {"ottla.value.schema.validation": "true"}


def frame(schema: int) -> bytes:
    """What a value with this schema begins with."""
    return b"\0" + schema.to_bytes(4, "big")


def valid_frame(rng: Random) -> bytes:
    """Of a producer whose schemas are registered, sooner or later."""
    return frame(rng.choice((FIRST, FIRST, LATE)))


def any_frame(rng: Random) -> bytes:
    """Of a producer that also sends values with an unknown schema, and values without a schema."""
    return rng.choice((frame(FIRST), frame(FIRST), frame(NEVER), b"plain"))


class SimRegistry:
    """The registry, and the faults that befall it."""

    def __init__(self, world: World, *, late_ms: int) -> None:
        """``late_ms``: from when on the late schema is registered."""
        self._world = world
        self._rng = world.rng("registry")
        self._late_ms = late_ms
        #: The fault of the moment; empty for none.
        self._fault = ""

    def has(self, schema: int) -> bool:
        """Whether a schema is registered now."""
        return schema == FIRST or (schema == LATE and self._world.now_ms >= self._late_ms)

    def on(self, loop: ProcessLoop) -> "Lookups":
        """For one process of a broker."""
        return Lookups(self, loop)

    def faults(self) -> dict[str, Callable[[], None]]:
        return {kind: lambda kind=kind: self._fail(kind) for kind in FAULT_KINDS}  # type: ignore[misc]

    def heal(self) -> None:
        self._fault = ""

    def _fail(self, kind: str) -> None:
        self._fault = kind
        self._world.after(self._rng.choice((200, 1_000, 3_000)), self.heal)

    def answer(self, effect: LookUpSchemas) -> tuple[int, SchemasLookedUp] | None:
        """The answer, and after how many milliseconds it comes; None if it never does."""
        lost = SchemasLookedUp(ticket=effect.ticket, subject=effect.subject, problem="connection refused")
        match self._fault:
            case "registry silent":
                return None
            case "registry down":
                return self._rng.randint(0, 5), lost
        registered = tuple(schema for schema in effect.ids if self.has(schema))
        unknown = tuple(schema for schema in effect.ids if not self.has(schema))
        delay_ms = self._rng.choice((1, 5, 30)) if not self._fault else self._rng.choice((100, 390, 410, 2_000))
        return delay_ms, SchemasLookedUp(ticket=effect.ticket, subject=effect.subject, registered=registered, unknown=unknown)


class Lookups:
    """Look-ups of one process; answers to a process that ended are lost."""

    def __init__(self, registry: SimRegistry, loop: ProcessLoop) -> None:
        self._registry = registry
        self._loop = loop

    def ask(self, effect: LookUpSchemas, done: Callable[[SchemasLookedUp], object]) -> None:
        answer = self._registry.answer(effect)
        if answer is not None:
            self._loop.after(answer[0], done, answer[1])

    def close(self) -> None:
        """There is nothing to close."""


class SchemasAreRegistered(Checker):
    """No record is acknowledged, read or kept whose schema was not registered by then."""

    def __init__(self, registry: SimRegistry) -> None:
        super().__init__()
        self._registry = registry

    def acknowledged(self, partition: int, base_offset: int, values: list[bytes]) -> None:
        for place, value in enumerate(values):
            self._check("acknowledged", partition, base_offset + place, value)

    def read(self, reader: int, partition: int, offset: int, value: bytes) -> None:
        self._check("read", partition, offset, value)

    def finish(self, final: dict[int, Log]) -> None:
        for partition, log in final.items():
            for offset, value in log:
                self._check("kept", partition, offset, value)

    def _check(self, what: str, partition: int, offset: int, value: bytes) -> None:
        schema = int.from_bytes(value[1:5], "big") if value[:1] == b"\0" else None
        if schema is None or not self._registry.has(schema):
            self.problems.append(f"schema: {value[:20]!r} was {what} at {partition}:{offset}; its schema was not registered")
