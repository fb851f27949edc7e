"""Produce requests in flight by broker: several keep the connection busy, the limit bounds the number of unknown outcomes after a broken
connection.
"""

from __future__ import annotations


class InFlight:
    """Counts requests by node. A broker remembers five batches per producer and partition, so five is the limit with idempotence
    (KIP-98).
    """

    __slots__ = ("_limit", "_open")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: dict[int, int] = {}

    def room(self, node_id: int) -> bool:
        """Whether another request may be sent to this broker."""
        return self._open.get(node_id, 0) < self._limit

    def sent(self, node_id: int) -> None:
        """Counts a request."""
        assert self.room(node_id), "never more than the limit are in flight"
        self._open[node_id] = self._open.get(node_id, 0) + 1

    def answered(self, node_id: int) -> None:
        """Counts a response, or a lost one."""
        left = self._open[node_id] - 1
        assert left >= 0, "an answer belongs to a request"
        if left:
            self._open[node_id] = left
        else:
            del self._open[node_id]

    @property
    def total(self) -> int:
        """Requests in flight to all brokers."""
        return sum(self._open.values())
