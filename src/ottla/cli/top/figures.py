"""What the view shows: one measurement of brokers, topics, groups and moves, and their rows. No terminal is needed for it.

Groups are measured beside the topics. Of more than `GROUPS_MAX` groups, those that are shown first by name have a lag.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ottla.base.readable import duration_text, size_text
from ottla.client.admin.admin import Admin
from ottla.console.watch.groups import GroupRow, measured
from ottla.console.watch.measure import measure
from ottla.console.watch.moves import MoveRow, move_rows
from ottla.console.watch.snapshot import BrokerSummary, Measured, Snapshot, TopicSummary, summarize
from ottla.wire.errors import KafkaError

#: Groups whose lag is measured, and rows of a table.
GROUPS_MAX, ROWS_MAX = 300, 200
UNKNOWN = "-"
TOPIC_ORDERS: dict[str, Callable[[TopicSummary], Any]] = {
    "rate": lambda one: -(one.rate or 0),
    "size": lambda one: -(one.size_bytes or 0),
    "records": lambda one: -(one.records or 0),
    "name": lambda one: one.name,
}
GROUP_ORDERS: dict[str, Callable[[GroupRow], Any]] = {
    "lag": lambda one: -(one.lag if one.lag is not None else -1),
    "time lag": lambda one: -(one.time_lag_ms if one.time_lag_ms is not None else -1),
    "name": lambda one: one.id,
}


class Figures(msgspec.Struct, frozen=True):
    """One measurement. `problems`: parts that the brokers did not give, with the reason."""

    snapshot: Snapshot
    groups: list[GroupRow]
    moves: list[MoveRow]
    problems: list[str]


async def read(admin: Admin, before: Measured | None) -> Figures:
    """Measures the cluster. Raises: KafkaError if brokers and topics cannot be read."""
    problems: list[str] = []

    async def groups() -> list[GroupRow]:
        try:
            listed = sorted(await admin.list_groups(), key=lambda one: one.group_id)
            rows = await measured(admin, listed[:GROUPS_MAX])
            return rows + [GroupRow(id=one.group_id, state=one.state, type=one.type.value) for one in listed[GROUPS_MAX:]]
        except KafkaError as error:
            problems.append(f"groups: {error}")
            return []

    async def moves() -> dict[Any, Any]:
        try:
            return dict(await admin.list_partition_reassignments())
        except KafkaError as error:
            problems.append(f"reassignments: {error}")
            return {}

    found, rows, moving = await asyncio.gather(measure(admin), groups(), moves())
    snapshot = summarize(found, before)
    problems += [f"{part}: {reason}" for part, reason in found.unavailable.items()]
    return Figures(snapshot, rows, move_rows(moving, snapshot), problems)


def headline(figures: Figures) -> str:
    """The cluster in one line."""
    snapshot = figures.snapshot
    topics = snapshot.topics.values()
    leaderless, lagging = sum(one.leaderless for one in topics), sum(one.under_replicated for one in topics)
    health = f"{leaderless} partitions without leader" if leaderless else f"{lagging} partitions not in sync" if lagging else "all in sync"
    brokers = "broker" if len(snapshot.brokers) == 1 else "brokers"
    parts = [
        f"{len(snapshot.brokers)} {brokers}", f"controller {snapshot.measured.controller}", f"{len(snapshot.topics):,} topics",
        f"{sum(one.partitions for one in topics):,} partitions", health, f"{_rate(snapshot.rate)} records in",
        f"{_bytes_rate(snapshot.byte_rate)}",
    ]  # fmt: skip
    return "  ".join(parts)


def broker_rows(brokers: Sequence[BrokerSummary]) -> list[tuple[str, ...]]:
    """Id, address, rack, leaders, replicas, those behind, size, rate."""
    return [
        (
            str(one.node.id), f"{one.node.host}:{one.node.port}", one.node.rack or UNKNOWN, f"{one.leads:,}", f"{one.replicas:,}",
            f"{one.lagging:,}", _size(one.stored_bytes), _rate(one.rate),
        )
        for one in brokers
    ]  # fmt: skip


def topic_rows(topics: Sequence[TopicSummary], order: str, wanted: str) -> list[tuple[str, ...]]:
    """Name, rates, records, size, partitions, health."""
    kept = sorted((one for one in topics if wanted.lower() in one.name.lower()), key=lambda one: (TOPIC_ORDERS[order](one), one.name))
    return [
        (
            one.name, _rate(one.rate), _bytes_rate(one.byte_rate), _number(one.records), _size(one.size_bytes), str(one.partitions),
            _health(one),
        )
        for one in kept[:ROWS_MAX]
    ]  # fmt: skip


def _health(topic: TopicSummary) -> str:
    if topic.leaderless:
        return f"{topic.leaderless} without leader"
    return f"{topic.under_replicated} behind" if topic.under_replicated else "in sync"


def group_rows(groups: Sequence[GroupRow], order: str, wanted: str) -> list[tuple[str, ...]]:
    """Name, state, members, lag, time lag."""
    kept = sorted((one for one in groups if wanted.lower() in one.id.lower()), key=lambda one: (GROUP_ORDERS[order](one), one.id))
    return [
        (
            one.id, one.state.value, _number(one.members), _number(one.lag),
            UNKNOWN if one.time_lag_ms is None else duration_text(one.time_lag_ms),
        )
        for one in kept[:ROWS_MAX]
    ]  # fmt: skip


def moving_rows(moves: Sequence[MoveRow]) -> list[tuple[str, ...]]:
    """Partition, new replicas, added and removed replicas, progress."""
    return [
        (
            str(one.partition), _brokers(one.target), _brokers(one.adding), _brokers(one.removing),
            UNKNOWN if one.copied is None or one.wanted is None
            else f"{_size(one.copied)} of {_size(one.wanted)}" + (f", {100 * one.copied // one.wanted} %" if one.wanted else ""),
        )
        for one in moves[:ROWS_MAX]
    ]  # fmt: skip


def _brokers(brokers: Sequence[int]) -> str:
    return ", ".join(map(str, brokers)) or UNKNOWN


def _number(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"


def _size(value: int | None) -> str:
    return size_text(value) or UNKNOWN


def _rate(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.1f}/s" if 0 < value < 10 else f"{value:,.0f}/s"


def _bytes_rate(value: float | None) -> str:
    return UNKNOWN if value is None else f"{size_text(int(value))}/s"
