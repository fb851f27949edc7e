"""CreateDelegationToken: a token with which others authenticate as its owner.

Behaviour: the token expires after ``delegation.token.expiry.time.ms``, unless it is renewed, and after its maximum lifetime in any case:
the requested one, at most ``delegation.token.max.lifetime.ms``. Renewers are users; other types are INVALID_PRINCIPAL_TYPE.

Differences from Kafka: another owner than the requester is DELEGATION_TOKEN_AUTHORIZATION_FAILED, because nothing here grants CreateTokens;
Kafka without an authorizer lets everyone impersonate everyone. More than ``ottla.delegation.tokens.max`` tokens are POLICY_VIOLATION.
Source: KIP-48, KIP-373.
"""

from ottla.base.delegation_tokens import DelegationToken, token_hmac
from ottla.base.ids import topic_id_text
from ottla.base.ports import Op
from ottla.broker.apis.delegation_tokens import NO_TIME_MS, USER, check_allowed, parts, write
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import Deferred, handles
from ottla.broker.node import Node
from ottla.broker.security.requirements import REQUIREMENTS
from ottla.store import layout
from ottla.wire import errors
from ottla.wire.errors import KafkaError
from ottla.wire.messages.create_delegation_token import CreateDelegationTokenRequest, CreateDelegationTokenResponse

OWNER = REQUIREMENTS[38].parts["owner"]


def _owner(call: RequestArrived[CreateDelegationTokenRequest]) -> str:
    """The principal that the token stands for."""
    kind, name = call.body.owner_principal_type, call.body.owner_principal_name
    return f"{kind or USER}:{name}" if name else call.origin.principal


def refuse(call: RequestArrived[CreateDelegationTokenRequest], error: KafkaError) -> CreateDelegationTokenResponse:
    response = _named(call)
    response.error_code = error.code
    response.issue_timestamp_ms = response.expiry_timestamp_ms = response.max_timestamp_ms = NO_TIME_MS
    return response


def _named(call: RequestArrived[CreateDelegationTokenRequest]) -> CreateDelegationTokenResponse:
    """A response with the principals."""
    kind, name = parts(_owner(call))
    response = CreateDelegationTokenResponse(principal_type=kind, principal_name=name)
    response.token_requester_principal_type, response.token_requester_principal_name = parts(call.origin.principal)
    return response


@handles(CreateDelegationTokenRequest, (0, 3), refuse=refuse)
def create_delegation_token(node: Node, call: RequestArrived[CreateDelegationTokenRequest]) -> CreateDelegationTokenResponse | Deferred:
    request, context = call.body, node.context
    key = check_allowed(node, call.origin)
    owner, requester = _owner(call), call.origin.principal
    # Kafka without an authorizer allows it; here nobody may act for others without a rule.
    if owner != requester and (context.access is None or not context.access.permits(call, OWNER, owner)):
        raise errors.DelegationTokenAuthorizationFailed(f"{requester} may not create tokens of {owner}")
    if any(renewer.principal_type != USER for renewer in request.renewers):
        raise errors.InvalidPrincipalType("renewers are users")
    if len(context.image.tokens) >= context.options.delegation_tokens_max:
        raise errors.PolicyViolation("there are ottla.delegation.tokens.max tokens; expire some")
    options, now_ms = context.options, context.wall_ms
    lifetime_ms = options.delegation_token_max_lifetime_ms
    if request.max_lifetime_ms > 0:
        lifetime_ms = min(lifetime_ms, request.max_lifetime_ms)
    token = DelegationToken(
        token_id=topic_id_text(context.rng.randbytes(16)),
        owner=owner,
        requester=requester,
        renewers=tuple(f"{renewer.principal_type}:{renewer.principal_name}" for renewer in request.renewers),
        issued_ms=now_ms,
        max_ms=now_ms + lifetime_ms,
        expires_ms=now_ms + min(lifetime_ms, options.delegation_token_expiry_time_ms),
    )
    response = _named(call)
    response.issue_timestamp_ms, response.expiry_timestamp_ms, response.max_timestamp_ms = token.issued_ms, token.expires_ms, token.max_ms
    response.token_id, response.hmac = token.token_id, token_hmac(token.token_id, key)

    def done(error: KafkaError | None) -> None:
        if error is not None:
            response.error_code, response.token_id, response.hmac = error.code, "", b""

    path = layout.delegation_token(token.token_id)
    return write(node, call, response, lambda: [Op("create", path, layout.encode_delegation_token(token))], done)
