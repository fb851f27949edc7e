"""A log directory as a whole: creating, removing, checkpointing and closing logs."""

from random import Random

import pytest
from log_builders import NOW_MS, ORDERS, TOPIC_ID, a_marker, append, flush, opened, options

from ottla.base.ids import TopicPartition
from ottla.log import filenames
from ottla.log.checkpoints import read_offsets
from ottla.log.errors import PartitionExists
from ottla.sim.disk import SimDisk

OTHER = TopicPartition("other", 3)


def test_a_new_log_is_a_directory_with_empty_files_and_its_topic_id() -> None:
    disk = SimDisk()
    log = opened(disk).create(ORDERS, TOPIC_ID, options(), NOW_MS)
    assert disk.listdir("orders-0") == [
        *(f"00000000000000000000{suffix}" for suffix in (".index", ".log", ".timeindex")), "leader-epoch-checkpoint", "partition.metadata",
    ]  # fmt: skip
    assert (log.start_offset, log.end_offset, log.recovery_point, log.size) == (0, 0, 0, 0)
    assert log.locate(0, max_bytes=10, upto=0) is None


def test_the_first_flush_plan_of_a_new_log_makes_its_names_durable() -> None:
    plan = opened(SimDisk()).create(ORDERS, TOPIC_ID, options(), NOW_MS).flush_plan()
    assert plan is not None and plan.upto == 0
    assert set(plan.directories) == {"", "orders-0"} and [file.path for file in plan.files] == ["orders-0/partition.metadata"]


def test_a_partition_that_exists_is_not_created_again() -> None:
    directory = opened(SimDisk())
    directory.create(ORDERS, TOPIC_ID, options(), NOW_MS)
    with pytest.raises(PartitionExists, match="orders-0 already exists"):
        directory.create(ORDERS, TOPIC_ID, options(), NOW_MS)


def test_a_creation_for_which_there_is_no_room_leaves_nothing() -> None:
    disk = SimDisk()
    directory = opened(disk)
    disk.capacity_bytes = disk.used_bytes
    with pytest.raises(OSError, match="full"):
        directory.create(ORDERS, TOPIC_ID, options(), NOW_MS)
    assert not directory.logs and not disk.exists("orders-0")


def test_a_removed_log_is_out_of_the_way_at_once_and_can_be_created_again() -> None:
    disk = SimDisk()
    directory = opened(disk)
    append(directory.create(ORDERS, TOPIC_ID, options(), NOW_MS), 3)
    first = directory.remove(ORDERS)
    again = directory.create(ORDERS, TOPIC_ID, options(), NOW_MS)
    assert again.end_offset == 0
    second = directory.remove(ORDERS)
    assert first != second and disk.exists(first) and disk.exists(second)
    disk.remove_tree(first)
    assert not disk.exists(first)


def test_a_slice_of_a_removed_log_still_reads() -> None:
    directory = opened(SimDisk())
    log = directory.create(ORDERS, TOPIC_ID, options(), NOW_MS)
    append(log, 3)
    found = log.locate(0, max_bytes=1000, upto=3)
    assert found is not None
    before = found.read()
    directory.remove(ORDERS)
    assert found.read() == before


def test_a_flush_of_a_log_that_was_removed_meanwhile_does_no_harm() -> None:
    disk = SimDisk()
    directory = opened(disk)
    log = directory.create(ORDERS, TOPIC_ID, options(), NOW_MS)
    append(log, 3, epoch=1)
    plan = log.flush_plan()
    assert plan is not None
    disk.remove_tree(directory.remove(ORDERS))
    plan.carry_out(disk)


def test_checkpoints_contain_the_present_offsets_of_each_log() -> None:
    disk = SimDisk()
    directory = opened(disk)
    first, second = (directory.create(partition, TOPIC_ID, options(), NOW_MS) for partition in (ORDERS, OTHER))
    append(first, 5)
    append(second, 7)
    flush(first)
    second.delete_before(2, NOW_MS)
    assert directory.write_checkpoints({ORDERS: 5, OTHER: 6, TopicPartition("gone", 0): 1})
    assert dict(directory.checkpoint_files()) == {name: disk.read_file(name) for name in disk.listdir() if "checkpoint" in name}
    again = opened(disk.restart())
    assert again.high_watermarks == {ORDERS: 5, OTHER: 6}
    assert again.logs[OTHER].start_offset == 2


def test_checkpoints_made_in_pieces_are_those_made_at_once() -> None:
    directory = opened(SimDisk())
    for number in range(5):
        log = directory.create(TopicPartition("t", number), TOPIC_ID, options(), NOW_MS)
        append(log, 4 + number)
        flush(log)
        log.delete_before(number, NOW_MS)
    known = dict.fromkeys(directory.logs, 3)
    pieces = list(directory.checkpoint_pieces(lambda partitions: {partition: known[partition] for partition in partitions}, 2))
    assert [piece for piece in pieces if piece is not None] == directory.checkpoint_files(known)
    assert pieces.count(None) == 15, "three pieces for each of five kinds"


@pytest.mark.parametrize("seed", range(20))
def test_a_checkpoint_made_in_pieces_undoes_no_change_that_came_between(seed: int) -> None:
    """Random changes between the pieces: a written row is never better than the log, and no recorded start goes back."""
    random, directory = Random(seed), opened(SimDisk())
    partitions = [TopicPartition("t", number) for number in range(4)]
    checked = 0

    def change() -> None:
        partition = random.choice(partitions)
        log = directory.logs.get(partition)
        match random.randrange(6):
            case 0 | 1 if log is None:
                directory.create(partition, TOPIC_ID, options(), NOW_MS)
            case 0 | 1 | 2 if log is not None:
                append(log, random.randint(1, 9))
                flush(log)
                log.mark_cleaned(log.recovery_point, durable=True)
            case 3 if log is not None:
                log.truncate_to(random.randint(log.start_offset, log.end_offset), NOW_MS)
            case 4 if log is not None:
                log.delete_before(random.randint(log.start_offset, log.recovery_point), NOW_MS)
                directory.start_moved(partition)
            case 5 if log is not None:
                directory.remove(partition)

    for _ in range(40):
        for file in directory.checkpoint_pieces(lambda partitions: dict.fromkeys(partitions, 0), 1):
            if file is not None:
                path, data = file
                rows = read_offsets(data)
                assert rows is not None and rows.keys() <= directory.logs.keys() and all(map(directory.is_named, rows))
                for partition, offset in rows.items():
                    log = directory.logs[partition]
                    assert path != filenames.RECOVERY_POINTS or offset <= log.checkpoint_offset
                    assert path != filenames.CLEANER_OFFSETS or offset <= (log.clean_checkpoint or 0)
                    assert path != filenames.LOG_STARTS or offset == log.start_offset
                    checked += 1
            change()
    assert checked > 100


def test_a_full_disk_keeps_the_old_checkpoints() -> None:
    disk = SimDisk()
    directory = opened(disk)
    directory.write_checkpoints()
    before = disk.read_file("recovery-point-offset-checkpoint")
    directory.create(ORDERS, TOPIC_ID, options(), NOW_MS)
    disk.capacity_bytes = disk.used_bytes
    assert not directory.write_checkpoints()
    assert disk.read_file("recovery-point-offset-checkpoint") == before


def test_a_full_disk_or_a_failed_one_is_not_called_cleanly_stopped() -> None:
    disk = SimDisk()
    directory = opened(disk)
    append(directory.create(ORDERS, TOPIC_ID, options(), NOW_MS), 3)
    disk.capacity_bytes = disk.used_bytes
    assert not directory.close(now_ms=NOW_MS)
    assert not disk.exists(".kafka_cleanshutdown")
    other = opened(SimDisk())
    other.failed = "it clicks"
    assert not other.close(now_ms=NOW_MS) and not other.disk.exists(".kafka_cleanshutdown")


def test_aborted_transactions_are_known_after_a_power_cut_that_follows_a_clean_stop() -> None:
    """The next start does not scan the log."""
    disk = SimDisk()
    directory = opened(disk)
    log = directory.create(ORDERS, TOPIC_ID, options(), NOW_MS)
    append(log, 1)
    flush(log)
    append(log, 2, producer_id=1, producer_epoch=0, transactional=True)
    a_marker(log, 1, commit=False)
    assert directory.close(now_ms=NOW_MS)
    again = opened(disk.lose()).logs[ORDERS]
    assert [entry.producer_id for entry in again.aborted_transactions(0, 4)] == [1]


def test_high_watermarks_begin_at_the_offset_given_at_creation() -> None:
    directory = opened(SimDisk())
    directory.create(ORDERS, TOPIC_ID, options(), NOW_MS, high_watermark=4)
    assert directory.high_watermarks == {ORDERS: 4} and repr(directory) == "LogDirectory(sim, 1 logs)"


def test_a_log_created_anew_inherits_nothing_from_the_checkpoints_of_the_one_before() -> None:
    """Else it would begin at the old start offset, and its first crash would go unscanned up to the old recovery point."""
    disk = SimDisk()
    directory = opened(disk)
    log = directory.create(ORDERS, TOPIC_ID, options(), NOW_MS)
    append(log, 20)
    flush(log)
    log.delete_before(15, NOW_MS)
    directory.write_checkpoints({ORDERS: 20})
    disk.remove_tree(directory.remove(ORDERS))
    append(directory.create(ORDERS, TOPIC_ID, options(), NOW_MS), 3)
    again = opened(disk.restart())
    assert (again.logs[ORDERS].start_offset, again.logs[ORDERS].end_offset) == (0, 3)
    assert again.logs[ORDERS].recovered is not None and again.logs[ORDERS].recovered.lost_records == 0  # type: ignore[union-attr]
    assert again.high_watermarks == {}
