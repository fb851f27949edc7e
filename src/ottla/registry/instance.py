"""One instance of the registry: its state, its topic and its membership in the election.

Any instance answers reads. A write is decided by the elected instance, one at a time: decide, write the records, wait until they are
replayed. A newly elected instance first writes a NOOP record and reads up to it, so that it knows every earlier write.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx

from ottla.base.options import ConfigError
from ottla.client.options import AdminOptions, from_keywords
from ottla.registry import errors, records
from ottla.registry.compatibility import compared_versions
from ottla.registry.decisions import Decisions, RegistryChange, SchemaRequest
from ottla.registry.election import DEFAULT_GROUP, ElectionResult, InstanceIdentity
from ottla.registry.errors import InvalidSchema, RegistryError
from ottla.registry.formats.parse import ParsedSchema
from ottla.registry.membership import SESSION_TIMEOUT_MS, Membership
from ottla.registry.records import SchemaRecord
from ottla.registry.schemas import Schemas
from ottla.registry.state import RegistryState
from ottla.registry.topic import DEFAULT_TOPIC, SchemasTopic
from ottla.wire.errors import KafkaError, MessageTooLarge, RecordListTooLarge, RequestTimedOut

#: Timeouts of a forwarded write, and of the connection for it.
FORWARD_TIMEOUT_S = 60.0
CONNECT_TIMEOUT_S = 5.0


class Forwarding:
    """Forwards writes to the elected instance, over HTTP. Belongs to one event loop."""

    def __init__(self, ca_file: str | None) -> None:
        """`ca_file`: authorities of their certificates, as PEM. Raises: ConfigError."""
        try:
            verify = ssl.create_default_context(cafile=ca_file)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError("--peer-ca", f"{ca_file} cannot be read: {error}") from None
        self._client = httpx.AsyncClient(
            verify=verify, timeout=httpx.Timeout(FORWARD_TIMEOUT_S, connect=CONNECT_TIMEOUT_S), trust_env=False
        )

    async def send(self, url: str, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, str, bytes]:
        """Status, content type and body of the answer. Raises: RegistryError."""
        try:
            answer = await self._client.request(method, url + path, headers=headers, content=body)
        except httpx.HTTPError as error:
            raise errors.forwarding_failed(f"The elected instance {url} did not answer: {type(error).__name__}: {error}") from None
        return answer.status_code, answer.headers.get("content-type", "application/json"), answer.content

    async def close(self) -> None:
        await self._client.aclose()


log = logging.getLogger(__name__)
T = TypeVar("T")
#: How long a write may take until it is read back.
WRITE_TIMEOUT_S = 15.0
#: How long a start reads the topic.
START_TIMEOUT_S = 120.0


@dataclass(slots=True, frozen=True)
class InstanceOptions:
    """Settings of an instance. `settings`: of the clients, by Ottla's names, with `bootstrap_servers`."""

    settings: Mapping[str, Any]
    identity: InstanceIdentity
    topic: str = DEFAULT_TOPIC
    group: str = DEFAULT_GROUP
    #: Certificate authorities of other instances' HTTPS, as a PEM file; None: the system's.
    peer_ca: str | None = None
    session_timeout_ms: int = SESSION_TIMEOUT_MS


class Instance:
    """One instance. Belongs to one event loop."""

    def __init__(self, options: InstanceOptions) -> None:
        self.state = RegistryState()
        self.schemas = Schemas(self.state)
        self.decisions = Decisions(self.state, self.schemas)
        self.group = options.group
        self._topic = SchemasTopic(dict(options.settings), options.topic, self.state.replay)
        shared = {name: value for name, value in options.settings.items() if name != "client_id"}
        self._membership = Membership(
            from_keywords(AdminOptions, {**shared, "client_id": "ottla-registry"}), options.group, options.identity, self._elected,
            session_timeout_ms=options.session_timeout_ms,
        )  # fmt: skip
        self._forwarding = Forwarding(options.peer_ca)
        #: Held while a write is decided, written and replayed.
        self._writing = asyncio.Lock()
        self.leader: InstanceIdentity | None = None
        #: Set while it is known which instance writes.
        self.knows_leader = asyncio.Event()
        #: False after an election until this instance has read what others wrote.
        self._caught_up = False

    # -- Lifecycle.

    async def start(self) -> None:
        """Reads the topic and joins the election. Raises: KafkaError."""
        # The first rebalance of a group takes seconds; the topic is read meanwhile.
        self._membership.start()
        await self._topic.start()
        await self._topic.catch_up(START_TIMEOUT_S)
        self._membership.make_eligible()

    async def close(self) -> None:
        await self._membership.stop()
        await self._topic.close()
        await self._forwarding.close()

    @property
    def is_ready(self) -> bool:
        """Whether reads are answered from a complete state, and it is known who writes."""
        return self._topic.is_read and self.leader is not None

    @property
    def is_leader(self) -> bool:
        """Whether this instance is elected to write."""
        return self._membership.is_elected

    @property
    def cluster_id(self) -> str:
        return self._topic.cluster_id

    def _elected(self, assignment: ElectionResult | None) -> None:
        leader = None if assignment is None else assignment.master_identity
        if (self.leader and self.leader.url) != (leader and leader.url):
            log.info("schemas are written by %s", "nobody" if leader is None else leader.url)
        self.leader = leader
        (self.knows_leader.clear if leader is None else self.knows_leader.set)()
        if not self.is_leader:
            self._caught_up = False

    # -- Reads.

    def text(self, schema: SchemaRecord, form: str) -> str:
        """The text in another form. Raises: RegistryError."""
        return self._parsed(schema).print(form)

    def _parsed(self, schema: SchemaRecord) -> ParsedSchema:
        try:
            return self.schemas.parsed(schema)
        except InvalidSchema as error:
            raise errors.invalid_schema(str(error)) from None
        except ImportError as error:
            raise RegistryError(501, str(error)) from None

    def parsed_versions(self, versions: list[SchemaRecord], level: str) -> list[ParsedSchema]:
        """Those of the versions that the level compares with. Raises: RegistryError."""
        count = compared_versions(level, len(versions))
        return [self._parsed(one) for one in versions[len(versions) - count :]]

    @staticmethod
    async def compared(work: Callable[[], T]) -> T:
        """Compares schemas in a thread, because it takes long. Raises: RegistryError."""
        try:
            return await asyncio.to_thread(work)
        except InvalidSchema as error:
            raise errors.invalid_schema(str(error)) from None
        except RecursionError:
            raise errors.invalid_schema(errors.TOO_DEEP) from None

    # -- Writes.

    async def register(self, subject: str, request: SchemaRequest, *, normalize: bool, force: bool) -> SchemaRecord:
        """The version that has the schema, registered if it is new. Raises: RegistryError."""
        async with self._writing:
            await self._catch_up()
            found = self.decisions.registration(subject, request, normalize=normalize, force=force)
            if isinstance(found, SchemaRecord):
                return found
            reasons = await self.compared(found.reasons)
            if reasons:
                raise errors.incompatible_schema(subject, reasons)
            made: SchemaRecord = await self._write(self.decisions.register(found))
            applied = self.state.subjects.get(subject, {}).get(made.version)
            if applied is None or (applied.id, applied.schema) != (made.id, made.schema):
                raise errors.store_error("Another instance registered a schema at the same time; try again")
            return applied

    async def change(self, decide: Callable[[], RegistryChange]) -> Any:
        """Decides and writes. Returns the response. Raises: RegistryError."""
        async with self._writing:
            await self._catch_up()
            return await self._write(decide())

    async def _catch_up(self) -> None:
        if not self.is_leader:
            raise errors.unknown_leader()
        if not self._caught_up:
            await self._write(RegistryChange([records.noop_record()], None))
            self._caught_up = True

    async def _write(self, change: RegistryChange) -> Any:
        try:
            await self._topic.write(change.records, WRITE_TIMEOUT_S)
        except (MessageTooLarge, RecordListTooLarge) as error:
            raise RegistryError(42209, f"The schema is too large: {error}") from None
        except RequestTimedOut as error:
            self._caught_up = False
            raise errors.timed_out(f"The write to {self._topic.name} timed out: {error}") from None
        except KafkaError as error:
            self._caught_up = False
            raise errors.store_error(f"The write to {self._topic.name} failed: {error}") from None
        return change.response

    async def forward(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, str, bytes]:
        """Sends a write to the elected instance, and waits until its records are read here. Raises: RegistryError."""
        if self.leader is None:
            raise errors.unknown_leader()
        answer = await self._forwarding.send(self.leader.url, method, path, headers, body)
        if answer[0] < 400:
            try:
                await self._topic.catch_up(WRITE_TIMEOUT_S)
            except KafkaError as error:
                log.warning("a forwarded write is done, and not yet read here: %s", error)
        return answer
