"""How far a query is, published as the committed offsets of a consumer group, so that every tool that shows lag shows the query's.

When a micro-batch is done is known in these places, and nowhere else:

    the source asks for the next batch     Spark hands `latestOffset` the end of the batch it has finished: the group is committed there.
                                           With Trigger.AvailableNow that comes after the last batch too. With a trigger of an interval it
                                           comes when the next one is due; a query that is stopped before commits at its next start
    a listener of the query's session      `publish_progress`: at once after each batch, the last one before a stop included
    foreachBatch                           `commit_progress` with the offsets that were done

A commit is a note for others: Spark's checkpoint decides where a query goes on. So a commit that fails is a warning, and the next one
carries what it would have said. The group has no members; while consumers of that name are in it, the brokers refuse.
"""

import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ottla.base.ids import TopicPartition
from ottla.spark.source.offset_ranges import from_json
from ottla.wire.errors import KafkaError

logger = logging.getLogger("ottla.spark")

#: Spark asks many times a second, and a commit that nobody answers takes seconds.
PAUSE_MIN_S, PAUSE_MAX_S = 1.0, 60.0
#: In what Spark calls a source in Python in a query's progress.
PYTHON_SOURCE = "PythonMicroBatchStream"


class Groups(Protocol):
    """What is needed of a cluster."""

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None: ...


class ProgressGroup:
    """A query's group. Commits what changed; where that was refused, not again for a while that doubles, from a second to a minute."""

    def __init__(self, group: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.group = group
        self.committed: dict[TopicPartition, int] = {}
        self._clock = clock
        self._pause_s = 0.0
        self._again_s = 0.0
        self._said = ""

    def publish(self, groups: Groups, done: Mapping[TopicPartition, int]) -> bool:
        """Commit the end of what was read, exclusive; False when that cannot be, with a warning for each reason that is new."""
        news = {tp: offset for tp, offset in done.items() if self.committed.get(tp) != offset}
        if not news:
            return True
        if self._pause_s and self._clock() < self._again_s:
            return False
        try:
            groups.commit(self.group, news)
        except (KafkaError, OSError) as error:
            self._pause_s = min(self._pause_s * 2, PAUSE_MAX_S) or PAUSE_MIN_S
            self._again_s = self._clock() + self._pause_s
            if str(error) != self._said:
                self._said, where = str(error), to_text(news)
                logger.warning("consumer group %s is not told how far the query is (%s), which goes on: %s", self.group, where, error)
            return False
        self._pause_s, self._said = 0.0, ""
        self.committed.update(news)
        return True


def to_text(offsets: Mapping[TopicPartition, int]) -> str:
    return ", ".join(f"{tp} at {offset}" for tp, offset in sorted(offsets.items()))


def commit_progress(bootstrap: str, group: str, offsets: Any, client: Mapping[str, str] | None = None) -> bool:
    """Commit offsets for a group: Spark's end offsets as a dict or as JSON, ``{"orders": {"0": 42}}``. False, and a warning, when the
    brokers refuse or cannot be reached.

    `client`: further settings of the client in Kafka's dotted names.

    Raises: OffsetsError for what are no offsets.
    """
    from ottla.spark.source.log_client import open_log

    given = json.loads(offsets) if isinstance(offsets, str) else offsets
    return ProgressGroup(group).publish(open_log(bootstrap, client or {}), from_json(given))


def publish_progress(session: Any, bootstrap: str, group: str, *, query: str | None = None, client: Mapping[str, str] | None = None) -> Any:
    """Commit the progress of a session's streaming queries for a group after each batch, the last one included; gives the listener, which
    ``session.streams.removeListener`` takes away.

    `query` is the name of the one query to follow; None: all queries of which a source is ``format("ottla")``.
    """
    from pyspark.sql.streaming import StreamingQueryListener

    from ottla.spark.source.log_client import open_log

    follower = ProgressGroup(group)

    class Listener(StreamingQueryListener):  # type: ignore[misc]
        def onQueryStarted(self, event: Any) -> None: ...

        def onQueryProgress(self, event: Any) -> None:
            if query is not None and event.progress.name != query:
                return
            for source in event.progress.sources:
                done = _offsets_of(source)
                if done:
                    follower.publish(open_log(bootstrap, client or {}), done)

        def onQueryIdle(self, event: Any) -> None: ...

        def onQueryTerminated(self, event: Any) -> None: ...

    listener = Listener()
    session.streams.addListener(listener)
    return listener


def _offsets_of(source: Any) -> dict[TopicPartition, int]:
    """Where a source stands in a query's progress; none for a source of another kind."""
    if PYTHON_SOURCE not in source.description or not source.endOffset:
        return {}
    try:
        return from_json(json.loads(source.endOffset))
    except ValueError:
        return {}
