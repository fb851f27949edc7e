"""DescribeUserScramCredentials: mechanisms and iterations of users' SCRAM credentials, without their secrets.

Behaviour: null or no users means all that have a credential. A user without one is RESOURCE_NOT_FOUND, one that is named twice
DUPLICATE_RESOURCE. Any broker answers, from its image of the store.

Source: KIP-554; Kafka's ScramPublisher and ScramImage.
"""

from collections import Counter

from ottla.base.scram import BY_NAME, MalformedCredential, ScramCredential
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import handles, whole_error
from ottla.broker.node import Node
from ottla.store.layout import DEFAULT_ENTITY
from ottla.wire import errors
from ottla.wire.errors import KafkaError
from ottla.wire.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)


@handles(DescribeUserScramCredentialsRequest, (0, 0), refuse=whole_error(DescribeUserScramCredentialsResponse))
def describe_user_scram_credentials(
    node: Node, call: RequestArrived[DescribeUserScramCredentialsRequest]
) -> DescribeUserScramCredentialsResponse:
    response = DescribeUserScramCredentialsResponse(error_message=None)
    if call.body.users:
        for user, times in Counter(user.name for user in call.body.users).items():
            response.results.append(_described(node, user, times))
        return response
    for kind, user in sorted(node.context.image.configs):
        if kind == "users" and user != DEFAULT_ENTITY and (infos := _infos(node, user)):
            response.results.append(DescribeUserScramCredentialsResult(user=user, error_message=None, credential_infos=infos))
    return response


def _described(node: Node, user: str, times: int) -> DescribeUserScramCredentialsResult:
    result = DescribeUserScramCredentialsResult(user=user, error_message=None, credential_infos=_infos(node, user) if times == 1 else [])
    error: KafkaError | None = None
    if times > 1:
        error = errors.DuplicateResource(f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}")
    elif not result.credential_infos:
        error = errors.ResourceNotFound(f"Attempt to describe a user credential that does not exist: {user}")
    if error is not None:
        result.error_code, result.error_message = error.code, str(error)
    return result


def _infos(node: Node, user: str) -> list[CredentialInfo]:
    """A credential that cannot be parsed, which another tool wrote, is left out."""
    found = []
    for name, text in node.context.image.overrides("users", user).items():
        if name in BY_NAME:
            try:
                found.append(CredentialInfo(mechanism=BY_NAME[name].code, iterations=ScramCredential.parse(text).iterations))
            except MalformedCredential:
                continue
    return sorted(found, key=lambda info: info.mechanism)
