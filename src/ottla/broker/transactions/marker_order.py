"""Recognizes a request for markers that arrives after a later one of its coordinator.

When a connection breaks, the coordinator sends the markers again over another one. The first request may still be on its way, and arrive
when the transaction is complete and the next one of the same producer has begun::

    coordinator                              leader
    markers of T1, request 7  ─ ─ ─ ─ ┐
    markers of T1, request 8  ────────┼───▶  T1 is committed
    T1 is complete, T2 begins         │      records of T2
                                      └ ─ ▶  request 7 would commit the first records of T2

With transaction version 2 the epoch of the producer tells T1 and T2 apart. With version 1 it does not: Apache Kafka commits a part of T2.
So our coordinators number their requests, in a tagged field of our own, and a leader refuses a number that is not above the last one.
They also name the epochs of the leaders: a partition may have moved away and back, and another leader may have had the later request.
Source: KIP-890, which has the problem.
"""

from ottla.wire.messages.write_txn_markers import MarkerSequence


class MarkerOrder:
    """The last request of each coordinator. Empty after a start, when there is no connection yet that could have an earlier one."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        #: Epoch of the coordinator, epoch of its broker and number, by partition of ``__transaction_state``.
        self._last: dict[int, tuple[int, int, int]] = {}

    def arrived(self, sequence: MarkerSequence, coordinator_epoch: int) -> bool:
        """Whether the request is later than all before; it then counts itself. A coordinator that numbers none is never late."""
        if sequence.partition < 0:
            return True
        number = (coordinator_epoch, sequence.broker_epoch, sequence.number)
        if number <= self._last.get(sequence.partition, (-1, -1, -1)):
            return False
        self._last[sequence.partition] = number
        return True

    def overtaken(self, sequence: MarkerSequence, coordinator_epoch: int) -> bool:
        """Whether a later request than this one, which arrived, has arrived since."""
        number = (coordinator_epoch, sequence.broker_epoch, sequence.number)
        return sequence.partition >= 0 and self._last.get(sequence.partition) != number
