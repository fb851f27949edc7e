"""Where records without a key go: one partition after another, as many bytes to each, fewer to those that fall behind (KIP-794).

A topic's records go to one partition until `batch_size` bytes went there and its batch is full, so that batches are as full as they can
be; at twice as many bytes they move on in any case. The next partition is a matter of chance, among those that have a leader. With
`partitioner_adaptive_partitioning_enable` the chance of each shrinks with the batches that wait for it:

    batches waiting    0   3   1
    chance             4 : 1 : 3          greatest + 1 - waiting

and a partition whose broker has not taken requests for `partitioner_availability_timeout_ms` has none.
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
    """A partition of the topic by chance. `waiting` tells how many batches wait for one; None: all have the same chance."""
    available = [one for one in info.partitions if one.leader != NOBODY] or info.partitions
    if waiting is None or len(info.partitions) < 2:
        return available[rng.randrange(len(available))].partition
    quick = [one for one in available if one.leader not in slow_nodes] or available
    return quick[weighted([waiting(one.partition) for one in quick], rng)].partition


def weighted(sizes: Sequence[int], rng: Random) -> int:
    """An index by chance: the smaller its size, the more probable."""
    greatest = max(sizes)
    if greatest == min(sizes):
        return rng.randrange(len(sizes))
    table = list(accumulate(greatest + 1 - size for size in sizes))
    return bisect_right(table, rng.randrange(table[-1]))


class NodeLatency:
    """Since when each node has taken no request although there was something for it."""

    __slots__ = ("_timeout_ms", "_times")

    def __init__(self, timeout_ms: float) -> None:
        self._timeout_ms = timeout_ms
        #: By node: (when there last was something for it, when it last took something).
        self._times: dict[int, tuple[float, float]] = {}

    def asked(self, node_id: int, now_ms: float, *, took: bool) -> None:
        """There was something for the node, and it could take it or not."""
        if self._timeout_ms > 0:
            _, drained_ms = self._times.get(node_id, (now_ms, now_ms))
            self._times[node_id] = (now_ms, now_ms if took else drained_ms)

    def slow(self) -> set[int]:
        """Nodes that had their time."""
        return {node_id for node_id, (ready_ms, drained_ms) in self._times.items() if ready_ms - drained_ms > self._timeout_ms}
