"""Throttles of a reassignment: set where it begins, taken away where it is verified.

Both sides keep to the rate: brokers that have a replica now may lead, those that get one copy. So the topic names, of each partition that
gets a replica, the present ones for the leader's side and the new ones for the follower's; every broker of either has the rate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ottla.base.ids import TopicPartition
    from ottla.client.admin.results import ConfigChange, Resource
    from ottla.client.sync.admin import Admin

RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
REPLICAS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")


def throttle_moves(
    admin: Admin, present: Mapping[TopicPartition, Sequence[int]], wished: Mapping[TopicPartition, Sequence[int]], rate: int
) -> None:
    """Let moves take no more than so many bytes per second on each broker, in and out. Raises: KafkaError."""
    from ottla.client.admin.results import ConfigChange, Resource

    leaders: dict[str, list[str]] = {}
    followers: dict[str, list[str]] = {}
    brokers: set[int] = set()
    for tp, replicas in sorted(wished.items()):
        there = present[tp]
        coming = [broker for broker in replicas if broker not in there]
        if coming:
            leaders.setdefault(tp.topic, []).extend(f"{tp.partition}:{broker}" for broker in there)
            followers.setdefault(tp.topic, []).extend(f"{tp.partition}:{broker}" for broker in coming)
            brokers.update(there, coming)
    changes: dict[Resource, list[ConfigChange]] = {}
    for topic in leaders:
        named = (",".join(leaders[topic]), ",".join(followers[topic]))
        changes[Resource.topic(topic)] = [ConfigChange(name, value) for name, value in zip(REPLICAS, named, strict=True)]
    alive = {node.id for node in admin.describe_cluster().nodes}
    for broker in sorted(brokers & alive):
        changes[Resource.broker(broker)] = [ConfigChange(name, str(rate)) for name in RATES]
    _change(admin, changes)


def unthrottle(admin: Admin, topics: Iterable[str]) -> list[str]:
    """Take the throttles of these topics, and the rates of all brokers, away where there are any; what had some. Raises: KafkaError."""
    from ottla.client.admin.results import ConfigChange, ConfigOperation, ConfigSource, Resource
    from ottla.wire.errors import KafkaError

    asked: dict[Resource, tuple[str, ...]] = {Resource.topic(topic): REPLICAS for topic in sorted(topics)}
    asked.update({Resource.broker(node.id): RATES for node in admin.describe_cluster().nodes})
    own = (ConfigSource.TOPIC, ConfigSource.DYNAMIC_BROKER)
    changes: dict[Resource, list[ConfigChange]] = {}
    for resource, entries in admin.describe_configs(asked, names=[*RATES, *REPLICAS]).items():
        if isinstance(entries, KafkaError):
            raise entries
        ours = [name for name in asked[resource] if name in entries and entries[name].source in own]
        if ours:
            changes[resource] = [ConfigChange(name, None, ConfigOperation.DELETE) for name in ours]
    _change(admin, changes)
    return [f"{resource.type.name.lower()} {resource.name}" for resource in changes]


def _change(admin: Admin, changes: Mapping[Resource, Iterable[ConfigChange]]) -> None:
    from ottla.wire.errors import KafkaError

    for resource, outcome in (admin.incremental_alter_configs(changes) if changes else {}).items():
        if isinstance(outcome, KafkaError):
            raise click.ClickException(f"the throttle of {resource.type.name.lower()} {resource.name}: {outcome}")
