"""Queries the facts for `ottla doctor` from a cluster, concurrently and with timeouts.

The bootstrap servers are probed first, each on its own connection. If one answers, the advertised address of each broker is probed, while
an admin client queries the other facts. Each kind of facts has a timeout. A failure is recorded with its reason and does not affect other
kinds. Nothing is changed: no record is written, no topic created, no group joined.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ottla.base.ids import TopicPartition
from ottla.base.listeners import SecurityProtocol
from ottla.client.admin.admin import Admin
from ottla.client.admin.calls import Outcome
from ottla.client.admin.group_lag import GroupLag
from ottla.client.admin.group_results import GroupDescription, GroupState, GroupType
from ottla.client.admin.results import Node, Resource
from ottla.client.doctor.access import SECURITY_SETTINGS
from ottla.client.doctor.facts import Address, Facts, Probe
from ottla.client.doctor.groups import suspicious_groups
from ottla.client.doctor.transactions import BLOCKED_MS
from ottla.client.errors import BrokerIncompatible
from ottla.client.fetch.offsets import MAX_TIMESTAMP
from ottla.client.options import AdminOptions, address_text, from_keywords, login_of_options, parse_address
from ottla.client.transport.network import Peer, negotiate
from ottla.client.transport.tls import Tls
from ottla.net.client_connection import ConnectionBroken, open_connection
from ottla.net.sasl.login import Login, LoginFailed, log_in
from ottla.wire import messages as m
from ottla.wire.errors import GroupIdNotFound, KafkaError, LeaderNotAvailable, SecurityDisabled

if TYPE_CHECKING:
    from ottla.net.tls.context import TlsContext

T = TypeVar("T")
CLIENT_ID = "ottla-doctor"
FRAME_BYTES_MAX = 100 * 2**20
#: Concurrent probes.
PROBES_MAX = 64
TOPIC_SETTINGS = ("min.insync.replicas", "message.timestamp.type")
BROKER_SETTINGS = (
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
    "share.coordinator.state.topic.replication.factor",
    "leader.imbalance.per.broker.percentage",
    "auto.leader.rebalance.enable",
    *SECURITY_SETTINGS,
)

UNKNOWN_TOPIC = 3
SASL_AUTHENTICATE = 36
#: Types of groups with committed offsets per partition; share and streams groups have none.
KNOWN_TYPES = (GroupType.CLASSIC, GroupType.CONSUMER, GroupType.UNKNOWN)


async def gather(bootstrap: str, kinds: Collection[str], *, timeout_s: float, between_s: float, settings: dict[str, Any]) -> Facts:
    """The facts about a cluster: brokers, listeners, and those of these kinds. Suspicious groups are measured again after `between_s`, if
    it is not 0.

    Raises: ConfigError.
    """
    facts = Facts(now_ms=_now_ms(), timeout_ms=timeout_s * 1000)
    addresses = [parse_address(one) for one in bootstrap.split(",") if one.strip()]
    options = from_keywords(AdminOptions, settings)
    protocol = SecurityProtocol(options.security_protocol)
    security = Security(Tls(options).present() if protocol.tls else None, login_of_options(options))
    facts.bootstrap = list(await _probe_all(addresses, timeout_s, security))
    if not facts.is_reachable:
        return facts
    known = {probe.address: probe for probe in facts.bootstrap}
    places = {number: place for probe in facts.bootstrap if probe.error is None for number, place in probe.brokers.items()}
    reachable = [one.address for one in facts.bootstrap if one.error is None]
    limit_ms = max(int(timeout_s * 1000), 1)
    limits = {"default_api_timeout_ms": limit_ms, "request_timeout_ms": limit_ms, "socket_connection_setup_timeout_ms": limit_ms}
    ours = {**settings, **limits, "client_id": CLIENT_ID, "retries": 3}
    async with Admin(bootstrap_servers=[address_text(*one) for one in reachable], **ours) as admin:
        visits, _ = await asyncio.gather(
            _probe_all([place for place in places.values() if place not in known], timeout_s, security),
            _Queries(admin, facts, timeout_s, between_s).all(kinds),
        )
    known.update({probe.address: probe for probe in visits})
    facts.listeners = {number: known[place] for number, place in sorted(places.items())}
    if not facts.nodes:
        facts.nodes = [Node(number, *place) for number, place in sorted(places.items())]
    facts.controller = next((one.controller for one in facts.probes if one.controller >= 0), -1)
    return facts


def _now_ms() -> int:
    return int(time.time() * 1000)


class Security(NamedTuple):
    """How probes connect: certificates, and credentials."""

    tls: TlsContext | None = None
    login: Login | None = None


PLAINTEXT = Security()


async def _probe_all(addresses: Iterable[Address], timeout_s: float, security: Security) -> list[Probe]:
    """A probe for each distinct address, in order."""
    slots = asyncio.Semaphore(PROBES_MAX)

    async def one(address: Address) -> Probe:
        async with slots:
            return await probe(address, timeout_s=timeout_s, security=security)

    return await asyncio.gather(*map(one, dict.fromkeys(addresses)))


async def probe(address: Address, *, timeout_s: float, security: Security = PLAINTEXT) -> Probe:
    """Connects to an address, authenticates, and queries versions and brokers. Errors are part of the result."""
    seen = Probe(address=address)
    started_s = time.monotonic()
    try:
        async with asyncio.timeout(timeout_s):
            await _query(seen, timeout_s * 1000, security)
    except TimeoutError:
        seen.error = f"{address_text(*address)} did not answer within {timeout_s:g} s"
    except (ConnectionBroken, LoginFailed, KafkaError) as error:
        seen.error = str(error)
    seen.took_ms = (time.monotonic() - started_s) * 1000
    return seen


async def _query(seen: Probe, timeout_ms: float, security: Security) -> None:
    """Raises: ConnectionBroken, LoginFailed, KafkaError."""
    host, port = seen.address
    loop = asyncio.get_running_loop()
    try:
        resolved = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        seen.hosts = sorted({str(place[0]) for *_, place in resolved})
    except socket.gaierror:
        # Connecting fails with a better message.
        pass
    link = await open_connection(
        host, port, client_id=CLIENT_ID, frame_bytes_max=FRAME_BYTES_MAX, timeout_ms=timeout_ms, lost=lambda why: None, tls=security.tls
    )  # fmt: skip
    try:
        if (ends_s := link.certificate_ends_s) is not None:
            seen.certificate_days = (ends_s - time.time()) / 86_400
        seen.versions = (await negotiate(link, timeout_ms)).versions
        if security.login is not None:
            mine, theirs = m.API[SASL_AUTHENTICATE].versions, seen.versions.get(SASL_AUTHENTICATE, (0, 0))
            await log_in(link, security.login, host=host, versions=(mine[0], min(mine[1], theirs[1])), timeout_ms=timeout_ms, rng=Random())
        request = m.MetadataRequest(topics=[], allow_auto_topic_creation=False)
        response: m.MetadataResponse = await Peer(-1, link, seen.versions).send(request, timeout_ms=timeout_ms, at_least=1)
        seen.cluster_id, seen.controller = response.cluster_id, response.controller_id
        seen.brokers = {int(one.node_id): (one.host, one.port) for one in response.brokers}
    finally:
        link.close("the probe is complete")


class _Queries:
    """Queries of an admin client, which store their results in the facts."""

    def __init__(self, admin: Admin, facts: Facts, timeout_s: float, between_s: float) -> None:
        self._admin = admin
        self._facts = facts
        self._timeout_s = timeout_s
        self._between_s = between_s

    async def all(self, kinds: Collection[str]) -> None:
        """Queries facts of these kinds. Never raises KafkaError."""
        single: dict[str, Callable[[], Awaitable[None]]] = {
            "quorum": self._quorum,
            "transactions": self._transactions,
            "access rules": self._acls,
        }
        after_topics: dict[str, Callable[[], Awaitable[None]]] = {
            "topic settings": self._topic_settings,
            "newest records": self._newest,
        }
        after_nodes: dict[str, Callable[[], Awaitable[None]]] = {
            "broker settings": self._broker_settings,
            "log directories": self._directories,
        }

        async def topics() -> None:
            if "topics" in kinds and await self._run("topics", self._topics):
                await self._run_all(after_topics, kinds)

        async def nodes() -> None:
            if await self._run("brokers", self._nodes):
                await self._run_all(after_nodes, kinds)

        async def groups() -> None:
            facts = self._facts
            if "groups" not in kinds or not await self._run("groups", self._groups):
                return
            again = suspicious_groups(facts) if "group lags" not in facts.unavailable and self._between_s else []
            if again:
                await asyncio.sleep(self._between_s)
                facts.between_ms = int(self._between_s * 1000)
                await self._run("group lags", lambda: self._groups_again(again))

        await asyncio.gather(topics(), nodes(), groups(), self._run_all(single, kinds))

    async def _run_all(self, queries: dict[str, Callable[[], Awaitable[None]]], kinds: Collection[str]) -> None:
        await asyncio.gather(*(self._run(name, query) for name, query in queries.items() if name in kinds))

    async def _run(self, name: str, query: Callable[[], Awaitable[None]]) -> bool:
        """Whether the query succeeded; otherwise the reason is in `unavailable`."""
        try:
            async with asyncio.timeout(self._timeout_s * 2):
                await query()
        except KafkaError as error:
            self._facts.unavailable[name] = str(error)
        except TimeoutError:
            self._facts.unavailable[name] = f"no answer within {self._timeout_s * 2:g} s"
        return name not in self._facts.unavailable

    async def _nodes(self) -> None:
        try:
            self._facts.nodes = (await self._admin.describe_cluster(fenced=True)).nodes
        except BrokerIncompatible:
            self._facts.nodes = (await self._admin.describe_cluster()).nodes

    async def _acls(self) -> None:
        try:
            self._facts.acls = await self._admin.describe_acls()
        except (SecurityDisabled, BrokerIncompatible):
            self._facts.acls = None
            return
        self._facts.scram_users = set(await self._admin.describe_scram_credentials())
        denied = await self._admin.describe_denied_accesses()
        self._facts.denied = {broker: one for broker, one in denied.items() if isinstance(one, dict) and one}

    async def _quorum(self) -> None:
        started_s = time.monotonic()
        try:
            self._facts.quorum = await self._admin.describe_quorum()
        except BrokerIncompatible:
            # Not a KRaft cluster.
            return
        self._facts.quorum_at_ms = _now_ms()
        self._facts.quorum_took_ms = (time.monotonic() - started_s) * 1000

    async def _transactions(self) -> None:
        try:
            found, failed = _by_outcome(await self._admin.find_blocked_partitions(longer_than_ms=BLOCKED_MS))
        except BrokerIncompatible:
            # Brokers before Kafka 3.0 do not describe transactions.
            return
        self._facts.blocked = found
        # Partitions without a leader are a finding of their own, and old brokers do not describe producers.
        _raise_any(error for error in failed.values() if not isinstance(error, LeaderNotAvailable | BrokerIncompatible))

    async def _topics(self) -> None:
        facts = self._facts
        listed = await self._admin.list_topics(internal=True)
        described = await self._admin.describe_topics([one.name for one in listed]) if listed else {}
        topics, failed = _by_outcome(described)
        facts.topics = {name: one.partitions for name, one in topics.items()}
        # A topic that was deleted meanwhile is not a problem.
        facts.undescribed = {name: str(error) for name, error in failed.items() if error.code != UNKNOWN_TOPIC}
        facts.internal = {one.name for one in listed if one.is_internal}
        under_replicated = [
            TopicPartition(name, one.partition) for name, each in facts.topics.items() for one in each if set(one.replicas) - set(one.isr)
        ]
        if under_replicated:
            try:
                moves = await self._admin.list_partition_reassignments(under_replicated)
            except KafkaError:
                # Without a controller there is no progress of reassignments either.
                return
            facts.adding = {tp: move.adding for tp, move in moves.items()}

    async def _topic_settings(self) -> None:
        resources = {Resource.topic(name): name for name in self._facts.topics}
        found, failed = _by_outcome(await self._admin.describe_configs(resources, names=TOPIC_SETTINGS) if resources else {})
        self._facts.topic_settings = {
            resources[resource]: {name: entry.value for name, entry in entries.items()} for resource, entries in found.items()
        }
        _raise_any(error for error in failed.values() if error.code != UNKNOWN_TOPIC)

    async def _broker_settings(self) -> None:
        resources = {Resource.broker(node.id): node.id for node in self._facts.nodes if not node.is_fenced}
        found, failed = _by_outcome(await self._admin.describe_configs(resources, names=BROKER_SETTINGS))
        self._facts.broker_settings = {
            resources[resource]: {name: entry.value for name, entry in entries.items()} for resource, entries in found.items()
        }
        if not found:
            _raise_any(failed.values())

    async def _directories(self) -> None:
        alive = [node.id for node in self._facts.nodes if not node.is_fenced]
        outcomes = await self._admin.describe_log_dirs(alive)
        self._facts.directories = {broker: str(one) if isinstance(one, KafkaError) else one for broker, one in outcomes.items()}

    async def _groups(self) -> None:
        listed = [one.group_id for one in await self._admin.list_groups() if one.type in KNOWN_TYPES]
        self._facts.groups, self._facts.lags = await self._measure_groups(listed)

    async def _groups_again(self, names: list[str]) -> None:
        self._facts.groups_again, self._facts.lags_again = await self._measure_groups(names)

    async def _measure_groups(self, names: list[str]) -> tuple[dict[str, GroupDescription | str], dict[str, GroupLag | str]]:
        """Members and lag of groups; a group that was deleted meanwhile is left out."""
        if not names:
            return {}, {}
        described = await self._admin.describe_consumer_groups(names)
        groups: dict[str, GroupDescription | str] = {}
        for name, group in described.items():
            if isinstance(group, KafkaError):
                if not isinstance(group, GroupIdNotFound):
                    groups[name] = str(group)
            elif group.state is not GroupState.DEAD:
                groups[name] = group
        described_names = [name for name, group in groups.items() if isinstance(group, GroupDescription)]
        measured = await self._admin.consumer_group_lag(described_names) if described_names else {}
        lags: dict[str, GroupLag | str] = {
            name: str(lag) if isinstance(lag, KafkaError) else lag for name, lag in measured.items() if not isinstance(lag, GroupIdNotFound)
        }
        return groups, lags

    async def _newest(self) -> None:
        led = [TopicPartition(name, one.partition) for name, each in self._facts.topics.items() for one in each if one.leader >= 0]
        try:
            found, _ = _by_outcome(await self._admin.list_offsets(dict.fromkeys(led, MAX_TIMESTAMP)) if led else {})
        except BrokerIncompatible:
            # Brokers before Kafka 3.0 do not support it.
            return
        self._facts.newest_ms = {tp: one.timestamp for tp, one in found.items() if one.timestamp >= 0}


def _by_outcome(outcomes: dict[Any, Outcome[T]]) -> tuple[dict[Any, T], dict[Any, KafkaError]]:
    """(results, errors)."""
    good: dict[Any, T] = {}
    bad: dict[Any, KafkaError] = {}
    for name, outcome in outcomes.items():
        if isinstance(outcome, KafkaError):
            bad[name] = outcome
        else:
            good[name] = outcome
    return good, bad


def _raise_any(errors: Iterable[KafkaError]) -> None:
    for error in errors:
        raise error
