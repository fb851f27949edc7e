"""Where each partition is read from: at its leader, or, for a while, at the replica nearby that its leader named (KIP-392). Pure.

::

    leader ── names a replica ──▶ replica, until metadata.max.age.ms have passed ──▶ leader
      ▲                             │ no connection, any error
      └── says nothing of its rack ─┘ for SHUNNED_MS

Who has just failed to read from a replica names no rack to the leader for a while, and is served by it: it would only be sent back.
"""

from __future__ import annotations

from collections.abc import Container

from ottla.base.ids import TopicPartition

SHUNNED_MS = 10_000


class NearReplicas:
    """See the module. `now_ms` is monotonic."""

    __slots__ = ("_lease_ms", "_rack", "_replicas", "_shunned")

    def __init__(self, rack: str, lease_ms: float) -> None:
        self._rack = rack
        self._lease_ms = lease_ms
        #: (node, until when) by partition.
        self._replicas: dict[TopicPartition, tuple[int, float]] = {}
        #: Until when the leader itself is to serve.
        self._shunned: dict[TopicPartition, float] = {}

    def named(self, tp: TopicPartition, node_id: int, now_ms: float) -> None:
        """The leader says who is to be asked."""
        self._replicas[tp] = (node_id, now_ms + self._lease_ms)

    def node(self, tp: TopicPartition, leader: int, now_ms: float) -> int:
        """Whom to ask now."""
        found = self._replicas.get(tp)
        if found is None:
            return leader
        if found[1] <= now_ms:
            del self._replicas[tp]
            return leader
        return found[0]

    def rack(self, tp: TopicPartition, now_ms: float) -> str:
        """What to say of ourselves when asking for this partition."""
        until_ms = self._shunned.get(tp)
        if until_ms is None:
            return self._rack
        if until_ms > now_ms:
            return ""
        del self._shunned[tp]
        return self._rack

    def failed(self, tp: TopicPartition, node_id: int, now_ms: float) -> bool:
        """A fetch failed there; True when that was a replica nearby, from which nothing is asked for a while."""
        found = self._replicas.get(tp)
        if found is None or found[0] != node_id:
            return False
        del self._replicas[tp]
        self._shunned[tp] = now_ms + SHUNNED_MS
        return True

    def unreachable(self, gone: Container[int], now_ms: float) -> None:
        """There is no connection to these."""
        for tp, (node_id, _) in list(self._replicas.items()):
            if node_id in gone:
                self.failed(tp, node_id, now_ms)

    @property
    def replicas(self) -> dict[TopicPartition, int]:
        """Whom to ask, where it is not the leader."""
        return {tp: node_id for tp, (node_id, _) in self._replicas.items()}

    @property
    def nodes(self) -> set[int]:
        """Replicas that are asked now."""
        return {node_id for node_id, _ in self._replicas.values()}
