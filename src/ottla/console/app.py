"""The application: its state, routes and errors."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from ottla.client.admin.admin import Admin
from ottla.console.options import ConsoleOptions
from ottla.console.pages import (
    access,
    cluster,
    flight,
    group_reset,
    groups,
    login,
    messages,
    overview,
    partition,
    pipelines,
    timelines,
    topic,
    topic_settings,
    topics,
    transactions,
)
from ottla.console.pipelines.watch import pipelines_of
from ottla.console.watch.watcher import Watcher
from ottla.console.web.audit import AuditLog
from ottla.console.web.errors import Problem, Refused, explain, problem_page
from ottla.console.web.guard import Guard, cookie_of
from ottla.console.web.page import prepare, serve_static
from ottla.console.web.sessions import Sessions
from ottla.net.password_check import PasswordCheck
from ottla.wire.errors import KafkaError

log = logging.getLogger(__name__)
#: Timeout of a query of a page.
API_TIMEOUT_MS = 15_000
#: The first route that matches an address is taken.
PAGES = (
    login, overview, topics, topic_settings, topic, partition, messages, groups, group_reset, cluster, transactions, timelines, pipelines,
    flight, access,
)  # fmt: skip


async def healthy(request: Request) -> Response:
    """For supervisors: the process answers."""
    return JSONResponse({"status": "ok"})


routes = [
    Route("/static/{name}", serve_static),
    Route("/healthz", healthy),
    *(route for module in PAGES for route in module.routes),
]


def create_app(options: ConsoleOptions) -> ASGIApp:
    """The application for these options. Raises: OSError if the audit log cannot be written; ImportError without authlib."""
    sessions = Sessions(time.monotonic)
    audit = AuditLog(options.audit, time.time)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        settings = client_settings(options)
        app.state.admin = Admin(bootstrap_servers=options.bootstrap, client_id="ottla-console", **settings)
        app.state.watcher = Watcher(options.bootstrap, settings)
        app.state.watcher.start()
        # While the brokers answer, not while a browser waits.
        prepare()
        try:
            yield
        finally:
            app.state.watcher.stop()
            await app.state.admin.close()
            app.state.flight_records.close()
            for pipeline in app.state.pipelines.values():
                await pipeline.close()
            audit.close()

    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[Middleware(Guard, options=options, sessions=sessions)],
        exception_handlers={HTTPException: _missing, Refused: _failed, KafkaError: _failed, ValueError: _failed, TypeError: _failed},
    )
    state = app.state
    state.options, state.sessions, state.audit = options, sessions, audit
    state.time_s = time.time
    state.streams = 0
    state.pipelines, state.redriving = pipelines_of(options.pipelines), asyncio.Lock()
    state.flight_records = flight.FlightRecords(options.flight_records)
    state.passwords, state.provider = PasswordCheck(), None
    state.guard_cookie = lambda session: cookie_of(options, session)
    if options.login is not None and options.login.oidc is not None:
        from ottla.console.web.oidc import Provider

        state.provider = Provider(options.login.oidc)
    return app


def client_settings(options: ConsoleOptions) -> dict[str, Any]:
    """Settings of the admin clients: pages fail soon if no broker answers."""
    return {"default_api_timeout_ms": API_TIMEOUT_MS, "retries": 3, **options.settings}


async def _missing(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "registered for it"
    if error.status_code == 404:
        return problem_page(request, Problem.missing(f"There is no page {request.scope['path']}."))
    return problem_page(request, Problem(error.status_code, "The request is not valid", error.detail))


async def _failed(request: Request, error: Exception) -> Response:
    return problem_page(request, explain(error, request.app.state.options.command_flags))
