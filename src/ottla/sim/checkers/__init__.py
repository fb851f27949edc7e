"""What must hold in every history, one small class each.

Source: the list of anomalies that Jepsen's Kafka workload looks for, as far as it concerns one broker.
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

#: Where every reader reads its partition from the start on, alone.
IN_ORDER: tuple[type[Checker], ...] = (*ALL, HistoryIsSound)

#: Of a compacted topic, which has gaps by right.
COMPACTED: tuple[type[Checker], ...] = (LastValueIsKept, NoDuplicates, OffsetsStay, WatermarkNeverFalls)

__all__ = ["ALL", "COMPACTED", "IN_ORDER", "Checker"]
