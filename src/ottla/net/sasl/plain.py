"""PLAIN: the client sends user and password, so the connection should be encrypted.

::

    authorization id NUL user NUL password          UTF-8; the authorization id is empty, or the user

Source: RFC 4616; Kafka's PlainSaslServer.
"""

import hmac

from ottla.net.sasl.mechanism import Credentials, Failure, Outcome, Success

_WRONG = Failure("Authentication failed: Invalid username or password", "wrong user or password")


class PlainServer:
    """An exchange at a server: one token."""

    slow = False

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def step(self, token: bytes) -> Outcome:
        try:
            parts = token.decode().split("\0")
        except UnicodeDecodeError:
            return Failure("Invalid SASL/PLAIN response: expected UTF-8", "token is not UTF-8")
        if len(parts) != 3:
            return Failure(f"Invalid SASL/PLAIN response: expected 3 tokens, got {min(len(parts), 4)}", "malformed token")
        authorization_id, user, password = parts
        if not user:
            return Failure("Authentication failed: username not specified", "no user")
        if not password:
            return Failure("Authentication failed: password not specified", "no password")
        expected = self._credentials.password(user)
        # An unknown user takes as long as a wrong password.
        right = hmac.compare_digest((expected or "\0").encode(), password.encode())
        if not right or expected is None:
            return _WRONG
        if authorization_id and authorization_id != user:
            message = "Authentication failed: Client requested an authorization id that is different from username"
            return Failure(message, "authorization id differs from the user")
        return Success(user)


class PlainClient:
    """An exchange at a client."""

    slow = False

    def __init__(self, user: str, password: str) -> None:
        self._token: bytes | None = f"\0{user}\0{password}".encode()

    def step(self, challenge: bytes) -> bytes | None:
        token, self._token = self._token, None
        return token
