"""The list of topics: rates, sizes, records, health; and a new topic."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ottla.client.admin.results import NewTopic, Resource
from ottla.console.pages.listing import listed, matching, number, text
from ottla.console.pages.topic_settings import given_settings, overrides
from ottla.console.watch.snapshot import TopicSummary
from ottla.console.web.changes import change, field, noted, raw_field, then
from ottla.console.web.errors import explain, invalid
from ottla.console.web.page import page, refreshed_page, segment
from ottla.console.web.roles import Role
from ottla.wire.errors import KafkaError

SORTS = {
    "name": lambda one: one.name,
    "partitions": lambda one: one.partitions,
    "records": lambda one: one.records,
    "size": lambda one: one.size_bytes,
    "rate": lambda one: one.rate,
}


def is_healthy(topic: TopicSummary) -> bool:
    """Whether all partitions have a leader, and all replicas are in sync."""
    return not topic.leaderless and not topic.under_replicated


async def _values(request: Request) -> dict[str, Any]:
    snapshot = await request.app.state.watcher.latest()
    topics = [] if snapshot is None else list(snapshot.topics.values())
    internal, unhealthy = number(request, "internal", 0) == 1, number(request, "unhealthy", 0) == 1
    wanted = text(request, "q")
    found = matching(topics, wanted, lambda one: one.name)
    found = [one for one in found if (internal or not one.is_internal) and not (unhealthy and is_healthy(one))]
    listing = listed(request, found, SORTS, default="name")
    return {
        "title": "Topics", "snapshot": snapshot, "listing": listing, "q": wanted, "internal": internal, "unhealthy": unhealthy,
        "largest": max((one.size_bytes or 0 for one in found), default=0),
        "all": sum(internal or not one.is_internal for one in topics),
    }  # fmt: skip


async def new(request: Request) -> Response:
    """The form of a new topic, filled in from a topic with `?clone=NAME`."""
    admin = request.app.state.admin
    original = text(request, "clone")
    values = {"name": "", "partitions": "", "replicas": "", "settings": ""}
    if original:
        described = await admin.describe_topic(original)
        entries = await admin.describe_config(Resource.topic(original))
        values = {
            "name": f"{original}-copy",
            "partitions": str(len(described.partitions)),
            "replicas": str(max(len(one.replicas) for one in described.partitions)),
            "settings": "\n".join(f"{entry.name}={entry.value}" for entry in overrides(entries)),
        }
    return page(request, "topic_new.html", title="New topic", original=original, given=values, problem=None)


@change("topic.create", Role.EDITOR)
async def create(request: Request) -> Response:
    """Creates a topic."""
    values = {name: field(request, name) for name in ("name", "partitions", "replicas")}
    values["settings"] = raw_field(request, "settings")
    noted(request, topic=values["name"])
    try:
        counts = [_count(values[name], name) for name in ("partitions", "replicas")]
        settings = given_settings(values["settings"])
        topic = NewTopic(values["name"], counts[0], counts[1], settings)
        made = await request.app.state.admin.create_topic(topic)
    except (KafkaError, ValueError) as error:
        noted(request, error=str(error))
        original = field(request, "original")
        problem = explain(error).what
        return page(request, "topic_new.html", status=400, title="New topic", original=original, given=values, problem=problem)
    noted(request, partitions=made.num_partitions, settings=settings)
    request.app.state.watcher.hurry()
    return then(request, f"/topics/{segment(made.name)}", f"Topic {made.name} was created.")


def _count(given: str, name: str) -> int:
    """A number of partitions or replicas; empty: the cluster's default. Raises: Refused."""
    if not given:
        return -1
    if not given.isdecimal() or not 0 < int(given) < 1_000_000:
        raise invalid(f"{name} expects a number from 1 on, not {given!r}.")
    return int(given)


routes = [
    *refreshed_page("/topics", "topics", _values),
    Route("/new/topic", new, methods=["GET"]),
    Route("/new/topic", create, methods=["POST"]),
]
