"""One measurement of the cluster by an admin client: brokers, topics, log starts and ends, log directories."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from ottla.base.ids import TopicPartition
from ottla.client.admin.admin import Admin
from ottla.client.admin.calls import Outcome
from ottla.client.admin.topics import describe_all
from ottla.client.fetch.offsets import EARLIEST, LATEST, OffsetAndTime
from ottla.console.watch.snapshot import Measured
from ottla.wire.errors import KafkaError

K = TypeVar("K")
V = TypeVar("V")


async def measure(admin: Admin, early: Callable[[Measured], None] | None = None) -> Measured:
    """Measures. Brokers and topics are necessary, the rest is recorded as unavailable if it fails.

    `early` is called with the measurement before offsets and sizes are known. Raises: KafkaError.
    """
    found = Measured(at_ms=int(time.time() * 1000))
    cluster, found.topics = await asyncio.gather(admin.describe_cluster(), describe_all(admin))
    found.cluster_id, found.controller, found.nodes = cluster.cluster_id, cluster.controller, cluster.nodes
    if early is not None:
        early(found)
    led = [TopicPartition(name, one.partition) for name, topic in found.topics.items() for one in topic.partitions if one.leader >= 0]

    async def offsets() -> None:
        if not led:
            return
        found.at_ms = int(time.time() * 1000)
        ends, starts = await asyncio.gather(
            admin.list_offsets(dict.fromkeys(led, LATEST)), admin.list_offsets(dict.fromkeys(led, EARLIEST))
        )
        found.ends, found.starts = _offsets(ends), _offsets(starts)

    async def directories() -> None:
        outcomes = await admin.describe_log_dirs([node.id for node in found.nodes])
        found.directories = succeeded(outcomes)
        for broker, outcome in outcomes.items():
            if isinstance(outcome, KafkaError):
                found.unavailable[f"log directories of broker {broker}"] = str(outcome)

    await asyncio.gather(_part(found, "log ends", offsets), _part(found, "log directories", directories))
    return found


async def _part(found: Measured, name: str, query: Callable[[], Awaitable[None]]) -> None:
    try:
        await query()
    except KafkaError as error:
        found.unavailable[name] = str(error)


def succeeded(outcomes: Mapping[K, Outcome[V]]) -> dict[K, V]:
    """The results of those without an error."""
    return {name: outcome for name, outcome in outcomes.items() if not isinstance(outcome, KafkaError)}


def _offsets(outcomes: Mapping[TopicPartition, Outcome[OffsetAndTime]]) -> dict[TopicPartition, int]:
    return {tp: outcome.offset for tp, outcome in outcomes.items() if not isinstance(outcome, KafkaError)}
