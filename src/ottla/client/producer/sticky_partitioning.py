"""Sticky partitioning of records without a key: one partition after another, with fewer bytes for slow ones (KIP-794).

A topic's records go to one partition until it got `batch_size` bytes and its batch is full, so that batches are large; at twice as many
bytes they move on in any case. The next partition is random, among those with a leader. With `partitioner_adaptive_partitioning_enable`
the probability of each decreases with its waiting batches:

    batches waiting    0   3   1
    probability        4 : 1 : 3          maximum + 1 - waiting

and a partition whose broker has not taken requests for `partitioner_availability_timeout_ms` is not chosen.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from random import Random

from ottla.client.transport.cluster import NOBODY, TopicInfo


def choose(
    info: TopicInfo, rng: Random, *, waiting: Callable[[int], int] | None = None, slow_nodes: frozenset[int] | set[int] = frozenset()
) -> int:
    """A random partition of the topic. `waiting` returns the number of waiting batches; None: equal probabilities."""
    available = [one for one in info.partitions if one.leader != NOBODY] or info.partitions
    if waiting is None or len(info.partitions) < 2:
        return available[rng.randrange(len(available))].partition
    quick = [one for one in available if one.leader not in slow_nodes] or available
    return quick[weighted([waiting(one.partition) for one in quick], rng)].partition


def weighted(sizes: Sequence[int], rng: Random) -> int:
    """A random index; smaller sizes are more probable."""
    greatest = max(sizes)
    if greatest == min(sizes):
        return rng.randrange(len(sizes))
    table = list(accumulate(greatest + 1 - size for size in sizes))
    return bisect_right(table, rng.randrange(table[-1]))


class NodeLatency:
    """Since when each node with waiting batches has taken no request."""

    __slots__ = ("_timeout_ms", "_times")

    def __init__(self, timeout_ms: float) -> None:
        self._timeout_ms = timeout_ms
        #: By node: (last time with waiting batches, last time it took a request).
        self._times: dict[int, tuple[float, float]] = {}

    def asked(self, node_id: int, now_ms: float, *, took: bool) -> None:
        """There was a batch for the node, which could or could not be sent."""
        if self._timeout_ms > 0:
            _, drained_ms = self._times.get(node_id, (now_ms, now_ms))
            self._times[node_id] = (now_ms, now_ms if took else drained_ms)

    def slow(self) -> set[int]:
        """Nodes that exceeded the timeout."""
        return {node_id for node_id, (ready_ms, drained_ms) in self._times.items() if ready_ms - drained_ms > self._timeout_ms}
