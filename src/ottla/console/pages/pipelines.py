"""Pipelines: batches, rates, watermark, state and lag, and dead letters with their re-drive."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from ottla.base.ids import TopicPartition
from ottla.client.fetch.offsets import EARLIEST, LATEST
from ottla.console.messages.preview import Formats
from ottla.console.pipelines.dead_letters import Letter, RedriveRange, group_of, newest, redrive, waiting
from ottla.console.pipelines.watch import Pipeline
from ottla.console.watch.measure import succeeded
from ottla.console.web.changes import change, field, noted, then
from ottla.console.web.errors import Problem, Refused, explain, invalid
from ottla.console.web.page import fragment, page, refreshed_page, segment
from ottla.console.web.roles import Role
from ottla.wire.errors import KafkaError

#: Dead letters on the page.
LETTERS = 20


def _found(request: Request) -> Pipeline:
    """Raises: Refused."""
    pipeline: Pipeline | None = request.app.state.pipelines.get(request.path_params["pipeline"])
    if pipeline is None:
        raise Refused(Problem.missing(f"There is no pipeline {request.path_params['pipeline']}; ottla console --pipeline FILE shows one."))
    return pipeline


async def _every(request: Request) -> dict[str, Any]:
    every: list[Pipeline] = list(request.app.state.pipelines.values())
    await asyncio.gather(*(one.look() for one in every))
    return {"title": "Pipelines", "pipelines": every}


async def one(request: Request) -> Response:
    """A pipeline."""
    pipeline = _found(request)
    await pipeline.look()
    return page(request, "pipeline.html", title=pipeline.id, pipeline=pipeline, **await _letters(request, pipeline))


async def live_one(request: Request) -> Response:
    """The part of a pipeline that is refreshed."""
    pipeline = _found(request)
    await pipeline.look()
    return HTMLResponse(fragment(request, "_pipeline.html", pipeline=pipeline))


async def _letters(request: Request, pipeline: Pipeline) -> dict[str, Any]:
    """The newest dead letters, and how many a re-drive would read."""
    topic = None if pipeline.status is None else pipeline.status.dead_letter_topic
    values: dict[str, Any] = {"letters": [], "letter_topic": topic, "letter_problem": "", "waiting": None, "redrive_group": ""}
    if topic is None:
        return values
    options, admin = request.app.state.options, request.app.state.admin
    try:
        found = await waiting(admin, topic)
        tps = [TopicPartition(topic, one.partition) for one in (await admin.describe_topic(topic)).partitions]
        starts, ends = await asyncio.gather(
            admin.list_offsets(dict.fromkeys(tps, EARLIEST)), admin.list_offsets(dict.fromkeys(tps, LATEST))
        )
        known_starts, known_ends = succeeded(starts), succeeded(ends)
        ranges = {tp: (known_starts[tp].offset, known_ends[tp].offset) for tp in tps if tp in known_starts and tp in known_ends}
        letters = await newest(options.bootstrap, options.settings, topic, ranges, LETTERS)
    except KafkaError as error:
        return {**values, "letter_problem": explain(error).what}
    formats = Formats("", options.registry)
    shown: list[tuple[Letter, Any]] = [(letter, formats.show(letter.value)) for letter in letters]
    return {**values, "letters": shown, "waiting": found, "redrive_group": group_of(topic)}


@change("pipeline.redrive", Role.EDITOR)
async def send_again(request: Request) -> Response:
    """Sends the dead letters that wait to their topics."""
    pipeline = _found(request)
    await pipeline.look(wait=pipeline.status is None)
    status = pipeline.status
    topic = None if status is None else status.dead_letter_topic
    if status is None or topic is None:
        raise invalid("This pipeline has no topic of dead letters.")
    noted(request, pipeline=status.pipeline, topic=topic)
    if field(request, "confirm") != topic:
        raise invalid(f"The confirmation is not the topic, {topic}.")
    state = request.app.state
    if state.redriving.locked():
        raise invalid("Another re-drive is running; try again when it has ended.")
    async with state.redriving:
        found: RedriveRange = await waiting(state.admin, topic)
        done = await redrive(state.options.bootstrap, state.options.settings, topic, status.sources_by_view, found)
    noted(request, sent=done.sent, left_out=done.left_out)
    rest = "" if done.is_whole else " There are more: send again."
    left = f" {done.left_out:,} were left out: rows of a step, or of another pipeline." if done.left_out else ""
    return then(request, f"/pipelines/{segment(pipeline.id)}", f"{done.sent:,} records were sent to their topics again.{left}{rest}")


routes = [
    *refreshed_page("/pipelines", "pipelines", _every),
    Route("/pipelines/{pipeline}", one, methods=["GET"]),
    Route("/live/pipelines/{pipeline}", live_one, methods=["GET"]),
    Route("/pipelines/{pipeline}/redrive", send_again, methods=["POST"]),
]
