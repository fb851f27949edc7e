"""Appending, rolling, and finding bytes by offset."""

from errno import ENOSPC

import pytest
from log_builders import NOW_MS, ORDERS, a_batch, a_log, append, flush, offsets, options, reopened

from ottla.base.ids import Offset
from ottla.log.errors import CorruptLog, OffsetOutOfRange
from ottla.records.batch import crc_ok, parse_header
from ottla.records.read import records
from ottla.sim.disk import SimDisk


def test_batches_get_offsets_one_after_the_other() -> None:
    log = a_log()
    first, second = append(log, 3), append(log, 2)
    assert (first.base_offset, first.last_offset, second.base_offset, second.last_offset) == (0, 2, 3, 4)
    assert log.end_offset == 5


def test_append_patches_offset_and_epoch_into_the_batch_and_leaves_its_crc_whole() -> None:
    log = a_log()
    append(log, 7)
    batch, header = a_batch(2)
    log.append(batch, header, leader_epoch=5, now_ms=NOW_MS)
    stored = log.read(7)
    assert parse_header(stored).base_offset == 7 and parse_header(stored).leader_epoch == 5
    assert crc_ok(stored) and stored == bytes(batch)


def test_appended_names_the_bytes_that_were_written() -> None:
    log = a_log()
    append(log, 1)
    done = append(log, 1)
    assert parse_header(done.file.read(done.position, done.size)).base_offset == done.base_offset == 1
    assert not done.rolled


def test_a_log_begins_a_new_segment_when_the_batch_would_exceed_segment_bytes() -> None:
    log = a_log(internal_segment_bytes=400)
    assert [append(log, 1, sizes=100).rolled for _ in range(5)] == [False, False, True, False, True]
    assert log.bases == [0, 2, 4]
    assert offsets(log) == [(number, number) for number in range(5)]


def test_a_batch_larger_than_segment_bytes_gets_a_segment_of_its_own() -> None:
    log = a_log(internal_segment_bytes=100)
    append(log, 1, sizes=500)
    append(log, 1, sizes=500)
    assert log.bases == [0, 1]


def test_a_segment_is_rolled_by_the_age_of_its_first_records_timestamp() -> None:
    log = a_log(segment_ms=1000)
    assert not append(log, at_ms=NOW_MS).rolled
    assert not append(log, at_ms=NOW_MS + 1000).rolled
    assert append(log, at_ms=NOW_MS + 1001).rolled
    assert not append(log, at_ms=NOW_MS + 2000).rolled


def test_the_clock_alone_does_not_roll_a_segment_whose_records_have_timestamps() -> None:
    log = a_log(segment_ms=1000)
    append(log, at_ms=NOW_MS)
    assert not append(log, at_ms=NOW_MS, now_ms=NOW_MS + 50_000).rolled


def test_without_timestamps_the_age_of_the_segment_itself_counts() -> None:
    log = a_log(segment_ms=1000)
    append(log, at_ms=-1, now_ms=NOW_MS)
    assert not append(log, at_ms=-1, now_ms=NOW_MS + 1000).rolled
    assert append(log, at_ms=-1, now_ms=NOW_MS + 1001).rolled


def test_jitter_takes_some_time_off_segment_ms_but_never_all_and_not_the_same_for_each_segment() -> None:
    log = a_log(segment_ms=1000, segment_jitter_ms=500, internal_segment_bytes=150)
    for _ in range(20):
        append(log, 1, sizes=50)
    taken = {segment.jitter_ms for segment in log.segments}
    assert all(0 <= ms < 500 for ms in taken) and len(taken) > 10


def test_a_segment_is_rolled_when_its_offset_index_is_full() -> None:
    log = a_log(index_interval_bytes=0, segment_index_bytes=40)
    for _ in range(12):
        append(log)
    assert log.bases[1] <= 6, "40 bytes hold five entries, and the first batch has none"


def test_a_segment_is_rolled_when_offsets_no_longer_fit_into_31_bits() -> None:
    log = a_log()
    append(log)
    log.end_offset = Offset(2**31 - 2)  # As if so many records had been appended.
    assert not append(log, 2).rolled
    assert append(log, 1).rolled
    assert log.bases == [0, 2**31]


def test_a_full_disk_refuses_the_append_and_leaves_the_log_as_it_was() -> None:
    disk = SimDisk()
    log = a_log(disk)
    append(log, 3)
    disk.capacity_bytes = disk.used_bytes + 20
    with pytest.raises(OSError, match="full") as caught:
        append(log, 3)
    assert caught.value.errno == ENOSPC
    assert (log.end_offset, log.size) == (3, log.active.file.size)
    disk.capacity_bytes = 1 << 30
    append(log, 1)
    assert offsets(log) == [(0, 2), (3, 3)]


def test_a_disk_that_is_full_when_a_segment_is_rolled_takes_the_batch_once_there_is_room() -> None:
    disk = SimDisk()
    log = a_log(disk, internal_segment_bytes=200, index_interval_bytes=0)
    append(log, 1, sizes=30)
    append(log, 1, sizes=30)
    disk.capacity_bytes = disk.used_bytes
    with pytest.raises(OSError, match="full"):
        append(log, 1, sizes=30)
    disk.capacity_bytes = 1 << 30
    append(log, 1, sizes=30)
    flush(log)
    assert offsets(log) == [(0, 0), (1, 1), (2, 2)]
    assert disk.size("orders-0/00000000000000000000.index") == 8, "the index that had no room was written later"


# Finding.


def test_locate_gives_the_batch_that_holds_the_offset_and_those_behind_it() -> None:
    log = a_log()
    for _ in range(4):
        append(log, 3)
    found = log.locate(4, max_bytes=1 << 20, upto=12)
    assert found is not None
    first = parse_header(found.read())
    assert first.base_offset == 3 and len(found) == 3 * first.size


@pytest.mark.parametrize("interval", [0, 100, 4096])
@pytest.mark.parametrize("cold", [False, True])
def test_every_offset_of_many_segments_is_found(interval: int, cold: bool) -> None:
    disk = SimDisk()
    texts = {"internal_segment_bytes": 2000, "index_interval_bytes": interval}
    log = a_log(disk, **texts)
    for number in range(60):
        append(log, 1 + number % 4)
    if cold:
        flush(log)
        log = reopened(disk.restart(), **texts)
    for offset in range(log.end_offset):
        found = log.locate(offset, max_bytes=1, upto=log.end_offset)
        assert found is not None
        header = parse_header(found.read())
        assert header.base_offset <= offset <= header.last_offset
        assert len(found) == header.size, "the first batch is whole, and no further one is included"


def test_locate_stays_below_the_bound() -> None:
    log = a_log()
    sizes = [append(log, 2).size for _ in range(5)]
    found = log.locate(0, max_bytes=1 << 20, upto=6)
    assert found is not None and len(found) == sum(sizes[:3])
    assert log.locate(6, max_bytes=1 << 20, upto=6) is None
    assert log.locate(8, max_bytes=1 << 20, upto=6) is None


def test_locate_gives_nothing_of_a_batch_that_reaches_above_the_bound() -> None:
    log = a_log()
    append(log, 4)
    assert log.locate(0, max_bytes=1 << 20, upto=2) is None


def test_locate_never_leaves_its_segment() -> None:
    log = a_log(internal_segment_bytes=300)
    for _ in range(10):
        append(log, 1, sizes=50)
    found = log.locate(0, max_bytes=1 << 20, upto=10)
    assert found is not None and len(found) == log.segments[0].size


def test_the_first_batch_is_given_whole_or_not_at_all() -> None:
    log = a_log()
    size = append(log, 1, sizes=1000).size
    append(log, 1)
    assert len(log.locate(0, max_bytes=10, upto=2, at_least_one=True) or b"") == size
    assert log.locate(0, max_bytes=10, upto=2, at_least_one=False) is None
    assert len(log.locate(0, max_bytes=size + 10, upto=2, at_least_one=False) or b"") == size + 10


def test_the_end_of_the_log_gives_nothing_and_offsets_outside_are_refused() -> None:
    log = a_log()
    append(log, 5)
    log.delete_before(2, NOW_MS)
    assert log.locate(5, max_bytes=100, upto=5) is None
    for outside in (1, 6, -1):
        with pytest.raises(OffsetOutOfRange) as caught:
            log.locate(outside, max_bytes=100, upto=5)
        assert (caught.value.start_offset, caught.value.end_offset) == (2, 5)


def test_a_wrong_index_entry_is_noticed_and_the_index_built_anew() -> None:
    disk = SimDisk()
    log = a_log(disk, index_interval_bytes=0, internal_segment_bytes=3000)
    for _ in range(60):
        append(log)
    for byte in range(0, disk.size("orders-0/00000000000000000000.index") - 8, 8):
        disk.flip_bit("orders-0/00000000000000000000.index", byte + 6, 5)
    for offset in range(log.bases[1]):
        assert parse_header(log.read(offset, max_bytes=1)).base_offset == offset


def test_damaged_bytes_below_the_end_are_reported_not_served_as_a_batch() -> None:
    disk = SimDisk()
    log = a_log(disk, index_interval_bytes=100)
    for _ in range(200):
        append(log)
    damaged, position = log.active.offsets.entries()[3]
    disk.flip_bit("orders-0/00000000000000000000.log", position + 16, 2)
    with pytest.raises(CorruptLog):
        log.locate(damaged, max_bytes=1, upto=log.end_offset)
    assert parse_header(log.read(damaged + 50, max_bytes=1)).base_offset == damaged + 50, "later batches stay readable"


def test_many_files_of_records_read_back_as_written() -> None:
    log = a_log(internal_segment_bytes=500)
    for number in range(30):
        append(log, [b"%d" % number, b"x" * number])
    values = []
    for first, _ in offsets(log):
        values += [value for _, _, _, value, _ in records(log.read(first, max_bytes=1))]
    assert values[::2] == [b"%d" % number for number in range(30)]


def test_options_can_change_while_the_log_is_in_use() -> None:
    log = a_log()
    append(log, 1, sizes=100)
    log.set_options(options(internal_segment_bytes=150))
    assert append(log, 1, sizes=100).rolled


def test_repr_of_a_log_has_its_partition_and_offsets() -> None:
    log = a_log()
    assert log.partition == ORDERS and repr(log) == "Log(orders-0, 0..0)"
