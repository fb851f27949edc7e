"""Makes the changes of a plan, or lets the brokers check them: each change has an outcome of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias, TypeVar

import ottla
from ottla.base.ids import TopicPartition
from ottla.cli.backup.plan import Change, CommitOffset, CreateTopic, Plan, SetQuota, SetSetting
from ottla.client.admin import results as r
from ottla.client.admin.quotas import QuotaEntity
from ottla.wire.errors import KafkaError

C = TypeVar("C")
Outcomes: TypeAlias = Iterator[tuple[Change, KafkaError | None]]
#: Partitions of new topics, or other changes, in one request.
BATCH = 500


def apply(admin: ottla.Admin, plan: Plan, *, validate_only: bool) -> Outcomes:
    """Each change with its error, as it is made. ``validate_only``: brokers check topics, quotas and settings and change nothing."""
    for acls in [] if validate_only else _batches(plan.acls):
        added = admin.create_acls([one.acl for one in acls])
        yield from ((one, added[one.acl]) for one in acls)
    for quotas in _batches(plan.quotas):
        yield from _set_quotas(admin, quotas, validate_only)
    for topics in _batches(plan.topics, lambda topic: topic.partitions):
        created = admin.create_topics(map(_new_topic, topics), validate_only=validate_only)
        yield from ((one, _error(created[one.name])) for one in topics)
    for partitions in _batches(plan.partitions):
        grown = admin.create_partitions({one.name: one.after for one in partitions}, validate_only=validate_only)
        yield from ((one, grown[one.name]) for one in partitions)
    for settings in _batches(plan.settings):
        yield from _set_settings(admin, settings, validate_only)
    yield from [] if validate_only else _commit(admin, plan.offsets)


def _batches(changes: Sequence[C], weight: Callable[[C], int] = lambda change: 1) -> Iterator[list[C]]:
    some: list[C] = []
    total = 0
    for change in changes:
        if some and total + weight(change) > BATCH:
            yield some
            some, total = [], 0
        some.append(change)
        total += weight(change)
    if some:
        yield some


def _error(outcome: object) -> KafkaError | None:
    return outcome if isinstance(outcome, KafkaError) else None


def _new_topic(one: CreateTopic) -> r.NewTopic:
    if one.replicas:
        return r.NewTopic(one.name, configs=one.settings, assignments=dict(enumerate(one.replicas)))
    return r.NewTopic(one.name, one.partitions, one.replication_factor, one.settings)


def _set_quotas(admin: ottla.Admin, changes: Sequence[SetQuota], validate_only: bool) -> Outcomes:
    wanted: dict[QuotaEntity, dict[str, float | None]] = {}
    for one in changes:
        wanted.setdefault(one.entity, {})[one.key] = one.after
    outcomes = admin.alter_client_quotas(wanted, validate_only=validate_only)
    return ((one, outcomes[one.entity]) for one in changes)


def _set_settings(admin: ottla.Admin, changes: Sequence[SetSetting], validate_only: bool) -> Outcomes:
    wanted: dict[r.Resource, list[r.ConfigChange]] = {}
    for one in changes:
        wanted.setdefault(one.resource, []).append(r.ConfigChange(one.key, one.after))
    outcomes = admin.incremental_alter_configs(wanted, validate_only=validate_only)
    return ((one, outcomes[one.resource]) for one in changes)


def _commit(admin: ottla.Admin, changes: Sequence[CommitOffset]) -> Outcomes:
    groups: dict[str, dict[TopicPartition, CommitOffset]] = {}
    for one in changes:
        groups.setdefault(one.group, {})[one.partition] = one
    for group, offsets in groups.items():
        outcomes = admin.alter_consumer_group_offsets(group, {tp: one.offset.committed for tp, one in offsets.items()})
        yield from ((one, outcomes[tp]) for tp, one in offsets.items())
