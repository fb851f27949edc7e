"""Groups: state, members and lag of all; of one, its lag by partition, its members and their assignment; deletion."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ottla.base.ids import TopicPartition
from ottla.base.readable import numbers_by_topic
from ottla.client.admin.group_lag import GroupLag, PartitionLag
from ottla.client.admin.group_results import GroupDescription, GroupState
from ottla.console.pages.listing import listed, matching, text
from ottla.console.watch.groups import GroupRow, measured
from ottla.console.web.changes import change, field, noted, then
from ottla.console.web.errors import Problem, Refused, invalid
from ottla.console.web.page import refreshed_page
from ottla.console.web.roles import Role
from ottla.wire.errors import GroupIdNotFound, KafkaError

#: The lag of all groups is measured up to this many; of more, only that of the page.
MEASURED_MAX = 300
ITEMS = 50
#: Columns of the matrix; with more partitions, members are listed with ranges.
MATRIX_MAX = 400


class MatrixTopic(msgspec.Struct, frozen=True):
    """A topic of the matrix with its partitions."""

    name: str
    partitions: list[int]


class MatrixRow(msgspec.Struct, frozen=True):
    """A member of the matrix: for each partition "owned", "target" (it will get it) or ""."""

    member_id: str
    label: str
    cells: list[str]


SORTS = {
    "id": lambda one: one.id,
    "state": lambda one: one.state.value,
    "members": lambda one: one.members,
    "lag": lambda one: one.lag,
    "time": lambda one: one.time_lag_ms,
}


def matrix(described: GroupDescription, lags: list[PartitionLag]) -> tuple[list[MatrixTopic], list[MatrixRow]]:
    """Topics and members of the assignment, with a cell for each partition."""
    targets = {member.member_id: set(member.target_assignment or ()) for member in described.members}
    tps = sorted(
        {tp for member in described.members for tp in member.assignment}
        | {tp for each in targets.values() for tp in each}
        | {TopicPartition(one.topic, one.partition) for one in lags}
    )
    rows = []
    for member in sorted(described.members, key=lambda one: (one.client_id, one.member_id)):
        owned = set(member.assignment)
        cells = ["owned" if tp in owned else "target" if tp in targets[member.member_id] else "" for tp in tps]
        rows.append(MatrixRow(member.member_id, member.instance_id or member.client_id, cells))
    return [MatrixTopic(name, partitions) for name, partitions in numbers_by_topic(tps).items()], rows


async def _values(request: Request) -> dict[str, Any]:
    admin = request.app.state.admin
    groups = await admin.list_groups()
    wanted, state = text(request, "q"), text(request, "state")
    found = [one for one in matching(groups, wanted, lambda one: one.group_id) if not state or one.state.value == state]
    if len(found) <= MEASURED_MAX:
        listing = listed(request, await measured(admin, found), SORTS, default="id", items=ITEMS)
    else:
        rows = [GroupRow(id=one.group_id, state=one.state, type=one.type.value) for one in found]
        listing = listed(request, rows, SORTS, default="id", items=ITEMS)
        shown = {row.id for row in listing.items}
        known = {row.id: row for row in await measured(admin, [one for one in found if one.group_id in shown])}
        listing = msgspec.structs.replace(listing, items=[known[row.id] for row in listing.items])
    states = sorted({one.state.value for one in groups})
    return {"title": "Groups", "listing": listing, "q": wanted, "state": state, "states": states, "all": len(groups)}


def group_id(request: Request) -> str:
    """The group of the address. Raises: Refused."""
    name = request.query_params.get("id", "")
    if not name:
        raise Refused(Problem.missing("The address names no group."))
    return name


async def _group(request: Request) -> dict[str, Any]:
    admin, name = request.app.state.admin, group_id(request)
    described = await admin.describe_consumer_group(name)
    if described.state is GroupState.DEAD:
        raise GroupIdNotFound(f"there is no group {name}")
    outcome = (await admin.consumer_group_lag([name]))[name]
    lag: GroupLag | None = None if isinstance(outcome, KafkaError) else outcome
    partitions = [] if lag is None else lag.partitions
    topics, rows = matrix(described, partitions)
    return {
        "title": name, "tab": "lag",
        "group": described, "lag": lag, "partitions": partitions, "name": name, "problem": str(outcome) if lag is None else "",
        "most": max((one.lag or 0 for one in partitions), default=0), "topics": topics, "rows": rows,
        "has_matrix": bool(rows) and 0 < sum(len(one.partitions) for one in topics) <= MATRIX_MAX,
    }  # fmt: skip


@change("group.delete", Role.EDITOR)
async def delete(request: Request) -> Response:
    """Deletes a group without members."""
    name = field(request, "id")
    noted(request, group=name)
    if field(request, "confirm") != name:
        raise invalid(f"The confirmation is not the name of the group, {name}.")
    await request.app.state.admin.delete_consumer_group(name)
    return then(request, "/groups", f"Group {name} was deleted with its offsets.")


routes = [
    *refreshed_page("/groups", "groups", _values),
    *refreshed_page("/group", "group", _group),
    Route("/group/delete", delete, methods=["POST"]),
]
