"""The target offsets of a reset, and the files that store offsets."""

from __future__ import annotations

import pytest

from ottla.base.ids import TopicPartition
from ottla.client.admin import offset_resets as resets
from ottla.client.admin.offset_resets import Move, PartitionOffsets, Policy, moves, read_offsets, write_csv

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def moved(policy: Policy, committed: int | None = 50, start: int = 10, end: int = 100) -> tuple[int | None, str]:
    """The target offset of one partition, and the note."""
    (move,) = moves({A: PartitionOffsets(committed, start, end)}, policy)
    assert (move.partition, move.committed) == (A, committed)
    return move.target, move.note


@pytest.mark.parametrize(
    ("policy", "target"),
    [
        (resets.to_earliest, 10),
        (resets.to_latest, 100),
        (resets.to_current, 50),
        (resets.to_offset(77), 77),
        (resets.shift_by(20), 70),
        (resets.shift_by(-20), 30),
        (resets.to_time({A: 42}), 42),
        (resets.to_given({A: 33}, "the file"), 33),
    ],
)
def test_each_policy_moves_as_named(policy: Policy, target: int) -> None:
    assert moved(policy) == (target, "")


@pytest.mark.parametrize(
    ("policy", "target", "note"),
    [
        (resets.to_offset(9), 10, "9 is before the start of the log"),
        (resets.to_offset(101), 100, "101 is after the end of the log"),
        (resets.shift_by(-41), 10, "9 is before the start of the log"),
        (resets.shift_by(51), 100, "101 is after the end of the log"),
        (resets.to_given({A: 0}, "the file"), 10, "0 is before the start of the log"),
    ],
)
def test_a_target_outside_of_the_log_is_clipped(policy: Policy, target: int, note: str) -> None:
    assert moved(policy) == (target, note)


def test_a_reset_can_move_to_both_ends_of_the_log() -> None:
    assert (moved(resets.to_offset(10)), moved(resets.to_offset(100))) == ((10, ""), (100, ""))


def test_a_current_offset_below_the_log_start_moves_to_the_start() -> None:
    assert moved(resets.to_current, committed=3) == (10, "3 is before the start of the log")


def test_without_a_committed_offset_current_means_the_end() -> None:
    assert moved(resets.to_current, committed=None) == (100, "nothing was committed")


@pytest.mark.parametrize("found", [{A: -1}, {}])
def test_a_time_after_the_last_record_means_the_end(found: dict[TopicPartition, int]) -> None:
    assert moved(resets.to_time(found)) == (100, "nothing was written since")


def test_a_partition_without_a_usable_target_does_not_change() -> None:
    assert moved(resets.shift_by(5), committed=None) == (None, "nothing was committed, so there is nothing to shift")
    assert moved(resets.to_given({B: 5}, "group x")) == (None, "group x has no offset for it")


def test_moves_are_ordered_by_topic_and_partition() -> None:
    others = [TopicPartition("u", 0), TopicPartition("t", 10), B, A]
    planned = moves(dict.fromkeys(others, PartitionOffsets(None, 0, 5)), resets.to_latest)
    assert [move.partition for move in planned] == [A, B, TopicPartition("t", 10), TopicPartition("u", 0)]


# -- files


def test_written_csv_is_read_back() -> None:
    odd = TopicPartition('with,"comma', 3)
    text = write_csv([Move(A, 1, 7), Move(B, 2, None, "left"), Move(odd, None, 0)])
    assert text.splitlines()[0] == "t,0,7"
    assert read_offsets(text, "g") == {A: 7, odd: 0}


def test_kafkas_csv_is_read_with_groups_blanks_and_a_header() -> None:
    assert read_offsets('"t",0,7\n\n"t", 1, 8\n', "g") == {A: 7, B: 8}
    assert read_offsets("topic,partition,offset\nt,0,7\n", "g") == {A: 7}
    assert read_offsets("other,t,0,1\ng,t,0,7\ng,t,1,8\n", "g") == {A: 7, B: 8}


@pytest.mark.parametrize("field", ["offset", "to", "committed_offset"])
def test_json_offsets_are_read_under_each_printed_name(field: str) -> None:
    row = f'{{"topic": "t", "partition": 0, "{field}": 7}}'
    assert read_offsets(f"[{row}]", "g") == {A: 7}
    assert read_offsets(f'{{"group": "g", "partitions": [{row}]}}', "g") == {A: 7}
    assert read_offsets(f' [{{"group": "x", "partitions": []}}, {{"group": "g", "partitions": [{row}]}}]', "g") == {A: 7}


def test_json_of_another_single_group_applies_to_this_group() -> None:
    assert read_offsets('[{"group": "x", "partitions": [{"topic": "t", "partition": 0, "committed_offset": 7}]}]', "g") == {A: 7}


def test_partitions_without_an_offset_are_left_out() -> None:
    rows = '[{"topic": "t", "partition": 0, "offset": null}, {"topic": "t", "partition": 1, "offset": 2}]'
    assert read_offsets(rows, "g") == {B: 2}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no offsets"),
        ("other,t,0,1\n", "no offsets"),
        ("t,0,7\nt,x,8\n", "line 2: expected topic,partition,offset"),
        ("t,0\n", "line 1: expected topic,partition,offset"),
        ("t,0,-1\n", "line 1: .* from 0 on"),
        ("t,-1,1\n", "line 1: .* from 0 on"),
        (",0,1\n", "line 1: .* a topic and a number"),
        ("[", "no JSON"),
        ('[{"topic": "t", "partition": 0}]', "entry 1 needs topic, partition and offset or to or committed_offset"),
        ('[{"topic": "t", "partition": "0", "offset": 1}]', "entry 1 needs"),
        ('[{"topic": "t", "partition": 0, "offset": 1.5}]', "entry 1 needs"),
        ("[3]", "entry 1 needs"),
        ('[{"group": "x", "partitions": []}, {"group": "y", "partitions": []}]', "holds 2 groups, none of them g"),
        ('{"group": "g"}', "holds 0 groups, none of them g"),
    ],
)
def test_an_invalid_file_is_refused_with_the_line(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_offsets(text, "g")
