"""`ottla topic list` and `ottla topic describe`."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.common import tables
from ottla.cli.common.complete import topic_names
from ottla.cli.common.connection import admin as connected
from ottla.cli.common.connection import bootstrap_option
from ottla.cli.common.errors import told
from ottla.cli.common.output_formats import Form, fields, output_option
from ottla.cli.common.tables import Column
from ottla.cli.config.alter import shown
from ottla.cli.topic.lookup import PARTITION, described, ends, leader, partition_document, state_colour

if TYPE_CHECKING:
    from ottla.base.ids import TopicPartition
    from ottla.client.admin.results import ConfigEntry, TopicDescription

LISTED = (
    Column("NAME", "name"),
    Column("PARTITIONS", "partitions", number=True),
    Column("REPLICAS", "replicas", number=True),
    Column("ID", "topic_id", wide=True),
    Column("INTERNAL", "internal", wide=True),
)
PARTITIONS = (
    Column("PARTITION", "partition", number=True),
    Column("LEADER", leader, number=True, colour=state_colour),
    Column("EPOCH", "leader_epoch", number=True),
    Column("REPLICAS", "replicas"),
    Column("ISR", "isr", colour=state_colour),
    Column("START", "start_offset", number=True),
    Column("END", "end_offset", number=True),
    Column("OFFLINE", "offline", wide=True),
)
SETTINGS = (Column("SETTING", "setting"), Column("VALUE", lambda row: shown(row["setting"], row["value"])))


@fields(
    name="its name",
    topic_id="its id, as Kafka prints it",
    partitions="number of partitions",
    replicas="replicas of each partition",
    internal="whether it is one of the cluster's own topics",
)
@click.command(name="list")
@click.argument("patterns", nargs=-1, metavar="[PATTERN...]", shell_complete=topic_names)
@click.option("--internal", is_flag=True, help="Show the cluster's own topics too.")
@output_option
@bootstrap_option
def list_(patterns: tuple[str, ...], internal: bool, output: Form, bootstrap: str) -> None:
    """List topics with their numbers of partitions and replicas; those only whose names are like one of the patterns, say 'orders.*'."""
    from ottla.base.ids import topic_id_text

    with told(), connected(bootstrap) as admin:
        topics = admin.list_topics(internal=internal)
    documents = [
        {
            "name": topic.name,
            "topic_id": topic_id_text(topic.topic_id),
            "partitions": topic.partition_count,
            "replicas": topic.replication_factor,
            "internal": topic.is_internal,
        }
        for topic in sorted(topics, key=lambda topic: topic.name)
        if not patterns or any(fnmatchcase(topic.name, pattern) for pattern in patterns)
    ]
    output.show(documents, LISTED)


@fields(
    {f"partitions[].{name}": says for name, says in PARTITION.items() if name != "topic"},
    {
        "partitions[].start_offset": "of the oldest record; null: nobody can tell",
        "partitions[].end_offset": "of the next record",
        "configs.*": "settings by name, those of its own, or all with --all-configs",
    },
    name="its name",
    topic_id="its id, as Kafka prints it",
    internal="whether it is one of the cluster's own topics",
)
@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=topic_names)
@click.option("--all-configs", is_flag=True, help="Show settings that have their default too.")
@output_option
@bootstrap_option
def describe(names: tuple[str, ...], all_configs: bool, output: Form, bootstrap: str) -> None:
    """Show partitions, leaders, replicas, offsets and settings of topics."""
    from ottla.base.ids import TopicPartition
    from ottla.client.admin.results import Resource
    from ottla.wire.errors import KafkaError

    with told(), connected(bootstrap) as admin:
        topics = described(admin, names)
        logs = ends(admin, {TopicPartition(name, one.partition): one for name, topic in topics.items() for one in topic.partitions})
        configs = admin.describe_configs([Resource.topic(name) for name in topics])
    documents = []
    for name, topic in topics.items():
        entries = configs[Resource.topic(name)]
        if isinstance(entries, KafkaError):
            raise click.ClickException(f"the settings of {name}: {entries}")
        documents.append(_document(topic, logs, entries.values(), all_configs))
    output.each(documents, _print)


def _document(
    topic: TopicDescription,
    logs: dict[TopicPartition, tuple[int | None, int | None]],
    entries: Iterable[ConfigEntry],
    all_configs: bool,
) -> dict[str, Any]:
    from ottla.base.ids import TopicPartition

    partitions = []
    for one in topic.partitions:
        start, end = logs[TopicPartition(topic.name, one.partition)]
        told = partition_document(topic.name, one)
        del told["topic"]
        partitions.append({**told, "start_offset": start, "end_offset": end})
    shown = sorted((entry for entry in entries if all_configs or not entry.is_default), key=lambda entry: entry.name)
    return {
        "name": topic.name,
        "topic_id": topic.topic_id_text,
        "internal": topic.is_internal,
        "partitions": partitions,
        "configs": {entry.name: entry.value for entry in shown},
    }


def _print(topic: dict[str, Any], output: Form) -> None:
    title = f"{topic['name']}  {topic['topic_id']}{'  internal' if topic['internal'] else ''}"
    # A table has its title; a line in a pipe stands for itself.
    output.table(topic["partitions"], PARTITIONS, title=title, prefix=("NAME", topic["name"]))
    if topic["configs"]:
        if tables.is_terminal():
            click.echo()
        rows = [{"setting": name, "value": value} for name, value in topic["configs"].items()]
        output.table(rows, SETTINGS, prefix=("NAME", topic["name"]))
