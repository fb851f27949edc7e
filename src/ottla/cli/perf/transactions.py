"""Transactions of `ottla perf produce`: they are committed at an interval, and the commits are measured.

    begin   send send send ... interval is over   commit: waits until all records are written
    |------------------------------------------|-----------|   begin ...

As in kafka-producer-perf-test, the loop stands still during a commit. With --throughput, records that were due meanwhile show it in their
latency.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ottla.cli.common.tables import Column
from ottla.cli.perf.figures import LATENCY, latency_document
from ottla.cli.perf.histogram import Histogram

#: Kafka's default of --transaction-duration-ms.
DURATION_MS = 3_000
FIELDS = {
    "transactions.committed": "number of committed transactions; `transactions` is null without --transactional-id",
    "transactions.duration_ms": "time after which a transaction is committed",
    **{f"transactions.commit_ms.{name}": f"{help}, of commit()" for name, help in LATENCY.items()},
}
COLUMNS = (
    Column("TRANSACTIONS", "committed", number=True),
    Column("DURATION-MS", "duration_ms", number=True),
    *(
        Column(f"COMMIT-{name.upper().replace('_', '.')}", lambda row, name=name: _cell(row, name), number=True)  # type: ignore[misc]
        for name in ("avg", "max", "p50", "p95", "p99", "p99_9")
    ),
)


def _cell(row: Mapping[str, Any], name: str) -> str | None:
    value = row["commit_ms"][name]
    return None if value is None else f"{value:.2f}"


class Transacting(Protocol):
    """The methods of a producer that are used."""

    def begin(self) -> None: ...

    def commit(self) -> None: ...


class TimedTransactions:
    """Begins and commits transactions. `clock` returns nanoseconds."""

    def __init__(self, producer: Transacting, *, duration_ns: int, clock: Callable[[], int]) -> None:
        self._producer, self._duration_ns, self._clock = producer, duration_ns, clock
        #: Start of the open transaction; None: none is open.
        self._began_ns: int | None = None
        self._commits = Histogram()

    def begin(self) -> None:
        """Begins a transaction, if none is open. To be called before records are sent. Raises: KafkaError."""
        if self._began_ns is None:
            self._producer.begin()
            self._began_ns = self._clock()

    def update(self) -> None:
        """Commits the transaction, if its time is over. Raises: KafkaError."""
        if self._began_ns is not None and self._clock() - self._began_ns >= self._duration_ns:
            self.commit()

    def commit(self) -> None:
        """Commits the open transaction, if there is one. Raises: KafkaError."""
        if self._began_ns is None:
            return
        self._began_ns = None
        before_ns = self._clock()
        self._producer.commit()
        self._commits.add(self._clock() - before_ns)

    def document(self) -> dict[str, Any]:
        """The field `transactions` of the result."""
        return {
            "committed": self._commits.count,
            "duration_ms": self._duration_ns // 1_000_000,
            "commit_ms": latency_document(self._commits),
        }
