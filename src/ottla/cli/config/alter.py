"""Changes of settings: what each would do, and doing it. `ottla topic alter` and `ottla config set|delete` share it.

A change is told as what holds before and what holds after it, wherever that comes from: deleting a topic's own value brings back the
broker's. A dry run has the cluster check the changes, and make none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from ottla.base.options import suggestion
from ottla.cli.common import tables
from ottla.cli.common.arguments import explained, setting_value
from ottla.cli.common.output_formats import Form, note
from ottla.cli.common.tables import Column

if TYPE_CHECKING:
    from ottla.client.admin.results import ConfigChange, ConfigEntry, ConfigSynonym, Resource
    from ottla.client.sync.admin import Admin
    from ottla.wire.errors import KafkaError

#: Units in which Kafka has settings for the same time.
TIMES = {"ms", "seconds", "minutes", "hours"}
HIDDEN = "(hidden)"
CHANGE = {
    "resource": "topic, broker, cluster, group or client-metrics",
    "name": "its name; null for the cluster",
    "setting": "the setting, or partitions",
    "before": "what held; null: nothing, or a secret",
    "after": "what holds now, or would; null: nothing, a secret, or not known",
    "outcome": "set, deleted, would be set, would be deleted; null: it failed",
    "error": "null, or {code, message}: the protocol's error code and a sentence",
}


def shown(name: str, value: str | None) -> str | None:
    """A setting's value as a cell: with an explanation for a person, as it is for a pipe."""
    return explained(name, value) if tables.is_terminal() else value


COLUMNS = (
    Column("NAME", lambda row: row["name"] or row["resource"]),
    Column("SETTING", "setting"),
    Column("BEFORE", lambda row: shown(row["setting"], row["before"])),
    Column("AFTER", lambda row: shown(row["setting"], row["after"])),
    Column("OUTCOME", lambda row: row["outcome"] or "failed", colour=lambda row: None if row["outcome"] else "red"),
)


def resource_words(resource: Resource) -> tuple[str, str | None]:
    """What a resource is called on the command line, and its name."""
    from ottla.client.admin.results import ResourceType

    if resource.type is ResourceType.BROKER and not resource.name:
        return "cluster", None
    return resource.type.name.lower().replace("_", "-"), resource.name


def read_pairs(pairs: Iterable[str], option: str) -> list[ConfigChange]:
    """Changes of `NAME=VALUE`, and of lists `NAME+=VALUE` and `NAME-=VALUE`. Raises: UsageError."""
    from ottla.client.admin.results import ConfigChange, ConfigOperation

    found = []
    for pair in pairs:
        name, equals, value = pair.partition("=")
        operation = {"+": ConfigOperation.APPEND, "-": ConfigOperation.SUBTRACT}.get(name[-1:], ConfigOperation.SET)
        name = name if operation is ConfigOperation.SET else name[:-1]
        if not name or not equals:
            raise click.UsageError(f"{option} expects NAME=VALUE, not {pair!r}")
        found.append(ConfigChange(name, setting_value(name, value), operation))
    return found


def deletions(names: Iterable[str]) -> list[ConfigChange]:
    """Changes that set settings back."""
    from ottla.client.admin.results import ConfigChange, ConfigOperation

    return [ConfigChange(name, None, ConfigOperation.DELETE) for name in names]


def change(admin: Admin, resources: Sequence[Resource], changes: Sequence[ConfigChange], *, dry: bool) -> list[dict[str, Any]]:
    """Make the same changes on each resource, or only check them; a document per change. Raises: ClickException, KafkaError."""
    from ottla.wire.errors import KafkaError

    held = {resource: _held(admin, resource, changes) for resource in resources}
    outcomes = admin.incremental_alter_configs(dict.fromkeys(resources, changes), validate_only=dry)
    documents = []
    for resource in resources:
        outcome = outcomes[resource]
        error = outcome if isinstance(outcome, KafkaError) else None
        documents += [_document(resource, one, held[resource].get(one.name), error, dry=dry) for one in changes]
    return documents


def show(documents: Sequence[dict[str, Any]], output: Form, *, dry: bool) -> None:
    """The documents of changes; failures on stderr and as the exit code."""
    output.show(documents, COLUMNS)
    failed = {(" ".join(filter(None, (row["resource"], row["name"]))), row["error"]["message"]) for row in documents if row["error"]}
    if not output.for_programs:
        for name, message in sorted(failed):
            note(f"Error: {name}: {' '.join(message.split())}")
    if dry:
        note("Nothing was changed.")
    if failed:
        raise SystemExit(1)


def _held(admin: Admin, resource: Resource, changes: Sequence[ConfigChange]) -> dict[str, ConfigEntry]:
    """What holds now. Raises: KafkaError; ClickException for a setting that there is not."""
    from ottla.client.admin.results import Resource as R
    from ottla.client.admin.results import ResourceType
    from ottla.wire.errors import KafkaError

    asked = resource
    if resource == R.broker(None):
        # The cluster tells only what is set; any broker has the others.
        asked = R.broker(min(node.id for node in admin.describe_cluster().nodes))
    entries = admin.describe_configs([asked], synonyms=True)[asked]
    if isinstance(entries, KafkaError):
        raise entries
    if entries and resource.type in (ResourceType.TOPIC, ResourceType.BROKER):
        for one in changes:
            if one.name not in entries and (near := suggestion(one.name, entries)):
                raise click.ClickException(f"{one.name}: unknown setting{near}")
    return entries


def _document(resource: Resource, one: ConfigChange, held: ConfigEntry | None, error: KafkaError | None, *, dry: bool) -> dict[str, Any]:
    from ottla.client.admin.results import ConfigOperation

    kind, name = resource_words(resource)
    verb = "deleted" if one.operation is ConfigOperation.DELETE else "set"
    secret = held is not None and held.is_sensitive
    return {
        "resource": kind,
        "name": name,
        "setting": one.name,
        "before": None if held is None else held.value,
        "after": None if secret or error is not None else after(resource, one, held),
        "outcome": None if error is not None else f"would be {verb}" if dry else verb,
        "error": None if error is None else {"code": error.code, "message": str(error)},
    }


def after(resource: Resource, one: ConfigChange, held: ConfigEntry | None) -> str | None:
    """What holds after a change; None where that is nothing, or not known."""
    from ottla.client.admin.results import ConfigOperation

    before = held.value if held is not None else None
    match one.operation:
        case ConfigOperation.SET:
            return one.value
        case ConfigOperation.DELETE:
            others = [] if held is None else [other for other in held.synonyms if other.source not in _own(resource)]
            return said(one.name, others[0]) if others else None
        case _:
            parts = [part for part in (before or "").split(",") if part]
            named = [part for part in (one.value or "").split(",") if part]
            kept = [part for part in parts if part not in named]
            return ",".join([*parts, *(part for part in named if part not in parts)] if one.operation is ConfigOperation.APPEND else kept)


def said(name: str, synonym: ConfigSynonym) -> str | None:
    """A synonym's value for a setting; with its name where that has another unit, as log.retention.hours for retention.ms."""
    units = {name.rpartition(".")[2], synonym.name.rpartition(".")[2]}
    other = len(units) > 1 and TIMES & units
    return f"{synonym.name}={synonym.value}" if other and synonym.value is not None else synonym.value


def _own(resource: Resource) -> tuple[int, ...]:
    """The sources of a resource's own values."""
    from ottla.client.admin.results import ConfigSource, ResourceType

    if resource.type is ResourceType.BROKER:
        # What is set for the cluster stands below what is set for one broker, and the other way round hides nothing.
        return (ConfigSource.DYNAMIC_BROKER,) if resource.name else (ConfigSource.DYNAMIC_BROKER, ConfigSource.DYNAMIC_DEFAULT_BROKER)
    own: Mapping[ResourceType, ConfigSource] = {
        ResourceType.TOPIC: ConfigSource.TOPIC,
        ResourceType.GROUP: ConfigSource.GROUP,
        ResourceType.CLIENT_METRICS: ConfigSource.CLIENT_METRICS,
    }
    return (own.get(resource.type, ConfigSource.UNKNOWN),)
