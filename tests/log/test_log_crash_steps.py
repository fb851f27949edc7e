"""A power cut at each single I/O step of a roll, a flush, retention and recovery."""

import contextlib
from collections.abc import Callable
from random import Random

import pytest
from log_builders import NOW_MS, ORDERS, TOPIC_ID, append, flush, offsets, opened, options

from ottla.log.directory import LogDirectory
from ottla.sim.disk import PowerCut, SimDisk

TEXTS = {"internal_segment_bytes": 600, "index_interval_bytes": 100}


def prepared() -> tuple[SimDisk, LogDirectory]:
    """A directory with a durable log of a few segments: 12 records, checkpointed."""
    disk = SimDisk()
    directory = opened(disk, options(**TEXTS))
    log = directory.create(ORDERS, TOPIC_ID, options(**TEXTS), NOW_MS)
    for number in range(12):
        append(log, epoch=number // 5, producer_id=1, producer_epoch=0, base_sequence=number)
    flush(log)
    directory.write_checkpoints({ORDERS: 12})
    return disk, directory


def grow(directory: LogDirectory) -> None:
    """Two rolls, flushed half-way and at the end."""
    log = directory.logs[ORDERS]
    for number in range(12, 26):
        append(log, epoch=3, producer_id=1, producer_epoch=0, base_sequence=number)
        if number in (17, 25):
            flush(log)


def delete(directory: LogDirectory) -> None:
    log = directory.logs[ORDERS]
    removed = log.delete_before(7, NOW_MS)
    directory.write_checkpoints()
    for path in removed:
        directory.disk.unlink(path)


def truncate(directory: LogDirectory) -> None:
    log = directory.logs[ORDERS]
    for path in log.truncate_to(7):
        directory.disk.unlink(path)
    for number in range(7, 20):
        append(log, epoch=4, producer_id=1, producer_epoch=0, base_sequence=number)
    flush(log)


def stop(directory: LogDirectory) -> None:
    append(directory.logs[ORDERS], epoch=5, producer_id=1, producer_epoch=0, base_sequence=12)
    directory.close({ORDERS: 12}, NOW_MS)


def steps_of(work: Callable[[LogDirectory], None]) -> range:
    disk, directory = prepared()
    before = disk.steps
    work(directory)
    return range(before + 1, disk.steps + 1)


def check(directory: LogDirectory, *, at_least: int, start: int = 0) -> None:
    log = directory.logs[ORDERS]
    assert log.end_offset >= at_least
    assert offsets(log) == [(number, number) for number in range(log.start_offset, log.end_offset)]
    assert log.start_offset <= start
    epochs = [log.epochs.epoch_at(offset) for offset in range(log.start_offset, log.end_offset)]
    assert epochs == sorted(epochs) and (log.end_offset < 3 or min(epochs) >= 0)
    if log.end_offset > log.start_offset:
        assert log.producers.by_id[1].batches[-1].last_offset == log.end_offset - 1
        assert log.producers.by_id[1].batches[-1].last_sequence == log.end_offset - 1
    append(log, epoch=9, producer_id=1, producer_epoch=0, base_sequence=log.end_offset)


@pytest.mark.parametrize("work", [grow, delete, stop], ids=lambda work: work.__name__)
@pytest.mark.parametrize("seed", range(3))
def test_a_power_cut_at_any_step_loses_nothing_durable(work: Callable[[LogDirectory], None], seed: int) -> None:
    for step in steps_of(work):
        disk, directory = prepared()
        log = directory.logs[ORDERS]
        disk.cut_power_at = step
        durable = 12
        try:
            work(directory)
        except PowerCut:
            durable = max(durable, log.recovery_point)
        check(opened(disk.crash(Random(1000 * step + seed)), options(**TEXTS)), at_least=durable, start=7)


@pytest.mark.parametrize("seed", range(3))
def test_a_power_cut_at_any_step_of_a_truncation_leaves_the_old_log_the_cut_one_or_the_new(seed: int) -> None:
    for step in steps_of(truncate):
        disk, directory = prepared()
        log = directory.logs[ORDERS]
        disk.cut_power_at = step
        with contextlib.suppress(PowerCut):
            truncate(directory)
        again = opened(disk.crash(Random(1000 * step + seed)), options(**TEXTS))
        check(again, at_least=7 if log.recovery_point <= 12 else log.recovery_point)


@pytest.mark.parametrize("seed", range(4))
def test_a_power_cut_at_any_step_of_recovery_is_recovered_from(seed: int) -> None:
    def torn() -> SimDisk:
        disk, directory = prepared()
        log = directory.logs[ORDERS]
        for number in range(12, 22):
            append(log, epoch=3, producer_id=1, producer_epoch=0, base_sequence=number)
        return disk.crash(Random(seed))

    reference = torn()
    end = opened(reference, options(**TEXTS)).logs[ORDERS].end_offset
    assert reference.steps > 3
    for step in range(1, reference.steps + 1):
        disk = torn()
        disk.cut_power_at = step
        with pytest.raises(PowerCut):
            opened(disk, options(**TEXTS))
        again = opened(disk.crash(Random(step)), options(**TEXTS))
        assert 12 <= again.logs[ORDERS].end_offset <= end
        check(again, at_least=12)


def test_a_full_disk_at_any_moment_of_growing_leaves_a_log_that_goes_on() -> None:
    """Each budget of bytes from none to enough; the disk then gets room again, or the power goes."""
    for budget in range(0, 1400, 9):
        disk, directory = prepared()
        log = directory.logs[ORDERS]
        disk.capacity_bytes = disk.used_bytes + budget
        for number in range(12, 26):
            try:
                append(log, epoch=3, producer_id=1, producer_epoch=0, base_sequence=number)
            except OSError:
                break
        flush(log)
        durable = log.recovery_point
        assert durable == log.end_offset
        if budget % 2:
            again = opened(disk.crash(Random(budget)), options(**TEXTS))
            assert again.logs[ORDERS].end_offset == durable
            again.disk.capacity_bytes = 1 << 30  # type: ignore[attr-defined]
            check(again, at_least=durable)
        else:
            disk.capacity_bytes = 1 << 30
            check(directory, at_least=durable)
