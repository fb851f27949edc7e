"""Lag of groups in records and in time.

      start                 committed                              end
        |                       |                                   |
        |=======================|-----------------------------------|
                                ^ first unread record               ^ the next record will be written here

    lag             end - committed, as in Kafka's tools
    time lag        age of the first unread record; 0 without one
    unread span     time from the first unread record to the largest timestamp in the log: unlike the time lag it does not grow while
                    nothing is written
    lost            records between the committed offset and a later log start: they were deleted unread

Partitions are those with committed offsets, and those assigned to members, which have no lag before the first commit. Committed offsets are
requested before log ends, so a lag is never less than at the time of the request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace

from ottla.base.ids import TopicPartition
from ottla.client.admin.group_results import GroupDescription, GroupMember, GroupState
from ottla.client.admin.record_times import record_times
from ottla.client.fetch.offsets import EARLIEST, LATEST, MAX_TIMESTAMP, OffsetAndTime, list_offsets
from ottla.client.group.commits import OffsetAndMetadata
from ottla.client.html_tables import html_table
from ottla.client.transport.network import Network
from ottla.wire.errors import KafkaError

Offsets = Mapping[TopicPartition, OffsetAndMetadata | KafkaError | None]


class PartitionLag(msgspec.Struct, frozen=True):
    """Lag of one partition of a group. None means unknown; `error` is the reason, unless nothing was committed."""

    topic: str
    partition: int
    committed_offset: int | None
    start_offset: int | None = None
    end_offset: int | None = None
    #: Timestamp of the first unread record, and the largest timestamp; milliseconds since 1970.
    first_unread_ms: int | None = None
    last_ms: int | None = None
    #: Age of the first unread record, 0 if all is read.
    time_lag_ms: int | None = None
    #: The member that reads it now.
    member: GroupMember | None = None
    error: str | None = None

    @property
    def lag(self) -> int | None:
        """Records between the committed offset and the end."""
        if self.committed_offset is None or self.end_offset is None:
            return None
        return max(self.end_offset - self.committed_offset, 0)

    @property
    def lost(self) -> int:
        """Records that were deleted before the group read them."""
        if self.committed_offset is None or self.start_offset is None:
            return 0
        return max(self.start_offset - self.committed_offset, 0)

    @property
    def unread_span_ms(self) -> int | None:
        """Time span of the unread records."""
        if self.lag == 0:
            return 0
        return None if self.first_unread_ms is None or self.last_ms is None else max(self.last_ms - self.first_unread_ms, 0)


class GroupLag(msgspec.Struct, frozen=True):
    """All partitions of a group by topic and number, at a time in milliseconds since 1970."""

    group_id: str
    state: GroupState
    read_at_ms: int
    partitions: list[PartitionLag]

    @property
    def lag(self) -> int | None:
        """Total lag in records; None if no partition's lag is known."""
        return total_lag(self.partitions)

    @property
    def time_lag_ms(self) -> int | None:
        """The greatest time lag of a partition; None if none is known."""
        return longest_time_lag(self.partitions)

    def by_topic(self) -> dict[str, list[PartitionLag]]:
        """The partitions by topic."""
        topics: dict[str, list[PartitionLag]] = {}
        for one in self.partitions:
            topics.setdefault(one.topic, []).append(one)
        return topics

    def _repr_html_(self) -> str:
        return html_table(self.partitions, title=f"{self.group_id}  {self.state.value}  lag {self.lag}")


#: By group and partition.
Rows = dict[tuple[str, TopicPartition], PartitionLag]


def total_lag(partitions: Iterable[PartitionLag]) -> int | None:
    """Sum of the known lags; None without any, as before the first commit of a new group."""
    known = [one.lag for one in partitions if one.lag is not None]
    return sum(known) if known else None


def longest_time_lag(partitions: Iterable[PartitionLag]) -> int | None:
    """The greatest known time lag."""
    return max((one.time_lag_ms for one in partitions if one.time_lag_ms is not None), default=None)


async def lag_of(
    network: Network,
    groups: Mapping[str, GroupDescription],
    committed: Mapping[str, Offsets | KafkaError],
    *,
    times: bool,
    timeout_ms: float,
) -> dict[str, GroupLag | KafkaError]:
    """The lag of groups with known members and offsets. Sends one request per broker for log ends, one for starts, with `times` one for the
    largest timestamps, and usually one for the first unread records.

    Raises: ConnectionFailed, RequestTimedOut.
    """
    rows: Rows = {}
    failed: dict[str, KafkaError] = {}
    for name, described in groups.items():
        offsets = committed[name]
        if isinstance(offsets, KafkaError):
            failed[name] = offsets
        else:
            rows |= {(name, tp): row for tp, row in _rows(described, offsets).items()}
    deadline_ms = network.clock_ms() + timeout_ms
    await _place(network, rows, times=times, timeout_ms=timeout_ms)
    if times:
        await _date(network, rows, timeout_ms=max(deadline_ms - network.clock_ms(), 0))
    # After the requests, so that no record's timestamp is later.
    now_ms = int(time.time() * 1000)
    partitions: dict[str, list[PartitionLag]] = {name: [] for name in groups}
    for (name, _), row in rows.items():
        lag_ms = 0 if times and row.lag == 0 else None if row.first_unread_ms is None else max(now_ms - row.first_unread_ms, 0)
        partitions[name].append(replace(row, time_lag_ms=lag_ms))
    return {name: failed.get(name) or GroupLag(name, described.state, now_ms, partitions[name]) for name, described in groups.items()}


def _rows(described: GroupDescription, offsets: Offsets) -> dict[TopicPartition, PartitionLag]:
    readers = {tp: member for member in described.members for tp in member.assignment}
    rows = {}
    for tp in sorted({*offsets, *readers}):
        found = offsets.get(tp)
        if found is None and tp not in readers:
            continue
        error = str(found) if isinstance(found, KafkaError) else None
        offset = None if found is None or isinstance(found, KafkaError) else found.offset
        rows[tp] = PartitionLag(*tp, offset, member=readers.get(tp), error=error)
    return rows


async def _place(network: Network, rows: Rows, *, times: bool, timeout_ms: float) -> None:
    """Fills in starts and ends of logs. A partition without a leader is not waited for: lag is requested when something is wrong."""
    cluster = network.cluster
    for _, tp in rows:
        cluster.want(tp.topic, network.clock_ms(), create=False)
    await network.refresh()
    led = {tp for _, tp in rows if cluster.leader(*tp) is not None}
    kinds = (EARLIEST, LATEST, MAX_TIMESTAMP) if times else (EARLIEST, LATEST)
    starts, ends, last, *_ = [
        *await asyncio.gather(*(list_offsets(network, dict.fromkeys(led, kind), timeout_ms=timeout_ms, patient=False) for kind in kinds)),
        {},
    ]
    for key, row in rows.items():
        _, tp = key
        if tp not in led:
            rows[key] = replace(row, error=cluster.why_not(*tp))
            continue
        start, end, newest = starts[tp], ends[tp], last.get(tp)
        if isinstance(end, KafkaError) or isinstance(start, KafkaError):
            rows[key] = replace(row, error=str(end if isinstance(end, KafkaError) else start))
            continue
        # An old broker does not report the largest timestamp; the span is then unknown.
        last_ms = newest.timestamp if isinstance(newest, OffsetAndTime) and newest.timestamp >= 0 else None
        rows[key] = replace(row, start_offset=start.offset, end_offset=end.offset, last_ms=last_ms)


async def _date(network: Network, rows: Rows, *, timeout_ms: float) -> None:
    """Fills in the timestamps of the first unread records."""
    wanted = {}
    for key, row in rows.items():
        if row.lag and row.committed_offset is not None and row.start_offset is not None:
            wanted[key] = (key[1], max(row.committed_offset, row.start_offset))
    found = await record_times(network, list(wanted.values()), timeout_ms=timeout_ms)
    for key, place in wanted.items():
        when = found[place]
        if isinstance(when, KafkaError):
            rows[key] = replace(rows[key], error=str(when))
        elif when is not None and when >= 0:
            rows[key] = replace(rows[key], first_unread_ms=when)
