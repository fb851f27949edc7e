"""Throttles of a reassignment: `execute` sets them, `verify` and `cancel` remove them.

Leaders and followers are both throttled. For each partition that gets a replica, the topic lists the current replicas as throttled leaders
(any of them can lead) and the new ones as throttled followers. All these brokers get the rate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import click

import ottla
from ottla.base.ids import TopicPartition
from ottla.client.admin.calls import good
from ottla.client.admin.results import ConfigChange, ConfigOperation, ConfigSource, Resource
from ottla.wire.errors import KafkaError

RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
REPLICAS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")


def throttle_moves(
    admin: ottla.Admin, present: Mapping[TopicPartition, Sequence[int]], planned_replicas: Mapping[TopicPartition, Sequence[int]], rate: int
) -> None:
    """Throttles moves to `rate` bytes per second on each broker, in and out. Raises: KafkaError."""
    leaders: dict[str, list[str]] = {}
    followers: dict[str, list[str]] = {}
    brokers: set[int] = set()
    for tp, replicas in sorted(planned_replicas.items()):
        current = present[tp]
        adding = [broker for broker in replicas if broker not in current]
        if adding:
            leaders.setdefault(tp.topic, []).extend(f"{tp.partition}:{broker}" for broker in current)
            followers.setdefault(tp.topic, []).extend(f"{tp.partition}:{broker}" for broker in adding)
            brokers.update(current, adding)
    changes: dict[Resource, list[ConfigChange]] = {}
    for topic in leaders:
        named = (",".join(leaders[topic]), ",".join(followers[topic]))
        changes[Resource.topic(topic)] = [ConfigChange(name, value) for name, value in zip(REPLICAS, named, strict=True)]
    alive = {node.id for node in admin.describe_cluster().nodes}
    for broker in sorted(brokers & alive):
        changes[Resource.broker(broker)] = [ConfigChange(name, str(rate)) for name in RATES]
    _change(admin, changes)


def unthrottle(admin: ottla.Admin, topics: Iterable[str]) -> list[str]:
    """Removes the throttles of these topics and the rates of all brokers. Returns the topics and brokers that had some.

    Raises: KafkaError.
    """
    resources: dict[Resource, tuple[str, ...]] = {Resource.topic(topic): REPLICAS for topic in sorted(topics)}
    resources.update({Resource.broker(node.id): RATES for node in admin.describe_cluster().nodes})
    own = (ConfigSource.TOPIC, ConfigSource.DYNAMIC_BROKER)
    changes: dict[Resource, list[ConfigChange]] = {}
    for resource, entries in admin.describe_configs(resources, names=[*RATES, *REPLICAS]).items():
        found = good(entries)
        if overrides := [name for name in resources[resource] if name in found and found[name].source in own]:
            changes[resource] = [ConfigChange(name, None, ConfigOperation.DELETE) for name in overrides]
    _change(admin, changes)
    return [f"{resource.type.name.lower()} {resource.name}" for resource in changes]


def _change(admin: ottla.Admin, changes: Mapping[Resource, Iterable[ConfigChange]]) -> None:
    for resource, outcome in (admin.incremental_alter_configs(changes) if changes else {}).items():
        if isinstance(outcome, KafkaError):
            raise click.ClickException(f"cannot change the throttle of {resource.type.name.lower()} {resource.name}: {outcome}")
