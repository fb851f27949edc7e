"""Admin requests about delegation tokens (KIP-48).

    token = await admin.create_delegation_token(renewers=["User:scheduler"])
    Producer(sasl_username=token.token_id, sasl_password=token.password, sasl_delegation_token=True, ...)

The client must be authenticated, and not by a token.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ottla.client.admin.calls import HasCalls
from ottla.client.admin.user_results import DelegationToken
from ottla.wire import messages as m

OWNER_SINCE = 3


def _parts(principal: str) -> tuple[str, str]:
    """Raises: ValueError."""
    kind, colon, name = principal.partition(":")
    if not colon or not kind or not name:
        raise ValueError(f"a principal is TYPE:NAME, such as User:alice, not {principal!r}")
    return kind, name


async def create_delegation_token(
    self: HasCalls,
    *,
    renewers: Iterable[str] = (),
    max_lifetime_ms: int = -1,
    owner: str | None = None,
    timeout_ms: float | None = None,
) -> DelegationToken:
    """Create a token of this client's principal, or of `owner` if the cluster permits.

    Raises: DelegationTokenRequestNotAllowed, DelegationTokenAuthDisabled, DelegationTokenAuthorizationFailed.

    Example: `admin.create_delegation_token(renewers=["User:ann"], max_lifetime_ms=86_400_000)`.
    """
    named = [_parts(renewer) for renewer in renewers]
    request = m.CreateDelegationTokenRequest(
        renewers=[m.CreatableRenewers(principal_type=kind, principal_name=name) for kind, name in named], max_lifetime_ms=max_lifetime_ms
    )
    if owner is not None:
        request.owner_principal_type, request.owner_principal_name = _parts(owner)
    response = await self._calls.any_broker(request, timeout_ms, "creating a token", at_least=OWNER_SINCE if owner is not None else 0)
    made = f"{response.principal_type}:{response.principal_name}"
    return DelegationToken(
        token_id=response.token_id,
        hmac=bytes(response.hmac),
        owner=made,
        requester=_requester(response) or made,
        renewers=tuple(f"{kind}:{name}" for kind, name in named),
        issued_ms=response.issue_timestamp_ms,
        expires_ms=response.expiry_timestamp_ms,
        max_ms=response.max_timestamp_ms,
    )


async def describe_delegation_tokens(
    self: HasCalls, owners: Iterable[str] | None = None, *, timeout_ms: float | None = None
) -> list[DelegationToken]:
    """The tokens of these owners, or all, that this client may see. Example: `admin.describe_delegation_tokens(["User:ann"])`."""
    named = None
    if owners is not None:
        named = [m.DescribeDelegationTokenOwner(principal_type=kind, principal_name=name) for kind, name in map(_parts, owners)]
    response = await self._calls.any_broker(m.DescribeDelegationTokenRequest(owners=named), timeout_ms, "describing tokens")
    return [
        DelegationToken(
            token_id=one.token_id,
            hmac=bytes(one.hmac),
            owner=f"{one.principal_type}:{one.principal_name}",
            requester=_requester(one) or f"{one.principal_type}:{one.principal_name}",
            renewers=tuple(f"{renewer.principal_type}:{renewer.principal_name}" for renewer in one.renewers),
            issued_ms=one.issue_timestamp,
            expires_ms=one.expiry_timestamp,
            max_ms=one.max_timestamp,
        )
        for one in response.tokens
    ]


async def renew_delegation_token(self: HasCalls, hmac: bytes, *, period_ms: int = -1, timeout_ms: float | None = None) -> int:
    """Set a later expiry time: `period_ms` from now, -1: the broker's. Returns it in ms since 1970.

    Raises: DelegationTokenNotFound, DelegationTokenExpired, DelegationTokenOwnerMismatch.

    Example: `admin.renew_delegation_token(token.hmac, period_ms=3_600_000)`.
    """
    request = m.RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=period_ms)
    response = await self._calls.any_broker(request, timeout_ms, "renewing a token")
    return int(response.expiry_timestamp_ms)


async def expire_delegation_token(self: HasCalls, hmac: bytes, *, period_ms: int = -1, timeout_ms: float | None = None) -> int:
    """Delete a token at once (-1), or let it expire after `period_ms`. Returns the expiry time in ms since 1970. Raises: as renewal.

    Example: `admin.expire_delegation_token(token.hmac)`.
    """
    request = m.ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=period_ms)
    response = await self._calls.any_broker(request, timeout_ms, "expiring a token")
    return int(response.expiry_timestamp_ms)


def _requester(answer: Any) -> str:
    """Empty from a broker that does not say who requested a token."""
    name = answer.token_requester_principal_name
    return f"{answer.token_requester_principal_type}:{name}" if name else ""
