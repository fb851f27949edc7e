"""What may come next on the command line: names of topics, groups, brokers, settings and profiles, asked of the cluster that is meant.

A shell waits while this runs, so a cluster has a second to answer; whatever goes wrong, nothing is offered and nothing is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from ottla.client.sync.admin import Admin

#: Milliseconds that a cluster has.
PATIENCE_MS = 1_000
Completion = Callable[[click.Context, click.Parameter, str], list["CompletionItem"]]


def _silent(found: Callable[[click.Context, str], Iterable[tuple[str, str]]]) -> Completion:
    """A completion from (value, help) pairs, which offers nothing when it fails. Values given already are left out."""

    def offered(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        given = context.params.get(parameter.name or "")
        before = set(given) if isinstance(given, list | tuple) else set()
        try:
            pairs = sorted(found(context, incomplete))
        except (Exception, SystemExit):
            # The person sees the reason when the command itself is run.
            return []
        return [CompletionItem(value, help=says or None) for value, says in pairs if value.startswith(incomplete) and value not in before]

    return offered


def _asked(context: click.Context, question: Callable[[Admin], Iterable[tuple[str, str]]]) -> list[tuple[str, str]]:
    """Ask the cluster that the line names so far."""
    import logging

    from ottla.cli.common.connection import named_profile, place
    from ottla.client.options import AdminOptions
    from ottla.client.sync.admin import Admin

    where = place(context.params.get("bootstrap"), named_profile(context))
    known = {spec.attribute for spec in AdminOptions.SPECS.values()}
    settings: dict[str, Any] = {
        **{name: value for name, value in where.settings.items() if name in known},
        "client_id": "ottla-completion",
        "retries": 0,
        "default_api_timeout_ms": PATIENCE_MS,
        "request_timeout_ms": PATIENCE_MS,
        "socket_connection_setup_timeout_ms": PATIENCE_MS,
    }
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with Admin(bootstrap_servers=where.bootstrap, **settings) as admin:
            return list(question(admin))
    finally:
        logging.disable(before)


def _topics(context: click.Context, incomplete: str) -> Iterable[tuple[str, str]]:
    return _asked(
        context,
        lambda admin: ((one.name, f"{one.partition_count} partitions") for one in admin.list_topics(internal=incomplete.startswith("_"))),
    )


def _groups(context: click.Context, incomplete: str) -> Iterable[tuple[str, str]]:
    return _asked(context, lambda admin: ((one.group_id, one.state.value) for one in admin.list_groups()))


def _brokers(context: click.Context, incomplete: str) -> Iterable[tuple[str, str]]:
    return _asked(context, lambda admin: ((str(node.id), f"{node.host}:{node.port}") for node in admin.describe_cluster().nodes))


def _profiles(context: click.Context, incomplete: str) -> Iterable[tuple[str, str]]:
    from ottla.cli.common.profiles import read

    return [(name, profile.settings.get("bootstrap_servers", "")) for name, profile in read().by_name.items()]


def _topic_settings(context: click.Context, incomplete: str) -> Iterable[tuple[str, str]]:
    """Settings of topics, as this version knows them: no cluster is asked."""
    from ottla.log.options import TopicOptions

    name, equals, _ = incomplete.partition("=")
    if equals:
        spec = TopicOptions.SPECS.get(name)
        values = (spec.choices or ("true", "false") * (spec.kind.name == "BOOLEAN")) if spec else ()
        return [(f"{name}={value}", "") for value in values]
    return [(spec.name, spec.doc) for spec in TopicOptions.SPECS.values()]


def _topic_pairs(context: click.Context, incomplete: str) -> Iterable[tuple[str, str]]:
    return [(value if "=" in value else f"{value}=", says) for value, says in _topic_settings(context, incomplete)]


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
    """What has settings comes first, then these."""
    kind, words = context.params.get("kind"), context.params.get("words") or ()
    if kind != "cluster" and not words:
        return _config_names(context, incomplete)
    if kind == "topic":
        return _topic_settings(context, incomplete)
    return _asked(context, lambda admin: _told_settings(admin, str(kind), str(words[0]) if words else ""))


def _told_settings(admin: Admin, kind: str, name: str) -> list[tuple[str, str]]:
    """Settings that can be changed, as a broker tells them."""
    from ottla.client.admin.results import Resource, ResourceType

    if kind == "cluster":
        name = str(min(node.id for node in admin.describe_cluster().nodes))
    resource = Resource(ResourceType.GROUP if kind == "group" else ResourceType.BROKER, name)
    entries = admin.describe_configs([resource], documentation=True)[resource]
    assert isinstance(entries, dict), "an error is no answer"
    return [(entry.name, entry.documentation or "") for entry in entries.values() if not entry.is_read_only]


def _config_pairs(context: click.Context, incomplete: str) -> Iterable[tuple[str, str]]:
    words = context.params.get("words") or ()
    found = _config_settings(context, incomplete)
    return (
        [(value if "=" in value else f"{value}=", says) for value, says in found]
        if words or context.params.get("kind") == "cluster"
        else found
    )


config_names = _silent(_config_names)
config_settings = _silent(_config_settings)
config_pairs = _silent(_config_pairs)
topic_names = _silent(_topics)
group_names = _silent(_groups)
broker_ids = _silent(_brokers)
profile_names = _silent(_profiles)
topic_settings = _silent(_topic_settings)
topic_setting_pairs = _silent(_topic_pairs)
