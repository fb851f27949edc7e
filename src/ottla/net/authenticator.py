"""The handler of a listener with SASL: authenticates its connections, and passes their later requests to the broker's handler.

It performs what ``sasl/authentication.py`` decides. Steps of slow mechanisms run in threads. A connection handles one request at a time, so
it is muted meanwhile. The answer to a failed authentication waits ``connection.failed.authentication.delay.ms``, which slows down
guessing, and then the connection is closed.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial

import msgspec

from ottla.net.connection_context import Traffic
from ottla.net.sasl.authentication import Answer, Authentication, Close, Mechanisms, Pass, Perform, Refuse, State
from ottla.net.sasl.mechanism import Failure, Outcome, Success
from ottla.net.server_connection import Handler, ServerConnection

log = logging.getLogger("ottla.net")

#: What a client gets when a mechanism raised an unexpected exception.
BROKEN = Failure("Authentication failed: credentials could not be verified", "unexpected error")


class Authenticator:
    """A ``Handler`` before another one."""

    def __init__(
        self,
        handler: Handler,
        mechanisms: Mechanisms,
        *,
        executor: Executor,
        traffic: Traffic,
        failure_delay_ms: Callable[[], int],
        wall_ms: Callable[[], int],
    ) -> None:
        self._handler = handler
        self._mechanisms = mechanisms
        self._executor = executor
        self._traffic = traffic
        self._failure_delay_ms = failure_delay_ms
        self._wall_ms = wall_ms
        self._loop = asyncio.get_running_loop()
        #: By open connection that sent a request.
        self._states: dict[ServerConnection, Authentication] = {}

    def arrived(self, connection: ServerConnection, frame: memoryview) -> None:
        state = self._states.get(connection)
        if state is None:
            state = self._states[connection] = Authentication(self._mechanisms)
        action = state.received(frame, self._now_ms())
        if isinstance(action, Pass):
            self._handler.arrived(connection, frame)
        else:
            self._act(connection, state, action)

    def lost(self, connection: ServerConnection) -> None:
        self._states.pop(connection, None)
        self._handler.lost(connection)

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def _act(self, connection: ServerConnection, state: Authentication, action: Answer | Perform | Refuse | Close) -> None:
        match action:
            case Answer(chunks, success):
                if success is not None:
                    self._authenticated(connection, state, success)
                connection.respond(chunks)
            case Perform(step, slow):
                if slow:
                    self._loop.run_in_executor(self._executor, _stepped, step).add_done_callback(
                        lambda future: self._performed(connection, state, BROKEN if future.cancelled() else future.result())
                    )
                else:
                    self._performed(connection, state, _stepped(step))
            case Refuse(reason=reason):
                self._traffic.failed_authentications += 1
                log.info("authentication of %s on listener %s failed: %s", connection.host, connection.origin.listener, reason)
                self._loop.call_later(self._failure_delay_ms() / 1000, partial(self._refuse, connection, action))
            case Close(kind, reason):
                if state.state is State.FAILED:
                    self._traffic.failed_authentications += 1
                else:
                    self._traffic.expired_sessions += 1
                connection.close(kind, reason)

    def _performed(self, connection: ServerConnection, state: Authentication, outcome: Outcome) -> None:
        if connection not in self._states:
            return
        action = state.stepped(outcome, now_ms=self._now_ms(), wall_ms=self._wall_ms())
        assert not isinstance(action, Pass), "a step is answered"
        self._act(connection, state, action)

    def _authenticated(self, connection: ServerConnection, state: Authentication, success: Success) -> None:
        self._traffic.authentications += 1
        assert state.principal is not None, "an authenticated connection has a principal"
        connection.authenticated(msgspec.structs.replace(connection.origin, principal=state.principal, token=success.token))

    def _refuse(self, connection: ServerConnection, action: Refuse) -> None:
        if action.chunks:
            connection.respond(action.chunks)
        connection.close("failed authentication", action.reason)


def _stepped(step: Callable[[], Outcome]) -> Outcome:
    """The outcome of a step; an unexpected exception is a failure, and its text is not logged: it may contain a secret."""
    try:
        return step()
    except Exception as error:
        log.error("a SASL mechanism failed unexpectedly: %s", type(error).__name__)
        return BROKEN
