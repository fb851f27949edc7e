"""AlterPartition requests to the controller: partitions led here that need another ISR, one request in flight.

A follower that lags is detected on a tick, one that caught up when it fetches. The new state arrives from the store, not in the response,
because only the store has the eligible replicas too. A refusal changes nothing, because the maximal ISR counts until a later state is
known. A change that is still needed is requested again on a tick, with the version known by then.

A leader after an unclean election reports with its first request that it has recovered (KIP-704): the rest of its log is on disk, and the
store clears the missing-records marker.

Source: KIP-497, KIP-841.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ottla.base.ids import BrokerId, TopicPartition
from ottla.broker.isolation import indivisible
from ottla.broker.replica.leader import Leader
from ottla.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartition,
    AlterPartitionRequestTopic,
    BrokerState,
)

if TYPE_CHECKING:
    from ottla.broker.node import Node

VERSION = 3
#: Timeout of the controller; then the present controller is asked.
PATIENCE_MS = 10_000
#: Partitions in one request.
ASKED_MAX = 500


class IsrChanges:
    """Requests ISR changes for the partitions led here."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._asking = False
        #: Number of the request, to ignore responses of an earlier controller.
        self._number = 0
        #: Partitions that need another ISR.
        self._wanted: dict[TopicPartition, None] = {}

    @indivisible
    def look(self, leader: Leader) -> None:
        """Requests a change if the ISR should be another one; called after a fetch or on a tick."""
        if self._wanted_isr(leader) is not None:
            self._wanted[leader.partition] = None
            self._ask()

    def tick(self) -> None:
        """Checks all partitions."""
        for leader in self._node.partitions.leaders.values():
            if leader.isr_state.progress and self._wanted_isr(leader) is not None:
                self._wanted[leader.partition] = None
        self._ask()

    def controller_changed(self) -> None:
        """Another broker is the controller: does not wait for the former one, which may be unreachable and cannot write any more. Changes
        that are still needed are requested again.
        """
        self._number += 1
        self._asking = False
        if self._node.image.controller is not None:
            self.tick()

    def _wanted_isr(self, leader: Leader) -> tuple[int, ...] | None:
        node = self._node
        me = node.image.brokers.get(node.broker_id)
        if leader.isr_state.recovering and me is not None and leader.partition in me.impaired:
            return None
        return leader.wanted_isr(node.now_ms, lag_max_ms=node.options.replica_lag_time_max_ms, sound=self._sound(leader))

    def _sound(self, leader: Leader) -> Callable[[int, int], bool]:
        brokers, partition = self._node.image.brokers, leader.partition

        def sound(broker: int, epoch: int) -> bool:
            found = brokers.get(BrokerId(broker))
            if found is None or found.epoch != epoch or found.leaving:
                return False
            return partition not in found.offline and partition not in found.impaired

        return sound

    def _ask(self) -> None:
        node = self._node
        if self._asking or not self._wanted or node.image.controller is None or node.epoch is None:
            return
        topics: dict[str, AlterPartitionRequestTopic] = {}
        for partition in list(self._wanted)[:ASKED_MAX]:
            del self._wanted[partition]
            leader, topic = node.partitions.leaders.get(partition), node.image.topics.get(partition.topic)
            isr = self._wanted_isr(leader) if leader is not None else None
            if leader is None or topic is None or isr is None:
                continue
            leader.isr_state.propose(isr)
            wish = topics.setdefault(partition.topic, AlterPartitionRequestTopic(topic_id=topic.topic_id, partitions=[]))
            wish.partitions.append(
                AlterPartitionRequestPartition(
                    partition_index=partition.partition,
                    leader_epoch=leader.epoch,
                    new_isr_with_epochs=[BrokerState(broker_id=broker, broker_epoch=self._epoch_of(leader, broker)) for broker in isr],
                    partition_epoch=leader.isr_state.version,
                )
            )
        if topics:
            self._asking = True
            request = AlterPartitionRequest(broker_id=node.broker_id, broker_epoch=node.epoch, topics=list(topics.values()))
            self._number += 1
            done = partial(self._answered, self._number, node.image.controller)
            node.ask(node.image.controller, request, version=VERSION, timeout_ms=PATIENCE_MS, done=done)

    def _epoch_of(self, leader: Leader, broker: int) -> int:
        """The broker epoch of a member in the request. A member of the ISR that has not fetched in this epoch keeps the epoch in the
        state."""
        progress = leader.isr_state.progress.get(broker)
        if progress is None:
            assert self._node.epoch is not None, "a leader is registered"
            return self._node.epoch
        if progress.broker_epoch >= 0:
            return progress.broker_epoch
        state = self._node.image.state(leader.partition)
        return state.registration_of(broker) if state is not None else -1

    def _answered(self, number: int, controller: BrokerId, response: Any) -> None:
        if number != self._number:
            return
        self._asking = False
        self._node.controller.reachability.asked(controller, answered=response is not None)
        self._ask()
