"""`ottla config`: settings of topics, brokers, the cluster, and groups: describe, set, delete, list."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import click

from ottla.base.options import suggestion
from ottla.cli.common.complete import config_names, config_pairs, config_settings
from ottla.cli.common.confirmation import dry_run_option
from ottla.cli.common.connection import admin as connected
from ottla.cli.common.connection import bootstrap_option
from ottla.cli.common.errors import told
from ottla.cli.common.lazy import Commands
from ottla.cli.common.output_formats import Form, fields, note, output_option
from ottla.cli.common.tables import Column
from ottla.cli.config import alter
from ottla.cli.config.alter import HIDDEN, resource_words, said, shown
from ottla.cli.topic.lookup import no_topic

if TYPE_CHECKING:
    from ottla.client.admin.results import ClusterDescription, ConfigEntry, Resource
    from ottla.client.sync.admin import Admin

#: What has settings: a topic, one broker, all brokers, a group of the new protocol, a subscription to clients' metrics.
KINDS = ("topic", "broker", "cluster", "group", "client-metrics")
SETTING = {
    "resource": "topic, broker, cluster, group or client-metrics",
    "name": "its name; null for the cluster",
    "setting": "the setting's name",
    "value": "its value as text; null: none, or a secret",
    "source": "who set it: topic, dynamic_broker, dynamic_default_broker (the cluster), static_broker (the broker's file), group, default",
    "default": "what holds where nobody sets it; null: not known",
    "type": "boolean, string, int, long, double, list, password",
    "sensitive": "whether it is a secret",
    "read_only": "whether it only changes with a restart",
    "documentation": "what it is for",
    "synonyms[].name": "settings that could give the value, the first that is set does: its name",
    "synonyms[].value": "its value",
    "synonyms[].source": "who set it",
}


def _colour(row: Any) -> str | None:
    return "dim" if row["source"] == "default" else None


COLUMNS = (
    Column("SETTING", "setting", colour=_colour),
    Column("VALUE", lambda row: HIDDEN if row["sensitive"] else shown(row["setting"], row["value"]), colour=_colour),
    Column("SOURCE", "source", colour=_colour),
    Column("DEFAULT", lambda row: shown(row["setting"], row["default"]), colour=lambda row: "dim"),
    Column("TYPE", "type", wide=True),
    Column("CHANGES", lambda row: "at a restart" if row["read_only"] else "at any time", wide=True),
    Column("ABOUT", "documentation", wide=True),
)
kind_argument = click.argument("kind", type=click.Choice(KINDS), metavar="|".join(KINDS))


@click.group(name="config", cls=Commands)
def command() -> None:
    """Look at settings and change them: of a topic, of a broker, of the cluster (all brokers), of a group."""


@fields(SETTING)
@command.command()
@kind_argument
@click.argument("names", nargs=-1, metavar="[NAME...]", shell_complete=config_names)
@click.option("-a", "--all", "everything", is_flag=True, help="Settings that have their default too.")
@click.option(
    "-s", "--setting", "patterns", multiple=True, metavar="PATTERN", help="These, say 'retention.*', whoever set them; may be repeated."
)
@output_option
@bootstrap_option
def describe(kind: str, names: tuple[str, ...], everything: bool, patterns: tuple[str, ...], output: Form, bootstrap: str) -> None:
    """Show settings with their source and default: those that somebody set, or all. With -o wide also what they are for."""
    described(kind, names, everything, patterns, output, bootstrap)


def described(kind: str, names: tuple[str, ...], everything: bool, patterns: tuple[str, ...], output: Form, bootstrap: str) -> None:
    """What `ottla config describe` prints."""
    with told(), connected(bootstrap) as admin:
        resources = _resources(kind, names)
        if kind == "broker":
            brokers_there(admin.describe_cluster(), map(int, names))
        found = entries_of(admin, resources)
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
    if output.for_programs:
        output.document(documents)
        return
    for resource in found:
        _print(resource, [row for row in documents if (row["resource"], row["name"]) == resource_words(resource)], output)


def _print(resource: Resource, rows: list[dict[str, Any]], output: Form) -> None:
    label = " ".join(filter(None, resource_words(resource)))
    if rows:
        output.table(rows, COLUMNS, title=label, prefix=("NAME", resource_words(resource)[1] or label))
    else:
        note(f"{label}: nobody set anything; --all shows every setting with its default.")


def _resources(kind: str, names: Sequence[str]) -> list[Resource]:
    """Raises: UsageError."""
    from ottla.client.admin.results import Resource, ResourceType

    if kind == "cluster":
        if names:
            raise click.UsageError(f"there is one cluster: leave {names[0]!r} out")
        return [Resource.broker(None)]
    if not names:
        raise click.UsageError(f"say which {kind}")
    if kind == "broker" and (wrong := [name for name in names if not name.isdecimal()]):
        raise click.UsageError(f"a broker is named by its number, not {wrong[0]!r}")
    return [Resource(ResourceType[kind.upper().replace("-", "_")], name) for name in dict.fromkeys(names)]


def brokers_there(cluster: ClusterDescription, wanted: Iterable[int]) -> list[int]:
    """These brokers, which must be there, or all. Raises: ClickException."""
    there = sorted(node.id for node in cluster.nodes)
    if missing := sorted(set(wanted) - set(there)):
        raise click.ClickException(f"there is no broker {missing[0]}, or it is down; there are {', '.join(map(str, there))}")
    return sorted(set(wanted)) or there


def entries_of(admin: Admin, resources: Sequence[Resource]) -> dict[Resource, dict[str, ConfigEntry]]:
    """Settings of what has some, with all that is to be known of them. Raises: ClickException, KafkaError."""
    from ottla.client.admin.results import ResourceType
    from ottla.wire.errors import KafkaError

    found = {}
    for resource, entries in admin.describe_configs(resources, synonyms=True, documentation=True).items():
        if isinstance(entries, KafkaError):
            if resource.type is ResourceType.TOPIC:
                raise no_topic(admin, resource.name, entries)
            raise type(entries)(f"{' '.join(filter(None, resource_words(resource)))}: {entries}")
        found[resource] = entries
    return found


def _document(resource: Resource, entry: ConfigEntry) -> dict[str, Any]:
    kind, name = resource_words(resource)
    default = next((said(entry.name, one) for one in entry.synonyms if one.source.name == "DEFAULT"), None)
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
@output_option
@bootstrap_option
def set_(kind: str, words: tuple[str, ...], dry_run: bool, output: Form, bootstrap: str) -> None:
    """Set settings, say: topic orders retention.ms=7d. KEY+=VALUE adds to a list, KEY-=VALUE takes away from it.

    A dry run has the cluster check them, and shows what would change.
    """
    names, pairs = [word for word in words if "=" not in word], [word for word in words if "=" in word]
    if not pairs:
        raise click.UsageError("say what to set: KEY=VALUE")
    _change(_resources(kind, names), alter.read_pairs(pairs, "KEY=VALUE"), dry_run, output, bootstrap)


@fields(alter.CHANGE)
@command.command()
@kind_argument
@click.argument("words", nargs=-1, required=True, metavar="[NAME] KEY...", shell_complete=config_settings)
@dry_run_option
@output_option
@bootstrap_option
def delete(kind: str, words: tuple[str, ...], dry_run: bool, output: Form, bootstrap: str) -> None:
    """Set settings back to what holds without them."""
    names, settings = ((), words) if kind == "cluster" else (words[:1], words[1:])
    if not settings:
        raise click.UsageError("say which settings")
    if wrong := [word for word in settings if "=" in word]:
        raise click.UsageError(f"only the names of settings are given, not {wrong[0]!r}")
    _change(_resources(kind, names), alter.deletions(settings), dry_run, output, bootstrap)


def _change(resources: Sequence[Resource], changes: Sequence[Any], dry_run: bool, output: Form, bootstrap: str) -> None:
    with told(), connected(bootstrap) as admin:
        documents = alter.change(admin, resources, changes, dry=dry_run)
    alter.show(documents, output, dry=dry_run)


LISTED = (Column("RESOURCE", "resource"), Column("NAME", "name"))


@fields(resource="topic, broker, cluster, group or client-metrics", name="its name; null for the cluster")
@command.command(name="list")
@click.argument("kinds", nargs=-1, type=click.Choice(KINDS), metavar="[KIND...]")
@output_option
@bootstrap_option
def list_(kinds: tuple[str, ...], output: Form, bootstrap: str) -> None:
    """List what may have settings of its own: topics, brokers, groups."""
    with told(), connected(bootstrap) as admin:
        found = sorted(resource_words(resource) for resource in admin.list_config_resources())
    output.show([{"resource": kind, "name": name} for kind, name in found if not kinds or kind in kinds], LISTED)
