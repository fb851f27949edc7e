"""Recovery after a clean stop, after a crash, and on a disk that fails, is full or was changed."""

from errno import EIO
from random import Random

import pytest
from log_builders import (
    NOW_MS,
    ORDERS,
    TOPIC_ID,
    a_batch,
    a_log,
    a_marker,
    append,
    crashed,
    flush,
    offsets,
    opened,
    options,
    reopened,
)

from ottla.base.ids import TopicPartition
from ottla.log.directory import LogDirectory
from ottla.log.errors import DirectoryRefused
from ottla.sim.disk import SimDisk

BASE = "orders-0/00000000000000000000"
SMALL = {"internal_segment_bytes": 1500, "index_interval_bytes": 200}


class CountingDisk(SimDisk):
    """Counts the bytes read from log files."""

    read_bytes = 0

    def restart(self) -> "CountingDisk":
        after = CountingDisk(self.root, tree=self._tree)
        after.used_bytes = self.used_bytes
        return after

    def open(self, path: str, *, create: bool = False):  # type: ignore[no-untyped-def]
        file = super().open(path, create=create)
        if path.endswith(".log"):
            disk = self

            class Counting(type(file)):  # type: ignore[misc]
                __slots__ = ()

                def read(self, position: int, size: int) -> bytes:
                    data: bytes = super().read(position, size)
                    disk.read_bytes += len(data)
                    return data

            file.__class__ = Counting
        return file


def filled(disk: SimDisk, batches: int = 60, **texts: int) -> LogDirectory:
    """A directory with one log of single-record batches, nothing flushed since its creation."""
    texts = {**SMALL, **texts}
    directory = opened(disk, options(**texts))
    log = directory.create(ORDERS, TOPIC_ID, options(**texts), NOW_MS)
    flush(log)
    for number in range(batches):
        append(log, at_ms=NOW_MS + number, epoch=number // 25)
    return directory


# After a clean stop.


def test_a_clean_stop_is_followed_by_a_start_that_scans_nothing() -> None:
    disk = CountingDisk()
    directory = filled(disk, 2000, internal_segment_bytes=200_000, index_interval_bytes=4096)
    assert directory.close(now_ms=NOW_MS)
    after = disk.restart()
    again = opened(after)
    log = again.logs[ORDERS]
    assert again.clean_start and log.recovered is None
    assert log.end_offset == log.recovery_point == 2000
    assert after.read_bytes < 30_000 < log.size


def test_the_marker_of_a_clean_stop_is_gone_before_anything_is_written() -> None:
    disk = SimDisk()
    assert filled(disk).close(now_ms=NOW_MS, broker_epoch=44)
    first = opened(disk.restart())
    assert first.clean_start and first.last_broker_epoch == 44
    second = opened(crashed(first.disk, 1))  # type: ignore[arg-type]
    assert not second.clean_start and second.logs[ORDERS].end_offset == 60


def test_a_clean_stop_keeps_everything_even_if_the_power_goes_right_after() -> None:
    for seed in range(10):
        disk = SimDisk()
        directory = filled(disk)
        append(directory.logs[ORDERS], producer_id=5, producer_epoch=0, base_sequence=0)
        assert directory.close({ORDERS: 61}, NOW_MS)
        again = opened(crashed(disk, seed))
        log = again.logs[ORDERS]
        assert again.clean_start and again.high_watermarks == {ORDERS: 61}
        assert offsets(log) == [(number, number) for number in range(61)]
        assert log.epochs.entries == [(0, 0), (1, 25), (2, 50)]
        assert 5 in log.producers.by_id


def test_log_that_lost_bytes_after_a_clean_stop_is_scanned_and_the_loss_is_reported() -> None:
    disk = SimDisk()
    assert filled(disk, 10).close(now_ms=NOW_MS)
    file = disk.open(BASE + ".log")
    file.truncate(file.size - 5)
    log = reopened(disk.restart())
    assert log.end_offset == 9 and log.recovered is not None
    assert log.recovered.lost_records == 1 and log.recovered.cut_bytes > 0


# After a crash.


def test_a_log_whose_records_were_all_on_disk_costs_the_start_after_a_crash_no_wait_for_the_device() -> None:
    for records in (0, 60):
        directory = filled(SimDisk(), records)
        flush(directory.logs[ORDERS])
        assert directory.write_checkpoints()
        disk = crashed(directory.disk)  # type: ignore[arg-type]
        disk.fail("sync", "orders-0/", times=1000)
        disk.fail("sync_dir", "orders-0", times=1000)
        log = opened(disk, options(**SMALL)).logs[ORDERS]
        assert log.end_offset == log.recovery_point == records


def test_what_was_flushed_survives_a_power_cut() -> None:
    for seed in range(30):
        disk = SimDisk()
        directory = filled(disk)
        log = directory.logs[ORDERS]
        flush(log)
        for _ in range(20):
            append(log, epoch=9)
        log = reopened(crashed(disk, seed), **SMALL)
        assert 60 <= log.end_offset <= 80
        assert offsets(log) == [(number, number) for number in range(log.end_offset)]
        assert log.recovery_point == log.end_offset


def test_a_torn_tail_is_cut_off() -> None:
    disk = SimDisk()
    log = filled(disk, 5).logs[ORDERS]
    size = log.size
    disk.open(BASE + ".log").append(disk.read_file(BASE + ".log")[:50])
    log = reopened(disk.restart())
    assert (log.end_offset, log.size, disk.size(BASE + ".log")) == (5, size, size)
    assert log.recovered is not None and log.recovered.cut_bytes == 50


@pytest.mark.parametrize("position", [0, 8, 16, 17, 21, 23, 40, 60, 65])
def test_a_flipped_bit_anywhere_in_an_unflushed_batch_ends_the_log_before_it(position: int) -> None:
    disk = SimDisk()
    log = filled(disk, 5).logs[ORDERS]
    third = log.active.position_of(3)
    assert third is not None
    disk.flip_bit(BASE + ".log", third + position, 1)
    log = reopened(disk.restart())
    assert offsets(log) == [(0, 0), (1, 1), (2, 2)]


def test_segments_behind_a_flaw_are_dropped() -> None:
    disk = SimDisk()
    log = filled(disk).logs[ORDERS]
    bases = list(log.bases)
    disk.flip_bit(f"orders-0/{bases[1]:020d}.log", 70, 1)
    log = reopened(disk.restart(), **SMALL)
    assert log.bases == bases[:2] and log.end_offset == bases[1]
    assert {name[:20] for name in log.disk.listdir("orders-0") if name.endswith((".log", ".index", ".timeindex"))} == {
        f"{base:020d}" for base in bases[:2]
    }


def test_a_segment_that_lost_its_end_at_a_batch_boundary_leaves_a_hole_and_what_follows_goes() -> None:
    disk = SimDisk()
    log = filled(disk).logs[ORDERS]
    position = log.segments[0].position_of(3)
    assert position is not None
    disk.open(BASE + ".log").truncate(position)
    assert reopened(disk.restart(), **SMALL).end_offset == 3


def test_a_compacted_log_has_holes_by_right() -> None:
    disk = SimDisk()
    log = filled(disk).logs[ORDERS]
    position = log.segments[0].position_of(3)
    assert position is not None
    disk.open(BASE + ".log").truncate(position)
    again = opened(disk.restart(), options(cleanup_policy="compact", **SMALL)).logs[ORDERS]
    assert again.end_offset == 60
    assert offsets(again) == [(n, n) for n in range(3)] + [(n, n) for n in range(again.bases[1], 60)]


def test_old_batches_behind_new_ones_of_a_newer_epoch_are_not_taken_back() -> None:
    disk = SimDisk()
    log = a_log(disk)
    for _ in range(6):
        append(log, epoch=1)
    stale = disk.read_file(BASE + ".log")
    log.truncate_to(3)
    append(log, epoch=2)
    file = disk.open(BASE + ".log")
    file.append(stale[file.size :])  # A power cut kept the truncated tail behind the new batch, which is as long as the old one.
    log = reopened(disk.restart())
    assert log.end_offset == 4 and log.epochs.entries == [(1, 0), (2, 3)]


def test_a_new_segment_is_there_after_a_crash_once_a_flush_reported_its_records() -> None:
    """KAFKA-3968: the names of new files are synced with their directory."""
    for seed in range(30):
        disk = SimDisk()
        log = filled(disk).logs[ORDERS]
        assert len(log.segments) > 2
        flush(log)
        assert reopened(crashed(disk, seed), **SMALL).end_offset == 60


def test_a_new_partition_is_there_after_a_crash_once_its_first_flush_is_done() -> None:
    for seed in range(30):
        disk = SimDisk()
        log = opened(disk).create(ORDERS, TOPIC_ID, options(), NOW_MS)
        assert log.flush_plan() is not None
        flush(log)
        again = opened(crashed(disk, seed))
        assert again.logs[ORDERS].topic_id == TOPIC_ID


def test_a_partition_that_was_never_flushed_may_be_half_there_and_opens_all_the_same() -> None:
    for seed in range(40):
        disk = SimDisk()
        append(opened(disk).create(ORDERS, TOPIC_ID, options(), NOW_MS), 3)
        for log in opened(crashed(disk, seed)).logs.values():
            assert log.topic_id in (TOPIC_ID, bytes(16)) and log.end_offset in (0, 3)
            append(log, 1)


def test_leader_epochs_survive_a_crash_whole() -> None:
    """KAFKA-16541: the checkpoint is replaced atomically, and only after its bytes are synced."""
    for seed in range(40):
        disk = SimDisk()
        log = a_log(disk)
        for epoch in range(8):
            append(log, 2, epoch=epoch)
            if epoch % 3 == 0:
                flush(log)
        log = reopened(crashed(disk, seed))
        assert log.epochs.entries == [(epoch, 2 * epoch) for epoch in range(log.end_offset // 2 + log.end_offset % 2)]


def test_recovered_records_are_synced_before_the_recovery_point_includes_them() -> None:
    """KAFKA-10101: after the process died, its unsynced records are found in the page cache; a power cut must not take them then."""
    for seed in range(20):
        disk = SimDisk()
        filled(disk)
        found = opened(disk.restart(), options(**SMALL))
        assert found.logs[ORDERS].end_offset == 60
        assert found.disk.read_file("recovery-point-offset-checkpoint") == b"0\n1\norders 0 60\n"
        assert reopened(crashed(found.disk, seed), **SMALL).end_offset == 60  # type: ignore[arg-type]


def test_an_empty_active_segment_without_any_index_opens() -> None:
    """KAFKA-13603."""
    for clean in (True, False):
        disk = SimDisk()
        directory = opened(disk)
        flush(directory.create(ORDERS, TOPIC_ID, options(), NOW_MS))
        directory.close(now_ms=NOW_MS)
        for suffix in (".index", ".timeindex"):
            disk.unlink(BASE + suffix)
        if not clean:
            disk.unlink(".kafka_cleanshutdown")
        log = reopened(disk.restart())
        append(log, 2)
        assert offsets(log) == [(0, 1)]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("harm", ["missing", "short", "odd", "empty", "garbage", "zeros", "long"])
def test_a_harmed_index_is_rebuilt_and_everything_is_found(clean: bool, suffix: str, harm: str) -> None:
    disk = SimDisk()
    directory = filled(disk, 100)
    log = directory.logs[ORDERS]
    bases = list(log.bases)
    directory.close(now_ms=NOW_MS)
    whole = {base: disk.read_file(f"orders-0/{base:020d}{suffix}") for base in bases}
    for base in bases:
        path = f"orders-0/{base:020d}{suffix}"
        data = {
            "missing": None,
            "short": whole[base][: len(whole[base]) // 24 * 12],
            "odd": whole[base][:-3],
            "empty": b"",
            "garbage": Random(base).randbytes(len(whole[base])),
            "zeros": bytes(len(whole[base])),
            "long": whole[base] + Random(base).randbytes(24),
        }[harm]
        disk.unlink(path)
        if data is not None:
            disk.open(path, create=True).append(data)
    if not clean:
        disk.unlink(".kafka_cleanshutdown")
    log = reopened(disk.restart(), **SMALL)
    assert offsets(log) == [(number, number) for number in range(100)]
    for number in (0, 13, 57, 99):
        found = log.offset_for_time(NOW_MS + number, upto=100)
        assert found is not None and found.offset == number
    if harm not in ("long", "garbage"):
        assert all(log.disk.read_file(f"orders-0/{base:020d}{suffix}") == whole[base] for base in bases[:-1])


def test_producer_state_is_rebuilt_from_the_newest_whole_snapshot_and_the_log_behind_it() -> None:
    for spoiled in (0, 1, 2, 3):
        disk = SimDisk()
        log = filled(disk, 0).logs[ORDERS]
        for sequence in range(80):
            append(log, producer_id=sequence % 3, producer_epoch=1, base_sequence=sequence // 3)
        flush(log)
        snapshots = [name for name in disk.listdir("orders-0") if name.endswith(".snapshot")]
        assert len(snapshots) >= 3
        for name in snapshots[len(snapshots) - spoiled :]:
            disk.flip_bit(f"orders-0/{name}", 9, 3)
        expected = {pid: (p.epoch, p.batches[-1]) for pid, p in log.producers.by_id.items()}
        again = reopened(disk.restart(), **SMALL)
        assert {pid: (p.epoch, p.batches[-1]) for pid, p in again.producers.by_id.items()} == expected


def test_aborted_transactions_and_open_ones_are_known_after_a_crash() -> None:
    for seed in range(15):
        disk = SimDisk()
        log = filled(disk, 0).logs[ORDERS]
        for sequence in range(6):
            append(log, 2, producer_id=sequence % 2, producer_epoch=0, base_sequence=sequence // 2 * 2, transactional=True, sizes=90)
            if sequence == 3:
                a_marker(log, 1, commit=False)
        append(log, 1, producer_id=2, producer_epoch=0, base_sequence=0, transactional=True)
        a_marker(log, 0, commit=False)
        expected = log.aborted_transactions(0, log.end_offset)
        assert len(expected) == 2
        flush(log)
        again = reopened(crashed(disk, seed), **SMALL)
        assert again.aborted_transactions(0, again.end_offset) == expected
        assert again.last_stable_offset(again.end_offset) == log.last_stable_offset(log.end_offset)
        assert again.producers.open_transactions == log.producers.open_transactions


def test_aborted_transactions_outlive_a_crash_right_after_a_roll_at_the_recovery_point() -> None:
    """The index of a closed segment may be lost although the recovery point is at its end."""
    for seed in range(25):
        disk = SimDisk()
        directory = filled(disk, 0, internal_segment_bytes=300)
        log = directory.logs[ORDERS]
        append(log, 1, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
        a_marker(log, 1, commit=False)
        flush(log)
        directory.write_checkpoints()
        append(log, 1, sizes=300)
        assert len(log.segments) == 2
        directory.write_checkpoints()
        again = reopened(crashed(disk, seed), internal_segment_bytes=300)
        assert [entry.producer_id for entry in again.aborted_transactions(0, again.end_offset)] == [1]


def test_a_damaged_transaction_index_is_rebuilt_even_after_a_clean_stop() -> None:
    disk = SimDisk()
    directory = filled(disk, 0)
    log = directory.logs[ORDERS]
    append(log, 1, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    a_marker(log, 1, commit=False)
    for _ in range(40):
        append(log)
    assert directory.close(now_ms=NOW_MS)
    disk.open(BASE + ".txnindex").append(b"odd")
    again = reopened(disk.restart(), **SMALL)
    assert [entry.producer_id for entry in again.aborted_transactions(0, 42)] == [1] and again.end_offset == 42
    assert again.disk.size(BASE + ".txnindex") == 34


@pytest.mark.parametrize("data", [None, b"", b"0\n2\n0 0\n", b"nonsense"])
def test_a_lost_epoch_table_is_read_from_the_batches(data: bytes | None) -> None:
    disk = SimDisk()
    directory = filled(disk)
    directory.close(now_ms=NOW_MS)
    disk.unlink("orders-0/leader-epoch-checkpoint")
    if data is not None:
        disk.open("orders-0/leader-epoch-checkpoint", create=True).append(data)
    log = reopened(disk.restart(), **SMALL)
    assert log.epochs.entries == [(0, 0), (1, 25), (2, 50)]


def test_recovery_works_with_no_byte_free() -> None:
    """strimzi #7484: a full disk must not keep a broker from starting."""
    for seed in range(10):
        disk = SimDisk()
        log = filled(disk).logs[ORDERS]
        append(log, producer_id=3, producer_epoch=0, base_sequence=0, epoch=7)
        flush(log)
        for _ in range(30):
            append(log, epoch=8)
        after = crashed(disk, seed)
        after.capacity_bytes = 0
        directory = opened(after, options(**SMALL))
        log = directory.logs[ORDERS]
        assert log.end_offset >= 61 and log.epochs.epoch_at(60) == 7 and 3 in log.producers.by_id
        assert offsets(log) == [(number, number) for number in range(log.end_offset)]
        found = log.offset_for_time(NOW_MS + 30, upto=log.end_offset)
        assert found is not None and found.offset == 30
        with pytest.raises(OSError, match="full"):
            append(log)
        after.capacity_bytes = 1 << 30
        append(log, epoch=8)
        flush(log)
        assert reopened(crashed(after, seed), **SMALL).end_offset == log.end_offset


def test_a_full_disk_makes_no_flush_wanted_again_and_again() -> None:
    disk = SimDisk()
    log = a_log(disk)
    append(log, epoch=1)
    disk.capacity_bytes = disk.used_bytes
    flush(log)
    assert log.recovery_point == 1 and log.epochs.dirty
    assert log.flush_plan() is None and log.checkpoint_offset == 0
    disk.capacity_bytes = 1 << 30
    append(log, epoch=1)
    flush(log)
    assert not log.epochs.dirty and log.checkpoint_offset == 2


def test_a_failed_sync_during_recovery_is_not_hidden() -> None:
    disk = SimDisk()
    filled(disk)
    after = disk.restart()
    after.fail("sync", ".log")
    with pytest.raises(OSError) as caught:
        opened(after, options(**SMALL))
    assert caught.value.errno == EIO


def test_bytes_whose_sync_failed_are_not_taken_for_durable_later() -> None:
    """A second sync succeeds and saves nothing: the pages count as clean. So the log never asks twice."""
    disk = SimDisk()
    log = a_log(disk)
    append(log, 3)
    disk.fail("sync", ".log")
    plan = log.flush_plan()
    assert plan is not None
    with pytest.raises(OSError):
        plan.carry_out(disk)
    assert log.recovery_point == 0
    assert reopened(crashed(disk)).end_offset == 0


def test_an_interrupted_deletion_is_finished_at_the_next_start() -> None:
    disk = SimDisk()
    directory = filled(disk)
    path = directory.remove(ORDERS)
    assert path.startswith("orders-0.") and path.endswith("-delete") and ORDERS not in directory.logs
    disk.open("recovery-point-offset-checkpoint.tmp", create=True)
    again = opened(disk.restart())
    assert not again.logs
    assert again.disk.listdir() == ["log-start-offset-checkpoint", "meta.properties", "recovery-point-offset-checkpoint"]


def test_files_on_their_way_out_are_removed_at_the_next_start() -> None:
    disk = SimDisk()
    filled(disk, 3)
    for name in ("00000000000000000000.log.deleted", "00000000000000000009.log.cleaned", "leader-epoch-checkpoint.tmp"):
        disk.open(f"orders-0/{name}", create=True).append(b"x")
    disk.open("orders-0/00000000000000000077.index", create=True).append(b"x")
    log = reopened(disk.restart())
    assert log.end_offset == 3
    assert log.disk.listdir("orders-0") == [
        *(f"00000000000000000000{suffix}" for suffix in (".index", ".log", ".timeindex")), "leader-epoch-checkpoint", "partition.metadata",
    ]  # fmt: skip


def test_an_interrupted_swap_of_compaction_is_completed() -> None:
    disk = SimDisk()
    log = filled(disk).logs[ORDERS]
    flush(log)
    first, second = log.segments[0], log.segments[1]
    joined = disk.read_file(first.file.path) + disk.read_file(second.file.path)
    disk.open(f"{BASE}.log.swap", create=True).append(joined)
    disk.unlink(first.file.path)  # The swap had begun to remove what it replaces.
    bases = list(log.bases)
    again = reopened(disk.restart(), **SMALL)
    assert again.bases == [0, *bases[2:]] and again.end_offset == 60
    assert offsets(again) == [(number, number) for number in range(60)]


def test_a_swap_whose_decision_had_not_fallen_is_undone() -> None:
    disk = SimDisk()
    log = filled(disk).logs[ORDERS]
    flush(log)
    disk.open(f"{BASE}.log.swap", create=True).append(b"half")
    disk.open(f"{BASE}.log.cleaned", create=True).append(b"half")
    assert reopened(disk.restart(), **SMALL).end_offset == 60


def test_records_deleted_up_to_an_offset_the_crash_took_away_leave_an_empty_log_there() -> None:
    disk = SimDisk()
    directory = filled(disk, 30, internal_segment_bytes=100_000)
    log = directory.logs[ORDERS]
    log.delete_before(25, NOW_MS)
    directory.write_checkpoints(kinds=("log_starts",))
    disk.open(BASE + ".log").truncate(0)
    log = reopened(disk.restart())
    assert (log.start_offset, log.end_offset) == (25, 25)
    append(log, 2)
    assert offsets(log) == [(25, 26)]


def test_a_lost_or_malformed_recovery_checkpoint_means_that_everything_is_scanned() -> None:
    disk = SimDisk()
    directory = filled(disk)
    flush(directory.logs[ORDERS])
    directory.write_checkpoints()
    disk.open("recovery-point-offset-checkpoint").truncate(7)
    log = reopened(disk.restart(), **SMALL)
    assert log.end_offset == 60 and log.recovered is not None and log.recovered.scanned_bytes == log.size


def test_only_segments_behind_the_recovery_point_are_scanned() -> None:
    disk = SimDisk()
    directory = filled(disk)
    flush(directory.logs[ORDERS])
    directory.write_checkpoints()
    log = reopened(disk.restart(), **SMALL)
    assert log.recovered is not None and 0 < log.recovered.scanned_bytes <= log.segments[-1].size + log.segments[-2].size


def test_a_directory_of_another_broker_or_cluster_is_refused_by_name() -> None:
    disk = SimDisk("here")
    opened(disk)
    with pytest.raises(DirectoryRefused, match=r"here belongs to broker 1, not to 2.*broker\.id"):
        LogDirectory.open(disk, broker_id=2, cluster_id="cluster-of-the-tests", now_ms=0)
    with pytest.raises(DirectoryRefused, match="here belongs to cluster cluster-of-the-tests, not to other"):
        LogDirectory.open(disk, broker_id=1, cluster_id="other", now_ms=0)


def test_the_directory_keeps_its_id_for_life() -> None:
    disk = SimDisk()
    first = opened(disk).directory_id
    assert len(first) == 16 and opened(disk.restart(), now_ms=5).directory_id == first
    assert LogDirectory.open(SimDisk(), broker_id=1, cluster_id="c", now_ms=0, directory_id=b"d" * 16).directory_id == b"d" * 16


def test_a_log_whose_topic_id_was_lost_gets_it_back_durably() -> None:
    disk = SimDisk()
    filled(disk, 1)
    disk.open("orders-0/partition.metadata").truncate(3)
    log = reopened(disk.restart())
    assert log.topic_id == bytes(16)
    log.assign_topic_id(TOPIC_ID)
    flush(log)
    assert reopened(crashed(log.disk)).topic_id == TOPIC_ID  # type: ignore[arg-type]


def test_many_partitions_recover_each_for_itself() -> None:
    disk = SimDisk()
    directory = opened(disk)
    for number in range(20):
        log = directory.create(TopicPartition("many", number), TOPIC_ID, options(), NOW_MS)
        flush(log)
        append(log, number + 1)
    disk.flip_bit("many-7/00000000000000000000.log", 30)
    again = opened(disk.restart())
    assert [again.logs[TopicPartition("many", n)].end_offset for n in range(20)] == [n + 1 if n != 7 else 0 for n in range(20)]


def test_an_epoch_table_that_contradicts_the_batches_yields_to_them() -> None:
    disk = SimDisk()
    log = a_log(disk)
    append(log, 3, epoch=1)
    append(log, 3, epoch=2)
    disk.replace_file("orders-0/leader-epoch-checkpoint", b"0\n2\n1 0\n9 3\n")
    assert reopened(disk.restart()).epochs.entries == [(1, 0), (2, 3)]


def test_aborted_transactions_for_whose_index_there_was_no_room_are_found_after_a_crash() -> None:
    disk = SimDisk()
    directory = filled(disk, 0, internal_segment_bytes=300)
    log = directory.logs[ORDERS]
    append(log, 1, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    a_marker(log, 1, commit=False)
    flush(log)
    disk.capacity_bytes = disk.used_bytes
    with pytest.raises(OSError, match="full"):
        append(log, 1, sizes=200)
    disk.capacity_bytes = disk.used_bytes + a_batch(1, sizes=200)[1].size
    append(log, 1, sizes=200)
    flush(log)
    assert log.pending.unwritten == log.segments[:1] and log.recovery_point == 3
    disk.capacity_bytes = 1 << 30
    assert directory.write_checkpoints()
    again = reopened(crashed(disk), internal_segment_bytes=300)
    assert [entry.producer_id for entry in again.aborted_transactions(0, 3)] == [1]
