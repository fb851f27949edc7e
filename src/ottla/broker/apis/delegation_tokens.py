"""What the four requests about delegation tokens have in common: checks, principals, and writes to the store.

Any broker writes tokens, as Kafka's brokers did with ZooKeeper: the requester is known to the broker to which it is connected. A change is
conditional on the version of the token's node, and computed again from the new content if that changed.

==========================================================================  ======================================
delegation.token.secret.key is not set                                      DELEGATION_TOKEN_AUTH_DISABLED
the client is not authenticated, or was authenticated by a token            DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
no token has this HMAC                                                      DELEGATION_TOKEN_NOT_FOUND
the client is neither the token's owner, requester nor renewer              DELEGATION_TOKEN_OWNER_MISMATCH
the token has expired                                                       DELEGATION_TOKEN_EXPIRED
==========================================================================  ======================================

Source: KIP-48, KIP-373; Kafka's DelegationTokenControlManager and KafkaApis.
"""

import hmac
from collections.abc import Callable
from typing import Any

from ottla.base.delegation_tokens import DelegationToken, token_hmac
from ottla.base.origin import ANONYMOUS, Origin
from ottla.base.ports import Op, StoreResult
from ottla.broker.apis.store_writes import Writes
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import Deferred, Resp
from ottla.broker.node import Node
from ottla.store import layout
from ottla.wire import errors
from ottla.wire.errors import KafkaError

USER = "User"
#: Timeout of the store: these requests have none.
ANSWER_MS = 30_000
#: Time in a response without a token.
NO_TIME_MS = -1


def check_allowed(node: Node, origin: Origin) -> str:
    """The key of tokens. Raises: KafkaError."""
    if origin.principal == ANONYMOUS or origin.token:
        raise errors.DelegationTokenRequestNotAllowed(
            "a client must authenticate to request delegation tokens, and not with a delegation token"
        )
    key = node.context.options.token_key
    if not key:
        raise errors.DelegationTokenAuthDisabled("delegation.token.secret.key is not set on this broker")
    return key


def parts(principal: str) -> tuple[str, str]:
    """Type and name of a principal."""
    kind, _, name = principal.partition(":")
    return kind, name


def expired(node: Node, token: DelegationToken) -> bool:
    return min(token.max_ms, token.expires_ms) < node.context.wall_ms


def token_of(node: Node, key: str, code: bytes) -> DelegationToken:
    """The token with this HMAC. Raises: DelegationTokenNotFound."""
    found = [token for token in node.context.image.tokens.values() if hmac.compare_digest(token_hmac(token.token_id, key), code)]
    if not found:
        raise errors.DelegationTokenNotFound("no token has this HMAC")
    return found[0]


def check_renewer(token: DelegationToken, principal: str) -> None:
    """Raises: DelegationTokenOwnerMismatch."""
    if principal != token.owner and principal != token.requester and principal not in token.renewers:
        raise errors.DelegationTokenOwnerMismatch(f"{principal} neither owns this token nor may renew it")


def write(
    node: Node, call: RequestArrived[Any], response: Resp, plan: Callable[[], list[Op]], done: Callable[[KafkaError | None], None]
) -> Resp | Deferred:
    """Writes a token and answers when it is stored."""

    def submit(ops: Any, answered: Callable[[StoreResult], None]) -> None:
        node.context.submit(ops, answered)

    writes = Writes(node, call)
    writes.add(plan(), done, again=plan, write=submit)
    return writes.answer_when_done(response, ANSWER_MS)


def change(node: Node, token_id: str, changed: DelegationToken | None) -> list[Op]:
    """Operations that replace or delete a token. Raises: DelegationTokenNotFound."""
    path = layout.delegation_token(token_id)
    version = node.context.image.versions.get(path)
    if version is None:
        raise errors.DelegationTokenNotFound("the token was deleted")
    if changed is None:
        return [Op("delete", path, version=version)]
    return [Op("set", path, layout.encode_delegation_token(changed), version=version)]
