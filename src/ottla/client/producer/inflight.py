"""How many produce requests each broker owes an answer: more than one keeps the pipe full, a limit bounds what a broken connection leaves
in doubt.
"""

from __future__ import annotations


class InFlight:
    """Counts requests by node; a broker remembers five batches per producer and partition, which is why five is the limit with
    idempotence (KIP-98).
    """

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
        """Count an answer, or that none will come."""
        left = self._open[node_id] - 1
        assert left >= 0, "an answer belongs to a request"
        if left:
            self._open[node_id] = left
        else:
            del self._open[node_id]

    @property
    def total(self) -> int:
        """Requests without an answer, over all brokers."""
        return sum(self._open.values())
