"""`ottla broker`: list, describe, config, log-dirs, log-level."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

import ottla
from ottla.cli.common import tables
from ottla.cli.common.admin import admin_client, admin_options
from ottla.cli.common.arguments import size_text
from ottla.cli.common.complete import broker_ids, topic_names
from ottla.cli.common.lazy import CommandGroup
from ottla.cli.common.output_formats import OutputFormat, fields
from ottla.cli.common.tables import PLACE, Column
from ottla.cli.config import alter
from ottla.cli.config import commands as settings
from ottla.cli.topic.lookup import describe_topics
from ottla.client.admin.results import ClusterDescription, ConfigChange, LogDir, Node, Resource
from ottla.wire.errors import KafkaError

BROKER = {
    "broker": "broker id",
    "host": "host of its advertised listener",
    "port": "port of its advertised listener",
    "rack": "rack; null: not set",
    "controller": "whether it is the controller",
    "fenced": "whether it is registered but fenced",
}
COUNTS = {
    "leaders": "number of partitions that it leads",
    "replicas": "number of its replicas",
    "not_in_sync": "number of its replicas that are not in sync",
    "offline": "number of its replicas in offline log directories",
}
DIRECTORY = {
    "broker": "broker id",
    "path": "path of the log directory",
    "error": "why it is offline; null: it is online",
    "total_bytes": "size of its disk; null: not reported",
    "usable_bytes": "free space of its disk; null: not reported",
    "used_bytes": "size of its replicas",
}
REPLICA = {
    "replicas[].topic": "topic of a replica",
    "replicas[].partition": "partition of the replica",
    "replicas[].size_bytes": "size of the replica",
    "replicas[].offset_lag": "records behind the log end offset",
    "replicas[].is_future": "whether it is moving here from another log directory",
}


def _role(row: Any) -> str:
    return "controller" if row["controller"] else "fenced" if row["fenced"] else ""


LISTED = (
    Column("BROKER", "broker", number=True),
    Column("ADDRESS", lambda row: f"{row['host']}:{row['port']}"),
    Column("RACK", "rack"),
    Column("ROLE", _role, colour=lambda row: "yellow" if row["fenced"] else None),
    Column("LEADERS", "leaders", number=True, wide=True),
    Column("REPLICAS", "replicas", number=True, wide=True),
    Column("NOT-IN-SYNC", "not_in_sync", number=True, wide=True, colour=lambda row: "yellow" if row["not_in_sync"] else None),
    Column("OFFLINE", "offline", number=True, wide=True, colour=lambda row: "red" if row["offline"] else None),
)
DIRECTORIES = (
    Column("BROKER", "broker", number=True),
    Column("DIRECTORY", "path"),
    Column("REPLICAS", lambda row: len(row["replicas"]), number=True),
    Column("USED", lambda row: _size(row["used_bytes"]), number=True),
    Column("FREE", lambda row: _size(row["usable_bytes"]), number=True),
    Column("DISK", lambda row: _size(row["total_bytes"]), number=True),
    Column("STATE", lambda row: row["error"] or "online", colour=lambda row: "red" if row["error"] else None),
)
REPLICAS = (
    Column("BROKER", "broker", number=True),
    Column("DIRECTORY", "path"),
    *PLACE,
    Column("SIZE", lambda row: _size(row["size_bytes"]), number=True),
    Column("OFFSET-LAG", "offset_lag", number=True),
    Column("", lambda row: "moving here" if row["is_future"] else None),
)


def _size(count: int | None) -> object:
    """With a unit on a terminal, in bytes in a pipe."""
    return size_text(count) if tables.is_terminal() else count


@click.group(name="broker", cls=CommandGroup)
def command() -> None:
    """Describe brokers, their log directories and settings."""


@fields(BROKER, COUNTS)
@command.command(name="list")
@admin_options
def list_(output: OutputFormat, bootstrap: str) -> None:
    """List brokers. With -o wide, json or yaml also the numbers of their replicas."""
    with admin_client(bootstrap) as admin:
        cluster = admin.describe_cluster()
        counts = _counts(admin) if output.is_wide or output.is_structured else {}
    none = dict.fromkeys(COUNTS, 0)
    nodes = sorted(cluster.nodes, key=lambda node: node.id)
    output.show([{**broker_document(node, cluster), **counts.get(node.id, none)} for node in nodes], LISTED)


def broker_document(node: Node, cluster: ClusterDescription) -> dict[str, Any]:
    """A document with the fields of `BROKER`."""
    return {
        "broker": node.id,
        "host": node.host,
        "port": node.port,
        "rack": node.rack,
        "controller": node.id == cluster.controller,
        "fenced": node.is_fenced,
    }


def _counts(admin: ottla.Admin) -> dict[int, dict[str, int]]:
    """The `COUNTS` of each broker over all topics. Raises: KafkaError."""
    counts: dict[int, dict[str, int]] = {}

    def add(brokers: Iterable[int], name: str) -> None:
        for broker in brokers:
            counts.setdefault(broker, dict.fromkeys(COUNTS, 0))[name] += 1

    names = [topic.name for topic in admin.list_topics(internal=True)]
    for topic in (admin.describe_topics(names) if names else {}).values():
        for one in () if isinstance(topic, KafkaError) else topic.partitions:
            add([one.leader] if one.leader >= 0 else [], "leaders")
            add(one.replicas, "replicas")
            add(set(one.replicas) - set(one.isr), "not_in_sync")
            add(one.offline_replicas, "offline")
    return counts


@fields(
    BROKER,
    COUNTS,
    {f"log_dirs[].{name}": help for name, help in DIRECTORY.items() if name != "broker"},
    {"log_dirs[].replica_count": "number of replicas in it", "configs.*": "settings by name that differ from the default"},
)
@command.command()
@click.argument("brokers", nargs=-1, type=int, metavar="[N...]", shell_complete=broker_ids)
@admin_options
def describe(brokers: tuple[int, ...], output: OutputFormat, bootstrap: str) -> None:
    """Show addresses, replicas, log directories and settings. [default: all brokers]

    Settings with their default values are left out.
    """
    with admin_client(bootstrap) as admin:
        cluster = admin.describe_cluster()
        chosen = settings.existing_brokers(cluster, brokers)
        counts = _counts(admin)
        directories = _directories(admin, chosen, None)
        configs = settings.config_entries(admin, [Resource.broker(number) for number in chosen])
    documents = []
    for node in cluster.nodes:
        if node.id in chosen:
            own = [{**row, "replica_count": len(row["replicas"])} for row in directories if row["broker"] == node.id]
            for row in own:
                del row["replicas"], row["broker"]
            entries = sorted(configs[Resource.broker(node.id)].items())
            overrides = {name: entry.value for name, entry in entries if entry.source.name != "DEFAULT"}
            node_counts = counts.get(node.id, dict.fromkeys(COUNTS, 0))
            documents.append({**broker_document(node, cluster), **node_counts, "log_dirs": own, "configs": overrides})
    output.each(documents, _print)


def _print(one: dict[str, Any], output: OutputFormat) -> None:
    properties = [
        ("address", f"{one['host']}:{one['port']}"),
        ("rack", one["rack"]),
        ("role", _role(one)),
        ("leads", f"{one['leaders']} partitions"),
        ("replicas", f"{one['replicas']}, {one['not_in_sync']} not in sync, {one['offline']} offline"),
        *(
            ("log directory", f"{row['path']}: {row['error'] or _of_disk(row)}")
            for row in one["log_dirs"]
        ),
        *one["configs"].items(),
    ]  # fmt: skip
    rows = [{"what": what, "is": value} for what, value in properties if value or value == 0]
    columns = (Column("", "what"), Column("", "is"))
    output.table(rows, columns, title=f"broker {one['broker']}", prefix=("BROKER", one["broker"]))


def _of_disk(row: dict[str, Any]) -> str:
    parts = [f"{row['replica_count']} replicas", f"{size_text(row['used_bytes'])} used"]
    if row["usable_bytes"] is not None:
        parts.append(f"{size_text(row['usable_bytes'])} of {size_text(row['total_bytes'])} free")
    return ", ".join(parts)


def _directories(admin: ottla.Admin, brokers: list[int], topics: tuple[str, ...] | None) -> list[dict[str, Any]]:
    """Raises: KafkaError."""
    found = []
    for broker, directories in sorted(admin.describe_log_dirs(brokers, topics=topics or None).items()):
        if isinstance(directories, KafkaError):
            raise type(directories)(f"broker {broker}: {directories}")
        found += [_directory(broker, one) for one in sorted(directories, key=lambda one: one.path)]
    return found


def _directory(broker: int, one: LogDir) -> dict[str, Any]:
    replicas = sorted(one.replicas, key=lambda log: (log.topic, log.partition, log.is_future))
    return {
        "broker": broker,
        "path": one.path,
        "error": one.error,
        "total_bytes": one.total_bytes if one.total_bytes >= 0 else None,
        "usable_bytes": one.usable_bytes if one.usable_bytes >= 0 else None,
        "used_bytes": sum(log.size_bytes for log in replicas),
        "replicas": [
            {name: getattr(log, name) for name in ("topic", "partition", "size_bytes", "offset_lag", "is_future")} for log in replicas
        ],
    }


@fields(DIRECTORY, REPLICA)
@command.command(name="log-dirs")
@click.argument("brokers", nargs=-1, type=int, metavar="[N...]", shell_complete=broker_ids)
@click.option("-t", "--topic", "topics", multiple=True, metavar="TOPIC", shell_complete=topic_names, help="Only this topic; repeatable.")
@click.option("--replicas", "each", is_flag=True, help="Print a line per replica.")
@admin_options
def log_dirs(brokers: tuple[int, ...], topics: tuple[str, ...], each: bool, output: OutputFormat, bootstrap: str) -> None:
    """Show log directories with their replicas and disk space. Exit code 1 if one is offline."""
    with admin_client(bootstrap) as admin:
        if topics:
            describe_topics(admin, topics)
        documents = _directories(admin, settings.existing_brokers(admin.describe_cluster(), brokers), topics)
    if not each or output.is_structured:
        output.show(documents, DIRECTORIES)
    else:
        output.table([{**row, **log} for row in documents for log in row["replicas"]], REPLICAS)
    if any(row["error"] for row in documents):
        raise SystemExit(1)


@fields(settings.SETTING)
@command.command(name="config")
@click.argument("broker", type=int, metavar="N", shell_complete=broker_ids)
@click.option("-a", "--all", "everything", is_flag=True, help="Include settings with their default value.")
@click.option("-s", "--setting", "patterns", multiple=True, metavar="PATTERN", help="Only these, such as 'log.*'; repeatable.")
@admin_options
def config(broker: int, everything: bool, patterns: tuple[str, ...], output: OutputFormat, bootstrap: str) -> None:
    """Show the settings of a broker. Like ottla config describe broker N."""
    settings.describe_settings("broker", (str(broker),), everything, patterns, output, bootstrap)


LOGGER = {"broker": "broker id", "logger": "name of the logger", "level": "level in effect: DEBUG, INFO, WARN, ERROR or FATAL"}
LOGGERS = (Column("LOGGER", "logger"), Column("LEVEL", "level"))


@fields(LOGGER, alter.CHANGE)
@command.command(name="log-level")
@click.argument("broker", type=int, metavar="N", shell_complete=broker_ids)
@click.argument("levels", nargs=-1, metavar="[LOGGER=LEVEL...]")
@click.option("--reset", "resets", multiple=True, metavar="LOGGER", help="Inherit the level of the logger above again; repeatable.")
@admin_options
def log_level(broker: int, levels: tuple[str, ...], resets: tuple[str, ...], output: OutputFormat, bootstrap: str) -> None:
    """Show or change log levels of a broker. Changes last until its process ends."""
    changes = alter.deletions(resets)
    for pair in levels:
        name, equals, level = pair.partition("=")
        if not name or not equals:
            raise click.UsageError(f"expected LOGGER=LEVEL, such as ottla.group=DEBUG, not {pair!r}")
        changes.append(ConfigChange(name, "WARN" if level.upper() == "WARNING" else level.upper()))
    resource = Resource.broker_logger(broker)
    with admin_client(bootstrap) as admin:
        settings.existing_brokers(admin.describe_cluster(), [broker])
        if changes:
            alter.show(alter.change(admin, [resource], changes, dry=False), output, dry=False)
            return
        found = settings.config_entries(admin, [resource])[resource]
    output.show([{"broker": broker, "logger": name, "level": entry.value} for name, entry in sorted(found.items())], LOGGERS)
