"""No simulated request has an effect before its client is authenticated, as another user, or after its session's end.

With a safeguard switched off, one has.
"""

from __future__ import annotations

import pytest
from authentication_history import AuthenticationHistory

from ottla.net.authenticator import Authenticator
from ottla.net.sasl import authentication
from ottla.net.sasl.authentication import PASS, Action, Authentication, State
from ottla.net.sasl.mechanism import Success
from ottla.net.sasl.plain import PlainServer
from ottla.net.server_connection import ServerConnection

pytestmark = pytest.mark.slow
#: In which a switched-off safeguard has to be missed.
SEEDS = range(12)


@pytest.mark.parametrize("seed", range(6))
def test_only_authenticated_clients_have_an_effect(seed: int) -> None:
    found = AuthenticationHistory(seed).run()
    assert found.problems == []
    assert found.served > 20 and found.refused > 20, "clients were served and refused"


def harm(expected: str) -> None:
    """A history violates the invariant."""
    for seed in SEEDS:
        if any(expected in problem for problem in AuthenticationHistory(seed).run().problems):
            return
    raise AssertionError(f"no history of {len(SEEDS)} shows: {expected}")


def test_a_broker_without_the_authenticator_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Authenticator, "arrived", lambda self, connection, frame: self._handler.arrived(connection, frame))
    harm("was served before it was authenticated")


def test_serving_other_requests_before_the_handshake_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    received = Authentication.received

    def lenient(self: Authentication, frame: memoryview, now_ms: int) -> Action:
        begins = self.state is State.HANDSHAKE and frame[:2] != authentication.HANDSHAKE_KEY
        return PASS if begins else received(self, frame, now_ms)

    monkeypatch.setattr(Authentication, "received", lenient)
    harm("was served before it was authenticated")


def test_accepting_every_password_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlainServer, "step", lambda self, token: Success(token.decode().split("\0")[1]))
    harm("was served before it was authenticated")


def test_another_user_in_a_session_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    succeeded = Authentication._succeeded

    def forgetful(self: Authentication, success: Success, now_ms: int, wall_ms: int) -> Action:
        self.principal = None
        return succeeded(self, success, now_ms, wall_ms)

    monkeypatch.setattr(Authentication, "_succeeded", forgetful)
    harm("was served")


def test_a_session_without_end_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    of_a_session = Authentication._of_a_session
    # Its end is compared with the beginning of time.
    monkeypatch.setattr(Authentication, "_of_a_session", lambda self, frame, now_ms: of_a_session(self, frame, 0))
    harm("after its session's end")


def test_requests_with_the_origin_of_the_connection_before_it_was_authenticated_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    authenticated = ServerConnection.authenticated

    def anonymous(self: ServerConnection, origin: object) -> None:
        authenticated(self, self.origin)

    monkeypatch.setattr(ServerConnection, "authenticated", anonymous)
    harm("instead of")
