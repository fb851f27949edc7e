"""Transactions from their begin to their markers, from the changes that coordinators and leaders noted.

The coordinator notes the states of a transactional id and the answers of the leaders to its markers. A leader notes a marker with the
producer id and epoch, which join the two.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ottla.console.timelines.reader import TimelineEntry
from ottla.console.timelines.rebalances import RebalanceStep

_DECIDED = ("PrepareCommit", "PrepareAbort")
_OVER = ("CompleteCommit", "CompleteAbort")
_MARKERS = ("commit marker", "abort marker")


class TransactionSpan(msgspec.Struct):
    """One transaction. None: not yet, or older than the timeline."""

    transactional_id: str
    producer_id: int
    coordinator: int
    began_ms: int
    client_id: str = ""
    partitions: int = 0
    first_partitions: list[str] = []
    decided_ms: int | None = None
    ended_ms: int | None = None
    outcome: str = "open"
    steps: list[RebalanceStep] = []

    @property
    def took_ms(self) -> int | None:
        """From the first partition to the end of the last marker."""
        return None if self.ended_ms is None else self.ended_ms - self.began_ms

    @property
    def open_ms(self) -> int | None:
        """From the first partition to the decision."""
        return None if self.decided_ms is None else self.decided_ms - self.began_ms


def producers_of(changes: Iterable[TimelineEntry]) -> list[str]:
    """The names of the changes of these transactions on leaders."""
    ids = {change.fields["producer_id"] for change in changes if "producer_id" in change.fields}
    return [f"producer {number}" for number in sorted(ids)]


def transactions(changes: Iterable[TimelineEntry]) -> list[TransactionSpan]:
    """All transactions, the latest first. `changes` are in the order of time."""
    current: dict[str, TransactionSpan] = {}
    found: list[TransactionSpan] = []
    markers: list[TimelineEntry] = []
    for change in changes:
        if change.what in _MARKERS:
            markers.append(change)
        elif change.what == "Ongoing" or (change.what in _DECIDED and change.name not in current):
            span = current.get(change.name)
            if span is None or span.ended_ms is not None:
                span = current[change.name] = _begun(change)
                found.append(span)
            _add(span, change)
        elif (span := current.get(change.name)) is not None and span.ended_ms is None:
            _add(span, change)
    for marker in markers:
        _add_marker(found, marker)
    for span in found:
        span.steps.sort(key=lambda step: step.after_ms)
    found.sort(key=lambda one: -one.began_ms)
    return found


def _begun(change: TimelineEntry) -> TransactionSpan:
    fields = change.fields
    started_ms = fields.get("started_ms")
    began_ms = started_ms if isinstance(started_ms, int) and 0 <= started_ms <= change.wall_ms else change.wall_ms
    return TransactionSpan(change.name, fields.get("producer_id", -1), change.broker, began_ms)


def _add(span: TransactionSpan, change: TimelineEntry) -> None:
    fields = change.fields
    detail = ""
    if change.what == "markers answered":
        detail = f"broker {fields.get('leader')} wrote {fields.get('written')} of {fields.get('asked')}"
    else:
        span.client_id = str(fields.get("client_id") or span.client_id)
        if fields.get("partitions"):
            span.partitions, span.first_partitions = int(fields["partitions"]), list(map(str, fields.get("first_partitions", ())))
            detail = f"{span.partitions} partition{'' if span.partitions == 1 else 's'}"
    if change.what in _DECIDED:
        span.decided_ms = change.wall_ms
        span.outcome = "commits" if change.what == "PrepareCommit" else "aborts"
    elif change.what in _OVER:
        span.ended_ms = change.wall_ms
        span.outcome = "committed" if change.what == "CompleteCommit" else "aborted"
    span.steps.append(RebalanceStep(max(change.wall_ms - span.began_ms, 0), change.what, detail))


def _add_marker(spans: list[TransactionSpan], marker: TimelineEntry) -> None:
    """To the transaction of this producer whose decision was last before the marker; clocks of brokers may differ a little."""
    fields = marker.fields
    of = [span for span in spans if marker.name == f"producer {span.producer_id}" and span.decided_ms is not None]
    if of:
        span = min(of, key=lambda one: abs(marker.wall_ms - (one.decided_ms or 0)))
        where = f"{fields.get('partition')} at offset {fields.get('offset')}, broker {marker.broker}"
        span.steps.append(RebalanceStep(max(marker.wall_ms - span.began_ms, 0), marker.what, where))
