"""Preferred leader election: the first replica of an assignment leads again.

A broker that restarted leads nothing, and others lead more. There are three triggers:

- ElectLeaders (``apis/k43_elect_leaders.py``).
- A tool writes partitions to /admin/preferred_replica_election; the node is deleted when they are done.
- Time (auto.leader.rebalance.enable): if more than leader.imbalance.per.broker.percentage of the partitions that prefer a broker are led by
  others, all of them whose preferred replica can lead are moved. The first check is FIRST_LOOK_MS after the controller's election, the next
  ones every leader.imbalance.check.interval.seconds.

Source: Kafka's KafkaController and LeaderElectionCommand; KIP-183, KIP-460.
"""

from collections import Counter
from functools import partial

from ottla.base.ids import TopicPartition
from ottla.base.log_levels import CONTROLLER
from ottla.base.ports import Op, StoreResult
from ottla.base.units import SECOND_MS
from ottla.broker.context import BrokerContext
from ottla.broker.controller import election
from ottla.broker.controller.election_queue import ElectionQueue
from ottla.broker.controller.fenced_writes import FencedWrites
from ottla.broker.controller.reassignment import is_moving
from ottla.broker.metadata.image import Image
from ottla.store import layout

#: After the controller's election: other brokers may still be starting.
FIRST_LOOK_MS = 5 * SECOND_MS


def imbalanced(image: Image, *, percentage: int) -> list[TopicPartition]:
    """Partitions to move: of each broker above the percentage, all whose preferred replica can lead."""
    preferring: Counter[int] = Counter()
    away: dict[int, list[TopicPartition]] = {}
    for topic in image.topics.values():
        if topic.name in image.deleting:
            continue
        for number, state in topic.states.items():
            if is_moving(topic, number) or number not in topic.replicas:
                continue
            first = topic.replicas[number][0]
            preferring[first] += 1
            if state.leader != first:
                away.setdefault(first, []).append(TopicPartition(topic.name, number))
    return [
        partition
        for broker, partitions in away.items()
        if len(partitions) * 100 > percentage * preferring[broker]
        for partition in partitions
        if election.preferred_can_lead(image, image.topics[partition.topic], partition.partition)
    ]


class PreferredLeaders:
    """Elections triggered by time and by tools."""

    def __init__(self, context: BrokerContext, writes: FencedWrites, election_queue: ElectionQueue) -> None:
        self._context = context
        self._writes = writes
        self._election_queue = election_queue
        self._next_look_ms = 0

    def begin(self) -> None:
        """The controller was elected."""
        self._next_look_ms = self._context.now_ms + FIRST_LOOK_MS

    def tick(self) -> None:
        """Checks the balance of leaders when it is due."""
        context = self._context
        if context.now_ms >= self._next_look_ms:
            self._next_look_ms = context.now_ms + context.options.leader_imbalance_check_interval_seconds * SECOND_MS
            if context.options.auto_leader_rebalance_enable:
                percentage = context.options.leader_imbalance_per_broker_percentage
                self._election_queue.add(imbalanced(context.image, percentage=percentage), preferred=True)

    def asked(self) -> None:
        """Handles a tool's request."""
        context = self._context
        data = context.image.preferred_election
        if data is None:
            return
        try:
            wanted = layout.decode_preferred_election(data)
        except layout.MalformedNode as error:
            wanted = []
            context.log.warn(CONTROLLER, f"nothing is elected: {error}")
        self._election_queue.add((partition for partition in wanted if context.image.has(*partition)), preferred=True)
        self._election_queue.when_idle(partial(self._dealt_with, data))

    def _dealt_with(self, data: bytes) -> None:

        def deleted(result: StoreResult) -> None:
            if result.error == "unavailable":
                self._writes.retry = True

        if self._context.image.preferred_election is data:
            self._writes.write((Op("delete", layout.PREFERRED_ELECTION),), deleted)
