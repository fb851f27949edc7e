"""OAUTHBEARER: the client sends a bearer token, which an identity provider signed.

::

    n,[a=AUTHORIZATION ID],^Aauth=Bearer TOKEN^A[KEY=VALUE^A...]^A

A server checks the token's signature, issuer, audience and times (``jwt_validation.py``). It answers a bad token with a JSON object, the
client answers that with ``^A``, and the exchange fails. Extensions are ignored, as Kafka's default handler does.

Source: RFC 7628, KIP-255, KIP-342, KIP-768; Kafka's OAuthBearerSaslServer.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ottla.net.sasl.mechanism import Challenge, Failure, Outcome, ServerRefused, Success

SEPARATOR = "\x01"
_KEY = r"[A-Za-z]+"
_VALUE = r"[\x21-\x7e \t\r\n]+"
_INITIAL = re.compile(rf"n,(?:a=(?P<authzid>(?:[\x02-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+))?,\x01(?P<pairs>(?:{_KEY}={_VALUE}\x01)*)\x01")
_AUTH = re.compile(r"(?P<scheme>\w+) +(?P<token>[-_~+/.a-zA-Z0-9]+=*)")


@dataclass(frozen=True, slots=True)
class ValidToken:
    """What a token says, after validation."""

    user: str
    expires_ms: int
    scopes: frozenset[str] = frozenset()


class TokenRefused(Exception):
    """A token is not valid; the message has the reason and not the token."""


#: Validates a token; may wait for the network. Raises: TokenRefused.
Validate = Callable[[str], ValidToken]


class OAuthBearerServer:
    """An exchange at a server."""

    slow = True

    def __init__(self, validate: Validate) -> None:
        self._validate = validate
        #: The JSON answer to a bad token, once it was sent.
        self._error: str | None = None
        self._reason = ""

    def step(self, token: bytes) -> Outcome:
        if self._error is not None:
            return Failure(self._error, self._reason)
        match = _INITIAL.fullmatch(token.decode("utf-8", "replace"))
        pairs = dict(pair.split("=", 1) for pair in match["pairs"].split(SEPARATOR) if pair) if match else {}
        auth = _AUTH.fullmatch(pairs.get("auth", ""))
        if match is None or auth is None or auth["scheme"].lower() != "bearer":
            return Failure("Invalid OAUTHBEARER client first message", "malformed client message")
        try:
            valid = self._validate(auth["token"])
        except TokenRefused as error:
            self._error, self._reason = json.dumps({"status": "invalid_token"}, separators=(",", ":")), str(error)
            return Challenge(self._error.encode())
        wanted = (match["authzid"] or "").replace("=2C", ",").replace("=3D", "=")
        if wanted and wanted != valid.user:
            message = "Authentication failed: Client requested an authorization id that is different from the token's principal name"
            return Failure(message, "authorization id differs from the user")
        return Success(valid.user, expires_ms=valid.expires_ms)


class OAuthBearerClient:
    """An exchange at a client."""

    slow = False

    def __init__(self, token: str, extensions: Mapping[str, str] | None = None) -> None:
        pairs = {"auth": f"Bearer {token}", **(extensions or {})}
        text = "".join(f"{name}={value}{SEPARATOR}" for name, value in pairs.items())
        self._token: bytes | None = f"n,,{SEPARATOR}{text}{SEPARATOR}".encode()
        self._refused = ""

    def step(self, challenge: bytes) -> bytes | None:
        if self._refused:
            raise ServerRefused(self._refused)
        token, self._token = self._token, None
        if token is None and challenge:
            # The server's reason; it expects this answer before it fails the exchange.
            self._refused = f"the server refused the token: {challenge[:500].decode('utf-8', 'replace')}"
            return SEPARATOR.encode()
        return token
