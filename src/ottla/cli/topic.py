"""`ottla topic`: create, list, describe, alter, delete."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.render import admin as connected
from ottla.cli.render import assignments, bootstrap_option, is_terminal, output_option, print_json, report, table, told

if TYPE_CHECKING:
    from ottla.client.results import ConfigEntry, TopicDescription
    from ottla.client.sync_admin import Admin


@click.group(name="topic")
def command() -> None:
    """Create, look at, change and delete topics."""


@command.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("-p", "--partitions", type=click.IntRange(min=1), help="Number of partitions; the cluster's default if not given.")
@click.option("-r", "--replicas", type=click.IntRange(min=1), help="Replicas of each partition; the cluster's default if not given.")
@click.option("-c", "--config", "configs", multiple=True, metavar="KEY=VALUE", help="A setting of the topic; may be repeated.")
@click.option("--if-not-exists", is_flag=True, help="Be content with a topic that is there already.")
@output_option
@bootstrap_option
def create(
    names: tuple[str, ...],
    partitions: int | None,
    replicas: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    output: str,
    bootstrap: str,
) -> None:
    """Create topics."""
    from ottla.client.results import NewTopic
    from ottla.wire.errors import KafkaError, TopicAlreadyExists

    settings: dict[str, str | None] = dict(assignments(configs, "-c"))
    with told(), connected(bootstrap) as admin:
        outcomes = admin.create_topics([NewTopic(name, partitions or -1, replicas or -1, settings) for name in names])
    failed = {
        name: outcome
        for name, outcome in outcomes.items()
        if isinstance(outcome, KafkaError) and not (if_not_exists and isinstance(outcome, TopicAlreadyExists))
    }
    there = {name: "exists" for name, outcome in outcomes.items() if isinstance(outcome, TopicAlreadyExists)}
    report(names, failed, "created", there, output)


@command.command(name="list")
@click.option("--internal", is_flag=True, help="Show the cluster's own topics too.")
@output_option
@bootstrap_option
def list_(internal: bool, output: str, bootstrap: str) -> None:
    """List topics with their numbers of partitions and replicas."""
    from ottla.base.ids import topic_id_text

    with told(), connected(bootstrap) as admin:
        topics = admin.list_topics(internal=internal)
    if output == "json":
        print_json(
            [
                {
                    "name": topic.name,
                    "topic_id": topic_id_text(topic.topic_id),
                    "partitions": topic.partition_count,
                    "replicas": topic.replication_factor,
                    "internal": topic.is_internal,
                }
                for topic in topics
            ]
        )
        return
    rows = [(topic.name, topic.partition_count, topic.replication_factor) for topic in topics]
    table(("NAME", "PARTITIONS", "REPLICAS"), rows, right=("PARTITIONS", "REPLICAS"))


@command.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--all-configs", is_flag=True, help="Show settings that have their default too.")
@output_option
@bootstrap_option
def describe(names: tuple[str, ...], all_configs: bool, output: str, bootstrap: str) -> None:
    """Show partitions, leaders, replicas, offsets and settings of topics."""
    with told(), connected(bootstrap) as admin:
        described = [_whole(admin, name, all_configs) for name in names]
    if output == "json":
        print_json(described)
        return
    for topic in described:
        _print(topic)


def _whole(admin: Admin, name: str, all_configs: bool) -> dict[str, Any]:
    """All there is to know about a topic. Raises: KafkaError."""
    from ottla.client.offsets import EARLIEST, LATEST
    from ottla.client.results import Resource
    from ottla.wire.errors import KafkaError

    topic: TopicDescription = admin.describe_topic(name)
    starts = admin.list_offsets({(name, one.partition): EARLIEST for one in topic.partitions if one.leader >= 0})
    ends = admin.list_offsets({(name, one.partition): LATEST for one in topic.partitions if one.leader >= 0})
    configs = admin.describe_configs([Resource.topic(name)])[Resource.topic(name)]
    if isinstance(configs, KafkaError):
        raise configs

    def offset(found: dict[Any, Any], partition: int) -> int | None:
        outcome = found.get((name, partition))
        return None if outcome is None or isinstance(outcome, KafkaError) else outcome.offset

    return {
        "name": topic.name,
        "topic_id": topic.topic_id_text,
        "internal": topic.is_internal,
        "partitions": [
            {
                "partition": one.partition,
                "leader": one.leader if one.leader >= 0 else None,
                "leader_epoch": one.leader_epoch,
                "replicas": one.replicas,
                "isr": one.isr,
                "offline": one.offline_replicas,
                "start_offset": offset(starts, one.partition),
                "end_offset": offset(ends, one.partition),
            }
            for one in topic.partitions
        ],
        "configs": {one.name: one.value for one in _shown(configs.values(), all_configs)},
    }


def _shown(entries: Iterable[ConfigEntry], all_configs: bool) -> list[ConfigEntry]:
    return sorted((entry for entry in entries if all_configs or not entry.is_default), key=lambda entry: entry.name)


def _print(topic: dict[str, Any]) -> None:
    # A table has its title; a line in a pipe stands for itself.
    name = () if is_terminal() else (topic["name"],)
    columns = ("PARTITION", "LEADER", "EPOCH", "REPLICAS", "ISR", "START", "END")
    rows = [
        (*name, one["partition"], "none" if one["leader"] is None else one["leader"], one["leader_epoch"], one["replicas"], one["isr"],
         one["start_offset"], one["end_offset"])
        for one in topic["partitions"]
    ]  # fmt: skip
    title = f"{topic['name']}  {topic['topic_id']}{'  internal' if topic['internal'] else ''}"
    table(columns, rows, title=title, right=("PARTITION", "LEADER", "EPOCH", "START", "END"))
    if topic["configs"]:
        table(("SETTING", "VALUE"), [(*name, *setting) for setting in topic["configs"].items()])


@command.command()
@click.argument("name")
@click.option("-p", "--partitions", type=click.IntRange(min=1), help="Raise the number of partitions to this; it can not be lowered.")
@click.option("-c", "--config", "configs", multiple=True, metavar="KEY=VALUE", help="Set a setting; may be repeated.")
@click.option("-d", "--delete-config", "deleted", multiple=True, metavar="KEY", help="Set a setting back to its default; may be repeated.")
@output_option
@bootstrap_option
def alter(name: str, partitions: int | None, configs: tuple[str, ...], deleted: tuple[str, ...], output: str, bootstrap: str) -> None:
    """Add partitions to a topic, or change its settings."""
    from ottla.client.results import ConfigChange, ConfigOperation, Resource
    from ottla.wire.errors import KafkaError

    if partitions is None and not configs and not deleted:
        raise click.UsageError("nothing to change: give -p, -c or -d")
    changes = [ConfigChange(key, value) for key, value in assignments(configs, "-c").items()]
    changes += [ConfigChange(key, None, ConfigOperation.DELETE) for key in deleted]
    with told(), connected(bootstrap) as admin:
        if partitions is not None:
            grown = admin.create_partitions({name: partitions})[name]
            if isinstance(grown, KafkaError):
                raise grown
        if changes:
            changed = admin.incremental_alter_configs({Resource.topic(name): changes})[Resource.topic(name)]
            if isinstance(changed, KafkaError):
                raise changed
    report((name,), {}, "altered", {}, output)


@command.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--if-exists", is_flag=True, help="Be content with a topic that is not there.")
@output_option
@bootstrap_option
def delete(names: tuple[str, ...], if_exists: bool, output: str, bootstrap: str) -> None:
    """Delete topics with all their records."""
    from ottla.wire.errors import KafkaError, UnknownTopicOrPartition

    with told(), connected(bootstrap) as admin:
        outcomes = admin.delete_topics(names)
    missing = {name: "not there" for name, outcome in outcomes.items() if isinstance(outcome, UnknownTopicOrPartition)}
    failed = {
        name: outcome for name, outcome in outcomes.items() if isinstance(outcome, KafkaError) and not (if_exists and name in missing)
    }
    report(names, failed, "deleted", missing, output)
