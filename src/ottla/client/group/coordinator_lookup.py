"""Which broker coordinates which group: found once, kept until it turns out wrong (FindCoordinator).

    find(keys)  ->  {"g": 2, "h": CoordinatorNotAvailable()}      one question for all keys that are not known
    forget(key)     after NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE or a lost connection: the next find asks again

A coordinator's address is taken into the cluster's picture, so that it can be asked before metadata names it. Trying again is up to the
caller: COORDINATOR_NOT_AVAILABLE passes once the cluster has made the topic in which it keeps offsets, or moved its leader.
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla.client.errors import BrokerIncompatible
from ottla.client.transport.cluster import Broker
from ottla.client.transport.network import Network
from ottla.wire.errors import KafkaError, UnknownServerError, error_for
from ottla.wire.messages import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from ottla.wire.messages.find_coordinator import GROUP

#: The first version with several keys, and the first with a type of key.
KEYS_SINCE = 4
TYPE_SINCE = 1

COORDINATOR_LOAD_IN_PROGRESS = 14
COORDINATOR_NOT_AVAILABLE = 15
NOT_COORDINATOR = 16
#: Errors that pass when the coordinator is there, or is found again.
COORDINATOR_PASSES = frozenset({COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR})


class Coordinators:
    """The coordinators of keys of one type: groups, or transactional ids."""

    __slots__ = ("_key_type", "_network", "_nodes")

    def __init__(self, network: Network, key_type: int = GROUP) -> None:
        self._network = network
        self._key_type = key_type
        #: Node id by key; brokers may be gone by now.
        self._nodes: dict[str, int] = {}

    def known(self, key: str) -> int | None:
        """The node that coordinates this key, as far as is known."""
        node = self._nodes.get(key)
        return node if node in self._network.cluster.brokers else None

    def forget(self, key: str) -> None:
        """Ask again at the next `find`."""
        self._nodes.pop(key, None)

    async def find(self, keys: Iterable[str]) -> dict[str, int | KafkaError]:
        """Node id by key, or why there is none. Asks once.

        Raises: ConnectionFailed, RequestTimedOut when no broker answers; BrokerIncompatible.
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
        """The same with a broker from before Kafka 2.8, which takes one key at a time."""
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
