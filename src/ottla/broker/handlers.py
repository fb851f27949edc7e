"""Which API is answered by which function, and in which versions: the table that ApiVersions and the protocol reference are made from.

A handler is a function ``(node, call) -> answer``. It returns the response message; ``PARKED`` when the answer comes later through
``Node.answer``; ``SILENT`` when there is none (acks=0). A KafkaError it raises is answered by the API's own ``refuse`` function. With
``at_controller`` the node hands the request to the controller first, so the handler runs there and nowhere else.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from ottla.broker.events import RequestArrived
from ottla.wire.declare import schema_of
from ottla.wire.errors import KafkaError

if TYPE_CHECKING:
    from ottla.broker.node import Node


class Later(Enum):
    """What a handler returns instead of a message."""

    PARKED = 1
    SILENT = 2


PARKED = Later.PARKED
SILENT = Later.SILENT

Handler = Callable[["Node", RequestArrived], Any]
Refusal = Callable[[RequestArrived, KafkaError], Any]


@dataclass(frozen=True, slots=True)
class Served:
    """One API as this broker serves it."""

    key: int
    #: Class of the request.
    request: type[Any]
    #: The first version that has a form; the advertised range may begin before it.
    declared_since: int
    #: The advertised range, inclusive.
    versions: tuple[int, int]
    run: Handler
    refuse: Refusal
    at_controller: bool
    #: Whether ApiVersions tells clients of it; not of what brokers alone ask, nor of what has no meaning in this cluster.
    told: bool
    #: Whether it leaves the state of groups as it is: an exception in it does not make that state doubtful.
    reads_groups: bool

    @property
    def name(self) -> str:
        return self.run.__name__


#: By API key.
HANDLERS: dict[int, Served] = {}

H = TypeVar("H", bound=Handler)


def handles(
    request: type[Any],
    versions: tuple[int, int],
    *,
    refuse: Refusal,
    at_controller: bool = False,
    told: bool = True,
    reads_groups: bool = False,
) -> Callable[[H], H]:
    """Serve requests of this class in the versions given, both ends included."""

    def register(run: H) -> H:
        schema = schema_of(request)
        key = schema.key
        assert key is not None and key not in HANDLERS, f"{request.__name__} is a request with one handler"
        HANDLERS[key] = Served(key, request, schema.since, versions, run, refuse, at_controller, told, reads_groups)
        return run

    return register
