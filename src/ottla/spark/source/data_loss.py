"""Data loss: records that a query should have read and that no longer exist.

    cause       symptom                                                     lost offsets
    -----       -------                                                     ------------
    deleted     the log starts after the query's position (retention)       [position, log start offset)
    truncated   the log ends before the query's position; same topic id     [log end offset, position)
    topic gone  a partition that was read does not exist                    [position, ?)
    recreated   the topic has another id: it was deleted and created again  [position, ?); reading restarts at the log's start

Nothing else is data loss. Offsets without a record inside a log (compaction, transaction markers) are skipped silently.

    onDataLoss    failOnDataLoss    query         log (warning)    dataLossReportTo
    fail          true (default)    fails         -                a line
    warn          false             continues     a line           a line
    skip                            continues     -                a line

A task that Spark retries reports its loss again.
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
    """Records that should have been read do not exist."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Lost records of one partition."""

    cause: Cause
    topic: str
    partition: int
    #: The lost offsets, `[lost_from, lost_to)`; `lost_to` is None if unknown.
    lost_from: int
    lost_to: int | None
    #: The log start offset now; None if the log does not exist.
    earliest: int | None
    #: One clause: what should have been read, and what exists.
    sentence: str

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def report(self, now: datetime) -> dict[str, Any]:
        """The loss as a JSON object, with the time of detection."""
        return {"event": "data_loss", **asdict(self), "time": now.isoformat(timespec="milliseconds")}


@dataclass(slots=True)
class DataLossPolicy:
    """The user's choice of how to handle data loss. Pickled to the tasks."""

    on_data_loss: OnDataLoss = "fail"
    report_to: str | None = None
    #: Spark repeats its calls; each loss is reported once per process.
    reported: set[Loss] = field(default_factory=set)

    def handle(self, loss: Loss) -> None:
        """Raises: DataLoss if a loss fails the query."""
        if loss not in self.reported:
            self.reported.add(loss)
            self._report(loss)
        if self.on_data_loss == "fail":
            raise DataLoss(
                f"{loss.sentence}. Set failOnDataLoss to false (or onDataLoss to warn or skip) to continue with the remaining records, or "
                "start with a new checkpoint"
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
                # A failed report must not end the query.
                logger.warning("cannot write the report of a data loss: %s; the report is %s", error, report)
