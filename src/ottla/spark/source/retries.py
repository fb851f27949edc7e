"""Offsets asked for again, as often and at such a distance as fetchOffset.numRetries and fetchOffset.retryIntervalMs say.

The client itself waits for brokers that come back, as long as its own settings let it. This is for what it gives up over and what may pass
nevertheless.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from ottla.base.ids import TopicPartition
from ottla.spark.source.data_loss import logger
from ottla.spark.source.starting_offsets import Catalog, Offsets
from ottla.wire.errors import KafkaError

T = TypeVar("T")


class Retrying:
    """A catalog that is asked again after errors that may pass. Methods raise the last error."""

    def __init__(self, catalog: Catalog, retries: int, interval_ms: int, sleep: Callable[[float], None] = time.sleep) -> None:
        self._catalog = catalog
        self._retries = retries
        self._interval_s = interval_ms / 1000
        self._sleep = sleep

    def topics(self, names: Sequence[str] | None = None) -> dict[str, int]:
        return self._answer(lambda: self._catalog.topics(names))

    def end_offsets(self, partitions: Sequence[TopicPartition], at: int) -> Offsets:
        return self._answer(lambda: self._catalog.end_offsets(partitions, at))

    def offsets_at(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        return self._answer(lambda: self._catalog.offsets_at(times_ms))

    def committed(self, group: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int | None]:
        return self._answer(lambda: self._catalog.committed(group, partitions))

    def _answer(self, ask: Callable[[], T]) -> T:
        left = self._retries
        while True:
            try:
                return ask()
            except KafkaError as error:
                if not left or not error.retriable:
                    raise
                logger.warning("offsets are asked for again in %d ms: %s", self._interval_s * 1000, error)
            left -= 1
            self._sleep(self._interval_s)
