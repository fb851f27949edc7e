"""Reset of a group's offsets: a preview by address, then exactly the offsets of the preview are committed.

The targets are those of `ottla group reset` (`ottla.client.admin.offset_resets`).
"""

from __future__ import annotations

import re

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ottla.base.ids import TopicPartition
from ottla.client.admin import offset_resets as policies
from ottla.client.admin.admin import Admin
from ottla.client.admin.calls import good
from ottla.client.admin.offset_resets import Move, PartitionOffsets, Policy, moves
from ottla.client.fetch.offsets import EARLIEST, LATEST
from ottla.client.fetch.ranges import BadRange, BoundKind, parse_partitions, parse_range
from ottla.console.pages.groups import group_id
from ottla.console.pages.listing import text
from ottla.console.watch.measure import succeeded
from ottla.console.web.changes import change, field, fields, noted, then
from ottla.console.web.errors import invalid
from ottla.console.web.page import page, query
from ottla.console.web.roles import Role
from ottla.wire.errors import GroupIdNotFound, KafkaError

#: Targets, with their label and whether they need a value.
TARGETS = {
    "earliest": ("The start of the log", False),
    "latest": ("The end of the log", False),
    "offset": ("An offset, in every partition", True),
    "shift": ("By a number of records, back if negative", True),
    "time": ("The first record at or after a time", True),
    "group": ("The offsets of another group", True),
}
_NUMBER = re.compile(r"[+-]?\d{1,18}")


class Reset(msgspec.Struct, frozen=True):
    """A reset, as the address asks for it. `topic` empty: all partitions with offsets."""

    target: str
    value: str = ""
    topic: str = ""
    partitions: tuple[int, ...] | None = None


def parse(request: Request) -> Reset | None:
    """The reset of the address; None without one. Raises: ValueError."""
    target, value = text(request, "target"), text(request, "value")
    if not target:
        return None
    if target not in TARGETS:
        raise ValueError(f"the target expects {', '.join(TARGETS)}")
    if TARGETS[target][1] and not value:
        raise ValueError(f"{TARGETS[target][0]}: the value is missing")
    if target in ("offset", "shift") and not _NUMBER.fullmatch(value):
        raise ValueError(f"expected a number, not {value!r}")
    if target == "offset" and int(value) < 0:
        raise ValueError("an offset is 0 or more")
    chosen = text(request, "partitions")
    topic = text(request, "topic")
    if chosen and not topic:
        raise ValueError("partitions belong to a topic, which is missing")
    return Reset(target, value, topic, parse_partitions(chosen.replace(" ", "")) if chosen else None)


async def planned(admin: Admin, name: str, reset: Reset, now_ms: int) -> list[Move]:
    """The changes of a reset. Raises: ValueError, KafkaError."""
    committed = await _committed(admin, name)
    source = await _committed(admin, reset.value) if reset.target == "group" else {}
    if reset.target == "group" and not source:
        raise ValueError(f"group {reset.value} has no offsets")
    if reset.topic:
        count = len((await admin.describe_topic(reset.topic)).partitions)
        chosen = [TopicPartition(reset.topic, number) for number in reset.partitions or range(count)]
    else:
        chosen = sorted(source or committed)
    if not chosen:
        raise ValueError(f"group {name} has no offsets; name a topic")
    starts, ends = await admin.list_offsets(dict.fromkeys(chosen, EARLIEST)), await admin.list_offsets(dict.fromkeys(chosen, LATEST))
    known_starts, known_ends = succeeded(starts), succeeded(ends)
    known = {
        tp: PartitionOffsets(committed.get(tp), known_starts[tp].offset, known_ends[tp].offset)
        for tp in chosen
        if tp in known_starts and tp in known_ends
    }
    return moves(known, await _policy(admin, reset, list(known), source, now_ms))


async def _committed(admin: Admin, name: str) -> dict[TopicPartition, int]:
    offsets = good((await admin.list_consumer_group_offsets([name]))[name])
    return {tp: one.offset for tp, one in offsets.items() if one is not None and not isinstance(one, KafkaError)}


async def _policy(admin: Admin, reset: Reset, chosen: list[TopicPartition], source: dict[TopicPartition, int], now_ms: int) -> Policy:
    match reset.target:
        case "earliest":
            return policies.to_earliest
        case "latest":
            return policies.to_latest
        case "offset":
            return policies.to_offset(int(reset.value))
        case "shift":
            return policies.shift_by(int(reset.value))
        case "group":
            return policies.to_given(source, f"group {reset.value}")
        case _:
            when_ms = _time_ms(reset.value, now_ms)
            found = succeeded(await admin.list_offsets(dict.fromkeys(chosen, max(when_ms, 0)))) if chosen else {}
            return policies.to_time({tp: one.offset for tp, one in found.items()})


def _time_ms(value: str, now_ms: int) -> int:
    """Raises: ValueError."""
    try:
        found = parse_range(value, now_ms)
    except BadRange as error:
        raise ValueError(error.why) from None
    if found.first.kind is not BoundKind.TIME or found.last is not None:
        raise ValueError("expected a time: a date such as 2026-11-25T12:00Z, -1h, or @ and seconds since 1970")
    return found.first.value


async def show(request: Request) -> Response:
    """The form, and the preview."""
    admin, name = request.app.state.admin, group_id(request)
    described = (await admin.describe_consumer_groups([name]))[name]
    if isinstance(described, KafkaError) and not isinstance(described, GroupIdNotFound):
        raise described
    group = None if isinstance(described, KafkaError) else described
    plan: list[Move] | None = None
    problem = ""
    try:
        reset = parse(request)
        if reset is not None:
            plan = await planned(admin, name, reset, int(request.app.state.time_s() * 1000))
    except BadRange as error:
        problem = error.why
    except ValueError as error:
        problem = str(error)
    given = {one: text(request, one) for one in ("target", "value", "topic", "partitions")}
    changed = [one for one in plan or () if one.target is not None and one.target != one.committed]
    return page(
        request, "group_reset.html", status=400 if problem else 200, title=name, tab="reset", name=name, group=group, given=given,
        plan=plan, changed=changed, problem=problem, targets=[(key, label) for key, (label, _) in TARGETS.items()],
        back=sum(max((one.committed or 0) - (one.target or 0), 0) for one in changed if one.committed is not None),
        ahead=sum(max((one.target or 0) - (one.committed or 0), 0) for one in changed if one.committed is not None),
    )  # fmt: skip


@change("group.reset", Role.EDITOR)
async def apply(request: Request) -> Response:
    """Commits the offsets of the preview."""
    name = field(request, "id")
    wanted: dict[TopicPartition, int] = {}
    for one in fields(request, "to"):
        place, _, offset = one.rpartition(":")
        topic, _, partition = place.rpartition(":")
        if not topic or not partition.isdecimal() or not offset.isdecimal():
            raise invalid("The offsets of the preview are not valid.")
        wanted[TopicPartition(topic, int(partition))] = int(offset)
    if not name or not wanted:
        raise invalid("There is nothing to commit.")
    noted(request, group=name, offsets={str(tp): offset for tp, offset in wanted.items()})
    outcomes = await request.app.state.admin.alter_consumer_group_offsets(name, wanted)
    failed = [error for error in outcomes.values() if error is not None]
    if failed:
        noted(request, error=str(failed[0]))
        said = f"{len(failed)} of {len(outcomes)} offsets were not committed: {failed[0]}"
        return then(request, f"/group{query(id=name)}", said, "bad")
    return then(request, f"/group{query(id=name)}", f"{len(outcomes)} offsets of {name} were committed.")


routes = [
    Route("/group/reset", show, methods=["GET"]),
    Route("/group/reset", apply, methods=["POST"]),
]
