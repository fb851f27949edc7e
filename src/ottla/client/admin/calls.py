"""The parts of the admin client that all requests share: connections, routing to brokers, and retries until the timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from random import Random
from typing import Any, Protocol, TypeAlias, TypeVar

from ottla.client.admin import results as r
from ottla.client.errors import AlreadyClosed
from ottla.client.group.coordinator_lookup import COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_PASSES, Coordinators
from ottla.client.options import AdminOptions
from ottla.client.sampled_stats import Figures, SampledStat, average_and_maximum
from ottla.client.transport.backoff import Backoff
from ottla.client.transport.event_loop import OneLoop
from ottla.client.transport.network import Network, monotonic_ms
from ottla.client.transport.routing import NOT_CONTROLLER, ask_controller
from ottla.wire.errors import (
    BrokerNotAvailable,
    ConcurrentTransactions,
    KafkaError,
    RequestTimedOut,
    UnknownServerError,
    UnknownTopicId,
    UnknownTopicOrPartition,
    error_for,
)
from ottla.wire.messages.find_coordinator import TRANSACTION

A = TypeVar("A")
T = TypeVar("T")
K = TypeVar("K")
#: Result of one item, or its error.
Outcome: TypeAlias = T | KafkaError
ANY_BROKER = -1


class AdminCalls:
    """Sends the requests of one `Admin`."""

    def __init__(self, options: AdminOptions, rng: Random) -> None:
        self.options = options
        self._rng = rng
        self._network: Network | None = None
        self._coordinators: Coordinators | None = None
        self._transaction_coordinators: Coordinators | None = None
        self._own = OneLoop("Admin")
        self._closed = False

    @property
    def network(self) -> Network:
        """The connections, opened on first use. Raises: AlreadyClosed."""
        if self._closed:
            raise AlreadyClosed("the admin client is closed; make another one")
        self._own.check()
        if self._network is None:
            self._network = Network(self.options, rng=self._rng, allow_auto_create=False)
        return self._network

    @property
    def coordinators(self) -> Coordinators:
        """The coordinators of groups, as far as known."""
        if self._coordinators is None:
            self._coordinators = Coordinators(self.network)
        return self._coordinators

    @property
    def transaction_coordinators(self) -> Coordinators:
        """The coordinators of transactional ids, as far as known."""
        if self._transaction_coordinators is None:
            self._transaction_coordinators = Coordinators(self.network, TRANSACTION)
        return self._transaction_coordinators

    def figures(self) -> Figures:
        """Metrics of the connections."""
        network = self._network
        throttled = SampledStat() if network is None else network.throttle_times
        now_ms = monotonic_ms() if network is None else network.clock_ms()
        return {
            "connection-count": 0 if network is None else network.connections,
            **average_and_maximum("throttle-time", throttled, now_ms),
            "throttle-time-total": throttled.total,
        }

    async def close(self) -> None:
        closed, self._closed = self._closed, True
        if not closed and self._own.elsewhere():
            raise self._own.wrong()
        if not closed and self._network is not None:
            await self._network.close()

    def limit_ms(self, timeout_ms: float | None) -> float:
        return self.options.default_api_timeout_ms if timeout_ms is None else timeout_ms

    async def controller(
        self, request: Any, codes: Callable[[Any], list[int]], left_ms: float, *, at_least: int = 0, at_most: int = 1000
    ) -> Any:
        def moved(response: Any) -> bool:
            return NOT_CONTROLLER in codes(response)

        return await ask_controller(self.network, request, moved=moved, timeout_ms=left_ms, at_least=at_least, at_most=at_most)

    async def node(self, node: int, request: Any, left_ms: float, *, at_least: int = 0) -> Any:
        """Send a request to one broker, or to any. Raises: BrokerNotAvailable if the broker is not in the cluster."""
        network = self.network
        if node == ANY_BROKER:
            return await network.ask_any(request, at_least=at_least)
        if node not in network.cluster.brokers:
            await network.refresh()
            if node not in network.cluster.brokers:
                raise BrokerNotAvailable(network.absent(node))
        return await network.ask(node, request, timeout_ms=left_ms, at_least=at_least)

    async def any_broker(self, request: Any, timeout_ms: float | None, doing: str, *, at_least: int = 0, at_most: int = 1000) -> Any:
        """Send a request to any broker, with retries. Raises: the error; RequestTimedOut."""

        async def ask(_: list[None], left_ms: float) -> dict[None, Outcome[Any]]:
            response = await self.network.ask_any(request, at_least=at_least, at_most=at_most)
            return {None: failed(response) or response}

        return good((await self.each([None], ask, timeout_ms, doing))[None])

    async def brokers(self, left_ms: float) -> list[int]:
        """All brokers, by metadata of now: a coordinator may have moved to one that has joined since.

        Raises: MetadataTimedOut, AlreadyClosed.
        """
        cluster = self.network.cluster
        before = cluster.version
        return await self.network.until(
            lambda: list(cluster.brokers) if cluster.version > before else None,
            timeout_ms=left_ms,
            doing=lambda: "the brokers are not known",
        )

    async def each_broker(
        self, nodes: list[int], request: Any, read: Callable[[Any], T], timeout_ms: float | None, doing: str, *, at_least: int = 0
    ) -> dict[int, Outcome[T]]:
        """Send a request to each of these brokers; `read` extracts the result of a response without error."""

        async def ask(nodes: list[int], left_ms: float) -> dict[int, Outcome[T]]:
            async def one(node: int) -> Outcome[T]:
                try:
                    response = await self.node(node, request, left_ms, at_least=at_least)
                except KafkaError as error:
                    return error
                return failed(response) or read(response)

            return dict(zip(nodes, await asyncio.gather(*map(one, nodes)), strict=True))

        return await self.each(nodes, ask, timeout_ms, doing)

    async def by_coordinator(
        self,
        items: Mapping[str, A],
        ask: Callable[[int, dict[str, A], float], Awaitable[Mapping[str, Outcome[T]]]],
        timeout_ms: float | None,
        doing: str,
        *,
        coordinators: Coordinators | None = None,
    ) -> dict[str, Outcome[T]]:
        """Send requests to the coordinators of the items, one request per coordinator. `coordinators`: by default those of groups."""
        coordinators = coordinators or self.coordinators

        async def asked(node: int, share: dict[str, A], left_ms: float) -> Mapping[str, Outcome[T]]:
            try:
                return await ask(node, share, left_ms)
            except KafkaError as error:
                return dict.fromkeys(share, error)

        async def share(groups: list[str], left_ms: float) -> dict[str, Outcome[T]]:
            shares: dict[int, dict[str, A]] = {}
            outcomes: dict[str, Outcome[T]] = {}
            for group, node in (await coordinators.find(groups)).items():
                if isinstance(node, KafkaError):
                    outcomes[group] = node
                else:
                    shares.setdefault(node, {})[group] = items[group]
            for answer in await asyncio.gather(*(asked(node, part, left_ms) for node, part in shares.items())):
                outcomes.update(answer)
            for group, outcome in outcomes.items():
                if isinstance(outcome, KafkaError) and outcome.retriable and outcome.code != COORDINATOR_LOAD_IN_PROGRESS:
                    coordinators.forget(group)
            return outcomes

        return await self.each(list(items), share, timeout_ms, doing)

    async def by_broker(
        self,
        resources: Iterable[r.Resource],
        ask: Callable[[int, list[r.Resource], float], Awaitable[dict[r.Resource, Outcome[T]]]],
        timeout_ms: float | None,
        doing: str,
    ) -> dict[r.Resource, Outcome[T]]:
        """Send requests about resources: those of a broker to that broker, all others to any."""

        async def share(wanted: list[r.Resource], left_ms: float) -> dict[r.Resource, Outcome[T]]:
            by_node: dict[int, list[r.Resource]] = {}
            for resource in wanted:
                own = resource.type in (r.ResourceType.BROKER, r.ResourceType.BROKER_LOGGER) and resource.name
                if own and not resource.name.isdecimal():
                    raise ValueError(f"a broker's resource name is its id, as in Resource.broker(1); {resource.name!r} is not an id")
                by_node.setdefault(int(resource.name) if own else ANY_BROKER, []).append(resource)
            found: dict[r.Resource, Outcome[T]] = {}
            for node, part in by_node.items():
                try:
                    found.update(await ask(node, part, left_ms))
                except KafkaError as error:
                    found.update(dict.fromkeys(part, error))
            return found

        return await self.each(list(resources), share, timeout_ms, doing)

    async def each(
        self,
        items: list[K],
        ask: Callable[[list[K], float], Awaitable[dict[K, Outcome[T]]]],
        timeout_ms: float | None,
        doing: str,
    ) -> dict[K, Outcome[T]]:
        """Request all items, then retry those with a retriable error, until the timeout or `retries` attempts."""
        network, limit_ms = self.network, self.limit_ms(timeout_ms)
        deadline_ms = network.clock_ms() + limit_ms
        backoff = Backoff(self.options.retry_backoff_ms, self.options.retry_backoff_max_ms, self._rng)
        pending, done = list(items), dict[K, Outcome[T]]()
        while pending:
            left_ms = deadline_ms - network.clock_ms()
            if left_ms <= 0:
                for item in pending:
                    last = done.get(item)
                    why = f": {last}" if isinstance(last, KafkaError) else f": {trouble}" if (trouble := network.trouble()) else ""
                    what = doing if item is None else f"{doing} {item}"
                    done[item] = RequestTimedOut(f"{what} was not done within {limit_ms:.0f} ms{why}")
                break
            try:
                async with asyncio.timeout(left_ms / 1000):
                    answer = await ask(pending, left_ms)
            except TimeoutError:
                continue
            except KafkaError as error:
                answer = dict.fromkeys(pending, error)
            for item in pending:
                done[item] = _named(item, answer.get(item, UnknownServerError(f"{doing} {item}: the broker left it out of its answer")))
            pending = [item for item in pending if _passes(done[item])]
            # The first request about a group may make the cluster create the topic of groups, which takes time; so does aborting.
            if backoff.failures >= self.options.retries and not any(_comes_up(done[item]) for item in pending):
                break
            if pending:
                await asyncio.sleep(min(backoff.failed(), left_ms) / 1000)
        return done


class HasCalls(Protocol):
    """`Admin`, as its methods in the modules by subject see it."""

    _calls: AdminCalls


def _named(item: object, outcome: Outcome[T]) -> Outcome[T]:
    """Adds the item's name to an error without a message."""
    if isinstance(outcome, KafkaError) and outcome.message is None and item is not None:
        return error_for(outcome.code, f"{item}: {outcome.sentence}")
    return outcome


def _passes(outcome: object) -> bool:
    """Whether to retry. Kafka calls an unknown topic retriable; for an admin client it is a result."""
    return isinstance(outcome, KafkaError) and outcome.retriable and not isinstance(outcome, UnknownTopicOrPartition | UnknownTopicId)


def _comes_up(outcome: object) -> bool:
    """Whether a coordinator is only not available yet, or completes a transaction."""
    return isinstance(outcome, KafkaError) and (outcome.code in COORDINATOR_PASSES or isinstance(outcome, ConcurrentTransactions))


def good(outcome: Outcome[T]) -> T:
    if isinstance(outcome, KafkaError):
        raise outcome
    return outcome


def each_once(things: Iterable[K]) -> dict[K, None]:
    """The distinct items of a plural call. Raises: TypeError for a single string, which would be taken for a list of letters."""
    if isinstance(things, str | bytes):
        raise TypeError(f"several are given in a list: [{things!r}]; calls in the singular are about one")
    return dict.fromkeys(things)


def unwrap(outcomes: Mapping[K, T | KafkaError]) -> dict[K, T]:
    """The results of a plural call if none is an error.

    Raises: the first error, with the others as its notes.
    """
    errors = [(item, outcome) for item, outcome in outcomes.items() if isinstance(outcome, KafkaError)]
    if errors:
        (_, first), *others = errors
        for item, other in others:
            first.add_note(f"and {item}: {other}")
        raise first
    return {item: outcome for item, outcome in outcomes.items() if not isinstance(outcome, KafkaError)}


def failed(answer: Any) -> KafkaError | None:
    """The error in a response or in a part of one, with the broker's message."""
    return error_for(answer.error_code, getattr(answer, "error_message", None) or None) if answer.error_code else None
