"""Requests to specific brokers: a partition's leader, the controller, or all brokers, with retries until the timeout.

Each item gets a result or the `KafkaError` that ended it. Items that are pending at the timeout get their last error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from ottla.base.ids import TopicPartition
from ottla.client.errors import METADATA_IS_STALE
from ottla.client.transport.backoff import Backoff
from ottla.client.transport.network import Network
from ottla.wire.errors import KafkaError, NotController, RequestTimedOut, UnknownTopicOrPartition

A = TypeVar("A")
R = TypeVar("R")
NOT_CONTROLLER = 41
#: Items for one broker: item and current leader epoch by partition.
Share = dict[TopicPartition, tuple[A, int]]


async def ask_leaders(
    network: Network,
    items: Mapping[TopicPartition, A],
    ask: Callable[[int, Share[A]], Awaitable[Mapping[TopicPartition, R | KafkaError]]],
    *,
    timeout_ms: float,
    doing: str,
    patient: bool = True,
) -> dict[TopicPartition, R | KafkaError]:
    """Asks each partition's leader. Retriable errors are retried with new metadata; other errors are the partition's result.

    A topic or partition that does not exist is awaited if `patient`; otherwise that is its result.
    """
    deadline_ms = network.clock_ms() + timeout_ms
    backoff = Backoff(network.options.retry_backoff_ms, network.options.retry_backoff_max_ms, network.rng)
    pending = dict(items)
    done: dict[TopicPartition, R | KafkaError] = {}
    last: dict[TopicPartition, KafkaError] = {}
    for topic, _ in items:
        network.cluster.want(topic, network.clock_ms(), create=False)
    while pending:
        shares = _shares(network, pending, done, patient)
        answers = await asyncio.gather(*(_asked(network, node, share, ask) for node, share in shares.items()))
        for answer in answers:
            for tp, result in answer.items():
                if isinstance(result, KafkaError) and (result.retriable or result.code in METADATA_IS_STALE):
                    last[tp] = result
                    network.cluster.invalidate()
                else:
                    done[tp] = result
                    pending.pop(tp, None)
        left_ms = deadline_ms - network.clock_ms()
        if pending and left_ms <= 0:
            for tp in pending:
                done[tp] = RequestTimedOut(
                    f"{doing} {tp}: {last.get(tp) or network.cluster.why_not(*tp)} (gave up after {timeout_ms:.0f} ms)"
                )
            break
        if pending:
            failed = await _refreshed(network, left_ms)
            if failed is not None and not failed.retriable:
                # The client is not let in, or is closed.
                done.update(dict.fromkeys(pending, failed))
                break
            if failed is not None:
                last.update(dict.fromkeys(pending, failed))
            if answers or failed is not None or any(network.cluster.leader(*tp) is None for tp in pending):
                await asyncio.sleep(min(backoff.failed(), max(deadline_ms - network.clock_ms(), 0)) / 1000)
    return done


def _shares(network: Network, pending: dict[TopicPartition, A], done: dict[TopicPartition, Any], patient: bool) -> dict[int, Share[A]]:
    """Pending items by leader; items of topics with permanent errors are done."""
    shares: dict[int, Share[A]] = {}
    for tp, item in list(pending.items()):
        found = network.cluster.leader(*tp)
        if found is not None:
            shares.setdefault(found[0], {})[tp] = (item, found[1])
        elif (fatal := network.cluster.fatal(tp.topic) or (None if patient else _missing(network, tp))) is not None:
            done[tp] = fatal
            del pending[tp]
    return shares


def _missing(network: Network, tp: TopicPartition) -> KafkaError | None:
    cluster = network.cluster
    count = cluster.partition_count(tp.topic)
    if isinstance(cluster.errors.get(tp.topic), UnknownTopicOrPartition) or (count is not None and tp.partition >= count):
        return UnknownTopicOrPartition(cluster.why_not(*tp))
    return None


async def _asked(
    network: Network, node: int, share: Share[A], ask: Callable[[int, Share[A]], Awaitable[Any]]
) -> Mapping[TopicPartition, Any]:
    try:
        answer: Mapping[TopicPartition, Any] = await ask(node, share)
        return answer
    except KafkaError as error:
        return dict.fromkeys(share, error)


async def _refreshed(network: Network, left_ms: float) -> KafkaError | None:
    try:
        async with asyncio.timeout(left_ms / 1000):
            await network.refresh()
    except TimeoutError:
        return None
    except KafkaError as error:
        return error
    return None


async def ask_controller(
    network: Network, message: Any, *, moved: Callable[[Any], bool], timeout_ms: float, at_least: int = 0, at_most: int = 1000
) -> Any:
    """Sends a request once to the controller, or to any broker while it is unknown. `moved`: whether a response names another
    controller.

    Raises: NotController after a metadata refresh, when a retry makes sense; ConnectionFailed, RequestTimedOut, BrokerIncompatible.
    """
    if network.cluster.version == 0:
        await network.refresh()
    cluster = network.cluster
    node = cluster.controller if cluster.controller in cluster.brokers else network.any_node()
    try:
        response = await network.ask(node, message, timeout_ms=timeout_ms, at_least=at_least, at_most=at_most)
    except KafkaError as error:
        if error.retriable:
            await _refreshed(network, timeout_ms)
        raise
    if moved(response):
        await network.refresh()
        raise NotController(f"broker {node} is not the controller")
    return response
