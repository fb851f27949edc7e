"""What an unexpected exception costs: the request that caused it, its coordinator shard, or the process.

==============================================  ==========================================================================
an exception that is no refusal is raised       what follows
==============================================  ==========================================================================
while a request is handled                      UNKNOWN_SERVER_ERROR for this request
while a request that waited is finished         UNKNOWN_SERVER_ERROR for this request; the others go on
while the state of groups is changed            the same, and the shard is loaded again from its log
inside of an indivisible change                 BrokenState: the process stops, with a flight record
in an event that no request caused              the process stops, with a flight record
==============================================  ==========================================================================

An indivisible change is a function that leaves the broker's state consistent when it returns, and not before. It is marked with
``indivisible``: an unexpected exception that leaves it becomes ``BrokenState``, which nothing but the shell catches. Between two such
changes the state is consistent, so an exception there costs only the request. ``docs/decisions/0026`` says why.

Each failure is an effect, ``RequestFailed``: the shell logs, counts and records it; the simulator fails.
"""

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import msgspec

from ottla.broker import effects
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import HANDLERS
from ottla.log.errors import LogError
from ottla.records.errors import RecordsError
from ottla.wire.declare import fields_of
from ottla.wire.errors import KafkaError, UnknownServerError

if TYPE_CHECKING:
    from ottla.broker.coordinator import Shard
    from ottla.broker.node import Node

P = ParamSpec("P")
T = TypeVar("T")

#: Exceptions with which a change refuses: it has changed nothing, or its caller takes the log directory offline.
REFUSALS = (KafkaError, OSError, LogError, RecordsError)


class BrokenState(AssertionError):
    """A change of the broker's state was interrupted: nothing in memory can be trusted any more."""


def indivisible(change: Callable[P, T]) -> Callable[P, T]:
    """Marks a function that changes state which outlives the request. See the module's theory."""

    @wraps(change)
    def whole(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return change(*args, **kwargs)
        except (BrokenState, *REFUSALS):
            raise
        except Exception as error:
            raise interrupted(change.__qualname__, error) from error

    def whole_of_one(owner: Any, value: Any) -> Any:
        try:
            return change(owner, value)  # type: ignore[call-arg]
        except (BrokenState, *REFUSALS):
            raise
        except Exception as error:
            raise interrupted(change.__qualname__, error) from error

    # A method with one argument, such as those of each produce request, is called without packing its arguments.
    parameters = signature(change).parameters.values()
    if [(one.kind, one.default) for one in parameters] == [(Parameter.POSITIONAL_OR_KEYWORD, Parameter.empty)] * 2:
        return wraps(change)(whole_of_one)  # type: ignore[return-value]
    return whole


def interrupted(change: str, error: Exception) -> BrokenState:
    """What a change raises that an unexpected exception interrupted, where a decorator would cost too much."""
    return BrokenState(f"{change} was interrupted by {type(error).__name__}: {error}")


def root_of(error: BaseException) -> BaseException:
    """The exception that interrupted a change."""
    while isinstance(error, BrokenState) and error.__cause__ is not None:
        error = error.__cause__
    return error


class Isolation:
    """Runs the code of requests for one broker."""

    __slots__ = ("_node", "touched")

    def __init__(self, node: "Node") -> None:
        self._node = node
        #: Shards whose state the present request may change; those of an outer request first.
        self.touched: list[Shard[Any]] = []

    def request(self, call: RequestArrived) -> None:
        """Handle a request that arrived; an unexpected exception is answered. Raises: BrokenState."""
        try:
            self._node.handle(call)
        except BrokenState:
            raise
        except Exception as error:
            self.failed(call, error, 0)
        if self.touched:
            self.touched = []

    def run(self, call: RequestArrived, act: Callable[..., Any], *args: Any) -> Any:
        """Run ``act``, which belongs to this request; an unexpected exception is answered. Raises: BrokenState."""
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

    def run_shard(self, shard: "Shard[Any]", act: Callable[[], Any]) -> None:
        """Run what a shard does on a deadline; after an unexpected exception its state comes from the log again. Raises: BrokenState."""
        try:
            act()
        except BrokenState:
            raise
        except Exception as error:
            self._node.effects.append(effects.RequestFailed(call=None, what=f"a deadline of {shard.partition}", error=error))
            shard.reload()

    def failed(self, call: RequestArrived, error: Exception, touched: int | None = None) -> None:
        """Answer a request that raised, unless it is answered. Shards touched from the ``touched``-th on are its own; None: none is."""
        node = self._node
        if touched is not None:
            shards = dict.fromkeys(self.touched[touched:])
            del self.touched[touched:]
            if not HANDLERS[call.api_key].reads_groups:
                for shard in shards:
                    shard.reload()
        node.unpark(call)
        answered = any(_ends(effect, call) for effect in node.effects)
        # First, so that the log has the failure when the client reads of it: a flight record takes a while to write.
        node.effects.append(effects.RequestFailed(call=call, what="the request", error=error))
        if not answered:
            node.effects.append(self._refusal(call))

    def _refusal(self, call: RequestArrived) -> effects.Effect:
        message = refusal(call)
        if message is None:
            return effects.Close(connection=call.connection, reason="the request failed with an internal error, which it cannot be told")
        return effects.Respond(
            connection=call.connection,
            correlation_id=call.correlation_id,
            ticket=call.ticket,
            api_version=call.api_version,
            message=message,
            call=call,
        )


def refusal(call: RequestArrived) -> Any:
    """UNKNOWN_SERVER_ERROR as this API says it; None where it cannot: with acks=0, in a version without a place for it, or when its
    ``refuse`` fails too."""
    if getattr(call.body, "acks", None) == 0:
        return None
    try:
        error = UnknownServerError("the request failed with an internal error; the broker's log has it")
        message = HANDLERS[call.api_key].refuse(call, error)
        return message if _says(message, call.api_version) else None
    except Exception:
        return None


def _says(value: Any, version: int) -> bool:
    """Whether a message, or a part of one, has UNKNOWN_SERVER_ERROR in a field that this version has."""
    if isinstance(value, list):
        return any(_says(part, version) for part in value)
    if not isinstance(value, msgspec.Struct):
        return False
    for field in fields_of(type(value)):
        found = getattr(value, field.name)
        if field.present(version) and (_says(found, version) or (field.name == "error_code" and found == UnknownServerError.code)):
            return True
    return False


def _ends(effect: effects.Effect, call: RequestArrived) -> bool:
    """Whether an effect already ends this request."""
    if isinstance(effect, effects.Close):
        return effect.connection == call.connection
    ends = isinstance(effect, (effects.Respond, effects.Release))
    return ends and (effect.connection, effect.ticket) == (call.connection, call.ticket)  # type: ignore[attr-defined]
