"""Reads metadata and configuration of a cluster through an admin client.

A part that the cluster does not have, such as access rules without an authorizer, is recorded in ``left_out``. A part that the client may
not read is an error, so that no backup is incomplete without notice. Topics and groups that the client may not even see cannot be noticed:
the client needs DESCRIBE on the cluster, all topics and all groups.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TypeVar

import click

import ottla
from ottla.base.version import VERSION as OTTLA
from ottla.cli.backup import content
from ottla.client.admin import results as r
from ottla.client.admin.calls import good
from ottla.client.admin.group_results import GroupListing, GroupType
from ottla.wire.errors import KafkaError, SecurityDisabled, UnknownTopicOrPartition, UnsupportedVersion

T = TypeVar("T")
#: Items in one request.
BATCH = 200
#: What no client can read, or what has no meaning in another cluster.
NEVER_SAVED = "records, passwords and other secrets, delegation tokens, transactional ids"


class Collector:
    """Reads one cluster."""

    def __init__(self, admin: ottla.Admin, without: Collection[str]) -> None:
        self._admin = admin
        self._without = without
        self.left_out: list[str] = []

    def backup(self, now_ms: int) -> content.Backup:
        """Raises: ClickException, KafkaError."""
        cluster = self._admin.describe_cluster()
        brokers = [
            content.SavedBroker(node.id, node.host, node.port, node.rack) for node in sorted(cluster.nodes, key=lambda node: node.id)
        ]
        return content.Backup(
            format=content.FORMAT,
            version=content.VERSION,
            created_ms=now_ms,
            ottla=OTTLA,
            cluster_id=cluster.cluster_id,
            brokers=brokers,
            features=self._optional("feature levels", self._features) or {},
            topics=self._part("topics", self._topics),
            settings=self._part("settings", lambda: self._settings(brokers)),
            acls=self._part("acls", lambda: sorted_acls(map(content.SavedAcl.of, self._admin.describe_acls()))),
            quotas=self._part("quotas", self._quotas),
            users=self._part("users", self._users),
            groups=self._part("groups", self._groups),
            left_out=self.left_out,
        )

    def _part(self, name: str, read: Callable[[], T]) -> T | None:
        if name in self._without:
            self.left_out.append(f"{name}: --without {name}")
            return None
        try:
            return self._optional(name, read)
        except KafkaError as error:
            raise click.ClickException(f"cannot read {name}: {error}; leave them out with --without {name}") from None

    def _optional(self, name: str, read: Callable[[], T]) -> T | None:
        """None, and a remark, if the cluster does not have it."""
        try:
            return read()
        except (SecurityDisabled, UnsupportedVersion) as error:
            self.left_out.append(f"{name}: the cluster has none: {error}")
            return None

    def _features(self) -> dict[str, int]:
        return {name: levels.last for name, levels in sorted(self._admin.describe_features().finalized.items())}

    def _topics(self) -> list[content.SavedTopic]:
        found = []
        for names in _batches([topic.name for topic in self._admin.list_topics()]):
            described = self._admin.describe_topics(names)
            configs = self._admin.describe_configs([r.Resource.topic(name) for name in names])
            for name in names:
                topic, entries = described[name], configs[r.Resource.topic(name)]
                if isinstance(topic, UnknownTopicOrPartition) or isinstance(entries, UnknownTopicOrPartition):
                    # Deleted since the list was read.
                    continue
                replicas = [partition.replicas for partition in good(topic).partitions]
                settings = self._changed(r.Resource.topic(name), good(entries), r.ConfigSource.TOPIC)
                found.append(content.SavedTopic(name, len(replicas), len(replicas[0]), replicas, settings))
        return found

    def _changed(self, resource: r.Resource, entries: dict[str, r.ConfigEntry], source: r.ConfigSource) -> dict[str, str]:
        """Settings from this source, without secrets."""
        found = {name: entry for name, entry in sorted(entries.items()) if entry.source == source}
        self.left_out += [f"{resource}, {name}: brokers do not give out secrets" for name, entry in found.items() if entry.is_sensitive]
        return {name: entry.value for name, entry in found.items() if not entry.is_sensitive and entry.value is not None}

    def _settings(self, brokers: Sequence[content.SavedBroker]) -> list[content.SavedSettings]:
        found = []
        sources = {r.Resource.broker(None): r.ConfigSource.DYNAMIC_DEFAULT_BROKER}
        sources |= {r.Resource.broker(broker.id): r.ConfigSource.DYNAMIC_BROKER for broker in brokers}
        for kind, source in ((r.ResourceType.GROUP, r.ConfigSource.GROUP), (r.ResourceType.CLIENT_METRICS, r.ConfigSource.CLIENT_METRICS)):
            what = f"settings of {kind.name.lower().replace('_', ' ')}s"
            resources = self._optional(what, lambda kind=kind: self._admin.list_config_resources([kind]))  # type: ignore[misc]
            sources |= dict.fromkeys(resources or (), source)
        for resource, entries in self._admin.describe_configs(sources).items():
            changed = self._changed(resource, good(entries), sources[resource])
            if changed:
                found.append(content.SavedSettings(resource.type.name, resource.name, changed))
        for broker in brokers:
            entries = good(self._admin.describe_configs([r.Resource.broker(broker.id)])[r.Resource.broker(broker.id)])
            static = {name: entry for name, entry in sorted(entries.items()) if entry.source == r.ConfigSource.STATIC_BROKER}
            broker.static_settings = {name: entry.value for name, entry in static.items() if entry.value is not None}
        return sorted(found, key=lambda one: (one.type, one.name))

    def _quotas(self) -> list[content.SavedQuota]:
        found = self._admin.describe_client_quotas()
        saved = [content.SavedQuota(one.user, one.client_id, one.ip, dict(sorted(quotas.items()))) for one, quotas in found.items()]
        return sorted(saved, key=lambda one: (one.user or "", one.client_id or "", one.ip or ""))

    def _users(self) -> list[content.SavedUser]:
        found = self._admin.describe_scram_credentials()
        return [
            content.SavedUser(user, {one.mechanism.mechanism: one.iterations for one in good(credentials)})
            for user, credentials in sorted(found.items())
        ]

    def _groups(self) -> list[content.SavedGroup]:
        found = []
        listed: dict[str, GroupListing] = {}
        for group in self._admin.list_groups():
            if group.type in (GroupType.SHARE, GroupType.STREAMS):
                self.left_out.append(f"group {group.group_id}: offsets of {group.type.value.lower()} groups are not in the protocol")
            else:
                listed[group.group_id] = group
        for names in _batches(sorted(listed)):
            for name, offsets in self._admin.list_consumer_group_offsets(names).items():
                saved: dict[str, dict[int, content.SavedOffset]] = {}
                for tp, committed in sorted(good(offsets).items()):
                    if (one := good(committed)) is not None:
                        saved.setdefault(tp.topic, {})[tp.partition] = content.SavedOffset(one.offset, one.leader_epoch, one.metadata)
                if saved:
                    found.append(content.SavedGroup(name, saved, has_members=listed[name].state.has_members))
        return found


def sorted_acls(acls: Iterator[content.SavedAcl]) -> list[content.SavedAcl]:
    """By principal and resource."""
    return sorted(
        acls, key=lambda one: (one.principal, one.resource_type, one.name, one.pattern_type, one.operation, one.permission, one.host)
    )


def _batches(names: Sequence[str]) -> Iterator[Sequence[str]]:
    return (names[start : start + BATCH] for start in range(0, len(names), BATCH))
