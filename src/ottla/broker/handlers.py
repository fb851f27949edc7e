"""The handlers of all APIs and their versions. ApiVersions and the protocol reference are generated from this table.

A handler is a function ``(node, call) -> response``. It returns the response message, ``PENDING`` if the response follows later through
``Node.answer``, or ``NO_RESPONSE`` if there is none (acks=0). If it raises a KafkaError, the API's ``refuse`` function makes the response.
With ``at_controller`` the request is first forwarded to the controller, and the handler runs only there.
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
    """What a handler returns instead of a response."""

    PENDING = 1
    NO_RESPONSE = 2


PENDING = Later.PENDING
NO_RESPONSE = Later.NO_RESPONSE

Handler = Callable[["Node", RequestArrived], Any]
Refusal = Callable[[RequestArrived, KafkaError], Any]


@dataclass(frozen=True, slots=True)
class ApiHandler:
    """One API of this broker."""

    key: int
    #: Class of the request.
    request: type[Any]
    #: First version with a schema; the advertised range may begin before it.
    declared_since: int
    #: Advertised range, inclusive.
    versions: tuple[int, int]
    run: Handler
    refuse: Refusal
    at_controller: bool
    #: Whether ApiVersions advertises it to clients; false for requests between brokers, and for APIs that do not apply to this cluster.
    advertised: bool
    #: Whether it does not change group state, so that an exception in it leaves that state valid.
    reads_groups: bool

    @property
    def name(self) -> str:
        return self.run.__name__


#: By API key.
HANDLERS: dict[int, ApiHandler] = {}

H = TypeVar("H", bound=Handler)


def handles(
    request: type[Any],
    versions: tuple[int, int],
    *,
    refuse: Refusal,
    at_controller: bool = False,
    advertised: bool = True,
    reads_groups: bool = False,
) -> Callable[[H], H]:
    """Registers the handler of a request class for these versions, inclusive."""

    def register(run: H) -> H:
        schema = schema_of(request)
        key = schema.key
        assert key is not None and key not in HANDLERS, f"{request.__name__} is a request with one handler"
        HANDLERS[key] = ApiHandler(key, request, schema.since, versions, run, refuse, at_controller, advertised, reads_groups)
        return run

    return register
