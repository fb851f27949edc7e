"""The task around the fetcher: sends fetches, looks up start offsets, and refreshes metadata of leaders.

A start offset comes from the user, from the group, or from `auto_offset_reset`, in this order; the group's offsets are fetched together.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from ottla.base.ids import NO_TOPIC_ID, TopicPartition
from ottla.client.consumer.metrics import ConsumerMetrics
from ottla.client.fetch.fetcher import Fetcher
from ottla.client.fetch.offsets import LATEST, SO_LONG_AGO, OffsetAndTime, list_offsets
from ottla.client.fetch.position import FetchPlan
from ottla.client.fetch.raw_fetch import NAMES_UNTIL, fetch_request
from ottla.client.group.coordinator_client import CoordinatorClient
from ottla.client.options import ConsumerOptions, reset_duration_ms
from ottla.client.transport.network import Network
from ottla.net.client_connection import ConnectionBroken
from ottla.wire.errors import KafkaError, UnknownServerError
from ottla.wire.messages import FetchRequest


class Fetching:
    """The fetch loop of one consumer. Belongs to one event loop; `changed` is called after each event."""

    def __init__(
        self, network: Network, fetcher: Fetcher, options: ConsumerOptions, group: CoordinatorClient | None, metrics: ConsumerMetrics,
        changed: Callable[[], None],
    ) -> None:  # fmt: skip
        self._network = network
        self._fetcher = fetcher
        self._options = options
        self._group = group
        self._metrics = metrics
        self._changed = changed

    def pump(self, now_ms: float) -> float:
        """Starts fetches, look-ups and refreshes that are due; returns the time of the next call."""
        network, fetcher = self._network, self._fetcher
        if self._group is not None and (uncommitted := fetcher.uncommitted()):
            network.spawn(self._ask_group(self._group, uncommitted))
        if lookups := fetcher.lookups(self._has_leader):
            network.spawn(self._look_up(lookups))
        if nearby := fetcher.preferred_replicas.nodes:
            known = network.cluster.brokers
            gone = {node_id for node_id in nearby if node_id not in known or network.retry_at_ms(node_id) > now_ms}
            fetcher.preferred_replicas.unreachable(gone, now_ms)

        def ready(node_id: int) -> bool:
            return network.ready(node_id) is not None and network.throttled_until_ms(node_id) <= now_ms

        plans, leaderless, next_ms = fetcher.plans(now_ms, network.cluster.leader, network.cluster.topic_id, ready)
        for plan in plans:
            self._send(plan)
        for tp in fetcher.assignment:
            network.cluster.want(tp.topic, now_ms)
        if leaderless:
            network.cluster.invalidate()
        times = [
            at_ms
            for node_id in network.cluster.brokers
            if (at_ms := max(network.retry_at_ms(node_id), network.throttled_until_ms(node_id))) > now_ms
        ]
        return min([next_ms, *times])

    def _has_leader(self, tp: TopicPartition) -> bool:
        """Whether it can be looked up now, or never. Partitions that wait would delay others in the same request."""
        cluster = self._network.cluster
        if cluster.leader(*tp) is not None or cluster.fatal(tp.topic) is not None:
            return True
        cluster.invalidate()
        return False

    def _send(self, plan: FetchPlan) -> None:
        network = self._network
        peer = network.ready(plan.node_id)
        try:
            assert peer is not None, "a plan is made for a connected broker"
            at_most = NAMES_UNTIL if any(ask.topic_id == NO_TOPIC_ID for ask in plan.wanted.values()) else 1000
            version = peer.version(FetchRequest, at_most=at_most)
            session = self._fetcher.session(plan.node_id).request(plan.wanted, by_id=version > NAMES_UNTIL)
            request = fetch_request(
                self._options, session.send, session.forget, session=(session.session_id, session.epoch), max_wait_ms=plan.max_wait_ms
            )
            request.rack_id = plan.rack
            answer = peer.link.request(request, version, timeout_ms=self._options.request_timeout_ms + plan.max_wait_ms)
        except (ConnectionBroken, KafkaError):
            self._fetcher.failed(plan, network.clock_ms())
            return
        sent_ms = network.clock_ms()
        answer.add_done_callback(lambda done: self._answered(plan, done, sent_ms))

    def _answered(self, plan: FetchPlan, answer: asyncio.Future[Any], sent_ms: float) -> None:
        network = self._network
        if network.closed:
            return
        if answer.exception() is not None:
            self._fetcher.failed(plan, network.clock_ms())
        else:
            response, now_ms = answer.result(), network.clock_ms()
            network.note_throttle(plan.node_id, response)
            self._metrics.fetched(plan.node_id, now_ms - sent_ms, response.throttle_time_ms, now_ms)
            self._hints(response)
            if self._fetcher.answered(plan, response, now_ms):
                network.cluster.invalidate()
        self._changed()

    def _hints(self, response: Any) -> None:
        cluster = self._network.cluster
        endpoints = [(node.node_id, node.host, node.port, node.rack) for node in response.node_endpoints]
        for topic in response.responses:
            for data in topic.partitions:
                if data.error_code and data.current_leader.leader_id >= 0:
                    name, hint = topic.topic or cluster.names.get(topic.topic_id, ""), data.current_leader
                    cluster.hint(name, data.partition_index, leader=hint.leader_id, leader_epoch=hint.leader_epoch, endpoints=endpoints)

    async def _ask_group(self, group: CoordinatorClient, wanted: dict[TopicPartition, int]) -> None:
        """Starts at the committed offsets."""
        try:
            found = await group.committed(wanted, timeout_ms=self._options.default_api_timeout_ms)
        except KafkaError as error:
            for tp, generation in wanted.items():
                self._fetcher.ask_again(tp, generation, error)
        else:
            for tp, generation in wanted.items():
                kept = found[tp]
                self._fetcher.begin_at(tp, generation, *((-1, -1) if kept is None else (kept.offset, kept.leader_epoch)))
        self._changed()

    async def _look_up(self, lookups: dict[TopicPartition, tuple[int, int]]) -> None:
        back_ms = reset_duration_ms(self._options.auto_offset_reset)
        wall_ms = int(time.time() * 1000)
        found = await self._listed({tp: wall_ms - (back_ms or 0) if when == SO_LONG_AGO else when for tp, (when, _) in lookups.items()})
        # No record since then: starts at the end.
        nothing = {tp: LATEST for tp, one in found.items() if isinstance(one, OffsetAndTime) and one.offset < 0}
        if nothing:
            found |= await self._listed(nothing)
        for tp, (when, generation) in lookups.items():
            result = found.get(tp) or UnknownServerError(f"no answer about the offsets of {tp}")
            if isinstance(result, KafkaError):
                self._fetcher.lookup_failed(tp, generation, when, result)
            else:
                self._fetcher.looked_up(tp, generation, result.offset)
        self._changed()

    async def _listed(self, times: dict[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTime | KafkaError]:
        read_committed = self._options.isolation_level == "read_committed"
        return await list_offsets(self._network, times, read_committed=read_committed, timeout_ms=self._options.request_timeout_ms)
