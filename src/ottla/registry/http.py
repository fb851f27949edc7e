"""Confluent's HTTP API: routes, parameters and responses.

Paths are routed percent-encoded, so that the name of a subject may contain a slash. `/contexts/NAME/...` before any path qualifies its
subjects with the context.

    reads    answered from this instance's state
    writes   decided by the elected instance; others forward them to it, with the header X-Forward
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection
from ipaddress import ip_address
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ottla.base.version import VERSION
from ottla.registry import errors
from ottla.registry.basic_auth import READER, BasicAuth, Users
from ottla.registry.compatibility import level_incompatibilities
from ottla.registry.decisions import SchemaRequest
from ottla.registry.errors import RegistryError
from ottla.registry.instance import Instance
from ottla.registry.records import AVRO, TYPES, SchemaRecord, additions
from ottla.registry.subjects import ALL_CONTEXTS, DEFAULT_CONTEXT, parse_subject, qualified_beside

log = logging.getLogger(__name__)
CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
FORWARDED = "x-forward"
#: Larger bodies are refused. A broker accepts records of 1 MiB by default.
BODY_BYTES_MAX = 8 * 2**20
_encoder = msgspec.json.Encoder()
Handler = Callable[[Instance, Request], Awaitable[Any]]


def create_app(instance: Instance, users: Users | None = None, *, own_names: Collection[str] | None = None) -> ASGIApp:
    """The application. With `users` each request needs one of them. With `own_names` its Host is one of these names, or an address."""
    middleware = [Middleware(_RawPaths)]
    if own_names is not None:
        middleware.insert(0, Middleware(_OwnNames, names=own_names))
    if users is not None:
        middleware.insert(0, Middleware(BasicAuth, users=users))
    app = Starlette(routes=_routes(instance), middleware=middleware, exception_handlers={HTTPException: _http_error})
    return app


class _OwnNames:
    """Refuses requests for another host. A page of another site can have its own name resolved to this machine's loopback address; the
    browser then takes this registry for a part of that site.
    """

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        self._app = app
        self._names = frozenset(name.lower() for name in names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._knows(Request(scope).headers.get("host", "")):
            answer = PlainTextResponse("this registry has no users, so requests name it by an address, or localhost\n", 403)
            await answer(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _knows(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        with contextlib.suppress(ValueError):
            ip_address(name)
            return True
        return name in self._names


class _RawPaths:
    """Routes by the percent-encoded path, and takes the context from the beginning of the path."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = (scope.get("raw_path") or quote(scope["path"]).encode()).decode("latin-1").partition("?")[0]
            parts = path.split("/")
            context = ""
            if len(parts) > 3 and parts[1] == "contexts" and parts[3]:
                context, path = unquote(parts[2]), "/" + "/".join(parts[3:])
            scope = {**scope, "path": path.rstrip("/") or "/", "context": context}
        await self._app(scope, receive, send)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "registered for it"
    return _answer(request, {"error_code": error.status_code, "message": f"HTTP {error.status_code} {error.detail}"}, error.status_code)


def _answer(request: Request, content: Any, status: int = 200) -> Response:
    accepted = request.headers.get("accept", "")
    plain = "application/json" in accepted and "schemaregistry" not in accepted
    return Response(_encoder.encode(content), status, media_type="application/json" if plain else CONTENT_TYPE)


def _route(path: str, handler: Handler, instance: Instance, method: str, *, is_write: bool) -> Route:
    async def serve(request: Request) -> Response:
        try:
            if is_write and request.scope.get("role") == READER:
                raise RegistryError(403, "This user may only read")
            if is_write and _is_foreign(request):
                raise RegistryError(403, "A page of another site may not change anything")
            if is_write and not instance.is_leader:
                return await _forwarded(instance, request)
            found = await handler(instance, request)
        except RegistryError as error:
            return _answer(request, {"error_code": error.code, "message": error.message}, error.status)
        return found if isinstance(found, Response) else _answer(request, found)

    return Route(path, serve, methods=[method])


def _is_foreign(request: Request) -> bool:
    """Whether a browser says that a page of another site sent the request: with the browser's login, or where only it can connect."""
    headers = request.headers
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    # Browsers without that header, and those that reach an address other than loopback without TLS.
    origin = headers.get("origin")
    return origin is not None and urlsplit(origin).netloc != headers.get("host", "")


async def _forwarded(instance: Instance, request: Request) -> Response:
    """Has the elected instance answer a write."""
    if request.headers.get(FORWARDED):
        # The other instance took this one for the elected one.
        raise errors.unknown_leader()
    path = request.scope["path"]
    if request.scope["context"]:
        path = f"/contexts/{quote(request.scope['context'], safe='')}{path}"
    query = request.scope["query_string"].decode("latin-1")
    kept = {name: value for name in ("content-type", "accept", "authorization") if (value := request.headers.get(name)) is not None}
    status, content_type, body = await instance.forward(
        request.method, path + (f"?{query}" if query else ""), {**kept, "X-Forward": "true"}, await _body(request)
    )
    return Response(body, status, media_type=content_type)


# -- Parameters.


def _flag(request: Request, name: str) -> bool:
    return request.query_params.get(name, "").lower() == "true"


def _subject(request: Request, *, required: bool = True) -> str:
    """The subject of the path, qualified by the context of the path."""
    text = unquote(request.path_params.get("subject", ""))
    found = _qualified(request, text)
    if required and not found:
        raise errors.invalid_subject(text)
    return found


def _qualified(request: Request, text: str) -> str:
    context = request.scope["context"]
    if not context or text.startswith(":"):
        return parse_subject(text).text
    return parse_subject(f":{context.strip(':')}:{text}").text


def _scope(request: Request) -> str | None:
    """The subject or context whose settings a path names; None for the global ones."""
    return _subject(request, required=False) or None


def _version(request: Request) -> int:
    """A version of the path; -1 for the latest. Raises: RegistryError."""
    text = unquote(request.path_params["version"])
    if text.lower() in ("latest", "-1"):
        return -1
    if not text.isdecimal() or not 1 <= int(text) < 2**31:
        raise errors.invalid_version(text)
    return int(text)


def _id(request: Request) -> int:
    text = request.path_params["id"]
    if not text.isdecimal():
        raise RegistryError(404, "HTTP 404 Not Found")
    return int(text)


def _page(request: Request, found: list[Any]) -> list[Any]:
    try:
        offset, limit = int(request.query_params.get("offset", 0)), int(request.query_params.get("limit", -1))
    except ValueError:
        raise RegistryError(400, "offset and limit must be numbers") from None
    return found[max(offset, 0) :][: limit if limit >= 0 else None]


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > BODY_BYTES_MAX:
            raise RegistryError(42209, f"The request is larger than {BODY_BYTES_MAX} bytes")
    return bytes(body)


async def _json(request: Request, kind: Any) -> Any:
    try:
        return msgspec.json.decode(await _body(request), type=kind)
    except msgspec.ValidationError as error:
        raise RegistryError(422, f"The request is not valid: {error}") from None
    except (msgspec.MsgspecError, RecursionError) as error:
        raise RegistryError(400, f"The request is not JSON: {error}") from None


# -- Responses.


def _shown(schema: SchemaRecord, text: str, *, guid: str, with_place: bool = True) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if with_place:
        found |= {"subject": schema.subject, "version": schema.version, "id": schema.id}
    found["guid"] = guid
    # Confluent's newer versions always name the type; older clients take a missing one for Avro.
    if schema.schema_type != AVRO or with_place:
        found["schemaType"] = schema.schema_type
    found |= {**additions(schema), "schema": text}
    if schema.deleted:
        found["deleted"] = True
    return found


def _text(instance: Instance, request: Request, schema: SchemaRecord) -> str:
    form = request.query_params.get("format", "")
    return instance.text(schema, form) if form else schema.schema


def _full(instance: Instance, request: Request, schema: SchemaRecord) -> dict[str, Any]:
    return _shown(schema, _text(instance, request, schema), guid=instance.state.guid(schema))


# -- Subjects.


async def list_subjects(instance: Instance, request: Request) -> Any:
    prefix = request.query_params.get("subjectPrefix", _qualified(request, "") or ALL_CONTEXTS)
    names = instance.state.subject_names(prefix, deleted=_flag(request, "deleted"), deleted_only=_flag(request, "deletedOnly"))
    return _page(request, list(names))


async def list_versions(instance: Instance, request: Request) -> Any:
    subject, deleted, only = _subject(request), _flag(request, "deleted"), _flag(request, "deletedOnly")
    if not instance.state.has_subject(subject, deleted=deleted or only):
        raise errors.subject_not_found(subject)
    found = instance.state.versions(subject, deleted=deleted or only or _flag(request, "deletedAsNegative"))
    if _flag(request, "deletedAsNegative"):
        return _page(request, [-one.version if one.deleted else one.version for one in found])
    return _page(request, [one.version for one in found if one.deleted or not only])


def _found_version(instance: Instance, request: Request, *, deleted: bool) -> SchemaRecord:
    """The version that the path names. Raises: RegistryError."""
    subject, version, state = _subject(request), _version(request), instance.state
    names = [subject]
    if parse_subject(subject).context == DEFAULT_CONTEXT:
        names += [f":{context}:{subject}" for context in sorted(state.contexts)]
    for name in names:
        found = state.latest(name) if version == -1 else state.subjects.get(name, {}).get(version)
        if found is not None and (deleted or not found.deleted):
            return found
    if not state.has_subject(subject, deleted=deleted):
        raise errors.subject_not_found(subject)
    raise errors.version_not_found(version)


async def show_version(instance: Instance, request: Request) -> Any:
    return _full(instance, request, _found_version(instance, request, deleted=_flag(request, "deleted")))


async def show_version_text(instance: Instance, request: Request) -> Any:
    text = _text(instance, request, _found_version(instance, request, deleted=_flag(request, "deleted")))
    return Response(text, media_type=CONTENT_TYPE)


async def list_referrers(instance: Instance, request: Request) -> Any:
    schema = _found_version(instance, request, deleted=True)
    found = instance.state.referenced_by(schema.subject, schema.version, deleted=_flag(request, "deleted"))
    return _page(request, sorted({one.id for one in found}))


async def lookup_schema(instance: Instance, request: Request) -> Any:
    subject, body, state = _subject(request), await _json(request, SchemaRequest), instance.state
    deleted = _flag(request, "deleted")
    normalize = instance.decisions.normalizes(subject, _flag(request, "normalize"))
    names = [subject]
    if parse_subject(subject).context == DEFAULT_CONTEXT:
        names += [name for context in sorted(state.contexts) if (name := f":{context}:{subject}") in state.subjects]
    for name in names:
        try:
            found = instance.decisions.lookup(name, body, normalize=normalize, deleted=deleted)
        except RegistryError:
            if name == subject:
                raise
            continue
        if found is not None:
            return _full(instance, request, found)
    raise errors.schema_not_found() if state.has_subject(subject, deleted=deleted) else errors.subject_not_found(subject)


async def show_latest_with_metadata(instance: Instance, request: Request) -> Any:
    subject, query = _subject(request), request.query_params
    wanted = dict(zip(query.getlist("key"), query.getlist("value"), strict=False))
    deleted = _flag(request, "deleted")
    for one in instance.state.versions(subject, deleted=deleted)[::-1]:
        properties = (one.metadata or {}).get("properties") or {}
        if all(properties.get(name) == value for name, value in wanted.items()):
            return _full(instance, request, one)
    raise errors.schema_not_found() if instance.state.has_subject(subject, deleted=deleted) else errors.subject_not_found(subject)


async def register_schema(instance: Instance, request: Request) -> Any:
    subject, body = _subject(request), await _json(request, SchemaRequest)
    found = await instance.register(subject, body, normalize=_flag(request, "normalize"), force=_flag(request, "force"))
    shown = _full(instance, request, found)
    del shown["subject"]
    if not request.query_params.get("format") and (found.metadata, found.rule_set) == (body.metadata, body.rule_set):
        # Clients keep a schema of the response in place of their own, in whose form they read it later.
        del shown["schema"]
        shown.pop("references", None)
    return shown


async def delete_subject(instance: Instance, request: Request) -> Any:
    subject, permanent = _subject(request), _flag(request, "permanent")
    return await instance.change(lambda: instance.decisions.delete_subject(subject, permanent=permanent))


async def delete_version(instance: Instance, request: Request) -> Any:
    subject, version, permanent = _subject(request), _version(request), _flag(request, "permanent")
    return await instance.change(lambda: instance.decisions.delete_version(subject, version, permanent=permanent))


# -- Schemas by id.


def _context(request: Request) -> str:
    """The context of an id: of the query's subject, else of the path."""
    return parse_subject(_qualified(request, request.query_params.get("subject", ""))).context


async def list_schemas(instance: Instance, request: Request) -> Any:
    state, newest = instance.state, _flag(request, "latestOnly")
    deleted = _flag(request, "deleted")
    prefix = request.query_params.get("subjectPrefix", _qualified(request, "") or ALL_CONTEXTS)
    found: list[SchemaRecord] = []
    for name in state.subject_names(prefix, deleted=deleted):
        versions = state.versions(name, deleted=deleted)
        found += versions[-1:] if newest else versions
    return [_full(instance, request, one) for one in _page(request, found)]


def _schema_by_id(instance: Instance, request: Request) -> SchemaRecord:
    number, subject = _id(request), _qualified(request, request.query_params.get("subject", ""))
    found = instance.state.by_id(number, subject or None)
    if found is None:
        raise errors.schema_not_found(number)
    return found


async def show_schema(instance: Instance, request: Request) -> Any:
    schema = _schema_by_id(instance, request)
    shown = _shown(schema, _text(instance, request, schema), guid=instance.state.guid(schema), with_place=False)
    if request.query_params.get("subject"):
        shown |= {"subject": schema.subject, "version": schema.version}
    if _flag(request, "fetchMaxId"):
        shown["maxId"] = instance.state.largest_id.get(_context(request), 0)
    if request.query_params.get("referenceFormat") == "qualified" and schema.references:
        shown["references"] = [
            {"name": one.name, "subject": qualified_beside(schema.subject, one.subject), "version": one.version}
            for one in schema.references
        ]
    return shown


async def show_schema_text(instance: Instance, request: Request) -> Any:
    return Response(_text(instance, request, _schema_by_id(instance, request)), media_type=CONTENT_TYPE)


def _places(instance: Instance, request: Request) -> list[SchemaRecord]:
    found = instance.state.places_of_id(_id(request), _context(request), deleted=_flag(request, "deleted"))
    subject = _qualified(request, request.query_params.get("subject", ""))
    if parse_subject(subject).subject:
        found = [one for one in found if one.subject == subject]
    if not found:
        raise errors.schema_not_found()
    return found


async def list_subjects_of_id(instance: Instance, request: Request) -> Any:
    return _page(request, sorted({one.subject for one in _places(instance, request)}))


async def list_versions_of_id(instance: Instance, request: Request) -> Any:
    return _page(request, [{"subject": one.subject, "version": one.version} for one in _places(instance, request)])


def _places_of_guid(instance: Instance, request: Request) -> dict[str, int]:
    guid = unquote(request.path_params["guid"])
    found = instance.state.guids.get(guid.lower())
    if not found:
        raise errors.schema_not_found(guid)
    return found


async def show_schema_of_guid(instance: Instance, request: Request) -> Any:
    context, number = next(iter(_places_of_guid(instance, request).items()))
    schema = instance.state.by_id(number, None if context == DEFAULT_CONTEXT else f":{context}:")
    assert schema is not None, "the index of guids names living schemas"
    return _shown(schema, _text(instance, request, schema), guid=instance.state.guid(schema), with_place=False)


async def list_ids_of_guid(instance: Instance, request: Request) -> Any:
    return [{"context": context, "id": number} for context, number in _places_of_guid(instance, request).items()]


async def list_types(instance: Instance, request: Request) -> Any:
    return list(TYPES)


# -- Compatibility.


async def check_version(instance: Instance, request: Request) -> Any:
    """Compares with one version, whatever the level's range."""
    subject, version, body = _subject(request), _version(request), await _json(request, SchemaRequest)
    state = instance.state
    old = state.latest(subject) if version == -1 else state.subjects.get(subject, {}).get(version)
    if (old is None or old.deleted) and version != -1:
        raise errors.version_not_found(version)
    level = str(state.config(subject)["compatibilityLevel"])
    return await _checked(instance, request, subject, body, level, None if old is None else [old])


async def check_subject(instance: Instance, request: Request) -> Any:
    """The same check as a registration's."""
    subject, body = _subject(request), await _json(request, SchemaRequest)
    level = str(instance.state.config(subject)["compatibilityLevel"])
    return await _checked(instance, request, subject, body, level, instance.state.versions(subject))


async def _checked(
    instance: Instance, request: Request, subject: str, body: SchemaRequest, level: str, old: list[SchemaRecord] | None
) -> Any:
    verbose = _flag(request, "verbose")
    try:
        normalize = instance.decisions.normalizes(subject, _flag(request, "normalize"))
        new = instance.decisions.parse(subject, body, normalize=normalize, is_new=True)
    except RegistryError as error:
        if not verbose or error.code != 42201:
            raise
        return {"is_compatible": False, "messages": [error.message]}
    if old is None:
        reasons: list[str] = []
    else:
        earlier = instance.parsed_versions(old, level)
        reasons = await instance.compared(lambda: level_incompatibilities(level, new, earlier))
    return {"is_compatible": not reasons, **({"messages": reasons} if verbose else {})}


# -- Settings.


async def show_config(instance: Instance, request: Request) -> Any:
    subject, state = _scope(request), instance.state
    if subject is not None and subject not in state.configs and not _flag(request, "defaultToGlobal"):
        raise errors.level_not_configured(subject)
    return state.config(subject) if subject is None or _flag(request, "defaultToGlobal") else state.configs[subject]


async def set_config(instance: Instance, request: Request) -> Any:
    subject, body = _scope(request), await _json(request, dict[str, Any])
    return await instance.change(lambda: instance.decisions.set_config(subject, body))


async def delete_config(instance: Instance, request: Request) -> Any:
    subject = _scope(request)
    return await instance.change(lambda: instance.decisions.delete_config(subject))


async def show_mode(instance: Instance, request: Request) -> Any:
    subject, state = _scope(request), instance.state
    if subject is not None and subject not in state.modes and not _flag(request, "defaultToGlobal"):
        raise errors.mode_not_configured(subject)
    return {"mode": state.mode(subject) if subject is None or _flag(request, "defaultToGlobal") else state.modes[subject]}


async def set_mode(instance: Instance, request: Request) -> Any:
    subject, body, force = _scope(request), await _json(request, dict[str, Any]), _flag(request, "force")
    return await instance.change(lambda: instance.decisions.set_mode(subject, body.get("mode"), force=force))


async def delete_mode(instance: Instance, request: Request) -> Any:
    subject, recursive = _scope(request), _flag(request, "recursive")
    return await instance.change(lambda: instance.decisions.delete_mode(subject, recursive=recursive))


async def list_contexts(instance: Instance, request: Request) -> Any:
    prefix = request.query_params.get("contextPrefix", "").strip(":")
    return _page(request, [one for one in sorted({DEFAULT_CONTEXT, *instance.state.contexts}) if one.startswith(prefix)])


async def delete_context(instance: Instance, request: Request) -> Any:
    context = unquote(request.path_params["context"]).strip(":")
    await instance.change(lambda: instance.decisions.delete_context(context))
    return Response(status_code=204)


# -- The server.


async def show_root(instance: Instance, request: Request) -> Any:
    return {}


async def show_cluster(instance: Instance, request: Request) -> Any:
    return {"id": "", "scope": {"path": [], "clusters": {"kafka-cluster": instance.cluster_id, "schema-registry-cluster": instance.group}}}


async def show_server(instance: Instance, request: Request) -> Any:
    return {"version": VERSION, "commitId": ""}


async def show_health(instance: Instance, request: Request) -> Any:
    """For supervisors: 200 once the topic is read."""
    ready = instance.is_ready
    leader = instance.leader
    body = {"status": "ok" if ready else "starting", "leader": None if leader is None else leader.url, "is_leader": instance.is_leader}
    return _answer(request, body, 200 if ready else 503)


#: (method, path, handler). Writes are those of other methods than GET, and not in READING.
TABLE: list[tuple[str, str, Handler]] = [
    ("GET", "/", show_root),
    ("POST", "/", show_root),
    ("GET", "/subjects", list_subjects),
    ("POST", "/subjects/{subject}", lookup_schema),
    ("DELETE", "/subjects/{subject}", delete_subject),
    ("GET", "/subjects/{subject}/metadata", show_latest_with_metadata),
    ("GET", "/subjects/{subject}/versions", list_versions),
    ("POST", "/subjects/{subject}/versions", register_schema),
    ("GET", "/subjects/{subject}/versions/{version}", show_version),
    ("DELETE", "/subjects/{subject}/versions/{version}", delete_version),
    ("GET", "/subjects/{subject}/versions/{version}/schema", show_version_text),
    ("GET", "/subjects/{subject}/versions/{version}/referencedby", list_referrers),
    ("GET", "/schemas", list_schemas),
    ("GET", "/schemas/types", list_types),
    ("GET", "/schemas/ids/{id}", show_schema),
    ("GET", "/schemas/ids/{id}/schema", show_schema_text),
    ("GET", "/schemas/ids/{id}/subjects", list_subjects_of_id),
    ("GET", "/schemas/ids/{id}/versions", list_versions_of_id),
    ("GET", "/schemas/guids/{guid}", show_schema_of_guid),
    ("GET", "/schemas/guids/{guid}/ids", list_ids_of_guid),
    ("POST", "/compatibility/subjects/{subject}/versions", check_subject),
    ("POST", "/compatibility/subjects/{subject}/versions/{version}", check_version),
    ("GET", "/config", show_config),
    ("PUT", "/config", set_config),
    ("DELETE", "/config", delete_config),
    ("GET", "/config/{subject}", show_config),
    ("PUT", "/config/{subject}", set_config),
    ("DELETE", "/config/{subject}", delete_config),
    ("GET", "/mode", show_mode),
    ("PUT", "/mode", set_mode),
    ("DELETE", "/mode", delete_mode),
    ("GET", "/mode/{subject}", show_mode),
    ("PUT", "/mode/{subject}", set_mode),
    ("DELETE", "/mode/{subject}", delete_mode),
    ("GET", "/contexts", list_contexts),
    ("DELETE", "/contexts/{context}", delete_context),
    ("GET", "/v1/metadata/id", show_cluster),
    ("GET", "/v1/metadata/version", show_server),
    ("GET", "/healthz", show_health),
]
#: Requests with a body that change nothing.
READING = (show_root, lookup_schema, check_subject, check_version)


def _routes(instance: Instance) -> list[Route]:
    return [_route(path, handler, instance, method, is_write=method != "GET" and handler not in READING) for method, path, handler in TABLE]
