"""Renders templates: their filters, the values that all pages have, and links that keep the other parameters of the address.

Templates escape everything. There is no inline script or style: widths of bars are attributes of SVG elements.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import quote, urlencode

import jinja2
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from ottla.base.readable import duration_text, size_text
from ottla.console.web.roles import Role
from ottla.console.web.text import ago_text, count_text, rate_text, time_text

ROOT = files("ottla.console")
TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml", ".webmanifest": "application/manifest+json"}
#: Pages in the navigation: icon, address, name.
NAVIGATION = (
    ("overview", "/", "Overview"),
    ("topics", "/topics", "Topics"),
    ("groups", "/groups", "Groups"),
    ("cluster", "/cluster", "Cluster"),
    ("transactions", "/transactions", "Transactions"),
    ("play", "/pipelines", "Pipelines"),
    ("clock", "/timelines", "Timelines"),
    ("stop", "/flight", "Flight records"),
    ("access", "/access", "Access"),
)
#: Templates of the overview, with those that they import.
FIRST = ("macros.html", "layout.html", "_overview.html", "overview.html")
FOREVER = "public, max-age=31536000, immutable"


@cache
def static_files() -> dict[str, tuple[bytes, str]]:
    """Content and hash of the static files, by name."""
    found = {}
    for file in ROOT.joinpath("static").iterdir():
        if "." + file.name.rpartition(".")[2] in TYPES:
            data = file.read_bytes()
            found[file.name] = data, hashlib.sha256(data).hexdigest()[:12]
    return found


def static(name: str) -> str:
    """The address of a static file, with its hash: it can be cached for ever."""
    return f"/static/{name}?v={static_files()[name][1]}"


async def serve_static(request: Request) -> Response:
    """A static file."""
    name = request.path_params["name"]
    if name not in static_files():
        return Response("not found\n", status_code=404, media_type="text/plain")
    data, tag = static_files()[name]
    headers = {"etag": f'"{tag}"', "cache-control": FOREVER if request.query_params.get("v") == tag else "no-cache"}
    if request.headers.get("if-none-match") == headers["etag"]:
        return Response(status_code=304, headers=headers)
    return Response(data, media_type=TYPES["." + name.rpartition(".")[2]], headers=headers)


def segment(text: str) -> str:
    """A text as one part of a path."""
    return quote(text, safe="")


def query(**parameters: Any) -> str:
    """`?a=b&c=d` of the parameters that are neither None nor empty; '' without any."""
    pairs: list[tuple[str, str]] = []
    for name, value in parameters.items():
        values = value if isinstance(value, list | tuple) else [value]
        pairs += [(name, str(one)) for one in values if one is not None and one != ""]
    return f"?{urlencode(pairs)}" if pairs else ""


def with_parameters(request: Request, **changes: Any) -> str:
    """The address of this page, or of the page around a live part, with some parameters changed; None or '' removes one."""
    given: dict[str, Any] = {}
    for name, value in request.query_params.multi_items():
        given.setdefault(name, []).append(value)
    return str(request.scope["path"]).removeprefix("/live") + query(**{**given, **changes})


def share(part: float | None, whole: float | None, size: int = 100) -> float:
    """The length of a bar of at most `size`."""
    if not part or not whole or whole <= 0:
        return 0.0
    return round(min(max(part / whole, 0.0), 1.0) * size, 2)


def points(values: Iterable[float], width: int = 120, height: int = 28) -> str:
    """The points of a sparkline in an SVG of this size; '' for fewer than two values."""
    listed = list(values)
    if len(listed) < 2:
        return ""
    most = max(listed) or 1.0
    step = width / (len(listed) - 1)
    return " ".join(f"{index * step:.1f},{height - 1 - value / most * (height - 3):.1f}" for index, value in enumerate(listed))


@cache
def environment() -> jinja2.Environment:
    """The templates."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("ottla.console"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "size": lambda value: "–" if value is None else size_text(int(value)),
        "number": count_text,
        "rate": rate_text,
        "duration": lambda value: "–" if value is None else duration_text(int(value)),
        "time": time_text,
        "segment": segment,
        "points": points,
    }
    made.globals |= {"static": static, "query": query, "share": share, "Role": Role, "icon": icon, "ago": ago_text}
    return made


def prepare() -> None:
    """Compiles the templates of the first page, 90 ms of processor time."""
    for name in FIRST:
        environment().get_template(name)


@cache
def icons() -> dict[str, str]:
    """Paths of the icons, by name, on a grid of 24."""
    lines = ROOT.joinpath("templates", "icons.txt").read_text().splitlines()
    return dict(line.split(None, 1) for line in lines if line and not line.startswith("#"))


def icon(name: str) -> Markup:
    """An icon, invisible to screen readers."""
    return Markup('<svg class="icon" viewBox="0 0 24 24" aria-hidden="true"><path d="{}"/></svg>').format(icons()[name])


def page(request: Request, template: str, *, status: int = 200, headers: Mapping[str, str] | None = None, **values: Any) -> HTMLResponse:
    """The response with a page."""
    return HTMLResponse(fragment(request, template, **values), status_code=status, headers=headers)


def fragment(request: Request, template: str, **values: Any) -> str:
    """A template as text: a page, or a part of one."""
    session = getattr(request.state, "session", None)
    identity = getattr(request.state, "identity", None)
    options = request.app.state.options
    role = None if identity is None else identity.role
    context = {
        "request": request,
        "path": request.scope["path"],
        "options": options,
        "identity": identity,
        "nav": NAVIGATION,
        "csrf": "" if session is None else session.csrf,
        "flashes": take_flashes(request) if template.endswith(".html") and not template.startswith("_") else [],
        "can_edit": role is not None and role >= Role.EDITOR and not options.is_read_only,
        "can_administer": role is not None and role >= Role.ADMIN and not options.is_read_only,
        "here": lambda **changes: with_parameters(request, **changes),
        "now_ms": int(time.time() * 1000),
        "flags": options.command_flags,
    }
    return environment().get_template(template).render({**context, **values})


def refreshed_page(path: str, template: str, values: Callable[[Request], Awaitable[dict[str, Any]]], *, part: str = "") -> list[Route]:
    """The routes of a page and of its part that is refreshed, by default below `/live`: templates TEMPLATE and _TEMPLATE.

    Both have the same `values`, the title of the page among them.
    """

    async def show(request: Request) -> Response:
        return page(request, f"{template}.html", **await values(request))

    async def live(request: Request) -> Response:
        return HTMLResponse(fragment(request, f"_{template}.html", **await values(request)))

    return [Route(path, show, methods=["GET"]), Route(part or f"/live{path}", live, methods=["GET"])]


def flash(request: Request, kind: str, text: str) -> None:
    """Adds a message to the next page: "good", "bad" or "note"."""
    request.state.session.flashes.append((kind, text))


def take_flashes(request: Request) -> list[tuple[str, str]]:
    """The messages for this page."""
    session = getattr(request.state, "session", None)
    if session is None:
        return []
    taken: list[tuple[str, str]] = session.flashes
    session.flashes = []
    return taken
