"""Retention, DeleteRecords and truncation."""

from collections.abc import Callable

import pytest
from log_builders import NOW_MS, ORDERS, a_log, append, crashed, flush, offsets, opened, options, reopened

from ottla.log.errors import OffsetOutOfRange
from ottla.log.log import Log
from ottla.sim.disk import SimDisk


def segmented(disk: SimDisk | None = None, count: int = 10, **texts: object) -> Log:
    """A flushed log with a segment per record, one second apart."""
    log = a_log(disk, **{"internal_segment_bytes": 100, "retention_ms": -1, **texts})
    for number in range(count):
        append(log, at_ms=NOW_MS + 1000 * number, producer_id=1, producer_epoch=0, base_sequence=number)
    flush(log)
    assert len(log.segments) == count
    return log


def test_segments_older_than_retention_ms_are_dropped_by_their_newest_timestamp() -> None:
    log = segmented(retention_ms=4000)
    removed = log.retain(NOW_MS + 9000, 10)
    assert log.start_offset == 5 and log.bases[0] == 5
    assert offsets(log) == [(number, number) for number in range(5, 10)]
    assert [path for path in removed if ".log" in path] == [f"orders-0/{base:020d}.log.deleted" for base in range(5)]
    assert all(log.disk.exists(path) for path in removed), "answers in progress still read them"


def test_every_file_of_a_dropped_segment_goes() -> None:
    disk = SimDisk()
    log = segmented(disk, retention_ms=4000)
    for path in log.retain(NOW_MS + 9000, 10):
        disk.unlink(path)
    assert {int(name[:20]) for name in disk.listdir("orders-0") if name[0] == "0"} == set(range(5, 10))


def test_a_slice_of_a_dropped_segment_still_reads() -> None:
    log = segmented(retention_ms=4000)
    found = log.locate(0, max_bytes=1000, upto=10)
    assert found is not None
    before = found.read()
    log.retain(NOW_MS + 9000, 10)
    assert found.read() == before


def test_segments_are_dropped_while_the_rest_still_holds_retention_bytes() -> None:
    log = segmented()
    size = log.segments[0].size
    log.set_options(options(retention_bytes=size * 3 + 1, retention_ms=-1))
    log.retain(NOW_MS, 10)
    assert log.start_offset == 6, "four segments hold more than the bound, three would hold less"
    log.set_options(options(retention_bytes=size * 3, retention_ms=-1))
    log.retain(NOW_MS, 10)
    assert log.start_offset == 7


def test_minus_one_keeps_everything() -> None:
    log = segmented(retention_bytes=-1)
    assert log.retain(NOW_MS * 2, 10) == () and log.start_offset == 0


def test_nothing_at_or_above_the_high_watermark_is_dropped() -> None:
    log = segmented(retention_ms=1)
    log.retain(NOW_MS + 60_000, 4)
    assert log.start_offset == 4


def test_when_all_is_expired_the_log_becomes_empty_and_keeps_its_offsets() -> None:
    log = segmented(retention_ms=1)
    log.retain(NOW_MS + 60_000, 10)
    assert (log.start_offset, log.end_offset, log.bases) == (10, 10, [9, 10]), "one stays until the new one's name is durable"
    flush(log)
    log.retain(NOW_MS + 60_000, 10)
    assert log.bases == [10] and log.size == 0
    append(log, 2)
    assert offsets(log) == [(10, 11)]


def test_an_empty_log_is_not_rolled_for_ever() -> None:
    log = segmented(retention_ms=1)
    for _ in range(5):
        log.retain(NOW_MS + 60_000, 10)
        flush(log)
    assert log.bases == [10]


def test_the_end_offset_survives_when_everything_expired_and_the_power_goes() -> None:
    """The name of the new, empty segment must be durable before the last old one goes."""
    for seed in range(40):
        disk = SimDisk()
        directory = opened(disk, options(internal_segment_bytes=100, retention_ms=1))
        log = directory.create(ORDERS, bytes(16), options(internal_segment_bytes=100, retention_ms=1), NOW_MS)  # type: ignore[arg-type]
        for _ in range(3):
            append(log)
        flush(log)
        for _ in range(1 + seed % 3):
            for path in log.retain(NOW_MS + 60_000, 3):
                disk.unlink(path)
            if seed % 2:
                flush(log)
        assert reopened(crashed(disk, seed)).end_offset == 3


def test_records_without_timestamps_expire_by_the_files_time() -> None:
    clock = [NOW_MS]
    disk = SimDisk(now_ms=lambda: clock[0])
    log = a_log(disk, internal_segment_bytes=100, retention_ms=1000)
    for _ in range(3):
        append(log, at_ms=-1)
        clock[0] += 1000
    log.retain(NOW_MS + 2500, 3)
    assert log.start_offset == 2


def test_a_compacted_topic_is_deleted_by_time_or_size_only_with_the_policy_delete() -> None:
    log = segmented(cleanup_policy="compact", retention_ms=1, retention_bytes=1)
    assert log.retain(NOW_MS * 2, 10) == ()
    log.set_options(options(cleanup_policy="compact,delete", retention_ms=1))
    log.retain(NOW_MS * 2, 10)
    assert log.start_offset == 10


def test_retention_makes_room_on_a_full_disk() -> None:
    disk = SimDisk()
    log = segmented(disk, retention_ms=1)
    disk.capacity_bytes = disk.used_bytes
    used = disk.used_bytes
    for path in log.retain(NOW_MS + 60_000, 10):
        disk.unlink(path)
    assert disk.used_bytes < used // 2 and log.end_offset == 10


# DeleteRecords.


def test_deleted_records_cannot_be_read_and_whole_segments_below_go() -> None:
    log = segmented()
    removed = log.delete_before(4, NOW_MS)
    assert log.start_offset == 4 == log.bases[0] and len([path for path in removed if path.endswith(".log.deleted")]) == 4
    with pytest.raises(OffsetOutOfRange):
        log.locate(3, max_bytes=10, upto=10)


def test_the_start_offset_may_lie_within_a_batch() -> None:
    log = a_log()
    append(log, 10)
    assert log.delete_before(4, NOW_MS) == ()
    assert log.start_offset == 4 and offsets(log) == [(0, 9)]


def test_deleting_does_not_go_back_nor_beyond_the_end() -> None:
    log = segmented()
    log.delete_before(6, NOW_MS)
    assert log.delete_before(2, NOW_MS) == () and log.start_offset == 6
    for outside in (-1, 11):
        with pytest.raises(OffsetOutOfRange):
            log.delete_before(outside, NOW_MS)
    log.delete_before(10, NOW_MS)
    assert log.start_offset == log.end_offset == 10


def test_the_start_offset_is_durable_with_its_checkpoint() -> None:
    for seed in range(10):
        disk = SimDisk()
        directory = opened(disk)
        log = directory.create(ORDERS, bytes(16), options(), NOW_MS)  # type: ignore[arg-type]
        append(log, 10)
        flush(log)
        log.delete_before(7, NOW_MS)
        assert directory.write_checkpoints(kinds=("log_starts",))
        assert reopened(crashed(disk, seed)).start_offset == 7


def test_producers_whose_records_were_all_deleted_are_still_known() -> None:
    log = segmented()
    log.delete_before(10, NOW_MS)
    assert log.producers.by_id[1].batches[-1].last_sequence == 9


def test_epochs_below_the_start_go() -> None:
    log = a_log()
    for epoch in range(5):
        append(log, 2, epoch=epoch)
    log.delete_before(5, NOW_MS)
    assert log.epochs.entries == [(2, 5), (3, 6), (4, 8)]


# Truncation.


@pytest.mark.parametrize("offset", range(11))
def test_truncation_drops_the_batch_that_holds_the_offset_and_all_behind(offset: int) -> None:
    log = segmented()
    removed = log.truncate_to(offset)
    assert log.end_offset == offset and offsets(log) == [(number, number) for number in range(offset)]
    assert bool(removed) == (offset < 9)
    assert log.recovery_point == offset
    if offset:
        assert log.producers.by_id[1].batches[-1].last_sequence == offset - 1
    else:
        assert not log.producers.by_id
    append(log, 1)
    assert offsets(log)[-1] == (offset, offset)


def test_truncation_within_a_batch_takes_the_whole_batch() -> None:
    log = a_log()
    append(log, 5, epoch=1)
    append(log, 5, epoch=2)
    log.truncate_to(7)
    assert log.end_offset == 5 and log.epochs.entries == [(1, 0)]


def test_truncation_below_the_first_segment_begins_the_log_anew_there() -> None:
    log = segmented()
    log.delete_before(6, NOW_MS)
    removed = log.truncate_to(2)
    assert (log.start_offset, log.end_offset, log.bases) == (2, 2, [2]) and len(removed) > 8
    append(log, 3)
    assert offsets(log) == [(2, 4)]


def test_times_and_positions_are_found_after_a_truncation() -> None:
    log = a_log(index_interval_bytes=0)
    for number in range(20):
        append(log, timestamps=[1000 + number])
    log.truncate_to(10)
    for number in range(5):
        append(log, timestamps=[2000 + number])
    assert log.offset_for_time(1015, upto=15) == (2000, 10, 0)
    assert log.max_timestamp(15) == (2004, 14, 0)
    assert offsets(log) == [(number, number) for number in range(15)]


def test_flush_during_a_truncation_does_not_cover_new_records() -> None:
    log = a_log()
    append(log, 10)
    plan = log.flush_plan()
    assert plan is not None and plan.upto == 10
    log.truncate_to(0)
    append(log, 10)
    plan.carry_out(log.disk)
    log.flushed(plan.upto)
    assert log.recovery_point == 0
    flush(log)
    assert log.recovery_point == 10


def test_a_recovery_checkpoint_above_a_truncation_is_replaced_before_the_log_grows_again() -> None:
    disk = SimDisk()
    directory = opened(disk)
    log = directory.create(ORDERS, bytes(16), options(), NOW_MS)  # type: ignore[arg-type]
    append(log, 10)
    flush(log)
    directory.write_checkpoints()
    log.truncate_to(0)
    assert disk.read_file("recovery-point-offset-checkpoint") == b"0\n1\norders 0 0\n"


def test_on_a_full_disk_that_checkpoint_is_removed_instead() -> None:
    disk = SimDisk()
    directory = opened(disk)
    log = directory.create(ORDERS, bytes(16), options(), NOW_MS)  # type: ignore[arg-type]
    append(log, 10)
    flush(log)
    directory.write_checkpoints()
    disk.capacity_bytes = 0
    log.truncate_to(0)
    assert not disk.exists("recovery-point-offset-checkpoint")


@pytest.mark.parametrize("change", [lambda log: log.truncate_to(4), lambda log: log.delete_before(4, NOW_MS)], ids=["end", "start"])
def test_trimming_is_there_after_a_clean_stop(change: Callable[[Log], object]) -> None:
    disk = SimDisk()
    directory = opened(disk)
    log = directory.create(ORDERS, bytes(16), options(internal_segment_bytes=100), NOW_MS)  # type: ignore[arg-type]
    for _ in range(8):
        append(log)
    flush(log)
    change(log)
    directory.close(now_ms=NOW_MS)
    again = reopened(crashed(disk))
    assert (again.start_offset, again.end_offset) == (log.start_offset, log.end_offset)


def test_deleted_records_stay_deleted_when_a_crash_brings_their_segment_back() -> None:
    for seed in range(20):
        disk = SimDisk()
        directory = opened(disk)
        log = directory.create(ORDERS, bytes(16), options(internal_segment_bytes=100), NOW_MS)  # type: ignore[arg-type]
        for _ in range(3):
            append(log)
        flush(log)
        for path in log.delete_before(2, NOW_MS):
            disk.unlink(path)
        directory.write_checkpoints(kinds=("log_starts",))
        assert reopened(crashed(disk, seed), internal_segment_bytes=100).start_offset == 2
