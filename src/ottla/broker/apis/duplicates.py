"""Requests that name a partition more than once.

Kafka collects the partitions of a Produce, Fetch, DeleteRecords or ListOffsets request in a map. The last entry of a partition counts, and
the response names the partition once. Source: Kafka's KafkaApis and FetchRequest.
"""

from collections.abc import Hashable, Iterable
from typing import TypeVar

T = TypeVar("T", bound=Hashable)
V = TypeVar("V")


def by_topic(entries: Iterable[tuple[T, int, V]]) -> dict[T, dict[int, V]]:
    """Groups (topic, partition, value): the last value of each partition, in the order of first appearance."""
    found: dict[T, dict[int, V]] = {}
    for topic, partition, value in entries:
        found.setdefault(topic, {})[partition] = value
    return found
