"""Missing records: noted first, found again by each start, until no broker counts on the replica."""

from random import Random

from log_builders import NOW_MS, ORDERS, TOPIC_ID, append, flush, opened, options, reopened

from ottla.log import checkpoints
from ottla.log.directory import LogDirectory
from ottla.sim.disk import SimDisk

NOTE = "orders-0/missing-checkpoint"


def cut_short(count: int = 10) -> SimDisk:
    """A log of so many records of which the medium has lost the last, after a clean stop."""
    disk = SimDisk()
    directory = opened(disk)
    log = directory.create(ORDERS, TOPIC_ID, options(), NOW_MS)
    for _ in range(count):
        append(log)
    flush(log)
    assert directory.close(now_ms=NOW_MS, broker_epoch=7, clean_since=5)
    file = disk.open("orders-0/00000000000000000000.log")
    file.truncate(file.size - 5)
    return disk.restart()


def test_records_that_are_gone_are_noted_and_the_next_start_finds_the_note() -> None:
    disk = cut_short()
    assert reopened(disk).missing_below == 10
    assert checkpoints.read_missing(disk.read_file(NOTE)) == 10
    again = reopened(disk.restart())
    assert (again.missing_below, again.end_offset) == (10, 9) and again.recovered is not None and not again.recovered.lost_records


def test_a_full_disk_takes_no_note_and_the_next_start_finds_out_by_itself() -> None:
    disk = cut_short()
    disk.capacity_bytes = 0
    directory = opened(disk)
    log = directory.logs[ORDERS]
    assert log.missing_below == 10 and not disk.exists(NOTE)
    disk.capacity_bytes = 1 << 40
    append(log)
    flush(log)
    assert directory.write_checkpoints()
    assert reopened(disk.restart()).missing_below == 10


def test_a_torn_note_still_marks_records_as_missing() -> None:
    disk = cut_short()
    reopened(disk)
    disk.replace_file(NOTE, b"0\n1\n")
    assert reopened(disk.restart()).missing_below == 0


def test_a_log_whose_missing_records_were_cleared_is_like_any_other() -> None:
    disk = cut_short()
    log = reopened(disk)
    log.clear_missing()
    flush(log)
    assert log.missing_below is None and log.checkpoint_offset == 9
    assert reopened(disk.restart()).missing_below is None


def test_log_created_in_place_of_a_lost_one_is_marked_durably() -> None:
    disk = SimDisk()
    log = opened(disk).create(ORDERS, TOPIC_ID, options(), NOW_MS, in_place_of_lost=True)
    assert log.missing_below == 0
    assert reopened(disk.crash(Random(1))).missing_below == 0


def test_a_log_that_a_checkpoint_knows_with_records_and_that_is_gone_has_vanished() -> None:
    disk = cut_short()
    disk.remove_tree("orders-0")
    assert opened(disk).vanished == {ORDERS}
    empty = SimDisk()
    directory = opened(empty)
    flush(directory.create(ORDERS, TOPIC_ID, options(), NOW_MS))
    assert directory.write_checkpoints()
    empty.remove_tree("orders-0")
    assert opened(empty.restart()).vanished == frozenset(), "it had no records"


def test_a_directory_knows_with_which_others_it_served() -> None:
    disk = SimDisk()
    directory = opened(disk)
    assert directory.identity.siblings is None
    siblings = sorted([directory.directory_id, bytes(16)])
    directory.set_siblings(siblings, 3, NOW_MS)
    again = opened(disk.restart())
    assert (again.identity.siblings, again.identity.generation) == (tuple(siblings), 3)
    steps = disk.steps
    directory.set_siblings(siblings, 3, NOW_MS)
    assert disk.steps == steps, "it is written when it changes"


def test_the_marker_of_a_clean_stop_contains_since_when_stops_were_clean() -> None:
    directory = opened(cut_short())
    assert (directory.clean_start, directory.last_broker_epoch, directory.clean_since) == (True, 7, 5)


def test_a_copy_that_is_set_aside_is_out_of_the_way_and_kept() -> None:
    disk = cut_short()
    directory: LogDirectory = opened(disk)
    path = directory.set_aside(ORDERS)
    assert path.endswith("-stray") and ORDERS not in directory.logs
    again = opened(disk.restart())
    assert ORDERS not in again.logs and "00000000000000000000.log" in disk.restart().listdir(path)
