"""A schema registry, over Confluent's REST API: reads and registers schemas.

A registry's frame is a zero byte, the schema's id (4 bytes, big-endian), then the value. `http://user:password@host` uses basic
authentication.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from base64 import b64encode
from typing import Any, NamedTuple

AVRO = "AVRO"
TIMEOUT_S = 15.0
#: Request Timeout, Too Many Requests: retriable, as all errors from 500.
BUSY = (408, 429)
_CONTENT = "application/vnd.schemaregistry.v1+json"


class RegisteredSchema(NamedTuple):
    """A schema of a registry, its id and its type."""

    id: int
    schema: str
    type: str = AVRO


class RegistryFailed(OSError):
    """A schema registry cannot be reached, refuses a request, or has no suitable schema."""


class RegistryBusy(RegistryFailed):
    """A schema registry reports a temporary error."""


class SchemaNotFound(RegistryFailed):
    """The registry has no schema with this id, or no such subject."""


class Registry:
    """One registry. `option` is the name of the setting with its URL, for errors. Methods raise: RegistryFailed."""

    def __init__(self, url: str, *, option: str = "schema.registry.url") -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{option} must start with http:// or https:// and a host, not {url!r}")
        address = parts.netloc.rpartition("@")[2]
        self._url = urllib.parse.urlunsplit((parts.scheme, address, parts.path.rstrip("/"), "", ""))
        self._headers = {"Accept": _CONTENT}
        if parts.username:
            login = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
            self._headers["Authorization"] = "Basic " + b64encode(login.encode()).decode()
        self._by_id: dict[int, RegisteredSchema] = {}

    def by_id(self, number: int) -> RegisteredSchema:
        """The schema with this id, cached. Raises: SchemaNotFound."""
        if number not in self._by_id:
            answer = self._ask(f"/schemas/ids/{number}")
            self._by_id[number] = RegisteredSchema(number, str(answer["schema"]), answer.get("schemaType", AVRO))
        return self._by_id[number]

    def schema_if_there(self, number: int) -> str | None:
        """The text of the Avro schema with this id; None if the registry has none."""
        try:
            found = self.by_id(number)
        except SchemaNotFound:
            return None
        return found.schema if found.type == AVRO else None

    def newest(self, subject: str) -> RegisteredSchema:
        """The newest schema of a subject. Raises: SchemaNotFound."""
        answer = self._ask(f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/latest")
        return RegisteredSchema(int(answer["id"]), str(answer["schema"]), answer.get("schemaType", AVRO))

    def added(self, subject: str, schema: str) -> RegisteredSchema:
        """Registers the schema under the subject, if it is new there."""
        body = json.dumps({"schema": schema}).encode()
        return RegisteredSchema(int(self._ask(f"/subjects/{urllib.parse.quote(subject, safe='')}/versions", body)["id"]), schema)

    def _ask(self, path: str, body: bytes | None = None) -> Any:
        headers = self._headers | ({"Content-Type": _CONTENT} if body else {})
        try:
            with urllib.request.urlopen(urllib.request.Request(self._url + path, body, headers), timeout=TIMEOUT_S) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            message = error.read().decode(errors="replace")
            try:
                message = json.loads(message)["message"]
            except (ValueError, KeyError, TypeError):
                message = message.strip()[:200]
            busy = error.code in BUSY or error.code >= 500
            kind = SchemaNotFound if error.code == 404 else RegistryBusy if busy else RegistryFailed
            raise kind(f"the schema registry {self._url} rejected {path}: {error.code} {error.reason}: {message}") from error
        except (OSError, ValueError) as error:
            why = getattr(error, "reason", error)
            raise RegistryFailed(f"the request to the schema registry for {path} failed: {self._url}: {why}") from error
