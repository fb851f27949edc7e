"""Login with a password or at an identity provider, and logout."""

from __future__ import annotations

from math import ceil
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from ottla.base.passwords import NOBODY
from ottla.console.web.changes import SEE_OTHER, field
from ottla.console.web.oidc import LoginFailed
from ottla.console.web.page import page
from ottla.console.web.sessions import UserIdentity
from ottla.net.password_check import TooManyAttempts


def _next(request: Request, wanted: str | None) -> str:
    """Where to go after the login: a path of the console, never another site."""
    parts = urlsplit(wanted or "/")
    is_path = not parts.scheme and not parts.netloc and parts.path.startswith("/") and not (wanted or "").startswith(("//", "/\\"))
    return (wanted or "/") if is_path and "\\" not in (wanted or "") else "/"


def _form(request: Request, *, problem: str = "", status: int = 200) -> Response:
    login = request.app.state.options.login
    wanted = request.query_params.get("next") or "/"
    return page(
        request, "login.html", status=status, title="Log in", problem=problem, next=_next(request, wanted),
        has_passwords=bool(login and login.users), has_oidc=bool(login and login.oidc),
    )  # fmt: skip


async def show(request: Request) -> Response:
    """The login page."""
    if request.app.state.options.login is None or request.state.identity is not None:
        return RedirectResponse("/", status_code=SEE_OTHER)
    return _form(request)


async def log_in(request: Request) -> Response:
    """Checks a password."""
    state = request.app.state
    login = state.options.login
    if login is None:
        return RedirectResponse("/", status_code=SEE_OTHER)
    address = request.client.host if request.client is not None else ""
    name = field(request, "name")
    password = request.state.form.get("password")
    user = login.users.get(name)
    stored = NOBODY if user is None else user.password_hash
    try:
        correct = await state.passwords.is_correct(password if isinstance(password, str) else "", stored, address=address, name=name)
    except TooManyAttempts as error:
        refused = _form(request, problem="Too many wrong passwords. Wait a minute.", status=429)
        refused.headers["retry-after"] = str(ceil(error.wait_s))
        return refused
    if user is None or not correct:
        state.audit.write({"user": name[:100], "address": address, "action": "login", "outcome": "refused"})
        return _form(request, problem="The name or the password is wrong.", status=401)
    return _logged_in(request, UserIdentity(user.name, user.role, "password"), field(request, "next"))


def _logged_in(request: Request, identity: UserIdentity, wanted: str) -> Response:
    """A new session, so that an id from before the login is worth nothing."""
    state = request.app.state
    state.sessions.end(request.state.session)
    session = state.sessions.begin(identity)
    request.state.session, request.state.cookie = session, state.guard_cookie(session)
    address = request.client.host if request.client is not None else ""
    line = {
        "user": identity.name,
        "role": identity.role.label,
        "address": address,
        "action": "login",
        "outcome": "done",
        "how": identity.how,
    }
    state.audit.write(line)
    return RedirectResponse(_next(request, wanted), status_code=SEE_OTHER)


async def log_out(request: Request) -> Response:
    """Ends the session."""
    state = request.app.state
    identity = request.state.identity
    state.sessions.end(request.state.session)
    session = state.sessions.begin()
    request.state.session, request.state.cookie = session, state.guard_cookie(session)
    if identity is not None:
        state.audit.write({"user": identity.name, "action": "logout", "outcome": "done"})
    return RedirectResponse("/login", status_code=SEE_OTHER)


async def to_provider(request: Request) -> Response:
    """Begins a login at the identity provider."""
    provider = request.app.state.provider
    if provider is None:
        return RedirectResponse("/login", status_code=SEE_OTHER)
    request.state.session.pending = {"next": _next(request, request.query_params.get("next"))}
    address = request.url_for("callback")
    if request.app.state.options.is_https:
        address = address.replace(scheme="https")
    try:
        response: Response = await provider.begin(request, str(address))
    except LoginFailed as error:
        return _form(request, problem=str(error), status=502)
    return response


async def callback(request: Request) -> Response:
    """The provider's answer."""
    provider = request.app.state.provider
    if provider is None:
        return RedirectResponse("/login", status_code=SEE_OTHER)
    wanted = str(request.state.session.pending.get("next", "/"))
    try:
        identity = await provider.complete(request)
    except LoginFailed as error:
        address = request.client.host if request.client is not None else ""
        request.app.state.audit.write({"address": address, "action": "login", "outcome": "refused", "how": "oidc", "error": str(error)})
        return _form(request, problem=str(error), status=403)
    return _logged_in(request, identity, wanted)


routes = [
    Route("/login", show, methods=["GET"]),
    Route("/login", log_in, methods=["POST"]),
    Route("/login/oidc", to_provider, methods=["GET"]),
    Route("/login/callback", callback, methods=["GET"], name="callback"),
    Route("/logout", log_out, methods=["POST"]),
]
