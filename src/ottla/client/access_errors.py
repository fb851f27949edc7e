"""Errors of refused accesses in words: who may not do what, on what.

Brokers send no message with most errors of partitions and groups, and Apache Kafka with none, so the client names what it asked for, and
as whom it is authenticated.
"""

from __future__ import annotations

from ottla.base.acls import Operation, ResourceType
from ottla.base.jaas import JaasError, login_module
from ottla.base.listeners import SecurityProtocol
from ottla.client.options import ClientOptions
from ottla.wire.errors import (
    DelegationTokenAuthorizationFailed,
    GroupAuthorizationFailed,
    KafkaError,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
    error_for,
)

#: The resource that an error refuses; ClusterAuthorizationFailed has a message of the broker, or is about another resource's request.
RESOURCES: dict[type[KafkaError], ResourceType] = {
    TopicAuthorizationFailed: ResourceType.TOPIC,
    GroupAuthorizationFailed: ResourceType.GROUP,
    TransactionalIdAuthorizationFailed: ResourceType.TRANSACTIONAL_ID,
    DelegationTokenAuthorizationFailed: ResourceType.DELEGATION_TOKEN,
}


def identity(options: ClientOptions) -> str:
    """As whom a client is known to brokers, as far as its settings say. Never a secret."""
    protocol = SecurityProtocol(options.security_protocol)
    if protocol.sasl:
        user = options.sasl_username
        if options.sasl_jaas_config:
            try:
                user = login_module(options.sasl_jaas_config, options.sasl_mechanism).option("username")
            except JaasError:
                user = ""
        if options.sasl_delegation_token:
            return f"the owner of delegation token {user}"
        return f"User:{user}" if user else f"this client, authenticated by {options.sasl_mechanism},"
    if protocol.tls and (options.ssl_keystore_location or options.ssl_keystore_key):
        return "this client, known by its certificate,"
    return "this client, which does not authenticate (User:ANONYMOUS),"


def refused_access(code: int, options: ClientOptions, operation: Operation, name: str) -> str | None:
    """The message of an error without one; None for an error of another kind. ``name``: of the resource."""
    kind = RESOURCES.get(type(error_for(code)))
    if kind is None:
        return None
    return f"{identity(options)} may not {operation.label} {kind.label} {name}; ask the cluster's administrator for an access rule (ACL)"
