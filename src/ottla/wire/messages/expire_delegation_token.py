"""ExpireDelegationToken, key 40: set the expiry time of a token, or delete it (KIP-48). Version 2 is flexible."""

from ottla.wire.declare import Int16, Int32, Int64, Struct, message


@message(key=40, since=1, until=2, flexible_since=2)
class ExpireDelegationTokenRequest(Struct):
    """The HMAC names the token. A negative period expires the token at once."""

    hmac: bytes = b""
    expiry_time_period_ms: Int64 = 0


@message(key=40, since=1, until=2, flexible_since=2)
class ExpireDelegationTokenResponse(Struct):
    """The new expiry time, in ms since 1970."""

    error_code: Int16 = 0
    expiry_timestamp_ms: Int64 = 0
    throttle_time_ms: Int32 = 0
