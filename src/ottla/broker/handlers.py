"""The handlers of all APIs and their versions. ApiVersions and the protocol reference are generated from this table.

A handler is a function ``(node, call) -> response``. It returns the response message, ``PENDING`` if the response follows later through
``BrokerContext.answer``, or ``NO_RESPONSE`` if there is none (acks=0). If it raises a KafkaError, the API's ``refuse`` function makes the
response. With ``at_controller`` the request is first forwarded to the controller, and the handler runs only there.

What an API requires of the client is its row in ``security/requirements.py``. Requirements of the whole request are checked before the
handler runs; those of parts are checked by the handler.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from msgspec import Struct

from ottla.base.ssl_options import ListenerSslOptions
from ottla.broker.events import RequestArrived
from ottla.broker.security.requirements import REQUIREMENTS
from ottla.wire.declare import schema_of
from ottla.wire.errors import KafkaError


class Deferred(Enum):
    """What a handler returns instead of a response."""

    PENDING = 1
    NO_RESPONSE = 2


PENDING = Deferred.PENDING
NO_RESPONSE = Deferred.NO_RESPONSE

#: The broker as a handler uses it (``Node``), a request message, and its response message.
B = TypeVar("B")
Req = TypeVar("Req", bound=Struct)
Resp = TypeVar("Resp")
Whole = TypeVar("Whole", bound=Struct)
Handler = Callable[[B, RequestArrived[Req]], Resp | Deferred]
Refusal = Callable[[RequestArrived[Req], KafkaError], Resp]
#: May be answered later, in turns.
LateRefusal = Callable[[RequestArrived[Req], KafkaError], Resp | Deferred]


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
    run: Handler[Any, Any, Any]
    refuse: Refusal[Any, Any]
    at_controller: bool
    #: Whether ApiVersions advertises it to clients; false for requests between brokers, and for APIs that do not apply to this cluster.
    advertised: bool
    #: Whether it does not change group state, so that an exception in it leaves that state valid.
    reads_groups: bool
    #: Whether only brokers send it.
    from_brokers: bool
    #: Whether a broker with these options serves the last version; None: every broker does.
    serves_last: Callable[[Any], bool] | None
    #: Certificates that the request would change: the broker that gets it from a client checks them before anything else.
    certificates: Callable[[Any, RequestArrived[Any]], dict[str, ListenerSslOptions]] | None = None
    #: Whether the request concerns only the broker that gets it, so that it is not forwarded to the controller.
    own: Callable[[RequestArrived[Any]], bool] | None = None
    #: Whether a broker with these options serves the API; None: every broker does.
    enabled: Callable[[Any], bool] | None = None
    #: Makes the refusal of a request with very many elements, as work of turns (``turns.py``); None: ``refuse`` is quick enough.
    refuse_in_turns: Callable[[RequestArrived[Any], KafkaError], Generator[int, None, Any]] | None = None
    #: Whether every broker runs it, at once and for every client.
    simple: bool = field(init=False)

    def __post_init__(self) -> None:
        special = self.at_controller or self.from_brokers or self.serves_last or self.certificates or self.enabled
        object.__setattr__(self, "simple", not special)

    def last_version(self, options: Any) -> int:
        """The last version that a broker with these options serves."""
        return self.versions[1] if self.serves_last is None or self.serves_last(options) else self.versions[1] - 1

    @property
    def name(self) -> str:
        return self.run.__name__


#: By API key.
HANDLERS: dict[int, ApiHandler] = {}


def handles(
    request: type[Req],
    versions: tuple[int, int],
    *,
    refuse: Refusal[Req, Resp],
    at_controller: bool = False,
    advertised: bool = True,
    reads_groups: bool = False,
    from_brokers: bool = False,
    serves_last: Callable[[Any], bool] | None = None,
    certificates: Callable[[Any, RequestArrived[Any]], dict[str, ListenerSslOptions]] | None = None,
    own: Callable[[RequestArrived[Any]], bool] | None = None,
    enabled: Callable[[Any], bool] | None = None,
    refuse_in_turns: Callable[[RequestArrived[Any], KafkaError], Generator[int, None, Any]] | None = None,
) -> Callable[[Handler[B, Req, Resp]], Handler[B, Req, Resp]]:
    """Registers the handler of a request class for these versions, inclusive."""

    def register(run: Handler[B, Req, Resp]) -> Handler[B, Req, Resp]:
        schema = schema_of(request)
        key = schema.key
        assert key is not None and key not in HANDLERS, f"{request.__name__} is a request with one handler"
        assert key in REQUIREMENTS, f"{request.__name__} has a row in security/requirements.py"
        HANDLERS[key] = ApiHandler(
            key,
            request,
            schema.since,
            versions,
            run,
            refuse,
            at_controller,
            advertised,
            reads_groups,
            from_brokers,
            serves_last,
            certificates,
            own,
            enabled,
            refuse_in_turns,
        )
        return run

    return register


def refused(call: RequestArrived[Any], error: KafkaError) -> Any:
    """The response of the request's API that refuses it."""
    return HANDLERS[call.api_key].refuse(call, error)


def whole_error(response: type[Whole]) -> Refusal[Any, Whole]:
    """The refusal of an API whose response has one error for the whole request, with a message if the response has one."""
    make: Callable[..., Whole] = response
    has_message = "error_message" in response.__struct_fields__
    return lambda call, error: make(error_code=error.code, **({"error_message": str(error)} if has_message else {}))
