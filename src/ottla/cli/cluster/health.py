"""Whether a cluster is well, as its brokers see it: who is controller, and which partitions lack a leader or replicas."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from ottla.cli.common.connection import admin as connected

if TYPE_CHECKING:
    from ottla.client.admin.results import Node, PartitionDescription
    from ottla.client.sync.admin import Admin

LOOK_S = 0.1
#: How long a controller may take to tell what moves.
MOVES_MS = 5_000


class Health(msgspec.Struct):
    """What a broker told. A partition that is offline is not counted as under-replicated too."""

    cluster_id: str | None
    #: -1: none at the moment.
    controller: int
    brokers: list[Node]
    partitions: int
    #: Without a leader.
    offline: dict[tuple[str, int], PartitionDescription]
    #: With a leader, and replicas that are not in sync.
    under_replicated: dict[tuple[str, int], PartitionDescription]
    #: Brokers that have replicas, and are not there.
    absent: list[int]
    #: (topic, partition, broker) of damaged replicas, with what is wrong.
    damaged: dict[tuple[str, int, int], str] = {}

    def as_json(self) -> dict[str, Any]:
        return {
            "cluster_id": self.cluster_id,
            "controller": self.controller if self.controller >= 0 else None,
            "partitions": self.partitions,
            "under_replicated": [_json(*found) for found in self.under_replicated.items()],
            "offline": [_json(*found) for found in self.offline.items()],
            "damaged": [
                {"topic": topic, "partition": partition, "broker": broker, "damage": damage}
                for (topic, partition, broker), damage in self.damaged.items()
            ],
        }


def health(bootstrap: str) -> Health:
    """Asks a broker. Raises: KafkaError."""
    with connected(bootstrap) as admin:
        cluster = admin.describe_cluster()
        topics = admin.describe_topics([topic.name for topic in admin.list_topics(internal=True)])
        found = {
            (name, one.partition): one for name, topic in topics.items() if not isinstance(topic, Exception) for one in topic.partitions
        }
        lacking = {name: one for name, one in found.items() if _lacking(one)}
        coming = _coming(admin, lacking)
        damaged = _damaged(admin)
    offline = {name: one for name, one in found.items() if one.leader < 0}
    return Health(
        cluster_id=cluster.cluster_id,
        controller=cluster.controller,
        brokers=cluster.nodes,
        partitions=len(found),
        damaged=damaged,
        offline=offline,
        absent=sorted({broker for one in found.values() for broker in one.replicas} - {node.id for node in cluster.nodes}),
        under_replicated={name: one for name, one in lacking.items() if name not in offline and _lacking(one, coming.get(name, ()))},
    )


def _lacking(one: PartitionDescription, coming: Iterable[int] = ()) -> bool:
    """Whether replicas are not in sync, or no longer, of which the controller may not know yet. Those that a reassignment is adding are not
    missed, as in Kafka."""
    there = set(one.replicas).difference(coming)
    return bool(there - set(one.isr) or there & set(one.offline_replicas))


def _coming(admin: Admin, partitions: Collection[tuple[str, int]]) -> dict[tuple[str, int], list[int]]:
    """Replicas that are being added to some of these partitions; nothing where no controller can tell."""
    from ottla.wire.errors import KafkaError

    if not partitions:
        return {}
    try:
        moves = admin.list_partition_reassignments(partitions, timeout_ms=MOVES_MS)
    except KafkaError:
        return {}
    return {(tp.topic, tp.partition): move.adding for tp, move in moves.items()}


def _damaged(admin: Admin) -> dict[tuple[str, int, int], str]:
    """Replicas with damage, as far as brokers tell."""
    found = {}
    for broker, directories in sorted(admin.describe_log_dirs(timeout_ms=MOVES_MS).items()):
        if isinstance(directories, Exception):
            continue
        for log in (log for directory in directories for log in directory.replicas if log.damage):
            found[log.topic, log.partition, broker] = log.damage
    return found


def await_health(bootstraps: Collection[str], well: Callable[[Health], bool], *, timeout_s: float) -> Health | None:
    """What is wrong with a cluster that does not become well in time, as one of these brokers sees it; None: all see that it is.

    Raises: KafkaError, when a broker does not answer.
    """
    deadline_s = time.monotonic() + timeout_s
    for bootstrap in bootstraps:
        while not well(seen := health(bootstrap)):
            if time.monotonic() > deadline_s:
                return seen
            time.sleep(LOOK_S)
    return None


def _json(name: tuple[str, int], one: PartitionDescription) -> dict[str, Any]:
    return {
        "topic": name[0],
        "partition": name[1],
        "leader": one.leader if one.leader >= 0 else None,
        "replicas": one.replicas,
        "isr": one.isr,
    }
