"""The authentication of a connection, as a machine: what it passes to the broker, and when it ends a session."""

from collections.abc import Sequence
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_sasl_mechanisms import FakeCredentials

from ottla.net.sasl.authentication import API_VERSIONS, REQUESTS_MAX, Action, Answer, Authentication, Close, Pass, Perform, Refuse, State
from ottla.net.sasl.mechanism import Outcome, ServerMechanism, Success
from ottla.net.sasl.plain import PlainServer
from ottla.wire import framing
from ottla.wire.messages.api_versions import ApiVersionsRequest
from ottla.wire.messages.metadata import MetadataRequest
from ottla.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from ottla.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

WALL_MS = 1_700_000_000_000


class FakeMechanisms:
    """PLAIN, and TOKEN, whose user and expiry time are the client's token."""

    def __init__(self, max_reauth_ms: int = 0) -> None:
        self.enabled: Sequence[str] = ("PLAIN", "TOKEN")
        self.reauth_ms = max_reauth_ms

    def open(self, mechanism: str) -> ServerMechanism:
        return PlainServer(FakeCredentials({"alice": "secret", "bob": "secret"})) if mechanism == "PLAIN" else Token()

    def max_reauth_ms(self, mechanism: str) -> int:
        return self.reauth_ms


class Token:
    slow = True

    def step(self, token: bytes) -> Outcome:
        user, _, lifetime_ms = token.decode().partition(":")
        return Success(user, expires_ms=WALL_MS + int(lifetime_ms))


def frame(message: Any, version: int) -> memoryview:
    return memoryview(b"".join(cast(list[bytes], framing.encode_request(message, version, 7, "client")))[framing.SIZE_BYTES :])


def send(state: Authentication, data: memoryview | bytes, now_ms: int = 0) -> Action:
    """Performs a step at once."""
    action = state.received(memoryview(data), now_ms)
    return state.stepped(action.step(), now_ms=now_ms, wall_ms=WALL_MS + now_ms) if isinstance(action, Perform) else action


def handshake(state: Authentication, mechanism: str = "PLAIN", *, version: int = 1, now_ms: int = 0) -> Action:
    return send(state, frame(SaslHandshakeRequest(mechanism=mechanism), version), now_ms)


def token(state: Authentication, data: bytes = b"\0alice\0secret", *, version: int = 2, now_ms: int = 0) -> Action:
    return send(state, frame(SaslAuthenticateRequest(auth_bytes=data), version), now_ms)


def answer(action: Action, response: type[Any] = SaslAuthenticateResponse, version: int = 2) -> Any:
    assert isinstance(action, Answer | Refuse)
    data = b"".join(action.chunks)
    return framing.decode_response(response, memoryview(data)[framing.SIZE_BYTES :], version)[1]


METADATA = frame(MetadataRequest(topics=[]), 9)
VERSIONS = frame(ApiVersionsRequest(client_software_name="t", client_software_version="1"), 3)


def authenticated(mechanisms: FakeMechanisms | None = None, mechanism: str = "PLAIN", data: bytes = b"\0alice\0secret") -> Authentication:
    state = Authentication(mechanisms or FakeMechanisms())
    handshake(state, mechanism)
    assert answer(token(state, data)).error_code == 0
    return state


def test_a_client_is_authenticated_and_then_its_requests_reach_the_broker() -> None:
    state = Authentication(FakeMechanisms())
    assert isinstance(send(state, VERSIONS), Pass)
    assert answer(handshake(state), SaslHandshakeResponse, 1).mechanisms == ["PLAIN", "TOKEN"]
    done = token(state)
    assert isinstance(done, Answer)
    assert done.authenticated == Success("alice")
    assert answer(done).session_lifetime_ms == 0
    assert (state.state, state.principal, state.expires_ms) == (State.AUTHENTICATED, "User:alice", None)
    assert isinstance(send(state, METADATA), Pass)


@pytest.mark.parametrize("before", [0, 1, 2])
def test_any_other_request_before_authentication_closes_the_connection(before: int) -> None:
    state = Authentication(FakeMechanisms())
    if before > 0:
        send(state, VERSIONS)
    if before > 1:
        handshake(state)
    assert isinstance(send(state, METADATA), Close)
    assert isinstance(send(state, VERSIONS), Close), "and it stays closed"


@pytest.mark.parametrize("step", ["versions", "token", "handshake"])
def test_requests_out_of_order_close_the_connection(step: str) -> None:
    state = Authentication(FakeMechanisms())
    if step == "token":
        assert isinstance(token(state), Close)
        return
    handshake(state)
    assert isinstance(send(state, VERSIONS) if step == "versions" else handshake(state), Close)


def test_old_clients_send_tokens_without_headers() -> None:
    state = Authentication(FakeMechanisms())
    assert answer(handshake(state, version=0), SaslHandshakeResponse, 0).error_code == 0
    done = send(state, b"\0alice\0secret")
    assert isinstance(done, Answer)
    assert list(done.chunks) == [b"\0\0\0\0"]
    wrong = Authentication(FakeMechanisms())
    handshake(wrong, version=0)
    refused = send(wrong, b"\0alice\0wrong")
    assert isinstance(refused, Refuse)
    assert list(refused.chunks) == [], "old clients get no answer"


def test_an_unknown_mechanism_is_answered_with_the_enabled_ones() -> None:
    state = Authentication(FakeMechanisms())
    refused = handshake(state, "SCRAM-SHA-256")
    response = answer(refused, SaslHandshakeResponse, 1)
    assert isinstance(refused, Refuse)
    assert (response.error_code, response.mechanisms) == (33, ["PLAIN", "TOKEN"])


def test_a_wrong_password_is_answered_and_ends_the_connection() -> None:
    state = Authentication(FakeMechanisms())
    handshake(state)
    refused = token(state, b"\0alice\0wrong")
    assert isinstance(refused, Refuse)
    assert (answer(refused).error_code, answer(refused).error_message) == (58, "Authentication failed: Invalid username or password")
    assert isinstance(token(state), Close)


def test_the_number_of_requests_before_authentication_is_limited() -> None:
    state = Authentication(FakeMechanisms())
    actions = [send(state, VERSIONS) for _ in range(REQUESTS_MAX + 1)]
    assert [type(action) for action in actions] == [Pass] * REQUESTS_MAX + [Close]


def test_a_request_during_a_slow_step_closes_the_connection() -> None:
    state = Authentication(FakeMechanisms())
    handshake(state, "TOKEN", version=0)
    slow = state.received(memoryview(b"alice:1000"), 0)
    assert isinstance(slow, Perform)
    assert slow.slow
    assert isinstance(state.received(memoryview(b"bob:1000"), 0), Close)


@pytest.mark.parametrize(("max_reauth_ms", "token_ms", "lifetime_ms"), [(0, 9_000, 9_000), (5_000, 9_000, 5_000), (5_000, 3_000, 3_000)])
def test_a_session_lasts_as_long_as_the_setting_and_the_token_allow(max_reauth_ms: int, token_ms: int, lifetime_ms: int) -> None:
    state = Authentication(FakeMechanisms(max_reauth_ms))
    handshake(state, "TOKEN")
    assert answer(token(state, b"alice:%d" % token_ms)).session_lifetime_ms == lifetime_ms
    assert isinstance(send(state, METADATA, lifetime_ms), Pass)
    expired = send(state, METADATA, lifetime_ms + 1)
    assert isinstance(expired, Close)
    assert expired.kind == "session expired"


def test_a_session_is_renewed_by_another_exchange() -> None:
    state = authenticated(FakeMechanisms(5_000))
    assert answer(handshake(state, now_ms=4_000), SaslHandshakeResponse, 1).error_code == 0
    assert isinstance(token(state, now_ms=4_000), Answer)
    assert isinstance(send(state, METADATA, 9_000), Pass)


def test_a_session_can_be_renewed_after_its_end_and_other_requests_wait_for_that() -> None:
    state = authenticated(FakeMechanisms(5_000))
    handshake(state, now_ms=6_000)
    assert isinstance(send(state, METADATA, 6_000), Close)


def test_a_renewal_cannot_change_principal_or_mechanism() -> None:
    state = authenticated(FakeMechanisms(5_000))
    handshake(state, now_ms=4_000)
    refused = token(state, b"\0bob\0secret", now_ms=4_000)
    assert "Cannot change principals during re-authentication from User:alice: User:bob" in answer(refused).error_message
    state = authenticated(FakeMechanisms(5_000))
    handshake(state, "TOKEN", now_ms=4_000)
    refused = token(state, b"alice:1000", now_ms=4_000)
    assert isinstance(refused, Refuse)
    assert "mechanism of a connection cannot change" in answer(refused).error_message


def test_the_broker_refuses_a_handshake_that_begins_no_renewal() -> None:
    assert isinstance(handshake(authenticated()), Pass), "the session has no end"
    state = authenticated(FakeMechanisms(5_000))
    handshake(state, now_ms=100)
    token(state, now_ms=100)
    assert isinstance(handshake(state, now_ms=1_000), Pass), "less than a second after the last one"


requests = st.one_of(
    st.binary(max_size=64),
    st.tuples(st.integers(-2, 100), st.integers(-2, 20), st.binary(max_size=40)).map(
        lambda parts: parts[0].to_bytes(2, "big", signed=True) + parts[1].to_bytes(2, "big", signed=True) + parts[2]
    ),
    st.sampled_from([bytes(VERSIONS), bytes(METADATA)]),
    st.tuples(st.sampled_from(["PLAIN", "TOKEN", "x"]), st.integers(0, 1)).map(
        lambda parts: bytes(frame(SaslHandshakeRequest(mechanism=parts[0]), parts[1]))
    ),
    st.tuples(st.binary(max_size=20), st.integers(0, 2)).map(
        lambda parts: bytes(frame(SaslAuthenticateRequest(auth_bytes=b"\0alice\0no" + parts[0]), parts[1]))
    ),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(requests, max_size=12))
def test_no_request_but_api_versions_reaches_the_broker_before_authentication(frames: list[bytes]) -> None:
    state, mechanisms = Authentication(FakeMechanisms()), ("PLAIN",)
    state._mechanisms.enabled = mechanisms  # type: ignore[misc]
    over = False
    for data in frames:
        action = send(state, data)
        if isinstance(action, Pass):
            assert data[:2] == API_VERSIONS.to_bytes(2, "big")
            assert not over
        assert state.state is not State.AUTHENTICATED
        over = over or isinstance(action, Close | Refuse)
        assert not over or state.state is State.FAILED
