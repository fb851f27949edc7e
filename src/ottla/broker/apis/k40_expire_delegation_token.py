"""ExpireDelegationToken: sets the expiry time of a token, or deletes it.

Behaviour: a negative period deletes the token at once, also one that has expired; its sessions end as planned. Another period is the time
until it expires, at most its maximum lifetime. Owner, requester and renewers may expire it.
Source: KIP-48.
"""

from msgspec import structs

from ottla.base.ports import Op
from ottla.broker.apis.delegation_tokens import NO_TIME_MS, change, check_allowed, check_renewer, expired, token_of, write
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import Deferred, handles
from ottla.broker.node import Node
from ottla.wire import errors
from ottla.wire.errors import KafkaError
from ottla.wire.messages.expire_delegation_token import ExpireDelegationTokenRequest, ExpireDelegationTokenResponse


def refuse(call: RequestArrived[ExpireDelegationTokenRequest], error: KafkaError) -> ExpireDelegationTokenResponse:
    return ExpireDelegationTokenResponse(error_code=error.code, expiry_timestamp_ms=NO_TIME_MS)


@handles(ExpireDelegationTokenRequest, (1, 2), refuse=refuse)
def expire_delegation_token(node: Node, call: RequestArrived[ExpireDelegationTokenRequest]) -> ExpireDelegationTokenResponse | Deferred:
    context = node.context
    key = check_allowed(node, call.origin)
    code, response = bytes(call.body.hmac), ExpireDelegationTokenResponse()

    def plan() -> list[Op]:
        token = token_of(node, key, code)
        check_renewer(token, call.origin.principal)
        if call.body.expiry_time_period_ms < 0:
            response.expiry_timestamp_ms = context.wall_ms
            return change(node, token.token_id, None)
        if expired(node, token):
            raise errors.DelegationTokenExpired("the token has expired")
        expires_ms = min(token.max_ms, context.wall_ms + call.body.expiry_time_period_ms)
        response.expiry_timestamp_ms = expires_ms
        return change(node, token.token_id, structs.replace(token, expires_ms=expires_ms))

    def done(error: KafkaError | None) -> None:
        if error is not None:
            response.error_code, response.expiry_timestamp_ms = error.code, NO_TIME_MS

    return write(node, call, response, plan, done)
