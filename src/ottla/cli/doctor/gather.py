"""Asks a cluster all that `ottla doctor` wants to know, at once, and waits for nobody longer than it was told.

The addresses to begin with are visited first, on connections of their own; where one answers, each broker's advertised address is visited
likewise, while an admin client asks for the rest. Each kind of facts has its time-out; what fails is noted with its reason and the others
go on. Nothing is changed anywhere: no record is written, no topic made, no group joined.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any, TypeVar

from ottla.base.ids import TopicPartition
from ottla.cli.doctor.facts import Address, Facts, Visit
from ottla.cli.doctor.groups import suspects
from ottla.client.admin.admin import Admin
from ottla.client.admin.calls import Outcome
from ottla.client.admin.group_lag import GroupLag
from ottla.client.admin.group_results import GroupDescription, GroupState, GroupType
from ottla.client.admin.results import Node, Resource
from ottla.client.errors import BrokerIncompatible
from ottla.client.fetch.offsets import MAX_TIMESTAMP
from ottla.client.options import parse_address
from ottla.client.transport.network import Peer, negotiate
from ottla.net.client_connection import ConnectionBroken, open_connection
from ottla.wire import messages as m
from ottla.wire.errors import GroupIdNotFound, KafkaError

T = TypeVar("T")
CLIENT_ID = "ottla-doctor"
FRAME_BYTES_MAX = 100 * 2**20
#: Connections that are made at one time.
VISITS_MAX = 64
TOPIC_SETTINGS = ("min.insync.replicas", "message.timestamp.type")
BROKER_SETTINGS = (
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
    "share.coordinator.state.topic.replication.factor",
    "leader.imbalance.per.broker.percentage",
    "auto.leader.rebalance.enable",
)

UNKNOWN_TOPIC = 3
#: Groups whose members are told partition by partition; share and streams groups keep no offsets of this kind.
KNOWN_TYPES = (GroupType.CLASSIC, GroupType.CONSUMER, GroupType.UNKNOWN)


async def gather(bootstrap: str, wanted: Collection[str], *, timeout_s: float, between_s: float, settings: dict[str, Any]) -> Facts:
    """What is to be known of a cluster; `wanted` are kinds of facts besides brokers and their listeners. Groups that look stuck are looked
    at again after `between_s`; 0: they are not.

    Raises: ConfigError.
    """
    facts = Facts(now_ms=_now_ms(), patience_ms=timeout_s * 1000)
    given = [parse_address(one) for one in bootstrap.split(",") if one.strip()]
    facts.bootstrap = list(await _visits(given, timeout_s))
    if not facts.is_reachable:
        return facts
    known = {visit.address: visit for visit in facts.bootstrap}
    places = {number: place for visit in facts.bootstrap if visit.error is None for number, place in visit.brokers.items()}
    reachable = [one.address for one in facts.bootstrap if one.error is None]
    limit_ms = max(int(timeout_s * 1000), 1)
    limits = {"default_api_timeout_ms": limit_ms, "request_timeout_ms": limit_ms, "socket_connection_setup_timeout_ms": limit_ms}
    ours = {**settings, **limits, "client_id": CLIENT_ID, "retries": 3}
    async with Admin(bootstrap_servers=[_server(one) for one in reachable], **ours) as admin:
        visits, _ = await asyncio.gather(
            _visits([place for place in places.values() if place not in known], timeout_s),
            _Asking(admin, facts, timeout_s, between_s).all(wanted),
        )
    known.update({visit.address: visit for visit in visits})
    facts.listeners = {number: known[place] for number, place in sorted(places.items())}
    if not facts.nodes:
        facts.nodes = [Node(number, *place) for number, place in sorted(places.items())]
    facts.controller = next((one.controller for one in facts.visits if one.controller >= 0), -1)
    return facts


def _now_ms() -> int:
    return int(time.time() * 1000)


def _server(address: Address) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


# -- visits


async def _visits(addresses: Iterable[Address], timeout_s: float) -> list[Visit]:
    """One for each address, in order; two who name the same address share one."""
    turn = asyncio.Semaphore(VISITS_MAX)

    async def one(address: Address) -> Visit:
        async with turn:
            return await visit(address, timeout_s=timeout_s)

    return await asyncio.gather(*map(one, dict.fromkeys(addresses)))


async def visit(address: Address, *, timeout_s: float) -> Visit:
    """Connect to an address and ask for versions and brokers. Never raises: what went wrong is in it."""
    seen = Visit(address=address)
    started_s = time.monotonic()
    try:
        async with asyncio.timeout(timeout_s):
            await _look(seen, timeout_s * 1000)
    except TimeoutError:
        seen.error = f"{_server(address)} did not answer within {timeout_s:g} s"
    except (ConnectionBroken, KafkaError) as error:
        seen.error = str(error)
    seen.took_ms = (time.monotonic() - started_s) * 1000
    return seen


async def _look(seen: Visit, timeout_ms: float) -> None:
    """Raises: ConnectionBroken, KafkaError."""
    host, port = seen.address
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        seen.hosts = sorted({str(place[0]) for *_, place in found})
    except socket.gaierror:
        # Connecting says the same in a better sentence.
        pass
    link = await open_connection(
        host, port, client_id=CLIENT_ID, frame_bytes_max=FRAME_BYTES_MAX, timeout_ms=timeout_ms, lost=lambda why: None
    )  # fmt: skip
    try:
        seen.versions = await negotiate(link, timeout_ms)
        request = m.MetadataRequest(topics=[], allow_auto_topic_creation=False)
        told: m.MetadataResponse = await Peer(-1, link, seen.versions).send(request, timeout_ms=timeout_ms, at_least=1)
        seen.cluster_id, seen.controller = told.cluster_id, told.controller_id
        seen.brokers = {int(one.node_id): (one.host, one.port) for one in told.brokers}
    finally:
        link.close("the doctor has seen enough")


# -- questions


class _Asking:
    """Questions to a cluster, whose answers go into the facts."""

    def __init__(self, admin: Admin, facts: Facts, timeout_s: float, between_s: float) -> None:
        self._admin = admin
        self._facts = facts
        self._timeout_s = timeout_s
        self._between_s = between_s

    async def all(self, wanted: Collection[str]) -> None:
        """Everything of these kinds. Never raises KafkaError."""
        single: dict[str, Callable[[], Awaitable[None]]] = {"quorum": self._quorum}
        after_topics: dict[str, Callable[[], Awaitable[None]]] = {
            "topic settings": self._topic_settings,
            "newest records": self._newest,
        }
        after_nodes: dict[str, Callable[[], Awaitable[None]]] = {
            "broker settings": self._broker_settings,
            "log directories": self._directories,
        }

        async def topics() -> None:
            if "topics" in wanted and await self._noted("topics", self._topics):
                await self._several(after_topics, wanted)

        async def nodes() -> None:
            if await self._noted("brokers", self._nodes):
                await self._several(after_nodes, wanted)

        async def groups() -> None:
            facts = self._facts
            if "groups" not in wanted or not await self._noted("groups", self._groups):
                return
            again = suspects(facts) if "group lags" not in facts.unseen and self._between_s else []
            if again:
                await asyncio.sleep(self._between_s)
                facts.between_ms = int(self._between_s * 1000)
                await self._noted("group lags", lambda: self._groups_again(again))

        await asyncio.gather(topics(), nodes(), groups(), self._several(single, wanted))

    async def _several(self, asked: dict[str, Callable[[], Awaitable[None]]], wanted: Collection[str]) -> None:
        await asyncio.gather(*(self._noted(name, ask) for name, ask in asked.items() if name in wanted))

    async def _noted(self, name: str, ask: Callable[[], Awaitable[None]]) -> bool:
        """Whether it could be asked; else the reason is noted."""
        try:
            async with asyncio.timeout(self._timeout_s * 2):
                await ask()
        except KafkaError as error:
            self._facts.unseen[name] = str(error)
        except TimeoutError:
            self._facts.unseen[name] = f"no answer within {self._timeout_s * 2:g} s"
        return name not in self._facts.unseen

    async def _nodes(self) -> None:
        try:
            self._facts.nodes = (await self._admin.describe_cluster(fenced=True)).nodes
        except BrokerIncompatible:
            self._facts.nodes = (await self._admin.describe_cluster()).nodes

    async def _quorum(self) -> None:
        started_s = time.monotonic()
        try:
            self._facts.quorum = await self._admin.describe_quorum()
        except BrokerIncompatible:
            # A cluster without one.
            return
        self._facts.quorum_at_ms = _now_ms()
        self._facts.quorum_took_ms = (time.monotonic() - started_s) * 1000

    async def _topics(self) -> None:
        facts = self._facts
        listed = await self._admin.list_topics(internal=True)
        described = await self._admin.describe_topics([one.name for one in listed]) if listed else {}
        told, failed = _sorted(described)
        facts.topics = {name: one.partitions for name, one in told.items()}
        # One that was deleted meanwhile is none that is ill.
        facts.untold = {name: str(error) for name, error in failed.items() if error.code != UNKNOWN_TOPIC}
        facts.internal = {one.name for one in listed if one.is_internal}
        lacking = [
            TopicPartition(name, one.partition) for name, each in facts.topics.items() for one in each if set(one.replicas) - set(one.isr)
        ]
        if lacking:
            try:
                moves = await self._admin.list_partition_reassignments(lacking)
            except KafkaError:
                # Without a controller nobody can tell; then nothing moves either.
                return
            facts.coming = {tp: move.adding for tp, move in moves.items()}

    async def _topic_settings(self) -> None:
        resources = {Resource.topic(name): name for name in self._facts.topics}
        found, failed = _sorted(await self._admin.describe_configs(resources, names=TOPIC_SETTINGS) if resources else {})
        self._facts.topic_settings = {
            resources[resource]: {name: entry.value for name, entry in entries.items()} for resource, entries in found.items()
        }
        _raise_any(error for error in failed.values() if error.code != UNKNOWN_TOPIC)

    async def _broker_settings(self) -> None:
        resources = {Resource.broker(node.id): node.id for node in self._facts.nodes if not node.is_fenced}
        found, failed = _sorted(await self._admin.describe_configs(resources, names=BROKER_SETTINGS))
        self._facts.broker_settings = {
            resources[resource]: {name: entry.value for name, entry in entries.items()} for resource, entries in found.items()
        }
        if not found:
            _raise_any(failed.values())

    async def _directories(self) -> None:
        asked = [node.id for node in self._facts.nodes if not node.is_fenced]
        found = await self._admin.describe_log_dirs(asked)
        self._facts.directories = {broker: str(told) if isinstance(told, KafkaError) else told for broker, told in found.items()}

    async def _groups(self) -> None:
        listed = [one.group_id for one in await self._admin.list_groups() if one.type in KNOWN_TYPES]
        self._facts.groups, self._facts.lags = await self._of_groups(listed)

    async def _groups_again(self, names: list[str]) -> None:
        self._facts.groups_again, self._facts.lags_again = await self._of_groups(names)

    async def _of_groups(self, names: list[str]) -> tuple[dict[str, GroupDescription | str], dict[str, GroupLag | str]]:
        """Members and lag of groups; one that was deleted meanwhile is left out."""
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
        asked = [name for name, group in groups.items() if isinstance(group, GroupDescription)]
        measured = await self._admin.consumer_group_lag(asked) if asked else {}
        lags: dict[str, GroupLag | str] = {
            name: str(lag) if isinstance(lag, KafkaError) else lag for name, lag in measured.items() if not isinstance(lag, GroupIdNotFound)
        }
        return groups, lags

    async def _newest(self) -> None:
        led = [TopicPartition(name, one.partition) for name, each in self._facts.topics.items() for one in each if one.leader >= 0]
        try:
            found, _ = _sorted(await self._admin.list_offsets(dict.fromkeys(led, MAX_TIMESTAMP)) if led else {})
        except BrokerIncompatible:
            # Brokers before Kafka 3.0 cannot tell.
            return
        self._facts.newest_ms = {tp: one.timestamp for tp, one in found.items() if one.timestamp >= 0}


def _sorted(outcomes: dict[Any, Outcome[T]]) -> tuple[dict[Any, T], dict[Any, KafkaError]]:
    """What worked and what did not."""
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
