"""Finds partitions whose last stable offset is held back, by which transactions, and the groups that wait for it.

    last stable offset           end
            |                     |
    ========|---------------------|      read_committed reads up to the last stable offset
            ^ first record of the oldest open transaction

1. ListOffsets at both isolation levels, for all partitions: those where the two differ are blocked.
2. DescribeProducers for these: their open transactions.
3. ListTransactions and DescribeTransactions: the transactional ids of the producer ids, their state, start and client.
4. Fetch, only for transactions that no coordinator knows: the timestamp of the first record.
5. OffsetFetch: the groups. A group's offsets in a transaction are records of `__consumer_offsets`, in the partition of the group.

While producers write transactions, partitions are blocked for short times. `longer_than_ms` selects those that are not normal.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from ottla.base.ids import TopicPartition, partition_for
from ottla.client.admin import groups as of_groups
from ottla.client.admin import transaction_results as t
from ottla.client.admin.calls import HasCalls, Outcome, failed
from ottla.client.admin.group_results import GroupDescription, GroupType
from ottla.client.admin.transactions import Coordinated, coordinated, open_transactions, searched
from ottla.client.fetch.offsets import LATEST, OffsetAndTime, list_offsets
from ottla.client.group.assignor import by_topic
from ottla.client.group.commits import GROUPS_SINCE, NAMES_UNTIL, OffsetAndMetadata
from ottla.wire import messages as m
from ottla.wire.errors import KafkaError, UnstableOffsetCommit

OFFSETS_TOPIC = "__consumer_offsets"
#: Types of groups with committed offsets.
WITH_OFFSETS = (GroupType.CLASSIC, GroupType.CONSUMER, GroupType.UNKNOWN)

Found = dict[TopicPartition, "Outcome[t.BlockedPartition]"]


async def find_blocked_partitions(
    self: HasCalls,
    partitions: Iterable[TopicPartition | tuple[str, int]] | None = None,
    *,
    longer_than_ms: int = 0,
    groups: bool = True,
    timeout_ms: float | None = None,
) -> dict[TopicPartition, Outcome[t.BlockedPartition]]:
    """Partitions with records that `read_committed` does not read yet, because of a transaction that began at least `longer_than_ms` ago;
    of these partitions, or of all. With `groups` also the groups that wait.

    A partition whose state is unknown has its error. Raises: the error of a broker that does not answer about transactional ids or groups.

    Example: `admin.find_blocked_partitions([("orders", 0)], longer_than_ms=60_000, groups=False)`.
    """
    limit_ms = self._calls.limit_ms(timeout_ms)
    wanted, errors = await searched(self, partitions, broker=None, timeout_ms=limit_ms)
    ends = await _ends(self, wanted, limit_ms)
    found: Found = {**errors, **{tp: one for tp, one in ends.items() if isinstance(one, KafkaError)}}
    behind = {tp: one for tp, one in ends.items() if not isinstance(one, KafkaError) and one[0] < one[1]}
    opened = await open_transactions(self, behind, timeout_ms=limit_ms)
    found |= {tp: one for tp, one in opened.items() if isinstance(one, KafkaError)}
    several = [one for answer in opened.values() if not isinstance(answer, KafkaError) for one in answer]
    known = await coordinated(self, several, timeout_ms=limit_ms)
    hanging = [one.transaction for one in known if one.hangs]
    first_ms = await _first_times(self, hanging, limit_ms) if hanging else {}
    now_ms = int(time.time() * 1000)
    transactions: dict[TopicPartition, list[t.BlockingTransaction]] = {}
    for one in known:
        transactions.setdefault(one.transaction.place, []).append(_blocking(one, first_ms, now_ms))
    blocked = {
        tp: t.BlockedPartition(tp.topic, tp.partition, *behind[tp], sorted(some, key=lambda one: one.transaction.start_offset))
        for tp, some in transactions.items()
    }
    blocked = {tp: one for tp, one in blocked.items() if _held_ms(one, now_ms) >= longer_than_ms}
    waiting = await _groups(self, blocked, limit_ms) if groups and blocked else {}
    found |= {tp: replace(one, groups=waiting.get(tp, [])) for tp, one in blocked.items()}
    return {tp: found[tp] for tp in sorted(found)}


async def _ends(self: HasCalls, wanted: list[TopicPartition], limit_ms: float) -> dict[TopicPartition, Outcome[tuple[int, int]]]:
    """Last stable offset and end of each partition. The former is asked first, so that it is never above the latter."""
    network, latest = self._calls.network, dict.fromkeys(wanted, LATEST)
    stable = await list_offsets(network, latest, read_committed=True, timeout_ms=limit_ms, patient=False)
    ends = await list_offsets(network, latest, timeout_ms=limit_ms, patient=False)
    return {tp: _both(stable[tp], ends[tp]) for tp in wanted}


def _both(stable: OffsetAndTime | KafkaError, end: OffsetAndTime | KafkaError) -> Outcome[tuple[int, int]]:
    if isinstance(stable, KafkaError):
        return stable
    return end if isinstance(end, KafkaError) else (stable.offset, end.offset)


async def _first_times(self: HasCalls, transactions: Iterable[t.OpenTransaction], limit_ms: float) -> Mapping[Any, Any]:
    """Timestamp of the first record of each transaction, by partition and offset."""
    # Only this reads records and needs the record codec.
    from ottla.client.admin.record_times import record_times

    return await record_times(self._calls.network, {(one.place, one.start_offset) for one in transactions}, timeout_ms=limit_ms)


def _blocking(known: Coordinated, first_ms: Mapping[Any, Any], now_ms: int) -> t.BlockingTransaction:
    one, description = known
    if description is None or known.hangs:
        first = first_ms.get((one.place, one.start_offset))
        since_ms = first if isinstance(first, int) and first >= 0 else one.last_timestamp if one.last_timestamp >= 0 else None
        return t.BlockingTransaction(one, t.TransactionStatus.HANGING, since_ms, description)
    since_ms = description.start_ms
    if description.state.is_decided:
        status = t.TransactionStatus.COMPLETING
    elif not description.has_timeout:
        status = t.TransactionStatus.PREPARED
    elif since_ms is not None and now_ms > since_ms + description.timeout_ms:
        status = t.TransactionStatus.OVERDUE
    else:
        status = t.TransactionStatus.ONGOING
    return t.BlockingTransaction(one, status, since_ms, description)


def _held_ms(blocked: t.BlockedPartition, now_ms: int) -> int:
    """How long the oldest transaction has been open; 0 if unknown."""
    since_ms = min((one.since_ms for one in blocked.transactions if one.since_ms is not None), default=now_ms)
    return max(now_ms - since_ms, 0)


async def _groups(
    self: HasCalls, blocked: Mapping[TopicPartition, t.BlockedPartition], limit_ms: float
) -> dict[TopicPartition, list[t.BlockedGroup]]:
    """The waiting groups of each partition. A group that was deleted meanwhile has none."""
    listed = await of_groups.list_groups(self, timeout_ms=limit_ms)
    names = [one.group_id for one in listed if one.type in WITH_OFFSETS]
    waiting: dict[TopicPartition, list[t.BlockedGroup]] = {}
    readable = [tp for tp in blocked if tp.topic != OFFSETS_TOPIC]
    if readable and names:
        committed = await of_groups.list_consumer_group_offsets(self, dict.fromkeys(names, readable), timeout_ms=limit_ms)
        for name, offsets in committed.items():
            for tp in readable:
                offset = None if isinstance(offsets, KafkaError) else offsets.get(tp)
                if isinstance(offset, OffsetAndMetadata) and offset.offset <= blocked[tp].last_stable_offset:
                    waiting.setdefault(tp, []).append(t.BlockedGroup(name, offset.offset))
    numbers = {tp.partition for tp in blocked if tp.topic == OFFSETS_TOPIC}
    if numbers:
        count = self._calls.network.cluster.partition_count(OFFSETS_TOPIC)
        places = {name: partition_for(name, count) for name in names} if count else {}
        pending = await _pending(self, [name for name in names if places.get(name) in numbers], limit_ms)
        for name, several in pending.items():
            waiting.setdefault(TopicPartition(OFFSETS_TOPIC, places[name]), []).append(t.BlockedGroup(name, None, several))
    return waiting


async def _pending(self: HasCalls, names: list[str], limit_ms: float) -> dict[str, list[TopicPartition]]:
    """Partitions with pending offsets, by group: those with an earlier committed offset, and those that members read now."""
    if not names:
        return {}
    described = await of_groups.describe_consumer_groups(self, names, timeout_ms=limit_ms)
    committed = await of_groups.list_consumer_group_offsets(self, names, timeout_ms=limit_ms)
    asked: dict[str, list[TopicPartition]] = {}
    for name in names:
        group, offsets = described[name], committed[name]
        read = {tp for member in group.members for tp in member.assignment} if isinstance(group, GroupDescription) else set()
        asked[name] = sorted(read.union(() if isinstance(offsets, KafkaError) else offsets))

    async def ask(node: int, share: dict[str, list[TopicPartition]], left_ms: float) -> dict[str, Outcome[list[TopicPartition]]]:
        request = m.OffsetFetchRequest(groups=[_fetched(*one) for one in share.items()], require_stable=True)
        response = await self._calls.network.ask(node, request, at_least=GROUPS_SINCE, at_most=NAMES_UNTIL)
        return {
            one.group_id: failed(one)
            or [
                TopicPartition(topic.name, each.partition_index)
                for topic in one.topics
                for each in topic.partitions
                if each.error_code == UnstableOffsetCommit.code
            ]
            for one in response.groups
        }

    found = await self._calls.by_coordinator(
        {name: some for name, some in asked.items() if some}, ask, limit_ms, "listing offsets of group"
    )
    return {name: some for name, some in found.items() if not isinstance(some, KafkaError) and some}


def _fetched(group: str, partitions: list[TopicPartition]) -> m.OffsetFetchRequestGroup:
    topics = [m.OffsetFetchRequestTopics(name=topic, partition_indexes=numbers) for topic, numbers in by_topic(partitions).items()]
    return m.OffsetFetchRequestGroup(group_id=group, topics=topics)
