"""The cluster: brokers with racks and log directories, reassignments with their progress, features; settings of a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ottla.base.ids import TopicPartition
from ottla.client.admin.results import Resource
from ottla.console.pages.listing import matching, number, text
from ottla.console.pages.topic_settings import described, shown
from ottla.console.watch.moves import move_rows
from ottla.console.web.changes import change, fields, noted, then
from ottla.console.web.errors import Problem, Refused, invalid
from ottla.console.web.page import page, refreshed_page
from ottla.console.web.roles import Role
from ottla.wire.errors import ElectionNotNeeded, KafkaError

T = TypeVar("T")


async def available(query: Awaitable[T]) -> tuple[T | None, str]:
    """The result of a query, or why there is none."""
    try:
        return await query, ""
    except KafkaError as error:
        return None, str(error)


async def _values(request: Request) -> dict[str, Any]:
    state = request.app.state
    snapshot, (moves, no_moves), (features, _) = await asyncio.gather(
        state.watcher.latest(), available(state.admin.list_partition_reassignments()), available(state.admin.describe_features())
    )
    return {
        "title": "Cluster",
        "snapshot": snapshot,
        "moves": move_rows(moves or {}, snapshot),
        "moving": len(moves or {}),
        "no_moves": no_moves,
        "features": {} if features is None else features.finalized,
        "unpreferred": 0 if snapshot is None else snapshot.unpreferred,
        "brokers": [] if snapshot is None else snapshot.brokers,
        "unavailable": {} if snapshot is None else snapshot.measured.unavailable,
    }


async def broker(request: Request) -> Response:
    """A broker with its settings."""
    state, id = request.app.state, request.path_params["broker"]
    snapshot = await state.watcher.latest()
    known = next((one for one in ([] if snapshot is None else snapshot.brokers) if one.node.id == id), None)
    if snapshot is not None and known is None:
        raise Refused(Problem.missing(f"The cluster has no broker {id}."))
    entries = await described(state.admin, Resource.broker(id))
    wanted, only = text(request, "q"), number(request, "changed", 0) == 1
    found = matching([entries[name] for name in sorted(entries)], wanted, lambda one: f"{one.name} {one.documentation or ''}")
    found = [one for one in found if not only or not one.is_default or one.source.name == "STATIC_BROKER"]
    return page(
        request, "broker.html", title=f"Broker {id}", broker=known, id=id, settings=shown(found), q=wanted, only=only, count=len(entries)
    )


@change("cluster.cancel-reassignments", Role.ADMIN)
async def cancel(request: Request) -> Response:
    """Cancels reassignments."""
    wanted: dict[TopicPartition, None] = {}
    for one in fields(request, "partition"):
        topic, _, partition = one.rpartition(":")
        if not topic or not partition.isdecimal():
            raise invalid("The partitions are not valid.")
        wanted[TopicPartition(topic, int(partition))] = None
    if not wanted:
        raise invalid("No partition was chosen.")
    noted(request, partitions=[str(tp) for tp in wanted])
    outcomes = await request.app.state.admin.alter_partition_reassignments(wanted)
    return _told(request, outcomes, "reassignments were cancelled")


@change("cluster.elect-preferred", Role.ADMIN)
async def elect(request: Request) -> Response:
    """Elects preferred leaders."""
    outcomes = await request.app.state.admin.elect_leaders()
    return _told(request, {tp: one for tp, one in outcomes.items() if not isinstance(one, ElectionNotNeeded)}, "leaders were elected")


def _told(request: Request, outcomes: Mapping[TopicPartition, KafkaError | None], done: str) -> Response:
    request.app.state.watcher.hurry()
    failed = {tp: error for tp, error in outcomes.items() if error is not None}
    if failed:
        tp, error = next(iter(failed.items()))
        noted(request, error=str(error))
        return then(request, "/cluster", f"{len(failed)} of {len(outcomes)} partitions failed; {tp}: {error}", "bad")
    return then(request, "/cluster", f"{len(outcomes)} {done}.")


routes = [
    *refreshed_page("/cluster", "cluster", _values),
    Route("/cluster/brokers/{broker:int}", broker, methods=["GET"]),
    Route("/cluster/cancel", cancel, methods=["POST"]),
    Route("/cluster/elect", elect, methods=["POST"]),
]
