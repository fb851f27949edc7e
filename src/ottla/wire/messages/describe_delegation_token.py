"""DescribeDelegationToken, key 41: tokens that the client owns or may describe (KIP-48).

| version | change |
|-|-|
| 1 | the same as 0 |
| 2 | flexible |
| 3 | the principal that requested the token (KIP-373) |
"""

from typing import Annotated

from ottla.wire.declare import Int16, Int32, Int64, Since, Struct, message


class DescribeDelegationTokenOwner(Struct):
    """An owner of tokens."""

    principal_type: str = ""
    principal_name: str = ""


@message(key=41, since=1, until=3, flexible_since=2)
class DescribeDelegationTokenRequest(Struct):
    """Null owners: all tokens."""

    owners: list[DescribeDelegationTokenOwner] | None = []


class DescribedDelegationTokenRenewer(Struct):
    """A principal that may renew and expire the token."""

    principal_type: str = ""
    principal_name: str = ""


class DescribedDelegationToken(Struct):
    """A token. Times are in ms since 1970."""

    principal_type: str = ""
    principal_name: str = ""
    token_requester_principal_type: Annotated[str, Since(3)] = ""
    token_requester_principal_name: Annotated[str, Since(3)] = ""
    issue_timestamp: Int64 = 0
    expiry_timestamp: Int64 = 0
    max_timestamp: Int64 = 0
    token_id: str = ""
    hmac: bytes = b""
    renewers: list[DescribedDelegationTokenRenewer] = []


@message(key=41, since=1, until=3, flexible_since=2)
class DescribeDelegationTokenResponse(Struct):
    """The tokens, in no order."""

    error_code: Int16 = 0
    tokens: list[DescribedDelegationToken] = []
    throttle_time_ms: Int32 = 0
