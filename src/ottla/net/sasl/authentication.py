"""The authentication of one connection of a server: which requests it may send, and when its session ends.

::

    HANDSHAKE ── SaslHandshake ──▶ EXCHANGE ── the mechanism succeeds ──▶ AUTHENTICATED ── SaslHandshake ──▶ EXCHANGE
        │ ApiVersions only             │ SaslAuthenticate only                  │ every request         (again, KIP-368)
        ▼                              ▼                                        ▼ after the session's end
      closed                      FAILED, closed                              closed

Before it is authenticated, a client may send ApiVersions, SaslHandshake 0 to 1 and SaslAuthenticate 0 to 2, at most ``REQUESTS_MAX`` of
them. After SaslHandshake 0 the tokens of the mechanism are frames without a header, as old clients send them. Everything else closes the
connection and does not reach the broker.

A session that has a lifetime (``connections.max.reauth.ms``, or a token that expires) must be renewed by a second exchange on the same
connection, with the same mechanism and principal. A connection that sends other requests after its lifetime is closed.

The machine returns what to do and does no I/O. A step of a mechanism may take long, so the owner performs it, in a thread if it is slow,
and passes its outcome to ``stepped``.

Differences from Kafka: a client of Kafka 0.9 that begins with a GSSAPI token, without SaslHandshake, is refused.
Source: KIP-43, KIP-152, KIP-368; Kafka's SaslServerAuthenticator.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Protocol

from ottla.net.sasl.mechanism import Challenge, Failure, Outcome, ServerMechanism, Success
from ottla.wire import errors, framing
from ottla.wire.compile import decode
from ottla.wire.declare import MalformedMessage
from ottla.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from ottla.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE = 18, 17, 36
#: First bytes of a SaslHandshake request.
HANDSHAKE_KEY = struct.pack(">h", SASL_HANDSHAKE)
#: SaslHandshake's first version after which tokens are in SaslAuthenticate requests.
HEADERS_SINCE = 1
HANDSHAKE_VERSIONS, AUTHENTICATE_VERSIONS = (0, 1), (0, 2)
#: Requests of one authentication; GSSAPI, the longest, needs five with ApiVersions in two versions.
REQUESTS_MAX = 16
#: A connection is not authenticated again within this time. Source: Kafka's KafkaChannel.
REAUTH_INTERVAL_MS = 1_000
SIZE = struct.Struct(">i")


class Mechanisms(Protocol):
    """The mechanisms of a listener."""

    @property
    def enabled(self) -> Sequence[str]:
        """Their names."""
        ...

    def open(self, mechanism: str) -> ServerMechanism:
        """A new exchange of an enabled mechanism."""
        ...

    def max_reauth_ms(self, mechanism: str) -> int:
        """Longest session without authentication; 0: no limit."""
        ...


@dataclass(frozen=True, slots=True)
class Pass:
    """Give the request to the broker."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Send these chunks, now."""

    chunks: Sequence[Any]
    #: With the last answer of an exchange.
    authenticated: Success | None = None


@dataclass(frozen=True, slots=True)
class Perform:
    """Perform the step, and pass its outcome to ``stepped``."""

    step: Callable[[], Outcome]
    slow: bool


@dataclass(frozen=True, slots=True)
class Refuse:
    """Authentication failed: wait, send these chunks, if there are any, and close the connection."""

    chunks: Sequence[Any]
    reason: str


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connection without an answer."""

    kind: str
    reason: str


Action = Pass | Answer | Perform | Refuse | Close
PASS = Pass()


class State(Enum):
    """Phases of a connection."""

    HANDSHAKE = auto()
    EXCHANGE = auto()
    AUTHENTICATED = auto()
    FAILED = auto()


class Authentication:
    """Of one connection. Times are of a monotonic clock, in ms."""

    __slots__ = (
        "_exchange", "_header", "_mechanism", "_mechanisms", "_performing", "_raw", "_reauth_ms", "_requests", "expires_ms", "principal",
        "state",
    )  # fmt: skip

    def __init__(self, mechanisms: Mechanisms) -> None:
        self.state = State.HANDSHAKE
        #: Principal of the last successful exchange; None before.
        self.principal: str | None = None
        #: End of the session; None: it has none.
        self.expires_ms: int | None = None
        self._mechanisms = mechanisms
        #: Mechanism of the present or last exchange.
        self._mechanism = ""
        self._exchange: ServerMechanism | None = None
        #: Whether a step was returned and its outcome is not known.
        self._performing = False
        #: Whether tokens are frames without a header.
        self._raw = False
        #: Version and correlation id of the SaslAuthenticate request whose step is being performed.
        self._header = (0, 0)
        #: Requests of the present authentication.
        self._requests = 0
        #: When the last repeated authentication began.
        self._reauth_ms: int | None = None

    def received(self, frame: memoryview, now_ms: int) -> Action:
        """A frame, without its size; it is valid only during the call."""
        if self.state is State.AUTHENTICATED:
            return self._of_a_session(frame, now_ms)
        if self.state is State.FAILED:
            return Close("request after failed authentication", "")
        if self._performing:
            return self._closed("a request before the last one was answered")
        self._requests += 1
        if self._requests > REQUESTS_MAX:
            return self._closed(f"more than {REQUESTS_MAX} requests before it was authenticated")
        if self.state is State.EXCHANGE and self._raw:
            return self._step(bytes(frame))
        try:
            (key, version, correlation_id, _), position = framing.decode_request_header(frame)
            if key == API_VERSIONS and self.state is State.HANDSHAKE and self.principal is None:
                return PASS
            if key == SASL_HANDSHAKE and self.state is State.HANDSHAKE and _within(version, HANDSHAKE_VERSIONS):
                return self._handshake(decode(SaslHandshakeRequest, frame, version, position), version, correlation_id)
            if key == SASL_AUTHENTICATE and self.state is State.EXCHANGE and _within(version, AUTHENTICATE_VERSIONS):
                self._header = (version, correlation_id)
                return self._step(bytes(decode(SaslAuthenticateRequest, frame, version, position).auth_bytes))
        except MalformedMessage as error:
            return self._closed(f"malformed request: {error}")
        return self._closed(f"request of API {key} version {version} before it was authenticated")

    def _of_a_session(self, frame: memoryview, now_ms: int) -> Action:
        handshake = frame[:2] == HANDSHAKE_KEY
        if handshake and self.expires_ms is not None and (self._reauth_ms is None or now_ms - self._reauth_ms >= REAUTH_INTERVAL_MS):
            self.state, self._requests, self._reauth_ms = State.HANDSHAKE, 0, now_ms
            return self.received(frame, now_ms)
        if self.expires_ms is not None and now_ms > self.expires_ms:
            return Close("session expired", "the client did not authenticate again in time")
        # The broker refuses a handshake that begins no authentication.
        return PASS

    def _handshake(self, request: SaslHandshakeRequest, version: int, correlation_id: int) -> Action:
        enabled = self._mechanisms.enabled
        response = SaslHandshakeResponse(mechanisms=list(enabled))
        wanted = request.mechanism
        if wanted not in enabled:
            response.error_code = errors.UnsupportedSaslMechanism.code
            self.state = State.FAILED
            return Refuse(framing.encode_response(response, version, correlation_id), "the mechanism is not enabled")
        chunks = framing.encode_response(response, version, correlation_id)
        self.state, self._raw = State.EXCHANGE, version < HEADERS_SINCE
        if self.principal is None or wanted == self._mechanism:
            self._mechanism, self._exchange = wanted, self._mechanisms.open(wanted)
        else:
            # The next step refuses it, as in Kafka.
            self._exchange = None
        return Answer(chunks)

    def _step(self, token: bytes) -> Action:
        exchange, self._performing = self._exchange, True
        if exchange is None:
            message = f"The mechanism of a connection cannot change; it was authenticated by {self._mechanism}"
            return Perform(lambda: Failure(message, "another mechanism in a re-authentication"), False)
        return Perform(lambda: exchange.step(token), exchange.slow)

    def stepped(self, outcome: Outcome, *, now_ms: int, wall_ms: int) -> Action:
        """The outcome of a step. ``wall_ms``: milliseconds since 1970, for the expiry of credentials."""
        self._performing = False
        match outcome:
            case Challenge(data):
                return Answer(self._answer(SaslAuthenticateResponse(error_message=None, auth_bytes=data)))
            case Success():
                return self._succeeded(outcome, now_ms, wall_ms)
            case Failure(message, reason):
                return self._failed(message, reason)

    def _succeeded(self, success: Success, now_ms: int, wall_ms: int) -> Action:
        principal = f"{success.kind}:{success.user}"
        if self.principal is not None and self.principal != principal:
            message = f"Cannot change principals during re-authentication from {self.principal}: {principal}"
            return self._failed(message, "another principal in a re-authentication")
        lifetime_ms = self._lifetime_ms(success, wall_ms)
        self.state, self.principal, self._exchange = State.AUTHENTICATED, principal, None
        self.expires_ms = None if lifetime_ms is None else now_ms + lifetime_ms
        response = SaslAuthenticateResponse(error_message=None, auth_bytes=success.data, session_lifetime_ms=lifetime_ms or 0)
        return Answer(self._answer(response), success)

    def _lifetime_ms(self, success: Success, wall_ms: int) -> int | None:
        limits = [limit for limit in (self._mechanisms.max_reauth_ms(self._mechanism),) if limit > 0]
        if success.expires_ms is not None:
            limits.append(max(success.expires_ms - wall_ms, 0))
        return min(limits, default=None)

    def _failed(self, message: str, reason: str) -> Action:
        self.state, self._exchange = State.FAILED, None
        if self._raw:
            return Refuse((), reason)
        response = SaslAuthenticateResponse(error_code=errors.SaslAuthenticationFailed.code, error_message=message)
        return Refuse(self._answer(response), reason)

    def _answer(self, response: SaslAuthenticateResponse) -> Sequence[Any]:
        if self._raw:
            return [SIZE.pack(len(response.auth_bytes)) + response.auth_bytes]
        return framing.encode_response(response, *self._header)

    def _closed(self, reason: str) -> Close:
        self.state, self._exchange = State.FAILED, None
        return Close("not authenticated", reason)


def _within(version: int, versions: tuple[int, int]) -> bool:
    return versions[0] <= version <= versions[1]
