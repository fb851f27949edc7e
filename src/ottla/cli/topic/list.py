"""`ottla topic list` and `ottla topic describe`."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any

import click

from ottla.base.ids import TopicPartition, topic_id_text
from ottla.cli.common import tables
from ottla.cli.common.admin import admin_client, admin_options
from ottla.cli.common.arguments import size_text
from ottla.cli.common.complete import topic_names
from ottla.cli.common.output_formats import OutputFormat, fields, note
from ottla.cli.common.tables import Column
from ottla.cli.config.alter import setting_cell
from ottla.cli.topic.figures import NONE, topic_figures
from ottla.cli.topic.lookup import PARTITION, describe_topics, leader_cell, log_offsets, partition_document, state_colour
from ottla.client.admin.results import ConfigEntry, Resource, TopicDescription
from ottla.wire.errors import KafkaError

LISTED = (
    Column("NAME", "name"),
    Column("PARTITIONS", "partitions", number=True),
    Column("REPLICAS", "replicas", number=True),
    Column("RECORDS", "records", number=True),
    Column("SIZE", lambda row: size_text(row["bytes"]) if tables.is_terminal() else row["bytes"], number=True),
    Column("WRITTEN/S", "written_per_s", number=True),
    Column("ID", "topic_id", wide=True),
    Column("INTERNAL", "internal", wide=True),
)
FIGURES = ("RECORDS", "SIZE", "WRITTEN/S")
PARTITIONS = (
    Column("PARTITION", "partition", number=True),
    Column("LEADER", leader_cell, number=True, colour=state_colour),
    Column("LEADER-EPOCH", "leader_epoch", number=True),
    Column("REPLICAS", "replicas"),
    Column("ISR", "isr", colour=state_colour),
    Column("LOG-START-OFFSET", "start_offset", number=True),
    Column("LOG-END-OFFSET", "end_offset", number=True),
    Column("OFFLINE", "offline", wide=True),
)
SETTINGS = (Column("SETTING", "setting"), Column("VALUE", lambda row: setting_cell(row["setting"], row["value"])))


@fields(
    name="topic",
    topic_id="topic id, as Kafka prints it",
    partitions="number of partitions",
    replicas="replication factor",
    internal="whether it is an internal topic",
    records="number of offsets in its logs; there are fewer records after compaction and with transactions; null: unknown",
    bytes="size of the logs of its leaders; null: unknown",
    written_per_s="records per second in the last minute, by their timestamps; null: unknown",
)
@click.command(name="list")
@click.argument("patterns", nargs=-1, metavar="[PATTERN...]", shell_complete=topic_names)
@click.option("--internal", is_flag=True, help="Include internal topics.")
@click.option("--no-figures", is_flag=True, help="Omit records, size and rate, which need requests to each leader.")
@admin_options
def list_(patterns: tuple[str, ...], internal: bool, no_figures: bool, output: OutputFormat, bootstrap: str) -> None:
    """List topics whose names match one of the patterns, such as 'orders.*'. [default: all]"""
    with admin_client(bootstrap) as admin:
        listed = [
            topic
            for topic in sorted(admin.list_topics(internal=internal), key=lambda topic: topic.name)
            if not patterns or any(fnmatchcase(topic.name, pattern) for pattern in patterns)
        ]
        figures, problem = ({}, "") if no_figures else topic_figures(admin, [topic.name for topic in listed])
    documents = [
        {
            "name": topic.name,
            "topic_id": topic_id_text(topic.topic_id),
            "partitions": topic.partition_count,
            "replicas": topic.replication_factor,
            "internal": topic.is_internal,
            **figures.get(topic.name, NONE),
        }
        for topic in listed
    ]
    if problem:
        note(f"Warning: {problem}")
    output.show(documents, [column for column in LISTED if not no_figures or column.heading not in FIGURES])


@fields(
    {f"partitions[].{name}": help for name, help in PARTITION.items() if name != "topic"},
    {
        "partitions[].start_offset": "log start offset; null: unknown",
        "partitions[].end_offset": "log end offset; null: unknown",
        "configs.*": "settings by name: overrides, or all with --all-configs",
    },
    name="topic",
    topic_id="topic id, as Kafka prints it",
    internal="whether it is an internal topic",
)
@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=topic_names)
@click.option("--all-configs", is_flag=True, help="Include settings with their default value.")
@admin_options
def describe(names: tuple[str, ...], all_configs: bool, output: OutputFormat, bootstrap: str) -> None:
    """Show partitions, leaders, replicas, offsets and settings of topics."""
    with admin_client(bootstrap) as admin:
        topics = describe_topics(admin, names)
        logs = log_offsets(admin, {TopicPartition(name, one.partition): one for name, topic in topics.items() for one in topic.partitions})
        configs = admin.describe_configs([Resource.topic(name) for name in topics])
    documents = []
    for name, topic in topics.items():
        entries = configs[Resource.topic(name)]
        if isinstance(entries, KafkaError):
            raise click.ClickException(f"cannot read the settings of {name}: {entries}")
        documents.append(_document(topic, logs, entries.values(), all_configs))
    output.each(documents, _print)


def _document(
    topic: TopicDescription,
    logs: dict[TopicPartition, tuple[int | None, int | None]],
    entries: Iterable[ConfigEntry],
    all_configs: bool,
) -> dict[str, Any]:
    partitions = []
    for one in topic.partitions:
        start, end = logs[TopicPartition(topic.name, one.partition)]
        partition = partition_document(topic.name, one)
        del partition["topic"]
        partitions.append({**partition, "start_offset": start, "end_offset": end})
    listed = sorted((entry for entry in entries if all_configs or not entry.is_default), key=lambda entry: entry.name)
    return {
        "name": topic.name,
        "topic_id": topic.topic_id_text,
        "internal": topic.is_internal,
        "partitions": partitions,
        "configs": {entry.name: entry.value for entry in listed},
    }


def _print(topic: dict[str, Any], output: OutputFormat) -> None:
    title = f"{topic['name']}  {topic['topic_id']}{'  internal' if topic['internal'] else ''}"
    output.table(topic["partitions"], PARTITIONS, title=title, prefix=("NAME", topic["name"]))
    if topic["configs"]:
        if tables.is_terminal():
            click.echo()
        rows = [{"setting": name, "value": value} for name, value in topic["configs"].items()]
        output.table(rows, SETTINGS, prefix=("NAME", topic["name"]))
