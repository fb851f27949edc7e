"""RenewDelegationToken: sets a later expiry time of a token.

Behaviour: the new expiry time is the requested period from now, at most ``delegation.token.expiry.time.ms``, and never after the token's
maximum lifetime. Owner, requester and renewers may renew a token that has not expired.
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
from ottla.wire.messages.renew_delegation_token import RenewDelegationTokenRequest, RenewDelegationTokenResponse


def refuse(call: RequestArrived[RenewDelegationTokenRequest], error: KafkaError) -> RenewDelegationTokenResponse:
    return RenewDelegationTokenResponse(error_code=error.code, expiry_timestamp_ms=NO_TIME_MS)


@handles(RenewDelegationTokenRequest, (1, 2), refuse=refuse)
def renew_delegation_token(node: Node, call: RequestArrived[RenewDelegationTokenRequest]) -> RenewDelegationTokenResponse | Deferred:
    context, options = node.context, node.context.options
    key = check_allowed(node, call.origin)
    code, response = bytes(call.body.hmac), RenewDelegationTokenResponse()

    def plan() -> list[Op]:
        token = token_of(node, key, code)
        if expired(node, token):
            raise errors.DelegationTokenExpired("the token has expired")
        check_renewer(token, call.origin.principal)
        period_ms = options.delegation_token_expiry_time_ms
        if call.body.renew_period_ms > 0:
            period_ms = min(period_ms, call.body.renew_period_ms)
        expires_ms = min(token.max_ms, context.wall_ms + period_ms)
        response.expiry_timestamp_ms = expires_ms
        return change(node, token.token_id, structs.replace(token, expires_ms=expires_ms))

    def done(error: KafkaError | None) -> None:
        if error is not None:
            response.error_code, response.expiry_timestamp_ms = error.code, NO_TIME_MS

    return write(node, call, response, plan, done)
