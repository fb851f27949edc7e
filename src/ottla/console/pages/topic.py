"""A topic: partitions with leaders, ISR and sizes; more partitions, deletion of records, deletion of the topic."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ottla.base.ids import TopicPartition
from ottla.client.admin.admin import Admin
from ottla.client.admin.calls import good
from ottla.client.admin.results import PartitionDescription, TopicDescription
from ottla.client.fetch.offsets import EARLIEST, LATEST
from ottla.client.fetch.ranges import BadRange, Range, parse_partitions, parse_range
from ottla.console.pages.listing import Listing, listed, text
from ottla.console.watch.measure import succeeded
from ottla.console.watch.snapshot import Snapshot
from ottla.console.web.changes import change, field, fields, noted, then
from ottla.console.web.errors import invalid
from ottla.console.web.page import page, refreshed_page, segment
from ottla.console.web.roles import Role
from ottla.wire.errors import KafkaError

PARTITIONS = 200


class PartitionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A partition, as the page shows it. None: unknown."""

    partition: int
    described: PartitionDescription
    start: int | None
    end: int | None
    size_bytes: int | None
    rate: float | None

    @property
    def records(self) -> int | None:
        """Offsets in the log."""
        return None if self.start is None or self.end is None else self.end - self.start

    @property
    def lagging(self) -> list[int]:
        """Replicas that are not in the ISR."""
        return [one for one in self.described.replicas if one not in self.described.isr]


SORTS = {
    "partition": lambda one: one.partition,
    "leader": lambda one: one.described.leader,
    "start": lambda one: one.start,
    "end": lambda one: one.end,
    "records": lambda one: one.records,
    "size": lambda one: one.size_bytes,
    "rate": lambda one: one.rate,
}


async def log_ranges(admin: Admin, topic: TopicDescription) -> dict[TopicPartition, tuple[int, int]]:
    """Log starts and ends of the partitions that have a leader."""
    led = [TopicPartition(topic.name, one.partition) for one in topic.partitions if one.leader >= 0]
    if not led:
        return {}
    starts, ends = await asyncio.gather(admin.list_offsets(dict.fromkeys(led, EARLIEST)), admin.list_offsets(dict.fromkeys(led, LATEST)))
    known_starts, known_ends = succeeded(starts), succeeded(ends)
    return {tp: (known_starts[tp].offset, known_ends[tp].offset) for tp in led if tp in known_starts and tp in known_ends}


async def _sizes(admin: Admin, topic: TopicDescription) -> dict[int, int]:
    """Sizes of the leaders' logs; none if the brokers do not report them."""
    try:
        outcomes = await admin.describe_log_dirs(topics=[topic.name])
    except KafkaError:
        return {}
    leaders = {one.partition: one.leader for one in topic.partitions}
    return {
        replica.partition: replica.size_bytes
        for broker, directories in succeeded(outcomes).items()
        for directory in directories
        for replica in directory.replicas
        if replica.topic == topic.name and leaders.get(replica.partition) == broker and not replica.is_future
    }


def partition_rows(
    topic: TopicDescription, ranges: Mapping[TopicPartition, tuple[int, int]], sizes: Mapping[int, int], snapshot: Snapshot | None
) -> list[PartitionRow]:
    """The rows of the partitions."""
    rates = {} if snapshot is None else snapshot.rates
    rows = []
    for one in topic.partitions:
        tp = TopicPartition(topic.name, one.partition)
        start, end = ranges.get(tp, (None, None))
        rows.append(
            PartitionRow(
                partition=one.partition, described=one, start=start, end=end, size_bytes=sizes.get(one.partition), rate=rates.get(tp)
            )
        )
    return rows


async def _values(request: Request) -> dict[str, Any]:
    state = request.app.state
    name = request.path_params["topic"]
    topic = await state.admin.describe_topic(name)
    ranges, sizes = await asyncio.gather(log_ranges(state.admin, topic), _sizes(state.admin, topic))
    state.watcher.touch()
    rows = partition_rows(topic, ranges, sizes, state.watcher.snapshot)
    listing: Listing[PartitionRow] = listed(request, rows, SORTS, default="partition", items=PARTITIONS)
    counts = [one.records for one in rows if one.records is not None]
    rates = [one.rate for one in rows if one.rate is not None]
    return {
        "title": topic.name,
        "tab": "partitions",
        "topic": topic,
        "listing": listing,
        "records": sum(counts) if counts else None,
        "size_bytes": sum(sizes.values()) if sizes else None,
        "rate": sum(rates) if rates else None,
        "most": max(counts, default=0),
        "replicas": max((len(one.replicas) for one in topic.partitions), default=0),
        "leaderless": sum(one.leader < 0 for one in topic.partitions),
        "lagging": sum(bool(one.lagging) for one in rows),
    }


async def manage(request: Request) -> Response:
    """Forms to change the topic, and the preview of a deletion of records with `?until=`."""
    admin = request.app.state.admin
    topic = await admin.describe_topic(request.path_params["topic"])
    until, chosen = text(request, "until"), text(request, "partitions")
    preview, problem = None, ""
    if until:
        try:
            preview = await _purge_preview(request, topic, until, chosen)
        except BadRange as error:
            problem = error.why
    return page(
        request, "topic_manage.html", title=topic.name, tab="manage", topic=topic, until=until, chosen=chosen, preview=preview,
        problem=problem, total=sum(after - start for _, start, after in preview or ()),
    )  # fmt: skip


async def _purge_preview(request: Request, topic: TopicDescription, until: str, chosen: str) -> list[tuple[int, int, int]]:
    """(partition, log start, new log start) of the partitions that lose records. Raises: BadRange, KafkaError."""
    admin, now_ms = request.app.state.admin, int(request.app.state.time_s() * 1000)
    bound = parse_range(until, now_ms)
    if bound.last is not None:
        raise BadRange(until, 0, len(until), "Expected one position, such as end, 100 or -7d, not a range")
    numbers = set(parse_partitions(chosen)) if chosen else None
    ranges = {tp: one for tp, one in (await log_ranges(admin, topic)).items() if numbers is None or tp.partition in numbers}
    times: dict[TopicPartition, int] = {}
    wanted_ms = Range(bound.first).times()[0]
    if wanted_ms is not None and ranges:
        found = succeeded(await admin.list_offsets(dict.fromkeys(ranges, max(wanted_ms, 0))))
        times = {tp: one.offset for tp, one in found.items() if one.offset >= 0}
    rows = []
    for tp, (start, end) in ranges.items():
        after, _ = Range(bound.first).offsets(start, end, times.get(tp))
        if after > start:
            rows.append((tp.partition, start, after))
    return rows


@change("topic.delete-records", Role.EDITOR)
async def purge(request: Request) -> Response:
    """Deletes the records before the offsets of the preview."""
    name = request.path_params["topic"]
    _confirmed(request, name)
    before = {}
    for one in fields(request, "before"):
        partition, _, offset = one.partition(":")
        if not partition.isdecimal() or not offset.isdecimal():
            raise invalid("The offsets of the preview are not valid.")
        before[TopicPartition(name, int(partition))] = int(offset)
    noted(request, topic=name, before={str(tp.partition): offset for tp, offset in before.items()})
    outcomes = await request.app.state.admin.delete_records(before)
    failed = [error for error in outcomes.values() if isinstance(error, KafkaError)]
    request.app.state.watcher.hurry()
    where = f"/topics/{segment(name)}"
    if failed:
        noted(request, error=str(failed[0]))
        return then(request, where, f"{len(failed)} of {len(outcomes)} partitions failed: {failed[0]}", "bad")
    return then(request, where, f"The records before these offsets were deleted in {len(outcomes)} partitions.")


@change("topic.add-partitions", Role.EDITOR)
async def grow(request: Request) -> Response:
    """Adds partitions."""
    name, count = request.path_params["topic"], field(request, "count")
    if not count.isdecimal() or not 0 < int(count) < 1_000_000:
        raise invalid(f"The number of partitions expects a number, not {count!r}.")
    noted(request, topic=name, partitions=int(count))
    good((await request.app.state.admin.create_partitions({name: int(count)}))[name])
    request.app.state.watcher.hurry()
    return then(request, f"/topics/{segment(name)}", f"Topic {name} now has {count} partitions.")


@change("topic.delete", Role.EDITOR)
async def delete(request: Request) -> Response:
    """Deletes the topic with all its records."""
    name = request.path_params["topic"]
    _confirmed(request, name)
    noted(request, topic=name)
    await request.app.state.admin.delete_topic(name)
    request.app.state.watcher.hurry()
    await request.app.state.watcher.next(2.0)
    return then(request, "/topics", f"Topic {name} was deleted.")


def _confirmed(request: Request, name: str) -> None:
    """Raises: Refused, unless the name was typed."""
    if field(request, "confirm") != name:
        raise invalid(f"The confirmation is not the name of the topic, {name}.")


routes = [
    *refreshed_page("/topics/{topic}", "topic", _values),
    Route("/topics/{topic}/manage", manage, methods=["GET"]),
    Route("/topics/{topic}/purge", purge, methods=["POST"]),
    Route("/topics/{topic}/partitions", grow, methods=["POST"]),
    Route("/topics/{topic}/delete", delete, methods=["POST"]),
]
