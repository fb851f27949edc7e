"""Consuming in one line: `for record in ottla.consume("orders", group="billing")`. `consume` says what is committed, and when.

What was begun is ended when the loop is left, however it is left: what is done is committed, the group is left, connections are closed.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from ottla.client.consumer.consume import Course, planned
from ottla.client.consumer.record import ConsumerRecord
from ottla.client.sync.consumer import Consumer


class Records:
    """What `consume` gives: to be iterated over, in a `with` block or without. `consumer` is there for what goes beyond that: its lag, its
    metrics, commits of your own.
    """

    def __init__(self, consumer: Consumer, course: Course) -> None:
        self._course = course
        self._entered = False
        self.consumer = consumer

    def __enter__(self) -> Self:
        self.consumer.__enter__()
        self._entered = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.consumer.__exit__(kind, error, trace)

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Record after record."""
        delivery = self._course.consumer.delivery
        try:
            while self.consumer.wait_for(self._course.turn):
                yield from self._course.each()
            delivery.done()
        except BaseException:
            if not self._entered:
                delivery.not_done()
            raise
        finally:
            if not self._entered:
                self.close()

    def close(self) -> None:
        """Commit what is done, leave the group, close the connections."""
        self.consumer.close()


def consume(
    *topics: str,
    group: str = "",
    start: str | int | None = None,
    limit: int | None = None,
    timeout_ms: float | None = None,
    **settings: Any,
) -> Records:
    """Iterate over records of these topics: `for record in consume("orders", group="billing")`.

    With a `group`, its members share the topics, and what the loop is done with is committed: each record is worked on at least once. Left
    by `break` or an exception, the loop does not count the record it was at as done; in a `with` block, `break` does. `start` says where a
    group without offsets begins: "start" (the default), "end", or "-1h", which stands for an hour ago. Without a group a topic may say it
    itself, and where to end: `"orders@-1h:end"`, `"orders/0,2@100:200"`; see `ottla.client.fetch.ranges`.

    The loop ends after `limit` records, when none came for `timeout_ms`, or at the end of what it reads. `settings` are those of
    `Consumer`, with its `key_deserializer`, `value_deserializer` and `interceptors`.

    Raises: BadRange, ValueError, ConfigError for what cannot be understood.
    """
    parts, found = planned(topics, group, start, settings)
    consumer = Consumer(**found)
    return Records(consumer, Course(consumer.core, parts, limit, timeout_ms))
