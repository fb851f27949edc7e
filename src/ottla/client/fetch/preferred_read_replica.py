"""Preferred read replicas: for a while a partition is read from the replica that its leader named (KIP-392). Pure.

::

    leader ── names a replica ──▶ replica, until metadata.max.age.ms have passed ──▶ leader
      ▲                             │ no connection, any error
      └── does not send its rack ───┘ for SHUNNED_MS

After a failure the client omits its rack for a while, so that the leader serves it and does not return the same replica.
"""

from __future__ import annotations

from collections.abc import Container

from ottla.base.ids import TopicPartition

SHUNNED_MS = 10_000


class PreferredReadReplicas:
    """Preferred read replicas of one consumer. `now_ms` is monotonic."""

    __slots__ = ("_lease_ms", "_rack", "_replicas", "_shunned")

    def __init__(self, rack: str, lease_ms: float) -> None:
        self._rack = rack
        self._lease_ms = lease_ms
        #: (node, end) by partition.
        self._replicas: dict[TopicPartition, tuple[int, float]] = {}
        #: End of the time in which the leader serves.
        self._shunned: dict[TopicPartition, float] = {}

    def named(self, tp: TopicPartition, node_id: int, now_ms: float) -> None:
        """The leader named a replica."""
        self._replicas[tp] = (node_id, now_ms + self._lease_ms)

    def node(self, tp: TopicPartition, leader: int, now_ms: float) -> int:
        """The node to fetch from."""
        found = self._replicas.get(tp)
        if found is None:
            return leader
        if found[1] <= now_ms:
            del self._replicas[tp]
            return leader
        return found[0]

    def rack(self, tp: TopicPartition, now_ms: float) -> str:
        """The rack to send for this partition."""
        until_ms = self._shunned.get(tp)
        if until_ms is None:
            return self._rack
        if until_ms > now_ms:
            return ""
        del self._shunned[tp]
        return self._rack

    def failed(self, tp: TopicPartition, node_id: int, now_ms: float) -> bool:
        """A fetch failed; True if it was at a preferred read replica, which is avoided for a while."""
        found = self._replicas.get(tp)
        if found is None or found[0] != node_id:
            return False
        del self._replicas[tp]
        self._shunned[tp] = now_ms + SHUNNED_MS
        return True

    def unreachable(self, gone: Container[int], now_ms: float) -> None:
        """These nodes are not connected."""
        for tp, (node_id, _) in list(self._replicas.items()):
            if node_id in gone:
                self.failed(tp, node_id, now_ms)

    @property
    def replicas(self) -> dict[TopicPartition, int]:
        """Preferred read replicas in use, by partition."""
        return {tp: node_id for tp, (node_id, _) in self._replicas.items()}

    @property
    def nodes(self) -> set[int]:
        """Preferred read replicas in use."""
        return {node_id for node_id, _ in self._replicas.values()}
