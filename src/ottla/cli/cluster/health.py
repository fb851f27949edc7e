"""The health of a cluster as one broker reports it: controller, offline and under-replicated partitions, damaged replicas."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from typing import Any

import msgspec

import ottla
from ottla.cli.common.connection import admin as connected
from ottla.cli.topic.lookup import partition_document
from ottla.client.admin.results import Node, PartitionDescription
from ottla.wire.errors import KafkaError

#: Fields of a partition in `ottla cluster status`.
PARTITION_FIELDS = ("topic", "partition", "leader", "replicas", "isr")
POLL_S = 0.1
#: Timeout of requests whose answer only adds detail.
BROKER_TIMEOUT_MS = 5_000


class Health(msgspec.Struct):
    """A broker's report. Offline partitions are not in `under_replicated`."""

    cluster_id: str | None
    #: Broker id, or -1 without a controller.
    controller: int
    brokers: list[Node]
    partitions: int
    #: Partitions without a leader.
    offline: dict[tuple[str, int], PartitionDescription]
    #: Partitions with a leader and replicas that are not in sync.
    under_replicated: dict[tuple[str, int], PartitionDescription]
    #: Brokers with replicas that are down.
    absent: list[int]
    #: (topic, partition, broker) of damaged replicas, with a description of the damage.
    damaged: dict[tuple[str, int, int], str] = {}

    def as_json(self) -> dict[str, Any]:
        return {
            "cluster_id": self.cluster_id,
            "controller": self.controller if self.controller >= 0 else None,
            "partitions": self.partitions,
            "under_replicated": [_document(*item) for item in self.under_replicated.items()],
            "offline": [_document(*item) for item in self.offline.items()],
            "damaged": [
                {"topic": topic, "partition": partition, "broker": broker, "damage": damage}
                for (topic, partition, broker), damage in self.damaged.items()
            ],
        }


def health(bootstrap: str) -> Health:
    """Raises: KafkaError."""
    with connected(bootstrap) as admin:
        cluster = admin.describe_cluster()
        topics = admin.describe_topics([topic.name for topic in admin.list_topics(internal=True)])
        partitions = {
            (name, one.partition): one for name, topic in topics.items() if not isinstance(topic, Exception) for one in topic.partitions
        }
        candidates = {name: one for name, one in partitions.items() if _is_under_replicated(one)}
        adding = _adding_replicas(admin, candidates)
        damaged = _damaged(admin)
    offline = {name: one for name, one in partitions.items() if one.leader < 0}
    return Health(
        cluster_id=cluster.cluster_id,
        controller=cluster.controller,
        brokers=cluster.nodes,
        partitions=len(partitions),
        damaged=damaged,
        offline=offline,
        absent=sorted({broker for one in partitions.values() for broker in one.replicas} - {node.id for node in cluster.nodes}),
        under_replicated={
            name: one for name, one in candidates.items() if name not in offline and _is_under_replicated(one, adding.get(name, ()))
        },
    )


def _is_under_replicated(one: PartitionDescription, adding: Iterable[int] = ()) -> bool:
    """Whether replicas are out of sync or offline; the controller may not have removed the latter from the ISR yet.

    As in Kafka, replicas that a reassignment is adding do not count.
    """
    replicas = set(one.replicas).difference(adding)
    return bool(replicas - set(one.isr) or replicas & set(one.offline_replicas))


def _adding_replicas(admin: ottla.Admin, partitions: Collection[tuple[str, int]]) -> dict[tuple[str, int], list[int]]:
    """Replicas that reassignments are adding to these partitions; none if no controller answers."""
    if not partitions:
        return {}
    try:
        moves = admin.list_partition_reassignments(partitions, timeout_ms=BROKER_TIMEOUT_MS)
    except KafkaError:
        return {}
    return {(tp.topic, tp.partition): move.adding for tp, move in moves.items()}


def _damaged(admin: ottla.Admin) -> dict[tuple[str, int, int], str]:
    """Damaged replicas that brokers report."""
    damaged = {}
    for broker, directories in sorted(admin.describe_log_dirs(timeout_ms=BROKER_TIMEOUT_MS).items()):
        if isinstance(directories, Exception):
            continue
        for log in (log for directory in directories for log in directory.replicas if log.damage):
            damaged[log.topic, log.partition, broker] = log.damage
    return damaged


def await_health(bootstraps: Collection[str], is_healthy: Callable[[Health], bool], *, timeout_s: float) -> Health | None:
    """Waits until each of these brokers reports a healthy cluster. Returns None, or on timeout the report of a broker that does not.

    Raises: KafkaError, if a broker does not answer.
    """
    deadline_s = time.monotonic() + timeout_s
    for bootstrap in bootstraps:
        while not is_healthy(report := health(bootstrap)):
            if time.monotonic() > deadline_s:
                return report
            time.sleep(POLL_S)
    return None


def _document(name: tuple[str, int], one: PartitionDescription) -> dict[str, Any]:
    document = partition_document(name[0], one)
    return {field: document[field] for field in PARTITION_FIELDS}
