"""Secrets in what a broker writes down: secret settings and credentials in events are replaced before they are kept or written."""

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from ottla.base.options import Kind
from ottla.base.ports import NodeState
from ottla.base.scram import BY_NAME
from ottla.broker.events import Event, RequestArrived, StoreAnswered, StoreChanged
from ottla.broker.metadata.configs import broker_spec
from ottla.store import layout

HIDDEN = "(hidden)"
#: AlterConfigs and IncrementalAlterConfigs.
CHANGE_SETTINGS = (33, 44)
#: RenewDelegationToken, ExpireDelegationToken and AlterUserScramCredentials: HMACs of tokens, and salted passwords.
CREDENTIALS = (39, 40, 51)
#: Paths of settings and credentials in the store.
SETTINGS = "/config/"
SECRET_SETTINGS = ("/config/brokers/", "/config/users/")


def is_secret(name: str) -> bool:
    """Whether a broker setting, or a key of a user in the store, is secret."""
    spec = broker_spec(name)
    return name in BY_NAME or (spec is not None and spec.kind is Kind.PASSWORD)


def without_secrets(texts: Mapping[str, str]) -> dict[str, str]:
    """Settings with the values of secret ones replaced."""
    return {name: HIDDEN if is_secret(name) and text else text for name, text in texts.items()}


def has_secrets(event: RequestArrived[Any]) -> bool:
    """Whether a request sets a secret setting or carries credentials."""
    if event.api_key not in CHANGE_SETTINGS:
        return event.api_key in CREDENTIALS
    return any(is_secret(config.name) for resource in event.body.resources for config in resource.configs)


def redacted_request(event: RequestArrived[Any]) -> RequestArrived[Any]:
    """The request with other values of secret settings; one with credentials is empty."""
    if event.api_key in CREDENTIALS:
        return msgspec.structs.replace(event, body=type(event.body)())
    body = copy.deepcopy(event.body)
    for resource in body.resources:
        for config in resource.configs:
            if is_secret(config.name) and config.value:
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
    if state.data is None or not state.path.startswith(SECRET_SETTINGS):
        return state
    try:
        texts = layout.decode_config(state.data)
    except layout.MalformedNode:
        return replace(state, data=b"")
    if not any(map(is_secret, texts)):
        return state
    return replace(state, data=layout.encode_config(without_secrets(texts)))
