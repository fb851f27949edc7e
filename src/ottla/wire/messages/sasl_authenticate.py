"""SaslAuthenticate, key 36: a token of a SASL mechanism, and the answer to it (KIP-152).

| version | change |
|-|-|
| 1 | the lifetime of the session, within which the client authenticates again (KIP-368) |
| 2 | flexible |
"""

from typing import Annotated

from ottla.wire.declare import Ignorable, Int16, Int64, Since, Struct, message


@message(key=36, since=0, until=2, flexible_since=2)
class SaslAuthenticateRequest(Struct):
    """Bytes in the form of the mechanism."""

    auth_bytes: bytes = b""


@message(key=36, since=0, until=2, flexible_since=2)
class SaslAuthenticateResponse(Struct):
    """The session lifetime is in ms; 0 during the exchange, and for a session without a limit."""

    error_code: Int16 = 0
    error_message: str | None = ""
    auth_bytes: bytes = b""
    session_lifetime_ms: Annotated[Int64, Since(1), Ignorable] = 0
