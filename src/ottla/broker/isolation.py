"""Limits the effect of an unexpected exception to a request, a coordinator shard, or the process.

==============================================  ==========================================================================
where an unexpected exception is raised         effect
==============================================  ==========================================================================
in the handler of a request                     UNKNOWN_SERVER_ERROR for this request
in the completion of a delayed operation        UNKNOWN_SERVER_ERROR for its request; others continue
in a change of group state                      the same, and the shard is loaded again from its log
inside of an indivisible change                 BrokenState: the process stops with a flight record
in an event that no request caused              the process stops with a flight record
==============================================  ==========================================================================

An indivisible change leaves the broker's state consistent only when it returns. The decorator ``indivisible`` marks it: an unexpected
exception that leaves it becomes ``BrokenState``, which only the shell catches. Between two such changes the state is consistent, so an
exception there costs only the request. See ``docs/decisions/0026``.

Each failure is an effect, ``RequestFailed``: the shell logs, counts and records it; the simulator fails.
"""

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from typing import Any, ParamSpec, Protocol, TypeVar

import msgspec

from ottla.base.ids import TopicPartition
from ottla.broker import effects
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import HANDLERS, refused
from ottla.log.errors import LogError
from ottla.records.errors import RecordsError
from ottla.wire.declare import fields_of
from ottla.wire.errors import KafkaError, UnknownServerError
from ottla.wire.framing import SIZE_BYTES, encode_response
from ottla.wire.messages.envelope import EnvelopeResponse

P = ParamSpec("P")
T = TypeVar("T")

#: Exceptions with which a change refuses: nothing has changed, or the caller takes the log directory offline.
REFUSALS = (KafkaError, OSError, LogError, RecordsError)


class BrokenState(AssertionError):
    """A change of the broker's state was interrupted: the state in memory is not valid any more."""


_EXPECTED = (BrokenState, *REFUSALS)


def indivisible(change: Callable[P, T]) -> Callable[P, T]:
    """Marks a function that changes state which outlives the request; see the module's docstring."""

    @wraps(change)
    def whole(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return change(*args, **kwargs)
        except _EXPECTED:
            raise
        except Exception as error:
            raise interrupted(change.__qualname__, error) from error

    def whole_of_one(owner: Any, value: Any) -> Any:
        try:
            return change(owner, value)  # type: ignore[call-arg]
        except _EXPECTED:
            raise
        except Exception as error:
            raise interrupted(change.__qualname__, error) from error

    # A method with one argument, such as those of each produce request, is called without packing its arguments.
    parameters = signature(change).parameters.values()
    if [(one.kind, one.default) for one in parameters] == [(Parameter.POSITIONAL_OR_KEYWORD, Parameter.empty)] * 2:
        return wraps(change)(whole_of_one)  # type: ignore[return-value]
    return whole


def interrupted(change: str, error: Exception) -> BrokenState:
    """The error for an interrupted change, where a decorator would cost too much."""
    return BrokenState(f"{change} was interrupted by {type(error).__name__}: {error}")


def root_of(error: BaseException) -> BaseException:
    """The exception that interrupted a change."""
    while isinstance(error, BrokenState) and error.__cause__ is not None:
        error = error.__cause__
    return error


class Shard(Protocol):
    """State of groups or transactions that is a fold over one partition."""

    partition: TopicPartition

    def reload(self) -> None:
        """Drops the state and loads it from the log."""


class Requests(Protocol):
    """What this module uses of the broker's context."""

    effects: list[effects.Effect]

    def cancel_delayed(self, call: RequestArrived[Any]) -> None:
        """Cancels a request's delayed operation, if it has one."""


def _not_handled(call: RequestArrived[Any]) -> None:
    raise AssertionError("the broker sets the handler of requests")


class Isolation:
    """Runs the code of requests for one broker."""

    __slots__ = ("_context", "handle", "touched")

    def __init__(self, context: Requests) -> None:
        self._context = context
        #: Handles a request; set by ``Node``.
        self.handle: Callable[[RequestArrived[Any]], None] = _not_handled
        #: Shards whose state the present request may change; those of an outer request first.
        self.touched: list[Shard] = []

    def request(self, call: RequestArrived[Any]) -> None:
        """Handles a request; an unexpected exception is answered. Raises: BrokenState."""
        try:
            self.handle(call)
        except BrokenState:
            raise
        except Exception as error:
            self.failed(call, error, 0)
        if self.touched:
            self.touched = []

    def run(self, call: RequestArrived[Any], act: Callable[..., Any], *args: Any) -> Any:
        """Runs ``act`` for a request; an unexpected exception is answered. Raises: BrokenState."""
        touched = len(self.touched)
        try:
            done = act(*args)
        except BrokenState:
            raise
        except Exception as error:
            self.failed(call, error, touched)
            return None
        if len(self.touched) > touched:
            del self.touched[touched:]
        return done

    def run_shard(self, shard: Shard, act: Callable[[], Any]) -> None:
        """Runs a shard's deadline; after an unexpected exception the shard is loaded again. Raises: BrokenState."""
        try:
            act()
        except BrokenState:
            raise
        except Exception as error:
            self._context.effects.append(effects.RequestFailed(call=None, what=f"a deadline of {shard.partition}", error=error))
            shard.reload()

    def failed(self, call: RequestArrived[Any], error: Exception, touched: int | None = None) -> None:
        """Answers a request that raised, unless it is answered. Shards from the ``touched``-th on are its own; None: none."""
        context = self._context
        if touched is not None:
            shards = dict.fromkeys(self.touched[touched:])
            del self.touched[touched:]
            if not HANDLERS[call.api_key].reads_groups:
                for shard in shards:
                    shard.reload()
        context.cancel_delayed(call)
        answered = any(_ends(effect, call) for effect in context.effects)
        # First, so that the failure is in the log before the client reads the response: writing a flight record takes a while.
        context.effects.append(effects.RequestFailed(call=call, what="the request", error=error))
        if not answered:
            context.effects.append(self._refusal(call))

    def _refusal(self, call: RequestArrived[Any]) -> effects.Effect:
        message = refusal(call)
        if message is None:
            return effects.Close(connection=call.connection, reason="the request failed with an internal error, which it cannot be told")
        return respond(call, message)


def respond(call: RequestArrived[Any], message: Any) -> effects.Respond:
    """The effect that sends a message as the response to a request."""
    if call.envelope is not None:
        frame = b"".join(encode_response(message, call.api_version, call.correlation_id))  # type: ignore[arg-type]
        message, call = EnvelopeResponse(response_data=frame[SIZE_BYTES:]), call.envelope
    return effects.Respond(
        connection=call.connection,
        correlation_id=call.correlation_id,
        ticket=call.ticket,
        api_version=call.api_version,
        message=message,
        call=call,
        in_turns=call.in_turns,
    )


def refusal(call: RequestArrived[Any]) -> Any:
    """UNKNOWN_SERVER_ERROR in the form of this API; None if it has none: with acks=0, in a version without an error field, or if its
    ``refuse`` raises too.
    """
    if getattr(call.body, "acks", None) == 0:
        return None
    try:
        error = UnknownServerError("the request failed with an internal error; the broker's log has it")
        message = refused(call, error)
        return message if _says(message, call.api_version) else None
    except Exception:
        return None


def _says(value: Any, version: int) -> bool:
    """Whether a message, or a part of one, has UNKNOWN_SERVER_ERROR in a field of this version."""
    if isinstance(value, list):
        return any(_says(part, version) for part in value)
    if not isinstance(value, msgspec.Struct):
        return False
    for field in fields_of(type(value)):
        found = getattr(value, field.name)
        if field.present(version) and (_says(found, version) or (field.name == "error_code" and found == UnknownServerError.code)):
            return True
    return False


def _ends(effect: effects.Effect, call: RequestArrived[Any]) -> bool:
    """Whether an effect already answers this request."""
    if isinstance(effect, effects.Close):
        return effect.connection == call.connection
    ends = isinstance(effect, (effects.Respond, effects.Release))
    return ends and (effect.connection, effect.ticket) == (call.connection, call.ticket)  # type: ignore[attr-defined]
