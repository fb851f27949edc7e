"""DescribeDelegationToken: tokens with their owners, renewers, times and HMACs.

Behaviour: of the tokens of the named owners, or of all, those that the client owns, requested or may renew. An empty list of owners
gives no tokens. Expired tokens are described until they are deleted.

Differences from Kafka: Kafka also gives tokens that ACLs let the client describe, and without an authorizer all of them. An HMAC is a
password, so here nobody else gets it.
Source: KIP-48, KIP-373.
"""

from ottla.base.delegation_tokens import DelegationToken, token_hmac
from ottla.broker.apis.delegation_tokens import check_allowed, parts
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import handles, whole_error
from ottla.broker.node import Node
from ottla.broker.security.requirements import REQUIREMENTS
from ottla.wire.messages.describe_delegation_token import (
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)

TOKENS, OWNERS = REQUIREMENTS[41].parts["tokens"], REQUIREMENTS[41].parts["owners"]


@handles(DescribeDelegationTokenRequest, (0, 3), refuse=whole_error(DescribeDelegationTokenResponse))
def describe_delegation_token(node: Node, call: RequestArrived[DescribeDelegationTokenRequest]) -> DescribeDelegationTokenResponse:
    key = check_allowed(node, call.origin)
    named = None if call.body.owners is None else {f"{owner.principal_type}:{owner.principal_name}" for owner in call.body.owners}
    return DescribeDelegationTokenResponse(
        tokens=[
            _described(token, key)
            for token in node.context.image.tokens.values()
            if (named is None or token.owner in named) and _may_see(node, call, token)
        ]
    )


def _may_see(node: Node, call: RequestArrived[DescribeDelegationTokenRequest], token: DelegationToken) -> bool:
    """Owners and renewers, and those who may describe the token or the tokens of its owner."""
    access = node.context.access
    if call.origin.principal in (token.owner, token.requester, *token.renewers):
        return True
    return access is not None and (access.permits(call, TOKENS, token.token_id) or access.permits(call, OWNERS, token.owner))


def _described(token: DelegationToken, key: str) -> DescribedDelegationToken:
    described = DescribedDelegationToken(
        issue_timestamp=token.issued_ms,
        expiry_timestamp=token.expires_ms,
        max_timestamp=token.max_ms,
        token_id=token.token_id,
        hmac=token_hmac(token.token_id, key),
    )
    described.principal_type, described.principal_name = parts(token.owner)
    described.token_requester_principal_type, described.token_requester_principal_name = parts(token.requester)
    for renewer in token.renewers:
        kind, name = parts(renewer)
        described.renewers.append(DescribedDelegationTokenRenewer(principal_type=kind, principal_name=name))
    return described
