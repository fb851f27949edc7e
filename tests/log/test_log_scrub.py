"""Scrubbing finds every flipped bit of a segment and the offsets that cannot be read because of it."""

from random import Random

import pytest
from log_builders import ORDERS, a_log, append, flush, reopened

from ottla.log.damage import Damage
from ottla.log.log import Log
from ottla.log.scrub import ScrubResult, carry_out
from ottla.log.scrub_schedule import plan
from ottla.records.batch import HEADER_SIZE
from ottla.sim.disk import SimDisk

LOG = "orders-0/00000000000000000000.log"


def written(batches: int = 8, *, records: int = 3, epochs: bool = True, **texts: object) -> tuple[SimDisk, Log, list[int]]:
    """A log of some batches, all on disk; with the positions of those in the first segment."""
    disk = SimDisk()
    log = a_log(disk, **texts)
    positions = []
    for number in range(batches):
        done = append(log, records, epoch=number // 3 if epochs else 0)
        if done.file.path == LOG:
            positions.append(done.position)
    flush(log)
    return disk, log, positions


def scrubbed(disk: SimDisk, log: Log, segment: int = 0) -> ScrubResult:
    found = plan(log, segment)
    assert found is not None
    *_, result = carry_out(disk, found)
    assert isinstance(result, ScrubResult)
    return result


def test_a_sound_log_has_no_damage() -> None:
    disk, log, _ = written(40, internal_segment_bytes=1_500, index_interval_bytes=200)
    for number in range(len(log.segments)):
        result = scrubbed(disk, log, number)
        assert (result.damages, result.index) == ((), "")
        assert result.read_bytes == log.segments[number].size


@pytest.mark.parametrize("segment_bytes", [10_000, 800], ids=["the active segment", "an older segment"])
@pytest.mark.parametrize("at", range(HEADER_SIZE + 3))
def test_a_flipped_bit_anywhere_in_a_batch_is_damage_of_that_batch_alone(segment_bytes: int, at: int) -> None:
    disk, log, positions = written(internal_segment_bytes=segment_bytes)
    assert len(positions) >= 4
    for batch in (0, 2, len(positions) - 1):
        bit = at % 8
        disk.flip_bit(LOG, positions[batch] + at, bit)
        result = scrubbed(disk, log)
        ((first, end),) = [(one.first, one.end) for one in result.damages]
        assert (first, end) == (3 * batch, 3 * batch + 3), result.damages
        assert result.index == ""
        disk.flip_bit(LOG, positions[batch] + at, bit)


def test_two_damaged_batches_are_reported_separately() -> None:
    disk, log, positions = written()
    disk.flip_bit(LOG, positions[1] + 9, 3)
    disk.flip_bit(LOG, positions[4] + 70)
    assert [(one.first, one.end) for one in scrubbed(disk, log).damages] == [(3, 6), (12, 15)]


def test_a_base_offset_that_points_into_a_hole_of_compaction_is_contradicted_by_the_next_batch() -> None:
    disk, log, positions = written(epochs=False)
    log.allow_holes(24)
    disk.flip_bit(LOG, positions[2] + 7, 0)  # 6 becomes 7.
    assert [(one.first, one.end) for one in scrubbed(disk, log).damages] == [(6, 9)]


def test_an_index_entry_that_names_another_offset_is_found() -> None:
    disk, log, _ = written(40, internal_segment_bytes=1_500, index_interval_bytes=200)
    disk.flip_bit(LOG.replace(".log", ".index"), 3)
    assert "names offset" in scrubbed(disk, log).index
    disk.flip_bit(LOG.replace(".log", ".index"), 3)
    disk.flip_bit(LOG.replace(".log", ".index"), 7)
    assert "names position" in scrubbed(disk, log).index


def test_truncated_file_is_reported_with_its_missing_offsets() -> None:
    disk, log, positions = written()
    disk.open(LOG).truncate(positions[5])
    assert [(one.first, one.end) for one in scrubbed(disk, log).damages] == [(15, 24)]


def test_random_damage_never_breaks_the_scan_and_is_always_found() -> None:
    disk, log, positions = written(30, records=2)
    size = log.active.size
    rng = Random(1)
    for _ in range(300):
        flips = list(dict.fromkeys((rng.randrange(size), rng.randrange(8)) for _ in range(rng.randint(1, 4))))
        for position, bit in flips:
            disk.flip_bit(LOG, position, bit)
        result = scrubbed(disk, log)
        damaged = {max(number for number, at in enumerate(positions) if at <= position) for position, _ in flips}
        reported = {offset // 2 for one in result.damages for offset in range(one.first, one.end)}
        assert damaged <= reported, f"{damaged} {result.damages}"
        for position, bit in reversed(flips):
            disk.flip_bit(LOG, position, bit)


# What the log does with it.


def test_a_log_serves_all_but_its_damage() -> None:
    disk, log, positions = written()
    disk.flip_bit(LOG, positions[2] + 8, 5)
    log.note_damage(0, scrubbed(disk, log).damages)
    check_served(log)


def test_a_log_remembers_its_damage_after_a_restart() -> None:
    disk, log, positions = written(20, internal_segment_bytes=1_500)
    disk.flip_bit(LOG, positions[2] + 7, 5)
    log.note_damage(0, scrubbed(disk, log).damages)
    log.recovery_point_lowered(log)
    again = reopened(disk.restart(), internal_segment_bytes=1_500)
    assert again.damages == log.damages and isinstance(again.damages[0], Damage)
    check_served(again, end=60)


def check_served(log: Log, *, end: int = 24) -> None:
    from ottla.log.errors import CorruptLog
    from ottla.records.batch import parse_header

    assert log.partition == ORDERS
    for offset in range(end):
        if 6 <= offset < 9:
            with pytest.raises(CorruptLog, match="offsets 6 to 8"):
                log.locate(offset, max_bytes=1 << 20, upto=end)
        else:
            found = log.locate(offset, max_bytes=1 << 20, upto=end)
            assert found is not None
            data = found.read()
            header = parse_header(data)
            assert header.base_offset <= offset <= header.last_offset
            assert offset > 8 or len(data) < 8 * 100, "a read that begins before the damage ends there"
    for upto in range(6, end, 3):
        for offset in range(6):
            found = log.locate(offset, max_bytes=1 << 20, upto=upto)
            assert found is not None and found.position + found.size <= log.damages[0].position


@pytest.mark.parametrize("at", [7, 9, 16, 20, 70])
def test_recovery_keeps_what_was_on_disk_behind_damage(at: int) -> None:
    disk, log, positions = written()
    log.recovery_point_lowered(log)
    disk.flip_bit(LOG, positions[2] + at, 5)
    again = reopened(disk.restart())
    assert [(one.first, one.end) for one in again.damages] == [(6, 9)] and again.end_offset == 24
    assert again.recovered is not None and again.recovered.cut_bytes == 0
    check_served(again)
    append(again, 3, epoch=9)
    assert reopened(disk.restart()).end_offset == 27


def test_truncation_forgets_the_damage_that_it_cuts() -> None:
    disk, log, positions = written()
    disk.flip_bit(LOG, positions[2] + 8, 5)
    disk.flip_bit(LOG, positions[6] + 8, 5)
    log.note_damage(0, scrubbed(disk, log).damages)
    log.truncate_to(12)
    assert [one.first for one in log.damages] == [6]
    log.truncate_to(6)
    assert not log.damages and "damage-checkpoint" not in disk.listdir("orders-0")
