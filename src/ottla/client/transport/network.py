"""All connections of a client, with reconnection and metadata refresh.

A connection is ready after both sides agreed on versions: ApiVersions in the newest known version, or version 0 if the broker does not
support it (KIP-511). A request is sent in the newest version that both sides support.

Metadata is requested from a connected broker, then from known brokers, then from the bootstrap addresses, so a client finds its cluster
even if all brokers have moved. Node ids below 0 are bootstrap addresses.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, NamedTuple, TypeVar, cast

from ottla.base.acls import Operation
from ottla.base.listeners import SecurityProtocol
from ottla.base.version import VERSION
from ottla.client.access_errors import refused_access
from ottla.client.errors import AlreadyClosed, BrokerIncompatible, ConnectionFailed, MetadataTimedOut, SslAuthenticationFailed
from ottla.client.options import ClientOptions, ProducerOptions, address_text, login_of_options, parse_address
from ottla.client.sampled_stats import SampledStat
from ottla.client.transport.backoff import Backoff
from ottla.client.transport.cluster import UNUSED_TOPIC_MS, Broker, Cluster
from ottla.client.transport.kafka_releases import release_with
from ottla.client.transport.tls import Tls
from ottla.net.client_connection import ClientConnection, ConnectionBroken, open_connection
from ottla.net.sasl.login import LoginFailed, MechanismNotEnabled, SaslNotExpected, log_in
from ottla.wire import errors
from ottla.wire.declare import FieldNotInVersion, schema_of
from ottla.wire.errors import KafkaError, error_for
from ottla.wire.framing import decode_response
from ottla.wire.messages import API, ApiVersionsRequest, ApiVersionsResponse, MetadataResponse

T = TypeVar("T")
log = logging.getLogger("ottla.client")
UNSUPPORTED_VERSION = 35
SOFTWARE_NAME = "ottla"
API_VERSIONS = 18
SASL_AUTHENTICATE = 36
#: A missing topic or connection is logged after this time: it may be about to appear.
WARN_AFTER_MS = 3000
#: First Metadata version with allow_auto_topic_creation; since Kafka 1.0.
METADATA_VERSION_MIN = 4


def monotonic_ms() -> float:
    """Milliseconds of a monotonic clock."""
    return time.monotonic() * 1000


class Peer:
    """A connected broker with known versions."""

    __slots__ = ("link", "node_id", "versions")

    def __init__(self, node_id: int, link: ClientConnection, versions: dict[int, tuple[int, int]]) -> None:
        self.node_id = node_id
        self.link = link
        #: First and last version of the broker by API key.
        self.versions = versions

    def version(self, request: type[Any], *, at_least: int = 0, at_most: int = 1000) -> int:
        """The newest common version of this request within the bounds. Raises: BrokerIncompatible."""
        schema = schema_of(request)
        key = schema.key
        assert key is not None, f"{request.__name__} is a request"
        mine, theirs = API[key].versions, self.versions.get(key)
        if at_least > mine[1]:
            # A version that is not final is used only when it is asked for.
            mine = (mine[0], schema.until)
        if theirs is None:
            since = release_with(key, at_least)
            hint = f"; Kafka has it since {since}" if since else ""
            raise BrokerIncompatible(f"the broker at {self.link.address} does not offer {API[key].name}{hint}")
        version = min(mine[1], theirs[1], at_most)
        first, last = max(mine[0], at_least), min(mine[1], at_most)
        if version < max(first, theirs[0]):
            since = release_with(key, first)
            hint = "; this client is too old for it" if last < theirs[0] else f", which Kafka has since {since}" if since else ""
            has = f"the broker at {self.link.address} has versions {theirs[0]} to {theirs[1]}"
            raise BrokerIncompatible(f"{API[key].name}: {has}, needed are {first} to {last}{hint}")
        return version

    def send(self, message: Any, *, timeout_ms: float, at_least: int = 0, at_most: int = 1000) -> asyncio.Future[Any]:
        """Sends a request in the best version. Raises: BrokerIncompatible, ConnectionBroken."""
        return self.link.request(message, self.version(type(message), at_least=at_least, at_most=at_most), timeout_ms=timeout_ms)


class _Node:
    """Connection state of a broker."""

    __slots__ = ("address", "backoff", "begun_ms", "connecting", "failing_since_ms", "last_error", "peer", "retry_at_ms", "told")

    def __init__(self, address: tuple[str, int], backoff: Backoff) -> None:
        self.address = address
        self.backoff = backoff
        self.peer: Peer | None = None
        self.connecting: asyncio.Task[Peer] | None = None
        self.retry_at_ms = float("-inf")
        self.last_error: KafkaError | None = None
        #: Start of the last connection attempt, and of the first failed one since the last success.
        self.begun_ms = float("-inf")
        self.failing_since_ms = float("inf")
        #: The last logged problem.
        self.told = ""


class Network:
    """All connections of a client. Belongs to one event loop."""

    def __init__(
        self,
        options: ClientOptions,
        *,
        rng: Random | None = None,
        clock_ms: Callable[[], float] = monotonic_ms,
        allow_auto_create: bool = True,
    ) -> None:
        """Reads certificates. Raises: ConfigError."""
        self.options = options
        self._tls = Tls(options) if SecurityProtocol(options.security_protocol).tls else None
        self.rng = rng or Random()
        self.clock_ms = clock_ms
        idle_ms = options.metadata_max_idle_ms if isinstance(options, ProducerOptions) else UNUSED_TOPIC_MS
        self.cluster = Cluster(max_age_ms=options.metadata_max_age_ms, idle_ms=idle_ms, allow_auto_create=allow_auto_create)
        self.cluster.trouble = self.trouble
        self.cluster.refused = lambda code, topic: refused_access(code, options, Operation.DESCRIBE, topic)
        self._login = login_of_options(options)
        self.closed = False
        #: Called when a connection or the metadata changed.
        self.changed: Callable[[], None] = lambda: None
        #: Epoch of the newest finalized features that a broker named, -1 before; and their levels (KIP-584).
        self.features_epoch = -1
        self.features: dict[str, int] = {}
        #: By node: end of the throttle time of its last response that had one (KIP-219).
        self._throttled_until_ms: dict[int, float] = {}
        #: Throttle times of responses, in ms.
        self.throttle_times = SampledStat()
        #: Additional connections: addresses by a number that is not a broker id.
        self.places: dict[int, tuple[str, int]] = {}
        self._bootstrap = {-1 - index: parse_address(text) for index, text in enumerate(options.bootstrap_servers)}
        self._nodes: dict[int, _Node] = {}
        self._refreshing: asyncio.Task[None] | None = None
        self._refresh_backoff = Backoff(options.retry_backoff_ms, options.retry_backoff_max_ms, self.rng)
        self._refresh_at_ms = float("-inf")
        self._tasks: set[asyncio.Task[Any]] = set()
        #: When requested topics were first found missing; +inf: logged.
        self._missing_since_ms: dict[str, float] = {}
        #: Own errors that were logged.
        self._told: set[str] = set()

    # -- Connections.

    def ready(self, node_id: int) -> Peer | None:
        """The connected peer, if there is one; otherwise starts to connect when the backoff allows."""
        node = self._node(node_id)
        if node is None:
            return None
        if node.peer is not None:
            return node.peer
        if node.connecting is None and self.clock_ms() >= node.retry_at_ms and not self.closed:
            self._connect(node_id, node)
        return None

    def retry_at_ms(self, node_id: int) -> float:
        """Time of the next connection attempt; -inf for now."""
        node = self._nodes.get(node_id)
        return float("-inf") if node is None or node.connecting is not None else node.retry_at_ms

    @property
    def connections(self) -> int:
        """Number of connections, including bootstrap addresses."""
        return sum(node.peer is not None for node in self._nodes.values())

    def last_error(self, node_id: int) -> KafkaError | None:
        """Why this broker is not connected."""
        node = self._nodes.get(node_id)
        return None if node is None else node.last_error

    def trouble(self, node_id: int | None = None) -> str | None:
        """The connection problem of this broker, or of all; None if connected or not tried yet."""
        if node_id is None:
            if self.connections:
                return None
            said = [one for one in map(self._said, self._nodes.values()) if one]
            return "no broker can be reached: " + "; ".join(dict.fromkeys(said)) if said else None
        node = self._nodes.get(node_id)
        return None if node is None or node.peer is not None else self._said(node)

    def _said(self, node: _Node) -> str | None:
        if node.last_error is not None:
            return str(node.last_error)
        if node.connecting is None:
            return None
        waited_ms = self.clock_ms() - node.begun_ms
        return f"{address_text(*node.address)} has not answered for {waited_ms:.0f} ms; is it a Kafka broker, and up?"

    async def peer(self, node_id: int) -> Peer:
        """The connected peer; waits for the backoff and the connection. Raises: ConnectionFailed, BrokerIncompatible."""
        if self.closed:
            raise AlreadyClosed()
        node = self._node(node_id)
        if node is None:
            raise ConnectionFailed(self.absent(node_id))
        if node.peer is not None:
            return node.peer
        if node.connecting is None:
            pause_ms = node.retry_at_ms - self.clock_ms()
            if pause_ms > 0:
                await asyncio.sleep(pause_ms / 1000)
                return await self.peer(node_id)
            self._connect(node_id, node)
        assert node.connecting is not None, "the connection was just begun"
        return await asyncio.shield(node.connecting)

    def absent(self, node_id: int) -> str:
        """Text for a broker that is not in the cluster."""
        there = ", ".join(map(str, sorted(self.cluster.brokers)))
        return f"the cluster has no broker {node_id} now" + (f"; it has {there}" if there else "")

    async def ask(self, node_id: int, message: Any, *, timeout_ms: float | None = None, at_least: int = 0, at_most: int = 1000) -> Any:
        """Sends a request to a broker and waits for the response. Raises: ConnectionFailed, RequestTimedOut, BrokerIncompatible."""
        return await self.ask_as(node_id, type(message), lambda _: message, timeout_ms=timeout_ms, at_least=at_least, at_most=at_most)

    async def ask_as(
        self,
        node_id: int,
        request: type[Any],
        build: Callable[[int], Any],
        *,
        timeout_ms: float | None = None,
        at_least: int = 0,
        at_most: int = 1000,
    ) -> Any:
        """`ask` for a message that depends on its version. Waits for the end of the broker's throttle time, if there is one."""
        peer = await self.peer(node_id)
        while (pause_ms := self.throttled_until_ms(node_id) - self.clock_ms()) > 0:
            await asyncio.sleep(pause_ms / 1000)
            peer = await self.peer(node_id)
        limit_ms = self.options.request_timeout_ms if timeout_ms is None else timeout_ms
        try:
            version = peer.version(request, at_least=at_least, at_most=at_most)
            response = await peer.link.request(build(version), version, timeout_ms=limit_ms)
            self.note_throttle(node_id, response)
            return response
        except ConnectionBroken as broken:
            raise failure(broken) from None
        except FieldNotInVersion as wrong:
            raise errors.InvalidRequest(f"{request.__name__.removesuffix('Request')} cannot be sent: {wrong}") from None

    def note_throttle(self, node_id: int, response: Any) -> None:
        """Keeps the throttle time of a response: the broker reads no request of this client meanwhile."""
        throttle_ms = getattr(response, "throttle_time_ms", 0)
        self.throttle_times.add(throttle_ms, self.clock_ms())
        if throttle_ms > 0:
            self._throttled_until_ms[node_id] = self.clock_ms() + throttle_ms

    def throttled_until_ms(self, node_id: int) -> float:
        """End of the throttle time of a broker; -inf without one."""
        return self._throttled_until_ms.get(node_id, float("-inf")) if self._throttled_until_ms else float("-inf")

    def _node(self, node_id: int) -> _Node | None:
        address: tuple[str, int] | None = self._bootstrap.get(node_id) or self.places.get(node_id)
        broker = self.cluster.brokers.get(node_id)
        if broker is not None:
            address = (broker.host, broker.port)
        node = self._nodes.get(node_id)
        if node is not None and (address is None or address == node.address):
            return node
        if address is None:
            return None
        if node is not None and node.peer is not None:
            node.peer.link.close("the broker has another address now")
        backoff = Backoff(self.options.reconnect_backoff_ms, self.options.reconnect_backoff_max_ms, self.rng)
        self._nodes[node_id] = node = _Node(address, backoff)
        return node

    def _connect(self, node_id: int, node: _Node) -> None:
        task = asyncio.get_running_loop().create_task(self._open(node_id, node))
        node.connecting = task
        node.begun_ms = self.clock_ms()
        self._keep(task)

        def over(_: asyncio.Task[Peer]) -> None:
            node.connecting = None
            self.changed()

        task.add_done_callback(over)

    async def _open(self, node_id: int, node: _Node) -> Peer:
        options = self.options

        def lost(why: ConnectionBroken) -> None:
            if node.peer is not None and node.peer.link is link:
                node.peer = None
                node.last_error = failure(why)
                node.retry_at_ms = self.clock_ms() + node.backoff.failed()
                self.cluster.invalidate()
                self.changed()

        link: ClientConnection | None = None
        try:
            link = await open_connection(
                *node.address,
                client_id=options.client_id,
                frame_bytes_max=options.receive_message_max_bytes,
                timeout_ms=options.socket_connection_setup_timeout_ms,
                lost=lost,
                send_buffer_bytes=options.send_buffer_bytes,
                receive_buffer_bytes=options.receive_buffer_bytes,
                tls=None if self._tls is None else self._tls.present(),
            )
            offered = await negotiate(link, options.socket_connection_setup_timeout_ms)
            await self._authenticate(link, node.address[0], offered)
        except (LoginFailed, BrokerIncompatible) as refused:
            node.last_error = fault = login_error(refused)
            node.retry_at_ms = self.clock_ms() + node.backoff.failed()
            if link is not None:
                link.close("not authenticated")
            self._tell_of_trouble(node_id, node)
            raise fault from None
        except ConnectionBroken as broken:
            node.last_error = error = failure(broken, self._advertised(node_id, node))
            node.retry_at_ms = self.clock_ms() + node.backoff.failed()
            if node_id in self.cluster.brokers:
                # The broker may be gone and others lead, which brokers learn later than this client.
                self.cluster.invalidate()
            self._tell_of_trouble(node_id, node)
            raise error from None
        node.backoff.succeeded()
        node.last_error = None
        node.failing_since_ms = float("inf")
        node.told = ""
        node.peer = Peer(node_id, link, offered.versions)
        if offered.features_epoch >= self.features_epoch:
            self.features_epoch, self.features = offered.features_epoch, offered.features
        if link.broken is not None:
            node.peer = None
            raise failure(link.broken)
        return node.peer

    async def _authenticate(self, link: ClientConnection, host: str, offered: Offered) -> None:
        """Raises: LoginFailed, BrokerIncompatible, ConnectionBroken."""
        if self._login is None:
            return
        mine, theirs = API[SASL_AUTHENTICATE].versions, offered.versions.get(SASL_AUTHENTICATE)
        if theirs is None:
            raise BrokerIncompatible(f"the broker at {link.address} does not offer SaslAuthenticate; Kafka has it since 1.0")
        versions = (max(mine[0], theirs[0]), min(mine[1], theirs[1]))
        limit_ms = self.options.socket_connection_setup_timeout_ms
        await log_in(link, self._login, host=host, versions=versions, timeout_ms=limit_ms, rng=self.rng)

    def _tell_of_trouble(self, node_id: int, node: _Node) -> None:
        """Logs once that a connection fails, because a waiting consumer would not report it."""
        node.failing_since_ms = min(node.failing_since_ms, node.begun_ms)
        said = str(node.last_error)
        matters = node_id not in self._bootstrap or not self.connections
        if matters and said != node.told and self.clock_ms() - node.failing_since_ms >= WARN_AFTER_MS:
            node.told = said
            log.warning("%s", said)

    def _advertised(self, node_id: int, node: _Node) -> str:
        """Addition to an error about an advertised address."""
        if node.address in self._bootstrap.values():
            return ""
        broker = next((one.node_id for one in self.cluster.brokers.values() if (one.host, one.port) == node.address), None)
        whose = "one of its brokers" if broker is None else f"broker {broker}"
        return (
            f" (the cluster names this address for {whose}; if it is up and you cannot reach it there,"
            " its advertised.listeners should be an address that clients reach)"
        )

    # -- Metadata.

    def refresh_soon(self) -> float:
        """Starts a refresh if it is due and the backoff allows; returns the time of the next call, +inf while one is in flight."""
        if self._refreshing is not None or self.closed:
            return float("inf")
        now_ms = self.clock_ms()
        at_ms = max(self.cluster.due_ms(), self._refresh_at_ms)
        if at_ms > now_ms:
            return at_ms
        self._begin_refresh()
        return float("inf")

    async def refresh(self) -> None:
        """Refreshes metadata, or joins a refresh in flight. Raises: ConnectionFailed if no broker can be reached."""
        if self.closed:
            raise AlreadyClosed()
        if self._refreshing is None:
            self._begin_refresh()
        assert self._refreshing is not None, "the refresh was just begun"
        await asyncio.shield(self._refreshing)

    def _begin_refresh(self) -> None:
        task = asyncio.get_running_loop().create_task(self._refresh())
        self._refreshing = task
        self._keep(task)

        def over(done: asyncio.Task[None]) -> None:
            self._refreshing = None
            if done.cancelled() or done.exception() is not None or self.cluster.due_ms() == float("-inf"):
                self._refresh_at_ms = self.clock_ms() + self._refresh_backoff.failed()
            else:
                self._refresh_backoff.succeeded()
            self.changed()

        task.add_done_callback(over)

    async def _refresh(self) -> None:
        request = self.cluster.request(self.clock_ms())
        asked = [topic.name for topic in request.topics or [] if topic.name is not None]
        response = await self.ask_any(request, at_least=METADATA_VERSION_MIN)
        before = self.cluster.topics
        self.cluster.apply(cast(MetadataResponse, response), self.clock_ms(), asked=asked)
        for topic in sorted(before.keys() - self.cluster.topics.keys()):
            log.warning("%s; it was there before", self.cluster.why_not(topic))
        self._tell_of_missing(asked)

    def _tell_of_missing(self, asked: list[str]) -> None:
        """Logs once each topic that does not appear, because a waiting consumer would not report it."""
        now_ms = self.clock_ms()
        for topic in asked:
            error = self.cluster.errors.get(topic)
            if error is None:
                self._missing_since_ms.pop(topic, None)
            elif now_ms - self._missing_since_ms.setdefault(topic, now_ms) >= WARN_AFTER_MS:
                self._missing_since_ms[topic] = float("inf")
                log.warning("%s", error)

    async def ask_any(self, message: Any, *, at_least: int = 0, at_most: int = 1000) -> Any:
        """Asks brokers in turn until one answers. Raises: ConnectionFailed with all errors."""
        return await self.ask_any_as(type(message), lambda _: message, at_least=at_least, at_most=at_most)

    async def ask_any_as(self, request: type[Any], build: Callable[[int], Any], *, at_least: int = 0, at_most: int = 1000) -> Any:
        """`ask_any` for a message that depends on its version."""
        said: list[str] = []
        for node_id in self._candidates():
            try:
                return await self.ask_as(node_id, request, build, at_least=at_least, at_most=at_most)
            except (ConnectionFailed, errors.RequestTimedOut) as error:
                said.append(str(error))
        raise ConnectionFailed("no broker can be reached: " + "; ".join(dict.fromkeys(said)))

    def any_node(self) -> int:
        """A broker for requests that any broker answers; preferably a connected one."""
        return self._candidates()[0]

    def _candidates(self) -> list[int]:
        """Brokers to ask, best first: connected ones, then those that did not just fail; known brokers before bootstrap addresses."""
        now_ms = self.clock_ms()
        known = list(self.cluster.brokers)
        self.rng.shuffle(known)

        def rank(node_id: int) -> tuple[bool, bool, bool]:
            node = self._nodes.get(node_id)
            return node is None or node.peer is None, self.retry_at_ms(node_id) > now_ms, node_id < 0

        return sorted([*known, *self._bootstrap], key=rank)

    async def until(self, holds: Callable[[], T | None], *, timeout_ms: float, doing: Callable[[], str]) -> T:
        """Refreshes metadata until `holds` returns a value.

        Raises: MetadataTimedOut with `doing` and the last error; AlreadyClosed; errors of `holds`.
        """
        deadline_ms = self.clock_ms() + timeout_ms
        backoff = Backoff(self.options.retry_backoff_ms, self.options.retry_backoff_max_ms, self.rng)
        failed: KafkaError | None = None
        while True:
            found = holds()
            if found is not None:
                return found
            left_ms = deadline_ms - self.clock_ms()
            if left_ms <= 0:
                raise MetadataTimedOut(f"after {timeout_ms:.0f} ms: {failed or self.trouble() or doing()}")
            try:
                async with asyncio.timeout(left_ms / 1000):
                    await self.refresh()
                failed = None
            except TimeoutError:
                continue
            except ConnectionFailed as error:
                failed = error
            if holds() is None:
                await asyncio.sleep(min(backoff.failed(), max(deadline_ms - self.clock_ms(), 0)) / 1000)

    # -- Tasks and close.

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Starts a task, which is cancelled when the network closes."""
        return self._keep(asyncio.get_running_loop().create_task(work))

    def _keep(self, task: asyncio.Task[Any]) -> asyncio.Task[Any]:
        self._tasks.add(task)

        def done(finished: asyncio.Task[Any]) -> None:
            self._tasks.discard(finished)
            error = None if finished.cancelled() else finished.exception()
            # Errors of brokers are stored in the node or raised to a caller.
            if error is not None and not isinstance(error, KafkaError | OSError) and repr(error) not in self._told:
                self._told.add(repr(error))
                log.error("an internal error of the client, which may not continue: %r", error, exc_info=error)

        task.add_done_callback(done)
        return task

    async def close(self) -> None:
        """Closes all connections; requests in flight fail."""
        self.closed = True
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for node in self._nodes.values():
            if node.peer is not None:
                node.peer.link.close("the client was closed")


def failure(broken: ConnectionBroken, hint: str = "") -> KafkaError:
    """A broken link as an error for users."""
    if broken.permanent:
        return SslAuthenticationFailed(f"{broken}{hint}")
    return errors.RequestTimedOut(f"{broken}{hint}") if broken.timed_out else ConnectionFailed(f"{broken}{hint}")


def login_error(refused: LoginFailed | BrokerIncompatible) -> KafkaError:
    """A failed authentication as an error for users."""
    match refused:
        case MechanismNotEnabled():
            return errors.UnsupportedSaslMechanism(str(refused))
        case SaslNotExpected():
            return errors.IllegalSaslState(str(refused))
        case LoginFailed():
            return errors.SaslAuthenticationFailed(str(refused))
        case _:
            return refused


class Offered(NamedTuple):
    """The versions of a broker by API key, and the cluster's finalized features as it knows them; the epoch is -1 without."""

    versions: dict[int, tuple[int, int]]
    features_epoch: int
    features: dict[str, int]


async def negotiate(link: ClientConnection, timeout_ms: float) -> Offered:
    """What the broker offers. Raises: ConnectionBroken."""
    newest = API[API_VERSIONS].versions[1]
    for version in (newest, 0):
        request = ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=VERSION)

        def decode(frame: memoryview, version: int = version) -> ApiVersionsResponse:
            # A broker that does not support the version answers in version 0, with the error code at the same position.
            refused = int.from_bytes(frame[4:6], "big", signed=True) == UNSUPPORTED_VERSION
            return decode_response(ApiVersionsResponse, frame, 0 if refused else version)[1]

        response: ApiVersionsResponse = await link.exchange(request, version, decode, timeout_ms=timeout_ms)
        if response.error_code == UNSUPPORTED_VERSION and version:
            continue
        if response.error_code:
            link.close(f"the broker refused to name its versions: {error_for(response.error_code)}")
            raise ConnectionBroken(f"{link.address} refused to name its versions: {error_for(response.error_code)}")
        versions = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
        features = {one.name: one.max_version_level for one in response.finalized_features}
        return Offered(versions, response.finalized_features_epoch, features)
    raise ConnectionBroken(f"{link.address} refuses every version of ApiVersions that this client has")


__all__ = ["Broker", "Network", "Peer", "failure", "monotonic_ms", "negotiate"]
