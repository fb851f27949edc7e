"""What the commands about topics share: which partitions are meant, where their logs begin and end, and what to say of topics that are not
there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ottla.base.options import suggestion
from ottla.cli.common.arguments import scope

if TYPE_CHECKING:
    from ottla.base.ids import TopicPartition
    from ottla.client.admin.results import PartitionDescription, TopicDescription
    from ottla.client.sync.admin import Admin
    from ottla.wire.errors import KafkaError

F = TypeVar("F", bound=Callable[..., Any])
PARTITION = {
    "topic": "its name",
    "partition": "its number",
    "leader": "the broker that leads it; null: none",
    "leader_epoch": "how often it had a new leader",
    "replicas": "the brokers that have a replica, the preferred leader first",
    "isr": "those in sync",
    "offline": "those whose broker or disk is away",
}


def no_topic(admin: Admin, name: str, error: KafkaError) -> Exception:
    """The error to end with when a topic cannot be described: for one that is not there, it names the one that was meant."""
    from ottla.wire.errors import UnknownTopicOrPartition

    if not isinstance(error, UnknownTopicOrPartition):
        return type(error)(f"topic {name}: {error}")
    return click.ClickException(f"there is no topic {name}{meant(admin, name)}")


def with_meant(admin: Admin, name: str, error: KafkaError) -> KafkaError:
    """The same error; of a topic that is not there, with the one that was meant."""
    from ottla.wire.errors import UnknownTopicOrPartition

    if not isinstance(error, UnknownTopicOrPartition):
        return error
    return UnknownTopicOrPartition(f"there is no topic {name}{meant(admin, name)}")


def meant(admin: Admin, name: str) -> str:
    """The topic with the nearest name, as a question, or nothing."""
    from ottla.wire.errors import KafkaError

    try:
        return suggestion(name, [one.name for one in admin.list_topics(internal=True)])
    except KafkaError:
        return ""


def described(admin: Admin, names: Iterable[str]) -> dict[str, TopicDescription]:
    """Topics that must be there, in this order. Raises: ClickException, KafkaError."""
    from ottla.wire.errors import KafkaError

    wanted = list(dict.fromkeys(names))
    found = admin.describe_topics(wanted)
    topics: dict[str, TopicDescription] = {}
    for name in wanted:
        outcome = found[name]
        if isinstance(outcome, KafkaError):
            raise no_topic(admin, name, outcome)
        topics[name] = outcome
    return topics


def chosen(admin: Admin, texts: Sequence[str], option: str) -> dict[TopicPartition, PartitionDescription]:
    """The partitions that `TOPIC[:0,2-5]` arguments mean, all of which must be there. Raises: UsageError, ClickException, KafkaError."""
    from ottla.base.ids import TopicPartition

    wanted = scope(texts, option)
    found: dict[TopicPartition, PartitionDescription] = {}
    for name, topic in described(admin, wanted).items():
        numbers = wanted[name]
        there = {one.partition: one for one in topic.partitions}
        if missing := sorted((numbers or set()) - set(there)):
            raise click.ClickException(f"topic {name} has {len(there)} partitions, no partition {missing[0]}")
        found.update({TopicPartition(name, number): one for number, one in there.items() if numbers is None or number in numbers})
    return dict(sorted(found.items()))


def ends(admin: Admin, partitions: Mapping[TopicPartition, PartitionDescription]) -> dict[TopicPartition, tuple[int | None, int | None]]:
    """(start, end) of logs; None where nobody can tell. Those without a leader are not waited for."""
    from ottla.client.fetch.offsets import EARLIEST, LATEST

    asked = [tp for tp, one in partitions.items() if one.leader >= 0]
    starts, stops = (admin.list_offsets(dict.fromkeys(asked, when)) if asked else {} for when in (EARLIEST, LATEST))
    return {tp: (_offset(starts.get(tp)), _offset(stops.get(tp))) for tp in partitions}


def _offset(outcome: Any) -> int | None:
    return None if outcome is None or isinstance(outcome, Exception) else outcome.offset


def records(ends_of: Iterable[tuple[int | None, int | None]]) -> int | None:
    """Offsets between start and end, in all; None when some are not known. Compaction and markers leave fewer records than that."""
    known = [(start, end) for start, end in ends_of]
    if any(start is None or end is None for start, end in known):
        return None
    return sum((end or 0) - (start or 0) for start, end in known)


def partition_document(topic: str, one: PartitionDescription) -> dict[str, Any]:
    """A partition, with the fields of `PARTITION`."""
    return {
        "topic": topic,
        "partition": one.partition,
        "leader": one.leader if one.leader >= 0 else None,
        "leader_epoch": one.leader_epoch,
        "replicas": one.replicas,
        "isr": sorted(one.isr),
        "offline": sorted(one.offline_replicas),
    }


def leader(row: Mapping[str, Any]) -> object:
    """A partition's leader as a cell."""
    return "none" if row["leader"] is None else row["leader"]


def state_colour(row: Mapping[str, Any]) -> str | None:
    """Red without a leader, yellow without all replicas in sync."""
    if row["leader"] is None:
        return "red"
    return "yellow" if set(row["replicas"]) - set(row["isr"]) else None
