"""Changes of settings, for `ottla topic alter` and `ottla config set|delete`.

A change is reported with the effective value before and after it: after deleting a topic's override, that is the broker's value. In a dry
run the cluster validates the changes and applies none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

import ottla
from ottla.base.options import suggestion
from ottla.cli.common import tables
from ottla.cli.common.arguments import readable_setting, setting_value
from ottla.cli.common.output_formats import OutputFormat, note
from ottla.cli.common.profiles import argument_value
from ottla.cli.common.tables import Column
from ottla.client.admin.results import ConfigChange, ConfigEntry, ConfigOperation, ConfigSource, ConfigSynonym, Resource, ResourceType
from ottla.wire.errors import KafkaError

#: Units of Kafka's settings that are synonyms of each other.
TIMES = {"ms", "seconds", "minutes", "hours"}
HIDDEN = "(hidden)"
RESOURCES = "topic, broker, cluster, group, client-metrics or broker-logger"
CHANGE = {
    "resource": RESOURCES,
    "name": "name of the resource; null for the cluster",
    "setting": "name of the setting, or partitions",
    "before": "effective value before; null: none, or a secret",
    "after": "effective value after; null: none, a secret, or unknown",
    "outcome": "set, deleted, would be set, would be deleted; null: failed",
    "error": "null, or {code, message}: the protocol's error code and a message",
}


def setting_cell(name: str, value: str | None) -> str | None:
    """A setting's value as a cell: with larger units on a terminal, unchanged in a pipe."""
    return readable_setting(name, value) if tables.is_terminal() else value


COLUMNS = (
    Column("NAME", lambda row: row["name"] or row["resource"]),
    Column("SETTING", "setting"),
    Column("BEFORE", lambda row: setting_cell(row["setting"], row["before"])),
    Column("AFTER", lambda row: setting_cell(row["setting"], row["after"])),
    Column("OUTCOME", lambda row: row["outcome"] or "failed", colour=lambda row: None if row["outcome"] else "red"),
)


def resource_label(resource: Resource) -> tuple[str, str | None]:
    """(type, name) of a resource as on the command line."""
    if resource.type is ResourceType.BROKER and not resource.name:
        return "cluster", None
    return resource.type.name.lower().replace("_", "-"), resource.name


def read_pairs(pairs: Iterable[str], option: str) -> list[ConfigChange]:
    """Changes from `NAME=VALUE`, and for lists `NAME+=VALUE` and `NAME-=VALUE`. Raises: UsageError."""
    changes = []
    for pair in pairs:
        name, equals, value = pair.partition("=")
        operation = {"+": ConfigOperation.APPEND, "-": ConfigOperation.SUBTRACT}.get(name[-1:], ConfigOperation.SET)
        name = name if operation is ConfigOperation.SET else name[:-1]
        if not name or not equals:
            raise click.UsageError(f"{option} expects NAME=VALUE, not {pair!r}")
        changes.append(ConfigChange(name, setting_value(name, argument_value(name, value)), operation))
    return changes


def deletions(names: Iterable[str]) -> list[ConfigChange]:
    """Changes that delete overrides."""
    return [ConfigChange(name, None, ConfigOperation.DELETE) for name in names]


def change(admin: ottla.Admin, resources: Sequence[Resource], changes: Sequence[ConfigChange], *, dry: bool) -> list[dict[str, Any]]:
    """Applies the changes to each resource, or only validates them. Returns a document per change. Raises: ClickException, KafkaError."""
    current = {resource: _current_entries(admin, resource, changes) for resource in resources}
    outcomes = admin.incremental_alter_configs(dict.fromkeys(resources, changes), validate_only=dry)
    documents = []
    for resource in resources:
        outcome = outcomes[resource]
        error = outcome if isinstance(outcome, KafkaError) else None
        documents += [_document(resource, one, current[resource].get(one.name), error, dry=dry) for one in changes]
    return documents


def show(documents: Sequence[dict[str, Any]], output: OutputFormat, *, dry: bool) -> None:
    """Prints documents of changes, and errors to stderr. Exits with 1 if a change failed."""
    output.show(documents, COLUMNS)
    failed = {(" ".join(filter(None, (row["resource"], row["name"]))), row["error"]["message"]) for row in documents if row["error"]}
    if not output.is_structured:
        for name, message in sorted(failed):
            note(f"Error: {name}: {' '.join(message.split())}")
    if dry:
        note("Nothing was changed.")
    if failed:
        raise SystemExit(1)


def _current_entries(admin: ottla.Admin, resource: Resource, changes: Sequence[ConfigChange]) -> dict[str, ConfigEntry]:
    """The current settings. Raises: KafkaError; ClickException for an unknown setting."""
    queried = resource
    if resource == Resource.broker(None):
        # The cluster resource lists only overrides; any broker also lists the other settings.
        queried = Resource.broker(min(node.id for node in admin.describe_cluster().nodes))
    entries = admin.describe_config(queried, synonyms=True)
    if entries and resource.type in (ResourceType.TOPIC, ResourceType.BROKER):
        for one in changes:
            if one.name not in entries and not one.name.startswith("listener.name.") and (near := suggestion(one.name, entries)):
                raise click.ClickException(f"{one.name}: unknown setting{near}")
    return entries


def _document(resource: Resource, one: ConfigChange, current: ConfigEntry | None, error: KafkaError | None, *, dry: bool) -> dict[str, Any]:
    kind, name = resource_label(resource)
    verb = "deleted" if one.operation is ConfigOperation.DELETE else "set"
    secret = current is not None and current.is_sensitive
    return {
        "resource": kind,
        "name": name,
        "setting": one.name,
        "before": None if current is None else current.value,
        "after": None if secret or error is not None else after(resource, one, current),
        "outcome": None if error is not None else f"would be {verb}" if dry else verb,
        "error": None if error is None else {"code": error.code, "message": str(error)},
    }


def after(resource: Resource, one: ConfigChange, current: ConfigEntry | None) -> str | None:
    """The effective value after a change; None if there is none or it is unknown."""
    before = current.value if current is not None else None
    match one.operation:
        case ConfigOperation.SET:
            return one.value
        case ConfigOperation.DELETE:
            others = [] if current is None else [other for other in current.synonyms if other.source not in _own(resource)]
            return synonym_text(one.name, others[0]) if others else None
        case _:
            parts = [part for part in (before or "").split(",") if part]
            named = [part for part in (one.value or "").split(",") if part]
            kept = [part for part in parts if part not in named]
            return ",".join([*parts, *(part for part in named if part not in parts)] if one.operation is ConfigOperation.APPEND else kept)


def synonym_text(name: str, synonym: ConfigSynonym) -> str | None:
    """A synonym's value; with its name if the unit differs, as log.retention.hours for retention.ms."""
    units = {name.rpartition(".")[2], synonym.name.rpartition(".")[2]}
    other = len(units) > 1 and TIMES & units
    return f"{synonym.name}={synonym.value}" if other and synonym.value is not None else synonym.value


def _own(resource: Resource) -> tuple[int, ...]:
    """The sources of a resource's overrides."""
    if resource.type is ResourceType.BROKER:
        # Settings of one broker override those of the cluster, so both are removed from the synonyms of the cluster.
        return (ConfigSource.DYNAMIC_BROKER,) if resource.name else (ConfigSource.DYNAMIC_BROKER, ConfigSource.DYNAMIC_DEFAULT_BROKER)
    own: Mapping[ResourceType, ConfigSource] = {
        ResourceType.TOPIC: ConfigSource.TOPIC,
        ResourceType.GROUP: ConfigSource.GROUP,
        ResourceType.CLIENT_METRICS: ConfigSource.CLIENT_METRICS,
        ResourceType.BROKER_LOGGER: ConfigSource.DYNAMIC_BROKER_LOGGER,
    }
    return (own.get(resource.type, ConfigSource.UNKNOWN),)
