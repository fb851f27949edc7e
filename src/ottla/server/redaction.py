"""Secrets in what a broker writes down: values of secret settings in events are replaced before they are kept or written."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from ottla.base.options import ConfigType
from ottla.base.ports import NodeState
from ottla.base.scram import BY_NAME
from ottla.broker.events import Event, RequestArrived, StoreAnswered, StoreChanged
from ottla.broker.metadata.config_entries import BROKER
from ottla.broker.metadata.configs import broker_spec
from ottla.broker.security.envelope import enveloped, opened
from ottla.store import layout
from ottla.wire.errors import KafkaError

HIDDEN = "(hidden)"
#: AlterConfigs and IncrementalAlterConfigs.
CHANGE_SETTINGS = (33, 44)
#: Fields that are secrets: salted passwords, HMACs of delegation tokens, and what a mechanism of SASL sends.
SECRET_FIELDS = ("hmac", "salted_password", "salt", "auth_bytes")
#: SaslAuthenticate, which reaches the broker out of turn only, RenewDelegationToken, ExpireDelegationToken and AlterUserScramCredentials.
CARRY_SECRETS = (36, 39, 40, 51)
#: A request that another broker forwards; it contains one of the others.
ENVELOPE = 58
#: Requests that may set a secret setting, or carry a secret.
MAY_HAVE_SECRETS = frozenset((*CHANGE_SETTINGS, *CARRY_SECRETS, ENVELOPE))
#: Paths of settings in the store.
SETTINGS = "/config/"
BROKERS = SETTINGS + "brokers/"


def is_secret(name: str) -> bool:
    """Whether a broker setting is secret, or a user's key in the store."""
    spec = broker_spec(name)
    return name in BY_NAME or (spec is not None and spec.kind is ConfigType.PASSWORD)


def may_be_secret(name: str) -> bool:
    """Whether a broker setting is secret, or unknown, so that it may be the password of a plugin. DescribeConfigs shows neither."""
    return is_secret(name) or broker_spec(name) is None


def without_secrets(texts: Mapping[str, str], hidden: Callable[[str], bool] = is_secret) -> dict[str, str]:
    """Settings with the values of hidden ones replaced; without those whose form is checked, so that the others can be parsed again."""
    return {name: HIDDEN if hidden(name) and text else text for name, text in texts.items() if not _is_checked(name)}


def _is_checked(name: str) -> bool:
    spec = broker_spec(name)
    return spec is not None and spec.check is not None


def has_secrets(event: RequestArrived[Any]) -> bool:
    """Whether a request sets a secret setting, or carries a secret."""
    if event.api_key in CARRY_SECRETS:
        return True
    if event.api_key == ENVELOPE:
        inner = _in_envelope(event)
        return inner is None or has_secrets(inner)
    if event.api_key not in CHANGE_SETTINGS:
        return False
    return any(_is_hidden(resource)(config.name) for resource in event.body.resources for config in resource.configs)


def _is_hidden(resource: Any) -> Callable[[str], bool]:
    """Which settings of a resource of a request are hidden: those of topics and others are never secret."""
    return may_be_secret if resource.resource_type == BROKER else is_secret


def _in_envelope(event: RequestArrived[Any]) -> RequestArrived[Any] | None:
    """The request in an Envelope; None if it cannot be read, so that nothing is known about its secrets."""
    try:
        return opened(event)
    except KafkaError:
        return None


def redacted_request(event: RequestArrived[Any]) -> RequestArrived[Any]:
    """The request with other values of secret settings, and without other secrets."""
    body = copy.deepcopy(event.body)
    if event.api_key == ENVELOPE:
        inner = _in_envelope(event)
        body.request_data = b""
        if inner is not None:
            told = redacted_request(inner)
            body = enveloped(told.body, told.api_version, told.origin, told.client_id, correlation_id=told.correlation_id)
        return msgspec.structs.replace(event, body=body)
    if event.api_key in CARRY_SECRETS:
        for part in (body, *getattr(body, "upsertions", ())):
            for name in set(SECRET_FIELDS) & set(part.__struct_fields__):
                setattr(part, name, b"")
        return msgspec.structs.replace(event, body=body)
    for resource in body.resources:
        is_hidden = _is_hidden(resource)
        for config in resource.configs:
            if is_hidden(config.name) and config.value:
                config.value = HIDDEN
    return msgspec.structs.replace(event, body=body)


def redacted(event: Event) -> Event:
    """The event with other values of secret settings."""
    if isinstance(event, StoreChanged) and event.state.path.startswith(SETTINGS):
        return StoreChanged(state=_redacted_node(event.state))
    if isinstance(event, StoreAnswered) and any(state.path.startswith(SETTINGS) for state in event.result.states):
        states = tuple(_redacted_node(state) for state in event.result.states)
        return StoreAnswered(ticket=event.ticket, result=replace(event.result, states=states))
    if isinstance(event, RequestArrived) and has_secrets(event):
        return redacted_request(event)
    return event


def _redacted_node(state: NodeState) -> NodeState:
    if state.data is None or not state.path.startswith((BROKERS, SETTINGS + "users/")):
        return state
    try:
        texts = layout.decode_config(state.data)
    except layout.MalformedNode:
        return replace(state, data=b"")
    hidden = may_be_secret if state.path.startswith(BROKERS) else is_secret
    if not any(map(hidden, texts)):
        return state
    return replace(state, data=layout.encode_config(without_secrets(texts, hidden)))
