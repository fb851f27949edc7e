"""Consuming in one line: `for record in ottla.consume("orders", group="billing")`. The docstring of `consume` defines what is committed.

When the loop is left in any way, finished records are committed, the group is left, and connections are closed.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Self, Unpack

from ottla.client.consumer.consume import ConsumeArguments, Course, planned
from ottla.client.consumer.record import ConsumerRecord
from ottla.client.sync.consumer import Consumer


class Records:
    """The result of `consume`: iterate over it, in a `with` block or without. `consumer` gives access to lag, metrics and manual
    commits."""

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
        """The records one by one."""
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
        """Commits finished records, leaves the group, closes connections."""
        self.consumer.close()


def consume(
    *topics: str,
    group: str = "",
    start: str | int | None = None,
    limit: int | None = None,
    timeout_ms: float | None = None,
    **settings: Unpack[ConsumeArguments],
) -> Records:
    """Iterates over records of these topics: `for record in consume("orders", group="billing")`.

    With a `group`, its members share the topics, and finished records are committed: at-least-once processing. After `break` or an
    exception the current record does not count as finished; in a `with` block it does after `break`. `start` is the initial position of a
    group without offsets: "start" (the default), "end", or "-1h" for an hour ago. Without a group a topic can have its own range:
    `"orders@-1h:end"`, `"orders/0,2@100:200"`; see `ottla.client.fetch.ranges`.

    The loop ends after `limit` records, when none arrived for `timeout_ms`, or at the end of its range. `settings` are those of `Consumer`,
    with its `key_deserializer`, `value_deserializer` and `interceptors`.

    Raises: BadRange, ValueError, ConfigError for invalid arguments.
    """
    parts, found = planned(topics, group, start, settings)
    consumer = Consumer(**found)
    try:
        return Records(consumer, Course(consumer.core, parts, limit, timeout_ms))
    except (TypeError, ValueError):
        consumer.close()
        raise
