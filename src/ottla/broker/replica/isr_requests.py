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
from typing import Any

from ottla.base.ids import BrokerId, TopicPartition
from ottla.broker.context import BrokerContext
from ottla.broker.controller.reachability import ControllerReachability
from ottla.broker.isolation import indivisible
from ottla.broker.replica.fetch_sessions import Session, Wanted
from ottla.broker.replica.leader import Leader
from ottla.broker.replica.replicas import Replicas
from ottla.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartition,
    AlterPartitionRequestTopic,
    BrokerState,
)

VERSION = 3
#: Timeout of the controller; then the present controller is asked.
PATIENCE_MS = 10_000
#: Partitions in one request.
ASKED_MAX = 500


class IsrChanges:
    """Requests ISR changes for the partitions led here."""

    def __init__(self, context: BrokerContext, replicas: Replicas, reachability: ControllerReachability) -> None:
        self._context = context
        self._replicas = replicas
        self._reachability = reachability
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

    def follower_woke(self, session: Session, wanted: Wanted) -> None:
        """A partition of a follower's fetch session has news: until its last request the follower had everything."""
        leader = self._replicas.leaders.get(wanted.partition) if wanted.partition is not None else None
        if leader is not None:
            leader.isr_state.had_all(session.replica, session.used_ms)

    def tick(self) -> None:
        """Checks all partitions."""
        for leader in self._replicas.leaders.values():
            if leader.isr_state.progress and self._wanted_isr(leader) is not None:
                self._wanted[leader.partition] = None
        self._ask()

    def controller_changed(self) -> None:
        """Another broker is the controller: does not wait for the former one, which may be unreachable and cannot write any more. Changes
        that are still needed are requested again.
        """
        self._number += 1
        self._asking = False
        if self._context.image.controller is not None:
            self.tick()

    def _wanted_isr(self, leader: Leader) -> tuple[int, ...] | None:
        context = self._context
        me = context.image.brokers.get(context.broker_id)
        if leader.isr_state.recovering and me is not None and leader.partition in me.impaired:
            return None
        return leader.wanted_isr(context.now_ms, lag_max_ms=context.options.replica_lag_time_max_ms, sound=self._sound(leader))

    def _sound(self, leader: Leader) -> Callable[[int, int], bool]:
        brokers, partition = self._context.image.brokers, leader.partition

        def sound(broker: int, epoch: int) -> bool:
            found = brokers.get(BrokerId(broker))
            if found is None or found.epoch != epoch or found.leaving:
                return False
            return partition not in found.offline and partition not in found.impaired

        return sound

    def _ask(self) -> None:
        context = self._context
        if self._asking or not self._wanted or context.image.controller is None or context.epoch is None:
            return
        topics: dict[str, AlterPartitionRequestTopic] = {}
        for partition in list(self._wanted)[:ASKED_MAX]:
            del self._wanted[partition]
            leader, topic = self._replicas.leaders.get(partition), context.image.topics.get(partition.topic)
            isr = self._wanted_isr(leader) if leader is not None else None
            if leader is None or topic is None or isr is None:
                continue
            leader.isr_state.propose(isr)
            requested = topics.setdefault(partition.topic, AlterPartitionRequestTopic(topic_id=topic.topic_id, partitions=[]))
            requested.partitions.append(
                AlterPartitionRequestPartition(
                    partition_index=partition.partition,
                    leader_epoch=leader.epoch,
                    new_isr_with_epochs=[BrokerState(broker_id=broker, broker_epoch=self._epoch_of(leader, broker)) for broker in isr],
                    partition_epoch=leader.isr_state.version,
                )
            )
        if topics:
            self._asking = True
            request = AlterPartitionRequest(broker_id=context.broker_id, broker_epoch=context.epoch, topics=list(topics.values()))
            self._number += 1
            done = partial(self._answered, self._number, context.image.controller)
            context.ask(context.image.controller, request, version=VERSION, timeout_ms=PATIENCE_MS, done=done)

    def _epoch_of(self, leader: Leader, broker: int) -> int:
        """The broker epoch of a member in the request. A member of the ISR that has not fetched in this epoch keeps the epoch in the
        state."""
        progress = leader.isr_state.progress.get(broker)
        if progress is None:
            assert self._context.epoch is not None, "a leader is registered"
            return self._context.epoch
        if progress.broker_epoch >= 0:
            return progress.broker_epoch
        state = self._context.image.state(leader.partition)
        return state.registration_of(broker) if state is not None else -1

    def _answered(self, number: int, controller: BrokerId, response: Any) -> None:
        if number != self._number:
            return
        self._asking = False
        self._reachability.asked(controller, answered=response is not None)
        self._ask()
