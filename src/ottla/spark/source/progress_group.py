"""Publishes a query's progress as committed offsets of a consumer group, so that every tool that shows lag shows the query's lag.

The end of a micro-batch is known in three places only:

    the source, at the next batch         Spark passes the end of the finished batch to `latestOffset`, which commits it. With
                                          Trigger.AvailableNow this happens after the last batch too. With an interval trigger it happens
                                          when the next batch is due; a query that stops earlier commits at its next start
    a listener of the query's session     `publish_progress`: directly after each batch, the last one before a stop included
    foreachBatch                          `commit_progress` with the offsets of the batch

Commits are only for monitoring: Spark's checkpoint decides where a query resumes. So a failed commit is a warning, and the next commit
replaces it. The group has no members; brokers reject the commits while consumers are in the group.
"""

import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ottla.base.ids import TopicPartition
from ottla.spark.source.offset_ranges import from_json, offsets_in
from ottla.wire.errors import KafkaError

logger = logging.getLogger("ottla.spark")

#: Backoff of commits. Spark asks many times a second, and a commit without a response takes seconds.
BACKOFF_MIN_S, BACKOFF_MAX_S = 1.0, 60.0
#: Part of Spark's description of a Python source in a query's progress.
PYTHON_SOURCE = "PythonMicroBatchStream"


class OffsetCommitter(Protocol):
    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None: ...


class ProgressGroup:
    """Commits a query's changed offsets for a group. After a failure it backs off for 1 s to 60 s, doubling."""

    def __init__(self, group: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.group = group
        self.committed: dict[TopicPartition, int] = {}
        self._clock = clock
        self._backoff_s = 0.0
        self._retry_at_s = 0.0
        #: The last error that was logged; the same one is not logged twice in a row.
        self._logged = ""

    def publish(self, committer: OffsetCommitter, ends: Mapping[TopicPartition, int]) -> bool:
        """Commits end offsets (exclusive). Returns False on failure, and logs a warning for each new error."""
        changed = {tp: offset for tp, offset in ends.items() if self.committed.get(tp) != offset}
        if not changed:
            return True
        if self._backoff_s and self._clock() < self._retry_at_s:
            return False
        try:
            committer.commit(self.group, changed)
        except (KafkaError, OSError) as error:
            self._backoff_s = min(self._backoff_s * 2, BACKOFF_MAX_S) or BACKOFF_MIN_S
            self._retry_at_s = self._clock() + self._backoff_s
            if str(error) != self._logged:
                self._logged, offsets = str(error), ", ".join(f"{tp} at {offset}" for tp, offset in sorted(changed.items()))
                logger.warning("cannot commit progress for consumer group %s (%s); the query continues: %s", self.group, offsets, error)
            return False
        self._backoff_s, self._logged = 0.0, ""
        self.committed.update(changed)
        return True


def commit_progress(bootstrap: str, group: str, offsets: Any, client: Mapping[str, str] | None = None) -> bool:
    """Commits offsets for a group: Spark's end offsets as a dict or as JSON, ``{"orders": {"0": 42}}``.

    Returns False and logs a warning if the brokers refuse or cannot be reached. `client`: further client settings by Kafka's dotted names.

    Raises: OffsetsError for invalid offsets.
    """
    from ottla.spark.source.log_client import open_log_client

    nested = json.loads(offsets) if isinstance(offsets, str) else offsets
    return ProgressGroup(group).publish(open_log_client(bootstrap, client or {}), from_json(nested))


def publish_progress(session: Any, bootstrap: str, group: str, *, query: str | None = None, client: Mapping[str, str] | None = None) -> Any:
    """Commits the progress of a session's streaming queries for a group after each batch, the last one included.

    Returns the listener; remove it with ``session.streams.removeListener``. `query` is the name of the query to follow; None: all queries
    with a source of ``format("ottla")``.
    """
    from pyspark.sql.streaming import StreamingQueryListener

    from ottla.spark.source.log_client import open_log_client

    progress_group = ProgressGroup(group)

    class Listener(StreamingQueryListener):  # type: ignore[misc]
        def onQueryStarted(self, event: Any) -> None: ...

        def onQueryProgress(self, event: Any) -> None:
            if query is not None and event.progress.name != query:
                return
            for source in event.progress.sources:
                ends = _end_offsets_of(source)
                if ends:
                    progress_group.publish(open_log_client(bootstrap, client or {}), ends)

        def onQueryIdle(self, event: Any) -> None: ...

        def onQueryTerminated(self, event: Any) -> None: ...

    listener = Listener()
    session.streams.addListener(listener)
    return listener


def _end_offsets_of(source: Any) -> dict[TopicPartition, int]:
    """The end offsets of a source in a query's progress; empty for a source of another kind."""
    return (offsets_in(source.endOffset) if PYTHON_SOURCE in source.description else None) or {}
