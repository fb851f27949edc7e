"""Data loss: records that a query should have read and that are not there (any more), told precisely.

    cause       what is seen                                                     lost offsets
    -----       ------------                                                     ------------
    deleted     the log begins after where reading goes on (retention)           [wanted, first offset held)
    truncated   the log ends before where reading went on, and its topic is      [end of the log, wanted)
                the one it was
    topic gone  a partition that was read is not there                           [wanted, ?)
    recreated   the topic has another id: deleted, and created by the same name  [wanted, ?), and reading begins anew

Nothing else is loss. Offsets without a record inside of a log, as compaction, transactions and their markers leave them, are passed over
and never told.

    onDataLoss    failOnDataLoss    the query     the log (a warning)    dataLossReportTo
    fail          true (default)    ends          -                      a line
    warn          false             goes on       a line                 a line
    skip                            goes on       -                      a line

A task that Spark runs again tells its loss again.
"""

import logging
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from ottla.base.ids import TopicPartition

logger = logging.getLogger("ottla.spark")

OnDataLoss = Literal["fail", "warn", "skip"]
Cause = Literal["deleted", "truncated", "topic gone", "recreated"]


class DataLoss(RuntimeError):
    """Records that should have been read are gone, or were never there."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What is gone of one partition."""

    cause: Cause
    topic: str
    partition: int
    #: The lost offsets, `[lost_from, lost_to)`; `lost_to` is None where nobody can tell.
    lost_from: int
    lost_to: int | None
    #: The first offset that the log holds now; None where there is no log.
    earliest: int | None
    #: One clause: what should have been read, and what there is.
    sentence: str

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def report(self, now: datetime) -> dict[str, Any]:
        """The loss as a JSON object, with the time at which it was noticed."""
        return {"event": "data_loss", **asdict(self), "time": now.isoformat(timespec="milliseconds")}


@dataclass(slots=True)
class Losses:
    """What becomes of losses, as the user decided. Travels to the tasks."""

    on_data_loss: OnDataLoss = "fail"
    report_to: str | None = None
    #: Spark asks again and again for the same thing; each loss is told once in a process.
    told: set[Loss] = field(default_factory=set)

    def tell(self, loss: Loss) -> None:
        """Raises: DataLoss when a loss ends the query."""
        if loss not in self.told:
            self.told.add(loss)
            self._report(loss)
        if self.on_data_loss == "fail":
            raise DataLoss(
                f"{loss.sentence}. Set failOnDataLoss to false to go on with what there is (or onDataLoss to warn or skip), or start with "
                "a new checkpoint"
            )

    def _report(self, loss: Loss) -> None:
        report = loss.report(datetime.now(UTC))
        if self.on_data_loss == "warn":
            logger.warning("data loss: %s %s", loss.sentence, msgspec.json.encode(report).decode())
        if self.report_to is not None:
            try:
                with Path(self.report_to).open("ab") as file:
                    file.write(msgspec.json.encode(report) + b"\n")
            except OSError as error:
                # A report that cannot be kept must not be the reason why a query ends.
                logger.warning("the report of a data loss cannot be written: %s; it was %s", error, report)
