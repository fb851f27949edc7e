"""A partition: the segments of each replica, drawn to scale."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ottla.console.pages.timelines import listener_addresses
from ottla.console.timelines.reader import ReplicaSegments, read_segments
from ottla.console.web.errors import Problem, Refused
from ottla.console.web.page import page

#: Width of the picture, and of its narrowest segment.
WIDTH, NARROWEST = 1000.0, 1.5
#: Segments in the table of a replica, the latest ones.
LISTED = 50


class Bar(msgspec.Struct, frozen=True):
    """A segment in the picture, in its units, from left to right by offset."""

    x: float
    width: float
    base_offset: int
    #: Offset after its last record.
    until: int
    size_bytes: int
    is_active: bool


def bars(replica: ReplicaSegments, most_bytes: int) -> list[Bar]:
    """The segments of a replica; `most_bytes` is the size that fills the width. Each is visible, so many small ones are wider than their
    share, and the others give way."""
    if not replica.segments or most_bytes <= 0:
        return []
    room = WIDTH * replica.size_bytes / most_bytes
    least = min(NARROWEST, room / len(replica.segments)) if room > 0 else 0.0
    widths = [max(one.size_bytes / most_bytes * WIDTH, least) for one in replica.segments]
    shrink = room / sum(widths) if sum(widths) > room > 0 else 1.0
    made, x = [], 0.0
    for place, (one, width) in enumerate(zip(replica.segments, widths, strict=True)):
        last = place == len(replica.segments) - 1
        until = replica.end_offset if last else replica.segments[place + 1].base_offset
        made.append(Bar(round(x, 2), round(width * shrink, 2), one.base_offset, until, one.size_bytes, last))
        x += width * shrink
    return made


async def show(request: Request) -> Response:
    """The partition."""
    state, name, number = request.app.state, request.path_params["topic"], request.path_params["partition"]
    topic = await state.admin.describe_topic(name)
    described = next((one for one in topic.partitions if one.partition == number), None)
    if described is None:
        raise Refused(Problem.missing(f"Topic {name} has no partition {number}."))
    replicas: list[ReplicaSegments] = []
    problems: list[str] = []
    if state.options.http:
        replicas, problems = await read_segments(await listener_addresses(request), name, number)
    most = max((one.size_bytes for one in replicas), default=0)
    drawn: list[tuple[ReplicaSegments, list[Bar]]] = [(one, bars(one, most)) for one in replicas]
    values: dict[str, Any] = {"drawn": drawn, "problems": problems, "has_listeners": bool(state.options.http), "listed": LISTED}
    return page(request, "partition.html", title=f"{name} / {number}", name=name, number=number, described=described, **values)


routes = [Route("/topics/{topic}/partitions/{partition:int}", show, methods=["GET"])]
