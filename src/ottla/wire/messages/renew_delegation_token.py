"""RenewDelegationToken, key 39: set a later expiry time of a token (KIP-48). Version 2 is flexible."""

from ottla.wire.declare import Int16, Int32, Int64, Struct, message


@message(key=39, since=1, until=2, flexible_since=2)
class RenewDelegationTokenRequest(Struct):
    """The HMAC names the token. A negative period is the broker's delegation.token.expiry.time.ms."""

    hmac: bytes = b""
    renew_period_ms: Int64 = 0


@message(key=39, since=1, until=2, flexible_since=2)
class RenewDelegationTokenResponse(Struct):
    """The new expiry time, in ms since 1970."""

    error_code: Int16 = 0
    expiry_timestamp_ms: Int64 = 0
    throttle_time_ms: Int32 = 0
