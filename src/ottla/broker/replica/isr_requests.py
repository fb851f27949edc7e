"""Asking the controller for another ISR: which partitions led here want one, one request under way at a time.

A follower that fell behind is found by the clock; one that caught up, when it fetches. The state that comes of it is heard from the store
like any other, and from nowhere else: only there it tells whom it makes eligible. A refusal changes nothing here, since the maximal ISR
counts until a later state is known. What still holds is asked for again by the clock, against the version known by then.

A leader that was elected uncleanly says with its first wish that it has settled (KIP-704): what is left of its log is on its disk, and the
store no longer says that records are missing from it.

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
#: How long the controller may take; then whoever is controller by then is asked.
PATIENCE_MS = 10_000
#: Partitions in one request.
ASKED_MAX = 500


class IsrChanges:
    """See the module's theory."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._asking = False
        #: Counts requests, so that the answer of an earlier controller is told from that of the present one.
        self._number = 0
        #: Partitions that want another ISR.
        self._wanted: dict[TopicPartition, None] = {}

    @indivisible
    def look(self, leader: Leader) -> None:
        """A follower fetched, or time passed: ask if the ISR should be another."""
        if self._wanted_isr(leader) is not None:
            self._wanted[leader.partition] = None
            self._ask()

    def tick(self) -> None:
        """Time passed: look at all partitions."""
        for leader in self._node.partitions.leaders.values():
            if leader.insync.standings and self._wanted_isr(leader) is not None:
                self._wanted[leader.partition] = None
        self._ask()

    def controller_changed(self) -> None:
        """Another broker is controller: a request to the one before is not waited for, since that one may not be reachable. It cannot
        write any more. What is still wanted is asked for again, under the version known by then."""
        self._number += 1
        self._asking = False
        if self._node.image.controller is not None:
            self.tick()

    def _wanted_isr(self, leader: Leader) -> tuple[int, ...] | None:
        node = self._node
        me = node.image.brokers.get(node.broker_id)
        if leader.insync.recovering and me is not None and leader.partition in me.impaired:
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
            leader.insync.propose(isr)
            wish = topics.setdefault(partition.topic, AlterPartitionRequestTopic(topic_id=topic.topic_id, partitions=[]))
            wish.partitions.append(
                AlterPartitionRequestPartition(
                    partition_index=partition.partition,
                    leader_epoch=leader.epoch,
                    new_isr_with_epochs=[BrokerState(broker_id=broker, broker_epoch=self._epoch_of(leader, broker)) for broker in isr],
                    partition_epoch=leader.insync.version,
                )
            )
        if topics:
            self._asking = True
            request = AlterPartitionRequest(broker_id=node.broker_id, broker_epoch=node.epoch, topics=list(topics.values()))
            self._number += 1
            done = partial(self._answered, self._number, node.image.controller)
            node.ask(node.image.controller, request, version=VERSION, timeout_ms=PATIENCE_MS, done=done)

    def _epoch_of(self, leader: Leader, broker: int) -> int:
        """Under which registration a member is to be counted in. One that is in the ISR already, and has not fetched in this epoch, keeps
        the registration that the state names."""
        standing = leader.insync.standings.get(broker)
        if standing is None:
            assert self._node.epoch is not None, "a leader is registered"
            return self._node.epoch
        if standing.broker_epoch >= 0:
            return standing.broker_epoch
        state = self._node.image.state(leader.partition)
        return state.registration_of(broker) if state is not None else -1

    def _answered(self, number: int, controller: BrokerId, response: Any) -> None:
        if number != self._number:
            return
        self._asking = False
        self._node.controller.hearing.asked(controller, answered=response is not None)
        self._ask()
