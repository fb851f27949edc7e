"""Lookup of offsets by timestamp."""

import pytest
from log_builders import NOW_MS, a_batch, a_log, a_marker, append

from ottla.base.ids import LeaderEpoch, Offset
from ottla.log.lookup import TimedOffset
from ottla.records.batch import parse_header, stamp_append_time
from ottla.records.compression import Codec


def at(timestamp_ms: int, offset: int, epoch: int) -> TimedOffset:
    return TimedOffset(timestamp_ms, Offset(offset), LeaderEpoch(epoch))


@pytest.mark.parametrize("codec", list(Codec))
def test_the_first_record_late_enough_is_found_inside_its_batch(codec: Codec) -> None:
    log = a_log()
    for number in range(5):
        append(log, 4, timestamps=[1000 * number + n * 100 for n in range(4)], codec=codec, epoch=number)
    assert log.offset_for_time(2150, upto=20) == at(2200, 10, 2)
    assert log.offset_for_time(2300, upto=20) == at(2300, 11, 2)
    assert log.offset_for_time(0, upto=20) == at(0, 0, 0)
    assert log.offset_for_time(4301, upto=20) is None


def test_the_first_in_the_log_wins_not_the_nearest_in_time() -> None:
    log = a_log(internal_segment_bytes=250)
    for stamp in (10, 50, 20, 90, 30, 40):
        append(log, timestamps=[stamp])
    assert [log.offset_for_time(t, upto=6) for t in (30, 51, 91)] == [at(50, 1, 0), at(90, 3, 0), None]


def test_records_at_or_above_the_bound_are_not_found_by_time() -> None:
    log = a_log()
    append(log, 2, timestamps=[10, 20])
    append(log, 2, timestamps=[30, 40])
    assert log.offset_for_time(30, upto=2) is None and log.offset_for_time(15, upto=2) == at(20, 1, 0)
    assert log.offset_for_time(15, upto=1) is None


def test_deleted_records_are_not_found_by_time_even_if_their_batch_remains() -> None:
    log = a_log()
    append(log, 3, timestamps=[10, 50, 20])
    append(log, 1, timestamps=[30])
    log.delete_before(2, NOW_MS)
    assert log.offset_for_time(15, upto=4) == at(20, 2, 0)
    assert log.offset_for_time(21, upto=4) == at(30, 3, 0)


def test_with_append_time_every_record_has_the_batchs() -> None:
    log = a_log()
    batch, _ = a_batch(3, timestamps=[1, 2, 3])
    stamp_append_time(batch, 0, 5000)
    log.append(batch, parse_header(batch), leader_epoch=0, now_ms=5000)
    assert log.offset_for_time(4, upto=3) == at(5000, 0, 0)


def test_the_largest_timestamp_is_that_of_the_first_record_that_has_it() -> None:
    log = a_log(internal_segment_bytes=250)
    assert log.max_timestamp(0) is None
    for stamps in ([10, 70], [70], [30, 20], [69]):
        append(log, len(stamps), timestamps=stamps, epoch=2)
    assert log.max_timestamp(log.end_offset) == at(70, 1, 2)
    append(log, 3, timestamps=[5, 90, 6], epoch=3)
    assert log.max_timestamp(log.end_offset) == at(90, 7, 3)
    assert log.max_timestamp(6) == at(70, 1, 2), "records above the bound do not count"


def test_records_without_timestamps_have_no_largest_one() -> None:
    log = a_log()
    append(log, 2, timestamps=[-1, -1])
    assert log.max_timestamp(2) is None and log.offset_for_time(0, upto=2) is None


def test_control_batches_have_a_time_too() -> None:
    log = a_log()
    append(log, 1, timestamps=[10])
    a_marker(log, 4, commit=True, now_ms=99)
    assert log.offset_for_time(50, upto=2) == at(99, 1, 0)


def test_a_time_index_that_points_behind_the_record_is_not_believed() -> None:
    log = a_log(index_interval_bytes=0)
    for number in range(30):
        append(log, timestamps=[1000 + number])
    times = log.active.times
    entries = times.entries()
    times.clear()
    for timestamp, offset in entries[:-1]:
        times.append(timestamp - 3, offset)
    times.append(*entries[-1])
    assert log.offset_for_time(1010, upto=30) == at(1010, 10, 0)
