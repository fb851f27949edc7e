"""Limits, splits and the JSON form of offsets."""

from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from ottla.base.ids import TopicPartition
from ottla.spark.source.offset_ranges import (
    OffsetRange,
    admit,
    compare_topic_ids,
    from_json,
    plan_tasks,
    ranges_between,
    to_json,
    topic_ids_in,
)

PARTITIONS = st.builds(TopicPartition, st.sampled_from(["a", "b"]), st.integers(0, 11))
OFFSETS = st.dictionaries(PARTITIONS, st.integers(0, 10_000), max_size=8)
RANGES = st.dictionaries(PARTITIONS, st.tuples(st.integers(0, 10**6), st.integers(1, 10**6)), min_size=1, max_size=6).map(
    lambda spans: [OffsetRange(tp.topic, tp.partition, low, low + size) for tp, (low, size) in sorted(spans.items())]
)


def covered(tasks: list[tuple[OffsetRange, ...]]) -> dict[TopicPartition, list[tuple[int, int]]]:
    """The ranges of each partition, with adjacent ones joined."""
    spans: dict[TopicPartition, list[tuple[int, int]]] = {}
    for piece in sorted((piece for task in tasks for piece in task), key=lambda piece: (piece.topic, piece.partition, piece.start)):
        found = spans.setdefault(TopicPartition(piece.topic, piece.partition), [])
        if found and found[-1][1] == piece.start:
            found[-1] = (found[-1][0], piece.end)
        else:
            found.append((piece.start, piece.end))
    return spans


@given(OFFSETS)
def test_offsets_round_trip_through_json(offsets: dict[TopicPartition, int]) -> None:
    assert from_json(to_json(offsets)) == offsets


def test_partitions_are_written_in_numeric_order() -> None:
    assert list(to_json({TopicPartition("a", 10): 1, TopicPartition("a", 9): 1})["a"]) == ["9", "10"]


def test_offsets_contain_topic_ids_that_other_readers_ignore() -> None:
    offsets = {TopicPartition("a", 0): 1, TopicPartition("b", 0): 2}
    nested = to_json(offsets, {"a": "LIeAabMfRL2txo2zNgl8dw", "c": "?"})
    assert nested == {"a": {"0": 1}, "b": {"0": 2}, "a@LIeAabMfRL2txo2zNgl8dw": {}}
    assert from_json(nested) == offsets
    assert topic_ids_in(nested) == {"a": "LIeAabMfRL2txo2zNgl8dw"}


def test_a_topic_with_another_id_is_another_topic() -> None:
    assert compare_topic_ids({"a": "1", "b": "1"}, {"a": "1", "b": "2", "c": "3"}) == {"a": None, "b": "(its id was 1 and is 2)"}


@given(OFFSETS, st.integers(1, 5_000))
def test_a_trigger_stays_within_the_backlog_and_about_within_its_limit(latest: dict[TopicPartition, int], records_max: int) -> None:
    start = {tp: offset // 3 for tp, offset in latest.items()}
    end = admit(start, latest, records_max=records_max)
    assert all(start[tp] <= end[tp] <= latest[tp] for tp in latest)
    assert sum(end[tp] - start[tp] for tp in latest) <= records_max + len(latest)


@given(OFFSETS, st.integers(1, 5_000))
def test_every_partition_with_a_backlog_advances(latest: dict[TopicPartition, int], records_max: int) -> None:
    start = dict.fromkeys(latest, 0)
    end = admit(start, latest, records_max=records_max)
    assert all(end[tp] > 0 for tp in latest if latest[tp])


def test_an_end_below_the_start_is_ignored() -> None:
    tp = TopicPartition("a", 0)
    assert admit({tp: 9}, {tp: 4}, records_max=None) == {tp: 9}
    assert ranges_between({tp: 9}, {tp: 9}) == []


@given(RANGES, st.none() | st.integers(1, 40), st.none() | st.integers(20_000, 10**6), st.integers(1, 8))
def test_tasks_read_each_record_once(
    ranges: list[OffsetRange], tasks_min: int | None, records_per_task_max: int | None, cores: int
) -> None:
    tasks = plan_tasks(ranges, tasks_min=tasks_min, records_per_task_max=records_per_task_max, cores=cores)
    assert covered(tasks) == covered([(piece,) for piece in ranges])
    assert sum(len(piece) for task in tasks for piece in task) == sum(map(len, ranges))


@given(RANGES, st.integers(1_000, 10**6))
def test_no_task_exceeds_the_users_limit(ranges: list[OffsetRange], records_per_task_max: int) -> None:
    tasks = plan_tasks(ranges, tasks_min=None, records_per_task_max=records_per_task_max, cores=2)
    assert all(len(task) == 1 and len(task[0]) <= records_per_task_max for task in tasks)


def test_one_large_partition_is_split_over_all_cores() -> None:
    tasks = plan_tasks([OffsetRange("a", 0, 0, 1_000_000)], tasks_min=None, records_per_task_max=None, cores=4)
    assert [len(task[0]) for task in tasks] == [250_000] * 4


def test_small_partitions_share_a_task() -> None:
    tasks = plan_tasks([OffsetRange("a", number, 0, 10) for number in range(100)], tasks_min=None, records_per_task_max=None, cores=2)
    assert len(tasks) == 1


BYTES = st.dictionaries(st.builds(TopicPartition, st.sampled_from("abc"), st.integers(0, 5)), st.floats(0, 1e5), max_size=8)


@given(RANGES, BYTES, st.none() | st.integers(1, 40), st.integers(1, 8))
def test_tasks_split_by_bytes_read_each_record_once(
    ranges: list[OffsetRange], sizes: dict[TopicPartition, float], tasks_min: int | None, cores: int
) -> None:
    tasks = plan_tasks(ranges, tasks_min=tasks_min, records_per_task_max=None, cores=cores, bytes_per_offset=sizes)
    assert covered(tasks) == covered([(piece,) for piece in ranges])
    assert sum(len(piece) for task in tasks for piece in task) == sum(map(len, ranges))


@given(st.lists(st.tuples(st.integers(1, 10**7), st.floats(1, 10_000)), min_size=1, max_size=20), st.integers(1, 16))
def test_no_task_exceeds_its_share_of_the_bytes_by_more_than_one_offset(partitions: list[tuple[int, float]], cores: int) -> None:
    sizes = {TopicPartition("a", number): size for number, (_, size) in enumerate(partitions)}
    ranges = [OffsetRange("a", number, 0, count) for number, (count, _) in enumerate(partitions)]
    tasks = plan_tasks(ranges, tasks_min=None, records_per_task_max=None, cores=cores, bytes_per_offset=sizes)
    total = sum(count * size for count, size in partitions)
    rounds = max(1, ceil(total / (320_000_000 * cores) - 1e-6))
    share = max(10_000_000, total / (rounds * cores))
    assert all(sum(len(piece) * sizes[piece.tp] for piece in task) <= share * 1.001 + max(sizes.values()) for task in tasks)
    # Two tasks of half the size may be adjacent.
    assert len(tasks) <= 2 * rounds * cores + 1 or total < cores * 10_000_000


def test_a_task_has_its_limit_however_few_cores_the_driver_has() -> None:
    ranges = [OffsetRange("a", number, 0, 3_200_000) for number in range(64)]
    for sizes in ({one.tp: 100.0 for one in ranges}, None):
        tasks = plan_tasks(ranges, tasks_min=None, records_per_task_max=None, cores=2, bytes_per_offset=sizes)
        assert [len(task) for task in tasks] == [1] * 64
    # As many on each core.
    tasks = plan_tasks([OffsetRange("a", 0, 0, 7_000_000)], tasks_min=None, records_per_task_max=None, cores=2)
    assert [len(task[0]) for task in tasks] == [1_750_000] * 4


def test_a_partition_is_split_by_bytes_rather_than_records() -> None:
    ranges = [OffsetRange("a", 0, 0, 100_000), OffsetRange("a", 1, 0, 100_000)]
    sizes = {TopicPartition("a", 0): 1_000.0, TopicPartition("a", 1): 10.0}
    tasks = plan_tasks(ranges, tasks_min=None, records_per_task_max=None, cores=4, bytes_per_offset=sizes)
    assert sorted(sum(len(piece) * sizes[piece.tp] for piece in task) // 1_000_000 for task in tasks) == [1, 25, 25, 25, 25]
    tasks = plan_tasks(ranges, tasks_min=10, records_per_task_max=None, cores=1, bytes_per_offset=sizes)
    assert [sum(piece.partition == number for task in tasks for piece in task) for number in (0, 1)] == [10, 1]


def test_a_partition_of_unknown_size_gets_the_average() -> None:
    ranges = [OffsetRange("a", number, 0, 100_000) for number in (0, 1)]
    tasks = plan_tasks(ranges, tasks_min=4, records_per_task_max=None, cores=1, bytes_per_offset={TopicPartition("a", 0): 500.0})
    assert [task[0].partition for task in tasks] == [0, 0, 1, 1]


def test_min_partitions_splits_the_larger_ranges() -> None:
    ranges = [OffsetRange("a", 0, 0, 900), OffsetRange("a", 1, 0, 100)]
    tasks = plan_tasks(ranges, tasks_min=10, records_per_task_max=None, cores=2)
    assert [len(task[0]) for task in tasks] == [100] * 10
