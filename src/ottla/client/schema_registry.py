"""A client of schema registries, over Confluent's HTTP API. All parts of Ottla use this one: commands, console, tables, Spark.

A registry's frame is a zero byte, the schema's id (4 bytes, big-endian), then the value.

    address          http://HOST:PORT, https://..., several separated by commas: the next one is asked if one does not answer
    login            http://user:password@host, or OTTLA_REGISTRY_USER=user:password, or OTTLA_REGISTRY_TOKEN for a bearer token
    TLS              OTTLA_REGISTRY_CA, OTTLA_REGISTRY_CERTIFICATE, OTTLA_REGISTRY_KEY: PEM files

A request is repeated after a lost connection and while the registry is busy, with a growing pause. Schemas are cached by id; an id never
changes its schema.
"""

from __future__ import annotations

import json
import os
import ssl
import time
import urllib.parse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from random import uniform
from typing import Any, NamedTuple

from ottla.client.serializers import needed

AVRO, JSON, PROTOBUF = "AVRO", "JSON", "PROTOBUF"
TIMEOUT_S = 15.0
ATTEMPTS = 4
#: Pause before the second attempt; each further one doubles it.
PAUSE_S = 0.1
#: Request Timeout, Too Many Requests: retriable, as all errors from 500 but those of a missing library.
BUSY = (408, 429)
NOT_IMPLEMENTED = 501
_CONTENT = "application/vnd.schemaregistry.v1+json"


class RegisteredSchema(NamedTuple):
    """A schema of a registry, its id and its type. `version` is 0 if the answer has none."""

    id: int
    schema: str
    type: str = AVRO
    subject: str = ""
    version: int = 0


class Reference(NamedTuple):
    """A schema that another one imports by `name`."""

    name: str
    subject: str
    version: int


class RegistryFailed(OSError):
    """A schema registry cannot be reached, refuses a request, or has no suitable schema. `code`: the registry's, 0 without an answer."""

    code = 0


class RegistryBusy(RegistryFailed):
    """A schema registry reports a temporary error."""


class RegistryUnreachable(RegistryFailed):
    """No address of a schema registry answers."""


class SchemaNotFound(RegistryFailed):
    """The registry has no schema with this id, or no such subject."""


@dataclass(frozen=True, slots=True)
class RegistryAccess:
    """How a registry is reached. Hashable, so that readers can be cached by it. The secrets are not shown."""

    urls: tuple[str, ...]
    user: str | None = None
    password: str = field(default="", repr=False)
    token: str | None = field(default=None, repr=False)
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None

    @classmethod
    def of(cls, address: str, *, option: str = "schema.registry.url", environment: Mapping[str, str] = os.environ) -> RegistryAccess:
        """From an address, and the environment for what it does not say. `option`: its name, for errors. Raises: ValueError."""
        urls, user, password = [], None, ""
        for text in address.split(","):
            parts = urllib.parse.urlsplit(text.strip())
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError(f"{option} must start with http:// or https:// and a host, not {without_login(text)!r}")
            host = parts.netloc.rpartition("@")[2]
            urls.append(urllib.parse.urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", "")))
            if parts.username:
                user, password = urllib.parse.unquote(parts.username), urllib.parse.unquote(parts.password or "")
        if user is None and (login := environment.get("OTTLA_REGISTRY_USER")):
            user, _, password = login.partition(":")
        known = {name: environment.get(f"OTTLA_REGISTRY_{name.upper()}") or None for name in ("token", "ca", "certificate", "key")}
        return cls(tuple(urls), user, password, **known)

    def verification(self) -> ssl.SSLContext:
        """Settings of TLS. Raises: ValueError."""
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key)
            return context
        except (OSError, ssl.SSLError) as error:
            raise ValueError(f"a certificate for the schema registry cannot be read: {self.ca or self.certificate}: {error}") from None


def without_login(address: str) -> str:
    """An address to show: without user and password."""
    return ",".join(one.partition("://")[0] + "://" + one.rpartition("@")[2] if "@" in one else one for one in address.split(","))


class Registry:
    """One registry. `option` is the name of the setting with its URL, for errors. Methods raise: RegistryFailed."""

    def __init__(
        self,
        url: str | RegistryAccess,
        *,
        option: str = "schema.registry.url",
        attempts: int = ATTEMPTS,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._access = RegistryAccess.of(url, option=option) if isinstance(url, str) else url
        self._httpx = needed("httpx", "a schema registry")
        self._client: Any = None
        self._attempts = attempts
        self._timeout_s = timeout_s
        self._by_id: dict[int, RegisteredSchema] = {}
        #: Index of the address that answered last.
        self._first = 0

    def close(self) -> None:
        """Closes connections; the next request opens new ones."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    # -- Schemas.

    def by_id(self, number: int) -> RegisteredSchema:
        """The schema with this id, cached. Raises: SchemaNotFound."""
        if number not in self._by_id:
            answer = self.ask("GET", f"/schemas/ids/{number}")
            self._by_id[number] = RegisteredSchema(number, str(answer["schema"]), answer.get("schemaType", AVRO))
        return self._by_id[number]

    def schema_if_there(self, number: int) -> str | None:
        """The text of the Avro schema with this id; None if the registry has none."""
        try:
            found = self.by_id(number)
        except SchemaNotFound:
            return None
        return found.schema if found.type == AVRO else None

    def descriptor(self, number: int) -> str:
        """The descriptor of a Protobuf schema, as base64."""
        return str(self.ask("GET", f"/schemas/ids/{number}?format=serialized")["schema"])

    def references(self, number: int) -> list[Reference]:
        """The references of a schema."""
        found = self.ask("GET", f"/schemas/ids/{number}").get("references") or []
        return [Reference(one["name"], one["subject"], int(one["version"])) for one in found]

    def version(self, subject: str, version: int | str) -> RegisteredSchema:
        """A version of a subject. Raises: SchemaNotFound."""
        return _registered(self.ask("GET", f"/subjects/{_quoted(subject)}/versions/{version}"))

    def newest(self, subject: str) -> RegisteredSchema:
        """The newest schema of a subject. Raises: SchemaNotFound."""
        return self.version(subject, "latest")

    def added(self, subject: str, schema: str, type: str = AVRO, references: Iterable[Reference] = ()) -> RegisteredSchema:
        """Registers the schema under the subject, if it is new there."""
        answer = self.ask("POST", f"/subjects/{_quoted(subject)}/versions", _body(schema, type, references))
        return RegisteredSchema(int(answer["id"]), schema, type, subject, int(answer.get("version") or 0))

    def incompatibilities(
        self, subject: str, schema: str, type: str = AVRO, references: Iterable[Reference] = (), version: int | str | None = None
    ) -> list[str] | None:
        """Why the schema cannot follow the subject's versions, or one of them; None if it can."""
        tail = "" if version is None else f"/{version}"
        path = f"/compatibility/subjects/{_quoted(subject)}/versions{tail}?verbose=true"
        answer = self.ask("POST", path, _body(schema, type, references))
        return None if answer["is_compatible"] else list(map(str, answer.get("messages") or ()))

    # -- Requests.

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Sends a request and returns the answer's JSON. Path segments are quoted by the caller."""
        pause_s = PAUSE_S
        for attempt in range(1, self._attempts + 1):
            try:
                return self._ask_any(method, path, body)
            except RegistryFailed as error:
                if attempt == self._attempts or not (isinstance(error, RegistryBusy) or error.code == 0):
                    raise
            time.sleep(uniform(pause_s / 2, pause_s))
            pause_s *= 2
        raise AssertionError("the last attempt returns or raises")

    def _ask_any(self, method: str, path: str, body: Any) -> Any:
        """Asks the addresses in turn, until one answers."""
        urls = self._access.urls
        failed: list[RegistryFailed] = []
        for step in range(len(urls)):
            index = (self._first + step) % len(urls)
            try:
                found = self._ask_one(urls[index], method, path, body)
            except RegistryFailed as error:
                if not (error.code == 0 or isinstance(error, RegistryBusy)):
                    self._first = index
                    raise
                failed.append(error)
            else:
                self._first = index
                return found
        raise failed[0]

    def _ask_one(self, url: str, method: str, path: str, body: Any) -> Any:
        httpx, access = self._httpx, self._access
        if self._client is None:
            login = None if access.user is None else (access.user, access.password)
            headers = {"Accept": _CONTENT} | ({"Authorization": f"Bearer {access.token}"} if access.token else {})
            self._client = httpx.Client(
                verify=access.verification(), timeout=self._timeout_s, auth=login, headers=headers, follow_redirects=False
            )
        content = None if body is None else json.dumps(body).encode()
        try:
            answer = self._client.request(method, url + path, content=content, headers={"Content-Type": _CONTENT} if content else None)
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise RegistryUnreachable(f"the request to the schema registry for {path} failed: {url}: {reason}") from error
        if answer.is_success:
            try:
                return answer.json() if answer.content else None
            except ValueError:
                raise _failed(
                    RegistryFailed, answer.status_code, f"{url} is not a schema registry: its answer for {path} is not JSON"
                ) from None
        raise self._refused(url, path, answer)

    @staticmethod
    def _refused(url: str, path: str, answer: Any) -> RegistryFailed:
        code = status = answer.status_code
        try:
            said = answer.json()
            message, code = str(said["message"]), int(said.get("error_code", status))
        except (ValueError, KeyError, TypeError, AttributeError):
            message = answer.text.strip()[:200]
        busy = status in BUSY or (status >= 500 and status != NOT_IMPLEMENTED)
        kind = SchemaNotFound if status == 404 else RegistryBusy if busy else RegistryFailed
        return _failed(kind, code, f"the schema registry {url} rejected {path}: {status} {answer.reason_phrase}: {message}")


def _failed(kind: type[RegistryFailed], code: int, text: str) -> RegistryFailed:
    error = kind(text)
    error.code = code
    return error


def _registered(answer: Any) -> RegisteredSchema:
    return RegisteredSchema(
        int(answer["id"]),
        str(answer["schema"]),
        answer.get("schemaType", AVRO),
        str(answer.get("subject", "")),
        int(answer.get("version") or 0),
    )


def _quoted(subject: str) -> str:
    return urllib.parse.quote(subject, safe="")


def _body(schema: str, type: str, references: Iterable[Reference]) -> dict[str, Any]:
    imported = [one._asdict() for one in references]
    kind = {} if type == AVRO else {"schemaType": type}
    return {"schema": schema, **kind, **({"references": imported} if imported else {})}
