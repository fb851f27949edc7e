"""Handlers of changes: the role they need, read-only mode, and their line in the audit log.

@change("topic.create", Role.EDITOR)
async def create(request: Request) -> Response:
    noted(request, topic=name)          # fields of the audit log
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from ottla.console.web.errors import Problem, Refused
from ottla.console.web.page import flash
from ottla.console.web.roles import Role

Handler = Callable[[Request], Awaitable[Response]]
#: A browser goes on with GET.
SEE_OTHER = 303


def change(action: str, role: Role) -> Callable[[Handler], Handler]:
    """Marks the handler of a change."""

    def decorate(handler: Handler) -> Handler:
        @wraps(handler)
        async def checked(request: Request) -> Response:
            request.state.noted = {}
            identity, options = request.state.identity, request.app.state.options
            if options.is_read_only:
                _write(request, action, "refused", "read-only")
                raise Refused(Problem.read_only())
            if identity.role < role:
                _write(request, action, "refused", f"needs the role {role.label}")
                raise Refused(Problem.role_missing(identity.role.label, role.label))
            try:
                response = await handler(request)
            except BaseException as error:
                _write(request, action, "failed", str(error) or type(error).__name__)
                raise
            _write(request, action, "failed" if "error" in request.state.noted else "done")
            return response

        checked.change = (action, role)  # type: ignore[attr-defined]
        return checked

    return decorate


def noted(request: Request, **fields: Any) -> None:
    """Adds fields to the change's line in the audit log. `error` makes it a failure."""
    request.state.noted |= fields


def review(role: Role) -> Callable[[Handler], Handler]:
    """Marks a handler that shows what a form would change, for those who may change it. It changes nothing, and is not in the audit log."""

    def decorate(handler: Handler) -> Handler:
        @wraps(handler)
        async def checked(request: Request) -> Response:
            identity = request.state.identity
            if request.app.state.options.is_read_only:
                raise Refused(Problem.read_only())
            if identity.role < role:
                raise Refused(Problem.role_missing(identity.role.label, role.label))
            return await handler(request)

        checked.change = ("", role)  # type: ignore[attr-defined]
        return checked

    return decorate


def _write(request: Request, action: str, outcome: str, error: str | None = None) -> None:
    identity = request.state.identity
    address = request.client.host if request.client is not None else ""
    line: dict[str, Any] = {"user": identity.name, "role": identity.role.label, "address": address, "action": action, "outcome": outcome}
    if error is not None:
        line["error"] = " ".join(error.split())[:500]
    request.app.state.audit.write({**line, **request.state.noted})


def then(request: Request, where: str, said: str, kind: str = "good") -> Response:
    """Goes on to a page, which shows what was done."""
    flash(request, kind, said)
    return RedirectResponse(where, status_code=SEE_OTHER)


def field(request: Request, name: str, default: str = "") -> str:
    """A field of the form, without blanks around it."""
    value = request.state.form.get(name)
    return value.strip() if isinstance(value, str) else default


def raw_field(request: Request, name: str) -> str:
    """A field of the form as it was typed, with \\n between lines."""
    value = request.state.form.get(name)
    return value.replace("\r\n", "\n") if isinstance(value, str) else ""


def fields(request: Request, name: str) -> list[str]:
    """All values of a field."""
    return [value for value in request.state.form.getlist(name) if isinstance(value, str)]
