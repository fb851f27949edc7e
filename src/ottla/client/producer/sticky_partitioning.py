"""Sticky partitioning: the partition of records without a key (KIP-794).

A topic's records go to one partition until it got `batch_size` bytes and its batch is full, or twice as many bytes. So batches are full.
The next partition is random among those with a leader. With `partitioner_adaptive_partitioning_enable` a partition with more queued batches
is less probable:

    batches waiting    0   3   1
    chance             4 : 1 : 3          greatest + 1 - waiting

and a partition whose broker took no request for `partitioner_availability_timeout_ms` is not selected.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from random import Random

from ottla.client.transport.cluster import NO_NODE, TopicInfo


def choose(
    info: TopicInfo, rng: Random, *, waiting: Callable[[int], int] | None = None, slow_nodes: frozenset[int] | set[int] = frozenset()
) -> int:
    """A random partition of the topic. `waiting`: number of queued batches of a partition; None: all are equally probable."""
    available = [one for one in info.partitions if one.leader != NO_NODE] or info.partitions
    if waiting is None or len(info.partitions) < 2:
        return available[rng.randrange(len(available))].partition
    quick = [one for one in available if one.leader not in slow_nodes] or available
    return quick[weighted([waiting(one.partition) for one in quick], rng)].partition


def weighted(sizes: Sequence[int], rng: Random) -> int:
    """A random index; a smaller size is more probable."""
    greatest = max(sizes)
    if greatest == min(sizes):
        return rng.randrange(len(sizes))
    table = list(accumulate(greatest + 1 - size for size in sizes))
    return bisect_right(table, rng.randrange(table[-1]))


class NodeLatency:
    """How long each node has had batches due and could not take a request."""

    __slots__ = ("_timeout_ms", "_times")

    def __init__(self, timeout_ms: float) -> None:
        self._timeout_ms = timeout_ms
        #: By node: (last time with batches due, last time it could take a request).
        self._times: dict[int, tuple[float, float]] = {}

    def asked(self, node_id: int, now_ms: float, *, took: bool) -> None:
        """The node had batches due; `took`: it could take a request."""
        if self._timeout_ms > 0:
            _, drained_ms = self._times.get(node_id, (now_ms, now_ms))
            self._times[node_id] = (now_ms, now_ms if took else drained_ms)

    def slow(self) -> set[int]:
        """Nodes that exceeded the timeout."""
        return {node_id for node_id, (ready_ms, drained_ms) in self._times.items() if ready_ms - drained_ms > self._timeout_ms}
