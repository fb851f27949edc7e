"""Invariants of every history, one small class each.

Source: the anomalies of Jepsen's Kafka workload, as far as they concern one broker.
"""

from ottla.sim.checkers.checks import (
    AcknowledgedIsKept,
    Checker,
    LastValueIsKept,
    NoDuplicates,
    OffsetsAreDense,
    OffsetsAreNeverReused,
    OffsetsStay,
    OrderIsKept,
    WatermarkNeverFalls,
)
from ottla.sim.checkers.client_history import HistoryIsSound

ALL: tuple[type[Checker], ...] = (
    AcknowledgedIsKept,
    NoDuplicates,
    OffsetsAreDense,
    OffsetsAreNeverReused,
    OrderIsKept,
    WatermarkNeverFalls,
)

#: For partitions that every reader reads alone from the start.
IN_ORDER: tuple[type[Checker], ...] = (*ALL, HistoryIsSound)

#: For compacted topics, which have gaps.
COMPACTED: tuple[type[Checker], ...] = (LastValueIsKept, NoDuplicates, OffsetsStay, WatermarkNeverFalls)

__all__ = ["ALL", "COMPACTED", "IN_ORDER", "Checker"]
