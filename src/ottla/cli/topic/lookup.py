"""Lookups shared by the commands about topics: selected partitions, their log offsets, and errors for unknown topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

import ottla
from ottla.base.ids import TopicPartition
from ottla.base.options import suggestion
from ottla.cli.common.arguments import partition_selection
from ottla.client.admin.results import PartitionDescription, TopicDescription
from ottla.wire.errors import KafkaError, UnknownTopicOrPartition

PARTITION = {
    "topic": "topic",
    "partition": "partition",
    "leader": "broker id of the leader; null: none",
    "leader_epoch": "leader epoch",
    "replicas": "broker ids of the replicas, the preferred leader first",
    "isr": "broker ids of the in-sync replicas",
    "offline": "broker ids of the offline replicas",
}


def topic_error(admin: ottla.Admin, name: str, error: KafkaError) -> Exception:
    """The error for a topic that cannot be described. For an unknown topic it suggests a similar name."""
    if not isinstance(error, UnknownTopicOrPartition):
        return type(error)(f"topic {name}: {error}")
    return click.ClickException(f"topic {name} does not exist{suggested_topic(admin, name)}")


def with_suggestion(admin: ottla.Admin, name: str, error: KafkaError) -> KafkaError:
    """The error; for an unknown topic with a similar name as suggestion."""
    if not isinstance(error, UnknownTopicOrPartition):
        return error
    return UnknownTopicOrPartition(f"topic {name} does not exist{suggested_topic(admin, name)}")


def suggested_topic(admin: ottla.Admin, name: str) -> str:
    """The topic with the most similar name, as a question, or ""."""
    try:
        return suggestion(name, [one.name for one in admin.list_topics(internal=True)])
    except KafkaError:
        return ""


def describe_topics(admin: ottla.Admin, names: Iterable[str]) -> dict[str, TopicDescription]:
    """Existing topics, in this order. Raises: ClickException, KafkaError."""
    names = list(dict.fromkeys(names))
    outcomes = admin.describe_topics(names)
    topics: dict[str, TopicDescription] = {}
    for name in names:
        outcome = outcomes[name]
        if isinstance(outcome, KafkaError):
            raise topic_error(admin, name, outcome)
        topics[name] = outcome
    return topics


def select_partitions(admin: ottla.Admin, texts: Sequence[str], option: str) -> dict[TopicPartition, PartitionDescription]:
    """The existing partitions of `TOPIC[:0,2-5]` arguments. Raises: UsageError, ClickException, KafkaError."""
    selection = partition_selection(texts, option)
    selected: dict[TopicPartition, PartitionDescription] = {}
    for name, topic in describe_topics(admin, selection).items():
        numbers = selection[name]
        existing = {one.partition: one for one in topic.partitions}
        if missing := sorted((numbers or set()) - set(existing)):
            raise click.ClickException(f"topic {name} has {len(existing)} partitions; partition {missing[0]} does not exist")
        selected.update({TopicPartition(name, number): one for number, one in existing.items() if numbers is None or number in numbers})
    return dict(sorted(selected.items()))


def log_offsets(
    admin: ottla.Admin, partitions: Mapping[TopicPartition, PartitionDescription]
) -> dict[TopicPartition, tuple[int | None, int | None]]:
    """(log start offset, log end offset) of partitions; None where unknown. Partitions without a leader are not queried."""
    from ottla.client.fetch.offsets import EARLIEST, LATEST

    led = [tp for tp, one in partitions.items() if one.leader >= 0]
    starts, stops = (admin.list_offsets(dict.fromkeys(led, when)) if led else {} for when in (EARLIEST, LATEST))
    return {tp: (_offset(starts.get(tp)), _offset(stops.get(tp))) for tp in partitions}


def _offset(outcome: Any) -> int | None:
    return None if outcome is None or isinstance(outcome, Exception) else outcome.offset


def record_count(ends_of: Iterable[tuple[int | None, int | None]]) -> int | None:
    """The number of offsets between start and end; None if some are unknown. Compacted logs have fewer records."""
    known = [(start, end) for start, end in ends_of]
    if any(start is None or end is None for start, end in known):
        return None
    return sum((end or 0) - (start or 0) for start, end in known)


def partition_document(topic: str, one: PartitionDescription) -> dict[str, Any]:
    """A document with the fields of `PARTITION`."""
    return {
        "topic": topic,
        "partition": one.partition,
        "leader": one.leader if one.leader >= 0 else None,
        "leader_epoch": one.leader_epoch,
        "replicas": one.replicas,
        "isr": sorted(one.isr),
        "offline": sorted(one.offline_replicas),
    }


def leader_cell(row: Mapping[str, Any]) -> object:
    """A partition's leader as a cell."""
    return "none" if row["leader"] is None else row["leader"]


def state_colour(row: Mapping[str, Any]) -> str | None:
    """Red without a leader, yellow if replicas are not in sync."""
    if row["leader"] is None:
        return "red"
    return "yellow" if set(row["replicas"]) - set(row["isr"]) else None
