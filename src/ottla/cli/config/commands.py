"""`ottla config`: describe, set, delete and list settings of topics, brokers, the cluster and groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import click

import ottla
from ottla.base.options import suggestion
from ottla.cli.common.admin import admin_client, admin_options
from ottla.cli.common.complete import config_names, config_pairs, config_settings
from ottla.cli.common.confirmation import dry_run_option
from ottla.cli.common.lazy import CommandGroup
from ottla.cli.common.output_formats import OutputFormat, fields, note
from ottla.cli.common.tables import Column
from ottla.cli.config import alter
from ottla.cli.config.alter import HIDDEN, resource_label, setting_cell, synonym_text
from ottla.cli.topic.lookup import topic_error
from ottla.client.admin.results import ClusterDescription, ConfigEntry, Resource, ResourceType
from ottla.wire.errors import KafkaError

#: Types of resources: a topic, one broker, all brokers, a group (consumer protocol), a client metrics subscription, a broker's loggers.
KINDS = ("topic", "broker", "cluster", "group", "client-metrics", "broker-logger")
SETTING = {
    "resource": alter.RESOURCES,
    "name": "name of the resource; null for the cluster",
    "setting": "name of the setting",
    "value": "value as text; null: none, or a secret",
    "source": "where it is set: topic, dynamic_broker, dynamic_default_broker (cluster), static_broker (broker's file), group, "
    "client_metrics, dynamic_broker_logger, default",
    "default": "default value; null: unknown",
    "type": "boolean, string, int, long, double, list, password",
    "sensitive": "whether it is a secret",
    "read_only": "whether a change needs a restart",
    "documentation": "description",
    "synonyms[].name": "settings that can set the value, by precedence: name",
    "synonyms[].value": "value of the synonym",
    "synonyms[].source": "where the synonym is set",
}


def _colour(row: Any) -> str | None:
    return "dim" if row["source"] == "default" else None


COLUMNS = (
    Column("SETTING", "setting", colour=_colour),
    Column("VALUE", lambda row: HIDDEN if row["sensitive"] else setting_cell(row["setting"], row["value"]), colour=_colour),
    Column("SOURCE", "source", colour=_colour),
    Column("DEFAULT", lambda row: setting_cell(row["setting"], row["default"]), colour=lambda row: "dim"),
    Column("TYPE", "type", wide=True),
    Column("CHANGES", lambda row: "at restart" if row["read_only"] else "at any time", wide=True),
    Column("DOCUMENTATION", "documentation", wide=True),
)
kind_argument = click.argument("kind", type=click.Choice(KINDS), metavar="|".join(KINDS))


@click.group(name="config", cls=CommandGroup)
def command() -> None:
    """Describe and change settings of topics, brokers, the cluster (all brokers) and groups."""


@fields(SETTING)
@command.command()
@kind_argument
@click.argument("names", nargs=-1, metavar="[NAME...]", shell_complete=config_names)
@click.option("-a", "--all", "everything", is_flag=True, help="Include settings with their default value.")
@click.option("-s", "--setting", "patterns", multiple=True, metavar="PATTERN", help="Only these, such as 'retention.*'; repeatable.")
@admin_options
def describe(kind: str, names: tuple[str, ...], everything: bool, patterns: tuple[str, ...], output: OutputFormat, bootstrap: str) -> None:
    """Show overridden settings, or all, with their sources. With -o wide also their documentation."""
    describe_settings(kind, names, everything, patterns, output, bootstrap)


def describe_settings(
    kind: str, names: tuple[str, ...], everything: bool, patterns: tuple[str, ...], output: OutputFormat, bootstrap: str
) -> None:
    """Prints the settings of resources."""
    with admin_client(bootstrap) as admin:
        resources = _resources(kind, names)
        if kind in ("broker", "broker-logger"):
            existing_brokers(admin.describe_cluster(), map(int, names))
        found = config_entries(admin, resources)
    documents: list[dict[str, Any]] = []
    for resource, entries in found.items():
        idle = [pattern for pattern in patterns if not any(fnmatchcase(name, pattern) for name in entries)]
        if idle and entries:
            raise click.ClickException(f"{idle[0]}: unknown setting{suggestion(idle[0], entries)}")
        documents += [
            _document(resource, entry)
            for name, entry in sorted(entries.items())
            if everything or (any(fnmatchcase(name, one) for one in patterns) if patterns else entry.source.name != "DEFAULT")
        ]
    if output.is_structured:
        output.document(documents)
        return
    for resource in found:
        _print(resource, [row for row in documents if (row["resource"], row["name"]) == resource_label(resource)], output)


def _print(resource: Resource, rows: list[dict[str, Any]], output: OutputFormat) -> None:
    label = " ".join(filter(None, resource_label(resource)))
    if rows:
        output.table(rows, COLUMNS, title=label, prefix=("NAME", resource_label(resource)[1] or label))
    else:
        note(f"{label}: no overrides. Show all settings with --all.")


def _resources(kind: str, names: Sequence[str]) -> list[Resource]:
    """Raises: UsageError."""
    if kind == "cluster":
        if names:
            raise click.UsageError(f"cluster takes no name: remove {names[0]!r}")
        return [Resource.broker(None)]
    if not names:
        raise click.UsageError(f"missing the name of a {kind}")
    if kind in ("broker", "broker-logger") and (wrong := [name for name in names if not name.isdecimal()]):
        raise click.UsageError(f"expected a broker id, not {wrong[0]!r}")
    return [Resource(ResourceType[kind.upper().replace("-", "_")], name) for name in dict.fromkeys(names)]


def existing_brokers(cluster: ClusterDescription, ids: Iterable[int]) -> list[int]:
    """These brokers, or all if `ids` is empty. Raises: ClickException, if one is not in the cluster."""
    alive = sorted(node.id for node in cluster.nodes)
    ids = set(ids)
    if missing := sorted(ids - set(alive)):
        raise click.ClickException(f"broker {missing[0]} does not exist or is down; brokers are {', '.join(map(str, alive))}")
    return sorted(ids) or alive


def config_entries(admin: ottla.Admin, resources: Sequence[Resource]) -> dict[Resource, dict[str, ConfigEntry]]:
    """Settings of resources, with synonyms and documentation. Raises: ClickException, KafkaError."""
    found = {}
    for resource, entries in admin.describe_configs(resources, synonyms=True, documentation=True).items():
        if isinstance(entries, KafkaError):
            if resource.type is ResourceType.TOPIC:
                raise topic_error(admin, resource.name, entries)
            raise type(entries)(f"{' '.join(filter(None, resource_label(resource)))}: {entries}")
        found[resource] = entries
    return found


def _document(resource: Resource, entry: ConfigEntry) -> dict[str, Any]:
    kind, name = resource_label(resource)
    default = next((synonym_text(entry.name, one) for one in entry.synonyms if one.source.name == "DEFAULT"), None)
    return {
        "resource": kind,
        "name": name,
        "setting": entry.name,
        "value": entry.value,
        "source": entry.source.name.lower(),
        "default": entry.value if default is None and entry.source.name == "DEFAULT" else default,
        "type": entry.config_type.name.lower(),
        "sensitive": entry.is_sensitive,
        "read_only": entry.is_read_only,
        "documentation": entry.documentation,
        "synonyms": [{"name": one.name, "value": one.value, "source": one.source.name.lower()} for one in entry.synonyms],
    }


@fields(alter.CHANGE)
@command.command(name="set")
@kind_argument
@click.argument("words", nargs=-1, required=True, metavar="[NAME...] KEY=VALUE...", shell_complete=config_pairs)
@dry_run_option
@admin_options
def set_(kind: str, words: tuple[str, ...], dry_run: bool, output: OutputFormat, bootstrap: str) -> None:
    """Set settings, such as: topic orders retention.ms=7d. KEY+=VALUE appends to a list, KEY-=VALUE removes from it.

    With --dry-run the cluster validates the change and nothing is set.
    """
    names, pairs = [word for word in words if "=" not in word], [word for word in words if "=" in word]
    if not pairs:
        raise click.UsageError("missing a setting: KEY=VALUE")
    _change(_resources(kind, names), alter.read_pairs(pairs, "KEY=VALUE"), dry_run, output, bootstrap)


@fields(alter.CHANGE)
@command.command()
@kind_argument
@click.argument("words", nargs=-1, required=True, metavar="[NAME] KEY...", shell_complete=config_settings)
@dry_run_option
@admin_options
def delete(kind: str, words: tuple[str, ...], dry_run: bool, output: OutputFormat, bootstrap: str) -> None:
    """Delete settings, so that the default applies."""
    names, settings = ((), words) if kind == "cluster" else (words[:1], words[1:])
    if not settings:
        raise click.UsageError("missing the names of settings")
    if wrong := [word for word in settings if "=" in word]:
        raise click.UsageError(f"expected the name of a setting, not {wrong[0]!r}")
    _change(_resources(kind, names), alter.deletions(settings), dry_run, output, bootstrap)


def _change(resources: Sequence[Resource], changes: Sequence[Any], dry_run: bool, output: OutputFormat, bootstrap: str) -> None:
    with admin_client(bootstrap) as admin:
        documents = alter.change(admin, resources, changes, dry=dry_run)
    alter.show(documents, output, dry=dry_run)


LISTED = (Column("RESOURCE", "resource"), Column("NAME", "name"))


@fields(resource=alter.RESOURCES, name="name of the resource; null for the cluster")
@command.command(name="list")
@click.argument("kinds", nargs=-1, type=click.Choice(KINDS), metavar="[KIND...]")
@admin_options
def list_(kinds: tuple[str, ...], output: OutputFormat, bootstrap: str) -> None:
    """List the resources that can have settings."""
    with admin_client(bootstrap) as admin:
        found = sorted(resource_label(resource) for resource in admin.list_config_resources())
    output.show([{"resource": kind, "name": name} for kind, name in found if not kinds or kind in kinds], LISTED)
