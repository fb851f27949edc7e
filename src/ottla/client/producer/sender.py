"""Sends the batches that are due and reports the brokers' responses to the accumulator.

There is no waiting task. A *step* runs on the event loop after a change (new records, a response, a connection, new metadata), or at the
time that the last step computed. A step expires old batches, then drains batches into requests until none may be sent.

Calls to the accumulator hold `lock`: a real lock if another thread adds records, else a null context. Compression and callbacks run
without the lock; callbacks may send again.

A broker that throttles the client gets no request for the throttle time (KIP-219).

The producer id of a transactional producer comes from `transactions.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from ottla.base.acls import Operation
from ottla.client.access_errors import identity, refused_access
from ottla.client.errors import METADATA_IS_STALE, BrokerIncompatible
from ottla.client.options import ClientOptions, ProducerOptions
from ottla.client.producer.accumulator import Accumulator
from ottla.client.producer.batches import ProducerBatch
from ottla.client.producer.metrics import ProducerGauges, ProducerMetrics
from ottla.client.sampled_stats import Figures
from ottla.client.transport.backoff import Backoff
from ottla.client.transport.cluster import NO_TOPIC_ID
from ottla.client.transport.network import Network, Peer, failure
from ottla.net.client_connection import ConnectionBroken
from ottla.wire.errors import ClusterAuthorizationFailed, KafkaError, RequestTimedOut, UnknownServerError, error_for
from ottla.wire.messages import (
    InitProducerIdRequest,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

INT32_MAX = 2**31 - 1
#: Last version with topic names instead of ids.
NAMES_UNTIL = 12
#: First version with zstd (KIP-110).
ZSTD_SINCE = 7
#: First versions with transactions (KIP-98), and with partitions that the broker adds to them (KIP-890).
TRANSACTIONAL_SINCE = 3
ADDS_PARTITIONS_SINCE = 12
#: From this version on a throttling broker responds at once, and the client waits (KIP-219).
THROTTLED_BY_CLIENT_SINCE = 6
_INFINITE = float("inf")


class InFlight:
    """Requests without a response, by node. With idempotence the limit is five: brokers remember five batches per partition (KIP-98)."""

    __slots__ = ("_limit", "_open")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: dict[int, int] = {}

    def room(self, node_id: int) -> bool:
        """Whether another request may go to this broker."""
        return self._open.get(node_id, 0) < self._limit

    def sent(self, node_id: int) -> None:
        """Count a request."""
        assert self.room(node_id), "never more than the limit are in flight"
        self._open[node_id] = self._open.get(node_id, 0) + 1

    def answered(self, node_id: int) -> None:
        """Count a response, or a failed request."""
        left = self._open[node_id] - 1
        assert left >= 0, "a response belongs to a request"
        if left:
            self._open[node_id] = left
        else:
            del self._open[node_id]

    @property
    def total(self) -> int:
        """Requests without a response, over all brokers."""
        return sum(self._open.values())


class Sender:
    """All methods run on the event loop."""

    def __init__(self, network: Network, accumulator: Accumulator, options: ProducerOptions, lock: AbstractContextManager[Any]) -> None:
        self.network = network
        self.accumulator = accumulator
        self.lock = lock
        #: Time of the next step without a change; other threads read it to save a wake-up.
        self.next_step_ms = float("-inf")
        self.metrics = ProducerMetrics()
        #: Called after batches finished: memory may be free.
        self.on_finished: Callable[[], None] = lambda: None
        #: Called with the partitions that have to be part of the transaction before their batches are sent.
        self.add_partitions: Callable[[list[tuple[str, int]]], None] = lambda partitions: None
        #: Called before batches are sent.
        self.on_sending: Callable[[], None] = lambda: None
        #: Whether brokers add a batch's partition to the transaction themselves (transaction.version 2).
        self.brokers_add_partitions = False
        self._options = options
        self._acks = -1 if options.acks == "all" else int(options.acks)
        self._at_least = ZSTD_SINCE if options.compression_type == "zstd" else 0
        if options.transactional_id:
            self._at_least = max(self._at_least, TRANSACTIONAL_SINCE)
        self._loop = asyncio.get_running_loop()
        self.transactional_id = options.transactional_id or None
        self._in_flight = InFlight(options.max_in_flight_requests_per_connection)
        #: Resolved when no request is in flight.
        self._idle: list[asyncio.Future[None]] = []
        self._scheduled: asyncio.Handle | None = None
        self._woken = False
        self._id_retry_at_ms = float("-inf")
        self._id_task: asyncio.Task[None] | None = None
        self._id_refused: KafkaError | None = None
        self._id_backoff = Backoff(options.retry_backoff_ms, options.retry_backoff_max_ms, network.rng)
        #: Version of the metadata that the accumulator has.
        self._metadata_version = network.cluster.version
        #: By node: end of the throttle time.
        self._throttled_until_ms: dict[int, float] = {}
        self._closed = False
        network.changed = self.wake

    # -- steps

    def wake(self) -> None:
        """Schedule a step in this iteration of the loop."""
        if not self._woken and not self._closed:
            self._woken = True
            if self._scheduled is not None:
                self._scheduled.cancel()
            self._scheduled = self._loop.call_soon(self._step)

    def _step(self) -> None:
        self._woken = False
        self._scheduled = None
        if self._closed:
            return
        self.next_step_ms = _INFINITE
        now_ms = self.network.clock_ms()
        cluster = self.network.cluster
        with self.lock:
            if self._metadata_version != cluster.version:
                self._metadata_version = cluster.version
                self.accumulator.update_metadata(cluster.topics)
            next_ms = self.accumulator.expire(now_ms, cluster.trouble_with)
            if self.accumulator.stopped is not None:
                self.accumulator.fail_unsent(self.accumulator.stopped)
        if self._options.enable_idempotence and self.accumulator.producer is None and self.transactional_id is None:
            next_ms = min(next_ms, self._request_producer_id(now_ms))
        next_ms = min(next_ms, self._drain(now_ms))
        self._notify()
        if not self._woken:
            self.next_step_ms = next_ms
            if next_ms < _INFINITE:
                self._scheduled = self._loop.call_later(max(next_ms - now_ms, 0) / 1000, self._step)

    def _notify(self) -> None:
        now_ms = self.network.clock_ms()
        for batch in self.accumulator.notify_finished():
            if batch.error is not None:
                self.metrics.failed(batch, now_ms)
        self.on_finished()

    def figures(self) -> dict[str, dict[str, float] | dict[str, Figures]]:
        """All metrics."""
        now_ms = self.network.clock_ms()
        accumulator = self.accumulator
        gauges = ProducerGauges(
            self._options.buffer_memory,
            accumulator.used_bytes,
            self._in_flight.total,
            self.network.connections,
            self.network.cluster.age_ms(now_ms),
            accumulator.splits,
        )
        return self.metrics.figures(gauges, now_ms)

    def _drain(self, now_ms: float) -> float:
        """Send all batches that are due; returns the time of the next step."""
        while True:
            with self.lock:
                drained = self.accumulator.drain(now_ms, self._leader, self._ready)
            if drained.to_add:
                self.add_partitions(drained.to_add)
            if not drained.requests:
                break
            self.on_sending()
            for node_id, batches in drained.requests.items():
                self._send(node_id, batches)
        next_ms = drained.next_ms
        if drained.leaderless:
            self._request_leaders(drained.leaderless, now_ms)
        return min(next_ms, self.network.refresh_soon(), self._next_retry_ms(now_ms))

    def _leader(self, topic: str, partition: int) -> int | None:
        found = self.network.cluster.leader(topic, partition)
        return None if found is None else found[0]

    def _ready(self, node_id: int) -> bool:
        if self._throttled_until_ms.get(node_id, 0.0) > self.network.clock_ms():
            return False
        return self._in_flight.room(node_id) and self.network.ready(node_id) is not None

    def _next_retry_ms(self, now_ms: float) -> float:
        """When the next backoff or throttle time of a broker ends."""
        times = [at_ms for node_id in self.network.cluster.brokers if (at_ms := self.network.retry_at_ms(node_id)) > now_ms]
        times += [at_ms for at_ms in self._throttled_until_ms.values() if at_ms > now_ms]
        return min(times, default=_INFINITE)

    def _request_leaders(self, leaderless: list[tuple[str, int]], now_ms: float) -> None:
        cluster = self.network.cluster
        for topic, partition in leaderless:
            cluster.want(topic, now_ms)
            fatal = cluster.fatal(topic)
            if fatal is not None:
                with self.lock:
                    self.accumulator.fail_topic(topic, fatal)
            elif (deleted := cluster.deleted(topic, partition, now_ms)) is not None:
                with self.lock:
                    self.accumulator.fail_topic(topic, deleted, partition=partition)
        cluster.invalidate()

    # -- produce

    def _send(self, node_id: int, batches: list[ProducerBatch]) -> None:
        peer = self.network.ready(node_id)
        assert peer is not None, "only connected brokers are drained for"
        try:
            # Versions 0 to 2 are advertised for old clients only; like Java's client, this one does not use them.
            at_most = NAMES_UNTIL if any(self.network.cluster.topic_id(batch.topic) == NO_TOPIC_ID for batch in batches) else 1000
            at_least = self._at_least
            if self.transactional_id is not None and self.brokers_add_partitions:
                at_least = ADDS_PARTITIONS_SINCE
            elif self.transactional_id is not None:
                at_most = ADDS_PARTITIONS_SINCE - 1
            version = peer.version(ProduceRequest, at_least=at_least, at_most=at_most)
            request, expected = self._request(batches, by_id=version > NAMES_UNTIL)
            self.metrics.sent(batches, now_ms := self.network.clock_ms())
            if self._acks == 0:
                peer.link.send(request, version)
                self._complete([(batch, None, -1) for batch in batches])
                return
            answer = peer.link.request(request, version, timeout_ms=self._options.request_timeout_ms)
        except ConnectionBroken as broken:
            self._fail(batches, failure(broken))
            return
        except BrokerIncompatible as error:
            self._fail(batches, error)
            return
        self._in_flight.sent(node_id)
        answer.add_done_callback(partial(self._on_response, peer, version, now_ms, expected))

    def _request(self, batches: list[ProducerBatch], *, by_id: bool) -> tuple[ProduceRequest, dict[tuple[str | bytes, int], ProducerBatch]]:
        topics: dict[str, TopicProduceData] = {}
        cluster, now_ms = self.network.cluster, self.network.clock_ms()
        expected: dict[tuple[str | bytes, int], ProducerBatch] = {}
        for batch in batches:
            name, topic_id = batch.topic, cluster.topic_id(batch.topic) if by_id else NO_TOPIC_ID
            topic = topics.get(name)
            if topic is None:
                # Keep the topic in the metadata while it is in use.
                cluster.want(name, now_ms)
                topic = topics[name] = TopicProduceData(name=name, topic_id=topic_id, partition_data=[])
            topic.partition_data.append(PartitionProduceData(index=batch.partition, records=batch.seal()))
            expected[topic_id if by_id else name, batch.partition] = batch
        request = ProduceRequest(
            transactional_id=self.transactional_id,
            acks=self._acks,
            timeout_ms=self._options.request_timeout_ms,
            topic_data=list(topics.values()),
        )
        return request, expected

    def _on_response(
        self,
        peer: Peer,
        version: int,
        sent_ms: float,
        expected: dict[tuple[str | bytes, int], ProducerBatch],
        answer: asyncio.Future[ProduceResponse],
    ) -> None:
        self._in_flight.answered(peer.node_id)
        if self._idle and not self._in_flight.total:
            self._loop.call_soon(self._tell_idle)
        broken = answer.exception()
        if broken is not None:
            why = failure(broken) if isinstance(broken, ConnectionBroken) else UnknownServerError(str(broken))
            self._fail(list(expected.values()), why)
            return
        response = answer.result()
        now_ms = self.network.clock_ms()
        self.metrics.answered(peer.node_id, now_ms - sent_ms, response.throttle_time_ms, now_ms)
        if response.throttle_time_ms > 0 and version >= THROTTLED_BY_CLIENT_SINCE:
            self._throttled_until_ms[peer.node_id] = now_ms + response.throttle_time_ms
        endpoints = [(node.node_id, node.host, node.port, node.rack) for node in response.node_endpoints]
        outcomes: list[tuple[ProducerBatch, KafkaError | None, int]] = []
        for topic in response.responses:
            for partition in topic.partition_responses:
                batch = expected.pop((topic.name, partition.index), None) or expected.pop((topic.topic_id, partition.index), None)
                if batch is None:
                    continue
                if not partition.error_code:
                    batch.append_time_ms = partition.log_append_time_ms
                    outcomes.append((batch, None, partition.base_offset))
                    continue
                if partition.record_errors:
                    batch.refused = {one.batch_index: one.batch_index_error_message or "invalid" for one in partition.record_errors}
                outcomes.append((batch, _refusal(batch, partition, peer, self.network.options), -1))
                hint = partition.current_leader
                self.network.cluster.hint(
                    batch.topic, batch.partition, leader=hint.leader_id, leader_epoch=hint.leader_epoch, endpoints=endpoints
                )
        for batch in expected.values():
            error = UnknownServerError(f"{peer.link.address} did not answer for {batch.topic}-{batch.partition}")
            outcomes += [(batch, error, -1)]
        self._complete(outcomes)

    def _fail(self, batches: list[ProducerBatch], error: KafkaError) -> None:
        self._complete([(batch, error, -1) for batch in batches])

    def _complete(self, outcomes: list[tuple[ProducerBatch, KafkaError | None, int]]) -> None:
        now_ms = self.network.clock_ms()
        with self.lock:
            for batch, error, base_offset in outcomes:
                if error is None:
                    self.accumulator.succeeded(batch, base_offset, batch.append_time_ms)
                    continue
                if self.accumulator.failed(batch, error, now_ms) and batch.parts is None:
                    self.metrics.retried(batch, now_ms)
                if error.code in METADATA_IS_STALE:
                    self.network.cluster.invalidate()
        self._notify()
        self.wake()

    def _tell_idle(self) -> None:
        # After the outcomes of the last response.
        if not self._in_flight.total:
            waiting, self._idle = self._idle, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    async def until_idle(self) -> None:
        """Waits until no request is in flight; at most the request timeout."""
        while self._in_flight.total:
            future: asyncio.Future[None] = self._loop.create_future()
            self._idle.append(future)
            await future

    # -- the producer's id

    def _request_producer_id(self, now_ms: float) -> float:
        if self.accumulator.empty or self._id_task is not None:
            return _INFINITE
        if self._id_retry_at_ms > now_ms:
            return self._id_retry_at_ms
        self._id_task = self.network.spawn(self._fetch_producer_id())
        return _INFINITE

    async def _fetch_producer_id(self) -> None:
        try:
            response = await self.network.ask_any(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=INT32_MAX))
            if response.error_code:
                raise _refused_id(response.error_code, self.network.options)
        except KafkaError as error:
            if error.retriable:
                self._id_retry_at_ms = self.network.clock_ms() + self._id_backoff.failed()
                oldest = self.accumulator.oldest()
                if oldest is not None:
                    oldest.last_error = error
            else:
                self._id_refused = error
                with self.lock:
                    self.accumulator.fail_all(error)
        else:
            self._id_backoff.succeeded()
            self.accumulator.producer = (response.producer_id, response.producer_epoch)
        finally:
            self._id_task = None
            self.wake()

    async def ensure_producer_id(self, timeout_ms: float) -> tuple[int, int]:
        """The producer id and epoch, requested if needed. Raises: RequestTimedOut, KafkaError."""
        deadline_ms = self.network.clock_ms() + timeout_ms
        self._id_refused = None
        while self.accumulator.producer is None:
            if self._id_refused is not None:
                raise self._id_refused
            now_ms = self.network.clock_ms()
            if now_ms >= deadline_ms:
                raise RequestTimedOut(f"no broker assigned a producer id within {timeout_ms:.0f} ms")
            if self._id_task is None and self._id_retry_at_ms <= now_ms:
                self._id_task = self.network.spawn(self._fetch_producer_id())
            if self._id_task is None:
                await asyncio.sleep((min(self._id_retry_at_ms, deadline_ms) - now_ms) / 1000)
            else:
                await asyncio.wait([self._id_task], timeout=(deadline_ms - now_ms) / 1000)
        return self.accumulator.producer

    def close(self) -> None:
        """Stop stepping."""
        self._closed = True
        if self._scheduled is not None:
            self._scheduled.cancel()


def _refused_id(code: int, options: ClientOptions) -> KafkaError:
    """The error of a producer without a producer id; brokers send no message with it."""
    if code == ClusterAuthorizationFailed.code:
        needs = f"{Operation.WRITE.label} on any topic, or {Operation.IDEMPOTENT_WRITE.label} on the cluster"
        return error_for(code, f"{identity(options)} may not be an idempotent producer; that needs {needs}")
    return error_for(code)


def _refusal(batch: ProducerBatch, partition: PartitionProduceResponse, peer: Peer, options: ClientOptions) -> KafkaError:
    """The broker's error with its messages."""
    error = error_for(partition.error_code)
    said = partition.error_message or ""
    records = "; ".join(f"record {one.batch_index}: {one.batch_index_error_message}" for one in partition.record_errors[:3])
    detail = "; ".join(part for part in (said, records) if part)
    detail = detail or refused_access(partition.error_code, options, Operation.WRITE, batch.topic) or ""
    where = f"{batch.topic}-{batch.partition} at {peer.link.address}"
    return error_for(partition.error_code, f"{where}: {detail or error}")
