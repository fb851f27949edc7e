"""Partitions go back to be led by their preferred replica, the first of their assignment.

A broker that was away leads nothing when it is back, and those that stood in for it lead too much. Three ways lead back:

- ElectLeaders asks for it (``apis/k43_elect_leaders.py``).
- An operator's tool writes partitions to /admin/preferred_replica_election; the node goes when they are dealt with.
- By the clock (auto.leader.rebalance.enable): of the partitions that prefer a broker, more than leader.imbalance.per.broker.percentage are
  led by others. Then all of them go back whose preferred replica can lead. The first look comes FIRST_LOOK_MS after the office was taken,
  the next ones every leader.imbalance.check.interval.seconds.

Source: Kafka's KafkaController and LeaderElectionCommand; KIP-183, KIP-460.
"""

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from ottla.base.ids import TopicPartition
from ottla.base.ports import Op, StoreResult
from ottla.base.units import SECOND_MS
from ottla.broker import effects
from ottla.broker.controller import election
from ottla.broker.controller.election_queue import Agenda
from ottla.broker.controller.reassignment import is_moving
from ottla.broker.metadata.image import Image
from ottla.store import layout

if TYPE_CHECKING:
    from ottla.broker.node import Node

#: After a broker took the office: others may be starting with it.
FIRST_LOOK_MS = 5 * SECOND_MS


def imbalanced(image: Image, *, percentage: int) -> list[TopicPartition]:
    """Partitions that are to go back: of each broker with more than this share of those that prefer it led by others, all that can."""
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
    """What is done about preferred leaders without a request; see the module's theory."""

    def __init__(self, node: "Node", agenda: Agenda) -> None:
        self._node = node
        self._agenda = agenda
        self._next_look_ms = 0

    def begin(self) -> None:
        """The office was taken."""
        self._next_look_ms = self._node.now_ms + FIRST_LOOK_MS

    def tick(self) -> None:
        """Time passed: look at how even leadership is, when it is time to."""
        node = self._node
        if node.now_ms >= self._next_look_ms:
            self._next_look_ms = node.now_ms + node.options.leader_imbalance_check_interval_seconds * SECOND_MS
            if node.options.auto_leader_rebalance_enable:
                percentage = node.options.leader_imbalance_per_broker_percentage
                self._agenda.add(imbalanced(node.image, percentage=percentage), preferred=True)

    def asked(self) -> None:
        """Do what an operator's tool wrote down, if it did."""
        node = self._node
        data = node.image.preferred_election
        if data is None:
            return
        try:
            wanted = layout.decode_preferred_election(data)
        except layout.MalformedNode as error:
            wanted = []
            node.effects.append(effects.Warn(message=f"nothing is elected: {error}"))
        self._agenda.add((partition for partition in wanted if node.image.has(*partition)), preferred=True)
        self._agenda.when_idle(partial(self._dealt_with, data))

    def _dealt_with(self, data: bytes) -> None:
        controller = self._node.controller

        def deleted(result: StoreResult) -> None:
            if result.error == "unavailable":
                controller.try_again()

        if self._node.image.preferred_election is data:
            controller.write((Op("delete", layout.PREFERRED_ELECTION),), deleted)
