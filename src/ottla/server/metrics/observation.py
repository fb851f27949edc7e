"""What a process reports about itself, for those that serve or push it: its metrics, and whether it is alive and ready.

A thread samples the lag of groups. ``lock`` lets one collection run at a time.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import REGISTRY

from ottla.base.ids import BrokerId, TopicPartition
from ottla.server.metrics.collection import Collection, committed, copied
from ottla.server.metrics.exposition import Pace, Sample, label_text
from ottla.server.metrics.families import Family
from ottla.server.metrics.group_lag import SAMPLE_S, LagClock, RemoteEnds
from ottla.server.metrics.observed import ObservedBroker, ObservedProcess

log = logging.getLogger("ottla.server")

#: Without a tick of the loop for this time the process is not alive.
LIVE_S = 20.0


class Observation:
    """The metrics of one process. Made on its event loop."""

    def __init__(self, process: ObservedProcess) -> None:
        self._process = process
        self._loop = asyncio.get_running_loop()
        self._lag = LagClock()
        self._collection = Collection(process, self._lag)
        self._remote = RemoteEnds(self._send)
        #: One collection at a time.
        self.lock = threading.Lock()
        self._over = threading.Event()

    def start(self) -> None:
        self._collection.collector.start()
        threading.Thread(target=self._sample, name="ottla-metrics", daemon=True).start()

    def stop(self) -> None:
        self._over.set()
        self._collection.collector.stop()

    @property
    def brokers(self) -> list[ObservedBroker]:
        """The brokers of the process."""
        return list(self._process.brokers)

    def families(self, pace: Pace) -> Iterator[tuple[Family, Any]]:
        """The metrics of the process."""
        yield from self._collection.families(pace)
        yield from _process_families(pace)

    def alive(self) -> str:
        """Why the process is not alive; empty if it is."""
        beat_s = self._process.counters.beat_s
        if not beat_s or self._process.stopping:
            return ""
        silent_s = time.monotonic() - beat_s
        return f"the event loop has not run for {silent_s:.0f} s" if silent_s > LIVE_S else ""

    def not_ready(self) -> list[str]:
        """Why clients cannot be served; empty if they can."""
        if self._process.stopping:
            return ["the server is stopping"]
        if not self._process.serving:
            return ["the server is starting"]
        return [f"broker {broker.id}: {reason}" for broker in self._process.brokers if (reason := _problem(broker.node))]

    # The lag of groups

    def _sample(self) -> None:
        while not self._over.wait(SAMPLE_S):
            try:
                with self.lock:
                    self.sample(Pace())
            except (RuntimeError, AttributeError, IndexError):
                # The loop changed something meanwhile; the next sample is right.
                log.exception("the lag of groups could not be sampled")

    def sample(self, pace: Pace) -> None:
        """Notes the high watermarks of all partitions with committed offsets."""
        self._collection.look()
        ends: dict[TopicPartition, int] = {}
        elsewhere: dict[TopicPartition, BrokerId] = {}
        brokers = list(self._process.brokers)
        for broker in brokers:
            most = broker.node.context.options.metrics_group_partitions_max
            for shard in copied(lambda broker=broker: list(broker.node.groups.shards.values())):  # type: ignore[misc]
                for _, topic, number, _ in committed(shard.machine.offsets.by_group):
                    partition = TopicPartition(topic, number)
                    if len(ends) + len(elsewhere) < most:
                        self._look_up(partition, ends, elsewhere)
                    pace.step()
        for partition in elsewhere:
            if (end := self._remote.ends.get(partition)) is not None:
                ends[partition] = end
        self._lag.note(ends)
        self._remote.ask(elsewhere)

    def _look_up(self, partition: TopicPartition, ends: dict[TopicPartition, int], elsewhere: dict[TopicPartition, BrokerId]) -> None:
        """The high watermark of the leader, if it is in this process, else of a follower here."""
        followed = None
        for broker in self._process.brokers:
            leader = broker.node.partitions.leaders.get(partition)
            if leader is not None:
                ends[partition] = leader.high_watermark
                return
            followed = followed or broker.node.partitions.followers.get(partition)
        if followed is not None:
            ends[partition] = followed.high_watermark
            return
        state = self._process.brokers[0].node.context.image.state(partition)
        if state is not None and state.leader >= 0:
            elsewhere[partition] = BrokerId(state.leader)

    def _send(self, broker: BrokerId, message: Any, version: int, answered: Callable[[Any], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._send_on_loop, broker, message, version, answered)

    def _send_on_loop(self, broker: BrokerId, message: Any, version: int, answered: Callable[[Any], None]) -> None:
        if self._process.brokers and not self._process.stopping:
            self._process.brokers[0].peers.send(broker, message, version, answered)


def _problem(node: Any) -> str:
    context = node.context
    if not context.connected:
        return "its session with the coordination store is suspended"
    if context.epoch is None:
        return "it is not registered"
    if context.image.controller is None:
        return "there is no controller"
    if not node.partitions.resumed:
        return "it does not lead its partitions yet"
    if all(directory.failed is not None for directory in context.directories):
        return "all its log directories failed"
    return ""


def _process_families(pace: Pace) -> Iterator[tuple[Family, list[Sample]]]:
    """What prometheus_client reports of every Python process: CPU time, memory, descriptors, garbage collections."""
    metrics = REGISTRY.collect()
    for metric in metrics:
        pace.pause()
        ends = "_total" if metric.type == "counter" else ""
        samples: list[Sample] = [
            (sample.name.removeprefix(metric.name + ends), label_text(**sample.labels), sample.value)
            for sample in metric.samples
            if not sample.name.endswith("_created")
        ]
        yield Family(metric.name + ends, "gauge" if metric.type == "unknown" else metric.type, metric.documentation), samples
