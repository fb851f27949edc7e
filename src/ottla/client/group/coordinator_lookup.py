"""Looks up and caches coordinators (FindCoordinator).

    find(keys)  ->  {"g": 2, "h": CoordinatorNotAvailable()}      one request for all unknown keys
    forget(key)     after NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE or a lost connection: the next find asks again

A coordinator's address is added to the cluster metadata, so that it can be used before a metadata response has it. Callers retry:
COORDINATOR_NOT_AVAILABLE is retriable, while the offsets topic is created or its leader moves.
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla.client.errors import BrokerIncompatible
from ottla.client.transport.cluster import Broker
from ottla.client.transport.network import Network
from ottla.wire.errors import KafkaError, UnknownServerError, error_for
from ottla.wire.messages import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from ottla.wire.messages.find_coordinator import GROUP

#: First version with several keys.
KEYS_SINCE = 4
TYPE_SINCE = 1

COORDINATOR_LOAD_IN_PROGRESS = 14
COORDINATOR_NOT_AVAILABLE = 15
NOT_COORDINATOR = 16
#: Retriable errors of coordinators.
COORDINATOR_PASSES = frozenset({COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR})


class Coordinators:
    """Coordinators of keys of one type: groups, or transactional ids."""

    __slots__ = ("_key_type", "_network", "_nodes")

    def __init__(self, network: Network, key_type: int = GROUP) -> None:
        self._network = network
        self._key_type = key_type
        #: Node id by key; the broker may be gone.
        self._nodes: dict[str, int] = {}

    def known(self, key: str) -> int | None:
        """The cached coordinator of this key."""
        node = self._nodes.get(key)
        return node if node in self._network.cluster.brokers else None

    def forget(self, key: str) -> None:
        """The next `find` asks again."""
        self._nodes.pop(key, None)

    async def find(self, keys: Iterable[str]) -> dict[str, int | KafkaError]:
        """Node id by key, or the error. Sends one request.

        Raises: ConnectionFailed, RequestTimedOut if no broker answers; BrokerIncompatible.
        """
        found: dict[str, int | KafkaError] = {}
        unknown = []
        for key in dict.fromkeys(keys):
            node = self.known(key)
            if node is None:
                unknown.append(key)
            else:
                found[key] = node
        if unknown:
            answers = {one.key: one for one in await self._ask(unknown)}
            for key in unknown:
                found[key] = self._learned(key, answers.get(key))
        return found

    async def _ask(self, keys: list[str]) -> list[Coordinator]:
        try:
            request = FindCoordinatorRequest(key_type=self._key_type, coordinator_keys=keys)
            response: FindCoordinatorResponse = await self._network.ask_any(request, at_least=KEYS_SINCE)
            return response.coordinators
        except BrokerIncompatible:
            return [await self._ask_one(key) for key in keys]

    async def _ask_one(self, key: str) -> Coordinator:
        """The same for brokers before Kafka 2.8, with one key at a time."""
        request = FindCoordinatorRequest(key=key, key_type=self._key_type)
        at_least = TYPE_SINCE if self._key_type != GROUP else 0
        one: FindCoordinatorResponse = await self._network.ask_any(request, at_least=at_least, at_most=KEYS_SINCE - 1)
        return Coordinator(
            key=key, node_id=one.node_id, host=one.host, port=one.port, error_code=one.error_code, error_message=one.error_message
        )

    def _learned(self, key: str, answer: Coordinator | None) -> int | KafkaError:
        if answer is None:
            return UnknownServerError(f"the broker left {key} out of its answer")
        if answer.error_code:
            return error_for(answer.error_code, answer.error_message or None)
        brokers = self._network.cluster.brokers
        if answer.node_id not in brokers:
            brokers[answer.node_id] = Broker(answer.node_id, answer.host, answer.port)
        self._nodes[key] = answer.node_id
        return answer.node_id
