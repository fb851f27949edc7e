"""SaslHandshake, key 17: choose a SASL mechanism.

| version | change |
|-|-|
| 1 | the tokens of the mechanism follow in SaslAuthenticate requests, not as frames without a header (KIP-152) |
"""

from ottla.wire.declare import Int16, Struct, message


@message(key=17, since=0, until=1, flexible_since=None)
class SaslHandshakeRequest(Struct):
    """The name of the mechanism, such as SCRAM-SHA-512."""

    mechanism: str = ""


@message(key=17, since=0, until=1, flexible_since=None)
class SaslHandshakeResponse(Struct):
    """The enabled mechanisms, also with an error."""

    error_code: Int16 = 0
    mechanisms: list[str] = []
