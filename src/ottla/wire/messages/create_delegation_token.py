"""CreateDelegationToken, key 38: a token with which others authenticate as its owner (KIP-48).

| version | change |
|-|-|
| 1 | the same as 0 |
| 2 | flexible |
| 3 | an owner other than the requester (KIP-373) |
"""

from typing import Annotated

from ottla.wire.declare import Int16, Int32, Int64, Since, Struct, message


class CreatableRenewers(Struct):
    """A principal that may renew and expire the token."""

    principal_type: str = ""
    principal_name: str = ""


@message(key=38, since=1, until=3, flexible_since=2)
class CreateDelegationTokenRequest(Struct):
    """Without an owner the requester owns the token; a lifetime of -1 is the broker's maximum."""

    owner_principal_type: Annotated[str | None, Since(3)] = ""
    owner_principal_name: Annotated[str | None, Since(3)] = ""
    renewers: list[CreatableRenewers] = []
    max_lifetime_ms: Int64 = 0


@message(key=38, since=1, until=3, flexible_since=2)
class CreateDelegationTokenResponse(Struct):
    """Times are in ms since 1970. The HMAC is the token's password, in Base64."""

    error_code: Int16 = 0
    principal_type: str = ""
    principal_name: str = ""
    token_requester_principal_type: Annotated[str, Since(3)] = ""
    token_requester_principal_name: Annotated[str, Since(3)] = ""
    issue_timestamp_ms: Int64 = 0
    expiry_timestamp_ms: Int64 = 0
    max_timestamp_ms: Int64 = 0
    token_id: str = ""
    hmac: bytes = b""
    throttle_time_ms: Int32 = 0
