"""Shell completion of topics, groups, transactional ids, brokers, settings and profiles. Names are queried from the cluster.

The shell waits meanwhile, so a query has a timeout of one second. On any error nothing is offered and nothing is printed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import click

import ottla
from ottla.cli.common.connection import cluster_address, named_profile
from ottla.cli.common.profiles import completion
from ottla.client.options import AdminOptions

#: Timeout of a query.
TIMEOUT_MS = 1_000


def _query(context: click.Context, question: Callable[[ottla.Admin], Iterable[tuple[str, str]]]) -> list[tuple[str, str]]:
    """Queries the cluster of the incomplete command line."""
    import logging

    from ottla.client.sync.admin import Admin

    address = cluster_address(context.params.get("bootstrap"), named_profile(context))
    known = {spec.attribute for spec in AdminOptions.SPECS.values()}
    settings: dict[str, Any] = {
        **{name: value for name, value in address.settings.items() if name in known},
        "client_id": "ottla-completion",
        "retries": 0,
        "default_api_timeout_ms": TIMEOUT_MS,
        "request_timeout_ms": TIMEOUT_MS,
        "socket_connection_setup_timeout_ms": TIMEOUT_MS,
    }
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with Admin(bootstrap_servers=address.bootstrap, **settings) as admin:
            return list(question(admin))
    finally:
        logging.disable(before)


def _topics(context: click.Context, incomplete: str) -> Iterable[tuple[str, str]]:
    return _query(
        context,
        lambda admin: ((one.name, f"{one.partition_count} partitions") for one in admin.list_topics(internal=incomplete.startswith("_"))),
    )


def _groups(context: click.Context, incomplete: str) -> Iterable[tuple[str, str]]:
    return _query(context, lambda admin: ((one.group_id, one.state.value) for one in admin.list_groups()))


def _transactional_ids(context: click.Context, incomplete: str) -> Iterable[tuple[str, str]]:
    return _query(context, lambda admin: ((one.transactional_id, one.state.value) for one in admin.list_transactions()))


def _brokers(context: click.Context, incomplete: str) -> Iterable[tuple[str, str]]:
    return _query(context, lambda admin: ((str(node.id), f"{node.host}:{node.port}") for node in admin.describe_cluster().nodes))


def _topic_settings(context: click.Context, incomplete: str) -> Iterable[tuple[str, str]]:
    """Topic settings of this version of Ottla; needs no query."""
    from ottla.log.options import TopicOptions

    name, equals, _ = incomplete.partition("=")
    if equals:
        spec = TopicOptions.SPECS.get(name)
        values = (spec.choices or ("true", "false") * (spec.kind.name == "BOOLEAN")) if spec else ()
        return [(f"{name}={value}", "") for value in values]
    return [(spec.name, spec.doc) for spec in TopicOptions.SPECS.values()]


def _topic_pairs(context: click.Context, incomplete: str) -> Iterable[tuple[str, str]]:
    return [(value if "=" in value else f"{value}=", help) for value, help in _topic_settings(context, incomplete)]


def _config_names(context: click.Context, incomplete: str) -> Iterable[tuple[str, str]]:
    match context.params.get("kind"):
        case "topic":
            return _topics(context, incomplete)
        case "broker":
            return _brokers(context, incomplete)
        case "group":
            return _groups(context, incomplete)
    return []


def _config_settings(context: click.Context, incomplete: str) -> Iterable[tuple[str, str]]:
    """First the name of the resource, then its settings."""
    kind, words = context.params.get("kind"), context.params.get("words") or ()
    if kind != "cluster" and not words:
        return _config_names(context, incomplete)
    if kind == "topic":
        return _topic_settings(context, incomplete)
    return _query(context, lambda admin: _dynamic_settings(admin, str(kind), str(words[0]) if words else ""))


def _dynamic_settings(admin: ottla.Admin, kind: str, name: str) -> list[tuple[str, str]]:
    """Settings that can change without a restart, from a broker."""
    from ottla.client.admin.results import Resource, ResourceType

    if kind == "cluster":
        name = str(min(node.id for node in admin.describe_cluster().nodes))
    resource = Resource(ResourceType.GROUP if kind == "group" else ResourceType.BROKER, name)
    entries = admin.describe_config(resource, documentation=True)
    return [(entry.name, entry.documentation or "") for entry in entries.values() if not entry.is_read_only]


def _config_pairs(context: click.Context, incomplete: str) -> Iterable[tuple[str, str]]:
    words = context.params.get("words") or ()
    pairs = _config_settings(context, incomplete)
    if not words and context.params.get("kind") != "cluster":
        return pairs
    return [(value if "=" in value else f"{value}=", help) for value, help in pairs]


config_names = completion(_config_names)
config_settings = completion(_config_settings)
config_pairs = completion(_config_pairs)
topic_names = completion(_topics)
group_names = completion(_groups)
transactional_ids = completion(_transactional_ids)
broker_ids = completion(_brokers)
topic_settings = completion(_topic_settings)
topic_setting_pairs = completion(_topic_pairs)
