"""Arithmetic on offsets: what a trigger may read, and how it is split into tasks. Pure.

Spark's checkpoint stores the offsets of a stream as JSON in the format of Spark's own Kafka source::

    {"orders": {"0": 42, "1": 7}, "orders@LIeAabMfRL2txo2zNgl8dw": {}}

An end offset is exclusive: 42 records of partition 0 have been read. The second entry holds the topic id of the first (topic names have no
@). It detects a topic that was deleted and created again. Readers that do not know ids, such as Spark's Kafka source, see a topic without
partitions and skip it. Brokers before Kafka 2.8 have no ids.

The order of topics and partitions is fixed (names, then numbers): Spark compares offsets as text, so another order would start an empty
batch.

From the log to tasks, by bytes::

    partition 0  |----- 90 MB -----|     split    |--- 45 MB ---|--- 45 MB ---|      task 1, task 2
    partition 1  |- 1 MB -|              pack     |- 1 MB -| + partition 2 |- 3 MB -|   task 3
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil
from typing import Any

from ottla.base.ids import TopicPartition

#: Special offsets in Kafka's JSON and on the wire (ListOffsets).
LATEST = -1
EARLIEST = -2
#: Between a topic's name and its id.
ID = "@"

#: A smaller split costs more in scheduling (10-20 ms a task) than it saves: 100,000 records take about 50 ms to read.
SPLIT_RECORDS_MIN = 100_000
#: The same in bytes on disk, which may be compressed, for records of about 100 bytes.
SPLIT_BYTES_MIN = 10_000_000
#: Error allowed in sums of fractions.
ROUNDING = 1e-6
#: Largest task, as a multiple of the smallest split: a cluster may have many more cores than the driver.
TASK_PIECES_MAX = 32


class OffsetsError(ValueError):
    """Invalid text of offsets or partitions. The message says what is expected."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Records ``[start, end)`` of one partition. Invariant: ``start < end``."""

    topic: str
    partition: int
    start: int
    end: int
    #: Of the topic for which it was planned; empty if unknown.
    topic_id: str = ""

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def __len__(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.start}, {self.end})"


#: The size of a range, in bytes or records.
Weight = Callable[[OffsetRange], float]


def to_json(offsets: Mapping[TopicPartition, int], ids: Mapping[str, str] | None = None) -> dict[str, dict[str, int]]:
    """The nested JSON form in the fixed order, with the ids of topics that have one."""
    nested: dict[str, dict[str, int]] = {}
    for topic, partition in sorted(offsets):
        nested.setdefault(topic, {})[str(partition)] = offsets[TopicPartition(topic, partition)]
    known = ids or {}
    nested.update({f"{topic}{ID}{known[topic]}": {} for topic in list(nested) if topic in known})
    return nested


def topic_ids_in(nested: Mapping[str, Any]) -> dict[str, str]:
    """The ids of topics in a nested form."""
    return dict(name.split(ID, 1) for name in nested if ID in name)


def compare_topic_ids(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str | None]:
    """For each topic with an id before and now: None if it is the same, else a description of the change."""
    both = sorted(before.keys() & now.keys())
    return {topic: None if before[topic] == now[topic] else f"(its id was {before[topic]} and is {now[topic]})" for topic in both}


def from_json(nested: Any) -> dict[TopicPartition, int]:
    """The offsets of a nested form.

    Raises: OffsetsError if it is not ``{"topic": {"partition": number}}``.
    """
    if not isinstance(nested, Mapping):
        raise OffsetsError('expected {"topic": {"partition": offset}}, such as {"orders": {"0": 42, "1": -2}}')
    offsets: dict[TopicPartition, int] = {}
    for topic, partitions in nested.items():
        if not isinstance(partitions, Mapping):
            raise OffsetsError(f'topic {topic!r}: expected {{"partition": offset}}, not {partitions!r}')
        for partition, offset in partitions.items():
            if not str(partition).isdigit() or isinstance(offset, bool) or not isinstance(offset, int):
                raise OffsetsError(f"topic {topic!r}: expected a partition number and a whole number, not {partition!r}: {offset!r}")
            offsets[TopicPartition(str(topic), int(partition))] = offset
    return offsets


def offsets_in(value: Any) -> dict[TopicPartition, int] | None:
    """The offsets of a source in a query's progress or checkpoint, JSON or decoded; None without them, as for files."""
    try:
        return None if value is None else from_json((json.loads(value) if isinstance(value, str) else value) or {})
    except ValueError:
        return None


def ranges_between(
    start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], ids: Mapping[str, str] | None = None
) -> list[OffsetRange]:
    """The non-empty ranges from `start` to `end`, in the fixed order. `start` must hold every partition of `end`. `ids`: topic ids."""
    known = ids or {}
    return [OffsetRange(tp.topic, tp.partition, start[tp], end[tp], known.get(tp.topic, "")) for tp in sorted(end) if start[tp] < end[tp]]


def admit(
    start: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int], *, records_max: int | None
) -> dict[TopicPartition, int]:
    """The end offsets of one trigger: `latest`, or a part of it if the backlog exceeds `records_max`.

    The limit is divided in proportion to each partition's backlog. Every partition with a backlog gets at least one record, so none
    starves; the sum may exceed the limit by less than the number of partitions. Never below `start`.
    """
    backlog = {tp: max(0, latest[tp] - start[tp]) for tp in latest}
    total = sum(backlog.values())
    if records_max is None or total <= records_max:
        return {tp: start[tp] + backlog[tp] for tp in latest}
    return {tp: start[tp] + min(size, max(1, records_max * size // total) if size else 0) for tp, size in backlog.items()}


def plan_tasks(
    ranges: Iterable[OffsetRange],
    *,
    tasks_min: int | None,
    records_per_task_max: int | None,
    cores: int,
    bytes_per_offset: Mapping[TopicPartition, float] | None = None,
) -> list[tuple[OffsetRange, ...]]:
    """Tasks of about equal size that together read `ranges` once.

    With `tasks_min` or `records_per_task_max` (minPartitions and maxRecordsPerPartition) each piece is one task, as in Spark's Kafka
    source. Otherwise large ranges are split so that each core of this machine has the same work, in one or several tasks
    (`TASK_PIECES_MAX`), and small ranges share a task.

    Sizes are bytes, estimated by `bytes_per_offset`; a partition that it lacks gets the average. If it is empty, sizes are offsets.
    """
    pieces = list(ranges)
    weight, share_min = _weight(pieces, bytes_per_offset or {})
    if records_per_task_max is not None:
        pieces = [piece for whole in pieces for piece in _cut(whole, -(-len(whole) // records_per_task_max))]
    if tasks_min is not None:
        pieces = _split_to(pieces, tasks_min, weight)
    if tasks_min is not None or records_per_task_max is not None:
        return [(piece,) for piece in pieces]
    total, cores = sum(map(weight, pieces)), max(1, cores)
    rounds = max(1, ceil(total / (TASK_PIECES_MAX * share_min * cores) - ROUNDING))
    share = max(share_min, total / (rounds * cores))
    return _pack([piece for whole in pieces for piece in _cut(whole, ceil(weight(whole) / share - ROUNDING))], share, weight)


def _weight(ranges: list[OffsetRange], bytes_per_offset: Mapping[TopicPartition, float]) -> tuple[Weight, float]:
    """The size function of a range, and the size of the smallest piece that is worth a task, in the same unit."""
    known = [one for one in ranges if bytes_per_offset.get(one.tp, 0) > 0]
    if not known:
        return len, SPLIT_RECORDS_MIN
    usual = sum(len(one) * bytes_per_offset[one.tp] for one in known) / sum(map(len, known))
    return lambda one: len(one) * (bytes_per_offset.get(one.tp, 0) or usual), SPLIT_BYTES_MIN


def _split_to(pieces: list[OffsetRange], tasks_min: int, weight: Weight) -> list[OffsetRange]:
    """Splits the larger ranges in proportion to their size into about `tasks_min` pieces."""
    total = sum(map(weight, pieces))
    if len(pieces) >= tasks_min or total == 0:
        return pieces
    return [piece for whole in pieces for piece in _cut(whole, max(1, round(tasks_min * weight(whole) / total)))]


def _cut(whole: OffsetRange, parts: int) -> list[OffsetRange]:
    """`whole` as at most `parts` non-empty pieces whose sizes differ by at most one."""
    parts = max(1, min(parts, len(whole)))
    bounds = [whole.start + len(whole) * index // parts for index in range(parts + 1)]
    return [replace(whole, start=low, end=high) for low, high in pairwise(bounds)]


def _pack(pieces: list[OffsetRange], share: float, weight: Weight) -> list[tuple[OffsetRange, ...]]:
    """First-fit decreasing: largest piece first, each into the first task with room."""
    tasks: list[list[OffsetRange]] = []
    room: list[float] = []
    for piece in sorted(pieces, key=weight, reverse=True):
        size = weight(piece)
        for index, left in enumerate(room):
            if size <= left + ROUNDING * share:
                tasks[index].append(piece)
                room[index] -= size
                break
        else:
            tasks.append([piece])
            room.append(share - size)
    return [tuple(task) for task in tasks]
