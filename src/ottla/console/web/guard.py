"""Checks of every request before a page sees it, and the headers of every response.

    Host        one of the console's names: a page of another site that resolves to this address (DNS rebinding) is refused
    session     found by its cookie, or begun
    login       if there is a login, every page but the login itself and static files needs an identity
    changes     POST: the origin is the console's own, the form has the session's token, and its size is limited
    headers     a content security policy without inline script and style, no framing, no sniffing, no referrer, no caching of pages

A handler of a change declares its role by `change` in `web.changes`.
"""

from __future__ import annotations

import hmac
from urllib.parse import quote, urlsplit

from starlette.datastructures import FormData, MutableHeaders
from starlette.formparsers import MultiPartException
from starlette.requests import HTTPConnection, Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ottla.console.options import ConsoleOptions
from ottla.console.web.errors import Problem, problem_page
from ottla.console.web.roles import Role
from ottla.console.web.sessions import COOKIE, Session, Sessions, UserIdentity

POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; object-src 'none'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
SAFE = ("GET", "HEAD")
#: Paths without a session: static files, and what supervisors ask; and the path without a login.
STATIC, HEALTH, OPEN = "/static/", "/healthz", "/login"
#: Characters that are no part of a name and a port.
NO_HOST = frozenset("/?#@\\")
#: Size of a form: a record of 10 MiB in base64 fits.
FORM_BYTES_MAX = 16 * 2**20
#: Size of the form of somebody who is not logged in: anyone can send it, on every connection at the same time.
LOGIN_BYTES_MAX = 16 * 2**10
FIELDS_MAX = 2_000
CSRF_FIELD, CSRF_HEADER = "csrf", "x-csrf-token"
ANYONE = UserIdentity("anonymous", Role.ADMIN, "none")


class Guard:
    """The middleware. Pages find the session in `request.state.session`, the identity in `.identity`, a form in `.form`."""

    def __init__(self, app: ASGIApp, options: ConsoleOptions, sessions: Sessions) -> None:
        self._app = app
        self._options = options
        self._sessions = sessions
        loopback = ("localhost", "127.0.0.1", "::1") if options.is_loopback else ()
        self._hosts = {name.lower() for name in (options.host, *loopback, *options.hosts)}
        #: Every name is allowed where a login protects the pages anyway, or where the address to listen on is every address.
        self._any_host = options.login is not None and not options.hosts and not options.is_loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        if not self._knows_host(request):
            await self._refuse(request, send, Problem.unknown_host(request.headers.get("host", "")))
            return
        # Not of `request.url`: older versions of Starlette make it from the Host header, in which a client can write a path.
        path: str = scope["path"]
        if path.startswith(STATIC) or path == HEALTH:
            await self._app(scope, receive, _with_headers(send))
            return
        session = self._sessions.find(request.cookies.get(COOKIE))
        cookie = None
        if session is None:
            session = self._sessions.begin()
            cookie = cookie_of(self._options, session)
        request.state.session, request.state.cookie = session, cookie
        request.state.identity = session.identity if self._options.login is not None else ANYONE
        answer = _with_headers(send, request)
        if request.state.identity is None and not (path == OPEN or path.startswith(f"{OPEN}/")):
            await self._login(request)(scope, receive, answer)
            return
        if request.method not in SAFE:
            problem = await self._form_problem(request, session)
            if problem is not None:
                await self._refuse(request, answer, problem)
                return
        await self._app(scope, receive, answer)

    def _knows_host(self, request: HTTPConnection) -> bool:
        host = request.headers.get("host", "")
        if NO_HOST.intersection(host):
            return False
        try:
            name = urlsplit(f"//{host}").hostname
        except ValueError:
            return False
        return name is not None and (self._any_host or name.lower() in self._hosts)

    def _login(self, request: Request) -> Response:
        if "text/event-stream" in request.headers.get("accept", "") or request.method not in SAFE:
            return Response("log in first\n", status_code=401, media_type="text/plain")
        query = request.scope["query_string"].decode("latin-1")
        wanted = request.scope["path"] + (f"?{query}" if query else "")
        return RedirectResponse(f"/login?next={quote(wanted, safe='')}", status_code=303)

    async def _form_problem(self, request: Request, session: Session) -> Problem | None:
        """Reads the form of a change; None if it is genuine."""
        origin = request.headers.get("origin")
        host = request.headers.get("host", "")
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return Problem.foreign_form()
        if origin is not None and urlsplit(origin).netloc != host:
            return Problem.foreign_form()
        length, most = request.headers.get("content-length", ""), LOGIN_BYTES_MAX if request.state.identity is None else FORM_BYTES_MAX
        if not length.isdecimal() or len(length) > len(str(most)) or int(length) > most:
            return Problem.large_form(most)
        try:
            form: FormData = await request.form(max_fields=FIELDS_MAX, max_files=1, max_part_size=most)
        except MultiPartException:
            return Problem.foreign_form()
        request.state.form = form
        given = form.get(CSRF_FIELD) or request.headers.get(CSRF_HEADER) or ""
        if not isinstance(given, str) or not hmac.compare_digest(given.encode(), session.csrf.encode()):
            return Problem.foreign_form()
        return None

    async def _refuse(self, request: Request, send: Send, problem: Problem) -> None:
        response = problem_page(request, problem)
        await response(request.scope, request.receive, _with_headers(send))


def cookie_of(options: ConsoleOptions, session: Session) -> str:
    """The Set-Cookie header of a session."""
    secure = "; Secure" if options.is_https else ""
    return f"{COOKIE}={session.id}; Path=/; HttpOnly; SameSite=Lax{secure}"


def _with_headers(send: Send, request: Request | None = None) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            if "cache-control" not in headers:
                headers["cache-control"] = "no-store"
            if request is not None and request.state.cookie is not None:
                headers.append("set-cookie", request.state.cookie)
        await send(message)

    return sending
