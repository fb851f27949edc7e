"""Idempotence and transactions in a partition."""

import tracemalloc
from random import Random

import pytest
from log_builders import NOW_MS, a_batch, a_log, a_marker, append, flush, reopened

from ottla.log import verification
from ottla.log.errors import InvalidTransactionState, OutOfOrderSequence, StaleCoordinatorEpoch, StaleProducerEpoch
from ottla.log.log import Log
from ottla.log.producer_snapshots import read_snapshot, snapshot_file
from ottla.log.producer_state import Duplicate
from ottla.log.verification import VerificationGuard
from ottla.records.batch import headers
from ottla.sim.disk import SimDisk, SimFile


def check(log: Log, count: int = 1, *, sequence: int, epoch: int = 0, producer: int = 1, **fields: bool) -> Duplicate | None:
    _, header = a_batch(count, producer_id=producer, producer_epoch=epoch, base_sequence=sequence, **fields)  # type: ignore[arg-type]
    return log.sequence_check(header, now_ms=NOW_MS)


def produce(log: Log, count: int = 1, *, sequence: int, epoch: int = 0, producer: int = 1, **fields: bool) -> None:
    assert check(log, count, sequence=sequence, epoch=epoch, producer=producer, **fields) is None
    append(log, count, producer_id=producer, producer_epoch=epoch, base_sequence=sequence, **fields)


def test_batches_without_a_producer_are_not_looked_at() -> None:
    log = a_log()
    _, header = a_batch(1)
    assert log.sequence_check(header, now_ms=NOW_MS) is None


def test_a_producer_not_known_here_may_begin_anywhere() -> None:
    assert check(a_log(), sequence=77, epoch=3) is None


def test_duplicate_of_one_of_the_last_five_batches_is_answered_with_its_first_offset() -> None:
    log = a_log()
    append(log, 4)
    for number in range(7):
        produce(log, 2, sequence=2 * number)
    for number in range(2, 7):
        assert check(log, 2, sequence=2 * number) == Duplicate(4 + 2 * number, 5 + 2 * number, NOW_MS)  # type: ignore[arg-type]
    with pytest.raises(OutOfOrderSequence):
        check(log, 2, sequence=2)


def test_a_repeat_that_is_cut_otherwise_is_out_of_order() -> None:
    log = a_log()
    produce(log, 3, sequence=0)
    with pytest.raises(OutOfOrderSequence, match="sequence 0 came where 3 is due"):
        check(log, 2, sequence=0)


def test_a_gap_in_the_sequence_is_out_of_order() -> None:
    log = a_log()
    produce(log, 3, sequence=0)
    with pytest.raises(OutOfOrderSequence):
        check(log, sequence=4)
    assert check(log, sequence=3) is None


def test_sequences_wrap_to_zero() -> None:
    log = a_log()
    produce(log, 2, sequence=2**31 - 1)
    assert check(log, 2, sequence=2**31 - 1) == Duplicate(0, 1, NOW_MS)  # type: ignore[arg-type]
    with pytest.raises(OutOfOrderSequence):
        check(log, sequence=0)
    produce(log, sequence=1)


def test_a_new_epoch_begins_at_zero_and_the_old_one_is_fenced() -> None:
    log = a_log()
    produce(log, sequence=0, epoch=1)
    with pytest.raises(OutOfOrderSequence):
        check(log, sequence=1, epoch=2)
    produce(log, sequence=0, epoch=2)
    with pytest.raises(StaleProducerEpoch, match="epoch 1, 2 is known"):
        check(log, sequence=1, epoch=1)
    with pytest.raises(StaleProducerEpoch):
        check(log, sequence=0, epoch=1)


def test_a_coordinators_batch_has_no_sequence_and_only_its_epoch_counts() -> None:
    log = a_log()
    produce(log, sequence=0, epoch=1)
    assert check(log, sequence=-1, epoch=1) is None
    with pytest.raises(StaleProducerEpoch):
        check(log, sequence=-1, epoch=0)


def test_a_batch_outside_the_transaction_that_is_open_is_refused() -> None:
    log = a_log()
    produce(log, sequence=0, transactional=True)
    with pytest.raises(InvalidTransactionState, match="open since offset 0"):
        check(log, sequence=1)
    produce(log, sequence=1, transactional=True)
    a_marker(log, 1, commit=True)
    assert check(log, sequence=2) is None


def test_the_last_stable_offset_waits_for_the_oldest_open_transaction_and_for_its_marker_to_be_replicated() -> None:
    log = a_log()
    append(log, 2)
    assert log.last_stable_offset(2) == 2
    produce(log, 2, sequence=0, producer=1, transactional=True)
    produce(log, 1, sequence=0, producer=2, transactional=True)
    append(log, 1)
    assert log.last_stable_offset(6) == 2 and log.last_stable_offset(1) == 1
    a_marker(log, 1, commit=True)
    assert log.last_stable_offset(6) == 2, "the marker at offset 6 could still be lost"
    assert log.last_stable_offset(7) == 4
    a_marker(log, 2, commit=False)
    assert log.last_stable_offset(7) == 4 and log.last_stable_offset(8) == 8


def test_aborted_transactions_are_listed_for_the_range_they_overlap() -> None:
    log = a_log(internal_segment_bytes=500)
    produce(log, 2, sequence=0, producer=1, transactional=True)
    produce(log, 2, sequence=0, producer=2, transactional=True)
    a_marker(log, 1, commit=False)
    for _ in range(6):
        append(log, 1, sizes=100)
    produce(log, 1, sequence=0, producer=3, transactional=True)
    a_marker(log, 2, commit=False)
    a_marker(log, 3, commit=True)
    assert len(log.segments) > 2

    def reported(first: int, upto: int) -> list[tuple[int, int, int]]:
        return [(entry.producer_id, entry.first_offset, entry.last_offset) for entry in log.aborted_transactions(first, upto)]

    assert reported(0, 14) == [(1, 0, 4), (2, 2, 12)]
    assert reported(0, 2) == [(1, 0, 4)]
    assert reported(5, 12) == reported(7, 12) == [(2, 2, 12)]
    assert reported(13, 14) == []


@pytest.mark.parametrize("closed", [False, True])
def test_a_reader_gets_the_aborted_transactions_of_its_slice_only(closed: bool) -> None:
    """The end of a slice comes from the index, which is sparse, so transactions up to the next entry may be listed."""
    log = a_log(index_interval_bytes=500)
    for producer in range(40):
        append(log, 1, producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True, sizes=200)
        a_marker(log, producer, commit=False)
    if closed:
        log.roll(NOW_MS)
    interval = 500 // 200 + 1  # Transactions between two entries.
    for first in (0, 10, 33, 60, 79):
        for max_bytes in (1, 1_000, 3_000, 1 << 20):
            found = log.locate(first, max_bytes=max_bytes, upto=80)
            assert found is not None
            last = max(header.last_offset for _, header in headers(found.read()))
            needed = [producer for producer in range(40) if 2 * producer + 1 >= first and 2 * producer <= last]
            reported = [entry.producer_id for entry in log.aborted_in(first, found, 80)]
            assert reported[: len(needed)] == needed
            assert len(reported) <= len(needed) + interval


def test_a_marker_without_data_of_its_producer_is_no_transaction() -> None:
    log = a_log()
    a_marker(log, 9, commit=False)
    assert log.aborted_transactions(0, 1) == [] and log.last_stable_offset(1) == 1
    assert log.producers.by_id[9].coordinator_epoch == 0


def test_markers_of_older_producers_and_coordinators_are_refused() -> None:
    log = a_log()
    a_marker(log, 9, producer_epoch=4, coordinator_epoch=7, commit=True)
    with pytest.raises(StaleProducerEpoch):
        log.producers.check_marker(9, 3, 8)
    with pytest.raises(StaleCoordinatorEpoch):
        log.producers.check_marker(9, 4, 6)
    log.producers.check_marker(9, 4, 7)
    log.producers.check_marker(10, 0, 0)


def test_a_marker_of_a_newer_epoch_fences_the_old_one_and_sequences_start_anew() -> None:
    log = a_log()
    produce(log, 2, sequence=0, epoch=3, transactional=True)
    a_marker(log, 1, producer_epoch=4, commit=False)
    with pytest.raises(StaleProducerEpoch):
        check(log, sequence=2, epoch=3)
    with pytest.raises(OutOfOrderSequence):
        check(log, sequence=2, epoch=4)
    produce(log, sequence=0, epoch=4)


def test_a_marker_of_a_transaction_that_raised_the_epoch_is_above_the_known_one_or_repeated() -> None:
    """Transaction version 2, KIP-890: a late marker of the transaction before must not end the present one."""
    log = a_log()
    produce(log, sequence=0, epoch=3, transactional=True)
    with pytest.raises(StaleProducerEpoch, match="later transaction"):
        log.producers.check_marker(1, 3, 0, raises_epoch=True)
    log.producers.check_marker(1, 3, 0)
    log.producers.check_marker(1, 4, 0, raises_epoch=True)
    a_marker(log, 1, producer_epoch=4, commit=True)
    log.producers.check_marker(1, 4, 0, raises_epoch=True)
    with pytest.raises(StaleProducerEpoch):
        log.producers.check_marker(1, 3, 0, raises_epoch=True)
    log.producers.check_marker(2, 0, 0, raises_epoch=True)


# Verification of the first batch of a transaction.


def begin(log: Log, *, sequence: int = 0, epoch: int = 0, raises_epoch: bool = False, now_ms: int = NOW_MS) -> VerificationGuard | None:
    return log.producers.begin_verification(1, epoch, sequence, raises_epoch=raises_epoch, now_ms=now_ms)


def verified(log: Log, guard: VerificationGuard | None, *, sequence: int = 0, epoch: int = 0) -> Duplicate | None:
    _, header = a_batch(1, producer_id=1, producer_epoch=epoch, base_sequence=sequence, transactional=True)
    return log.sequence_check(header, now_ms=NOW_MS, guard=guard, verify=True)


def test_the_first_batch_of_a_transaction_needs_the_guard_of_its_verification() -> None:
    log = a_log()
    with pytest.raises(InvalidTransactionState):
        verified(log, None)
    guard = begin(log)
    assert guard is not None and begin(log) is guard, "verifications at the same time share it"
    with pytest.raises(InvalidTransactionState):
        verified(log, VerificationGuard())
    assert verified(log, guard) is None
    produce(log, sequence=0, transactional=True)
    assert begin(log, sequence=1) is None, "the transaction is open"
    assert verified(log, None, sequence=1) is None
    assert begin(log, epoch=1) is not None, "that of another epoch is not"


def test_a_marker_voids_a_guard() -> None:
    log = a_log()
    guard = begin(log)
    a_marker(log, 1, commit=False)
    with pytest.raises(InvalidTransactionState):
        verified(log, guard)
    again = begin(log)
    assert again is not guard and verified(log, again) is None
    with pytest.raises(InvalidTransactionState):
        verified(log, guard)


def test_a_marker_of_the_transaction_before_voids_no_guard_when_each_transaction_has_its_own_epoch() -> None:
    log = a_log()
    guard = begin(log, epoch=1, raises_epoch=True)
    a_marker(log, 1, 1, commit=True)
    assert verified(log, guard, epoch=1) is None
    a_marker(log, 1, 2, commit=False)
    with pytest.raises(StaleProducerEpoch):
        verified(log, guard, epoch=1)


def test_markers_are_not_read_one_by_one_when_the_state_is_rebuilt(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were: a follower that truncates a log with many markers stopped the broker meanwhile."""
    log = a_log()
    for _ in range(200):
        append(log, 1, producer_id=1, producer_epoch=0, transactional=True)
        a_marker(log, 1, commit=True)
    reads: list[int] = []
    read = SimFile.read

    def counted(self: SimFile, position: int, size: int) -> bytes:
        reads.append(position)
        return read(self, position, size)

    monkeypatch.setattr(SimFile, "read", counted)
    log.truncate_to(399, NOW_MS)
    assert log.producers.open_transactions and len(reads) < 20


def test_a_repeated_batch_of_a_decided_transaction_is_a_duplicate_before_it_is_unverified() -> None:
    log = a_log()
    produce(log, sequence=0, transactional=True)
    a_marker(log, 1, commit=True)
    assert isinstance(verified(log, None), Duplicate)
    with pytest.raises(InvalidTransactionState):
        verified(log, None, sequence=1)


def test_a_batch_of_an_older_epoch_is_stale_before_it_is_unverified() -> None:
    log = a_log()
    a_marker(log, 1, producer_epoch=2, commit=True)
    with pytest.raises(StaleProducerEpoch):
        verified(log, None, epoch=1)
    with pytest.raises(StaleProducerEpoch):
        begin(log, epoch=1)


def test_a_batch_does_not_overtake_an_earlier_one_that_is_being_verified() -> None:
    log = a_log()
    begin(log, sequence=0)
    guard = begin(log, sequence=3)
    with pytest.raises(OutOfOrderSequence, match="3 came before 0"):
        verified(log, guard, sequence=3)
    assert verified(log, guard, sequence=0) is None
    guard = begin(log, sequence=7, epoch=1)
    assert verified(log, guard, sequence=7, epoch=1) is None, "a new epoch has its own sequences"


def test_a_new_epoch_of_each_transaction_begins_with_sequence_0() -> None:
    log = a_log()
    guard = begin(log, sequence=5, raises_epoch=True)
    with pytest.raises(OutOfOrderSequence):
        verified(log, guard, sequence=5)
    log = a_log()
    assert verified(log, begin(log, sequence=5), sequence=5) is None, "before, the state of its producer may have expired"


def test_verifications_expire_with_producers_and_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    log = a_log()
    guard = begin(log)
    log.expire_producers(NOW_MS + 1000, 1000)
    assert verified(log, guard) is None
    log.expire_producers(NOW_MS + 1001, 1000)
    with pytest.raises(InvalidTransactionState):
        verified(log, guard)
    monkeypatch.setattr(verification, "VERIFICATIONS_MAX", 2)
    guard = begin(log)
    for other in (2, 3):
        log.producers.begin_verification(other, 0, 0, raises_epoch=False, now_ms=NOW_MS)
    with pytest.raises(InvalidTransactionState):
        verified(log, guard)


def test_the_last_stable_offset_is_not_below_the_start_of_the_log() -> None:
    """Records of an open transaction can be deleted."""
    log = a_log()
    append(log, 2)
    produce(log, 2, sequence=0, transactional=True)
    append(log, 2)
    log.delete_before(5, NOW_MS)
    assert log.last_stable_offset(6) == 5


def test_silent_producers_are_forgotten_by_our_clock_not_by_their_timestamps() -> None:
    log = a_log()
    append(log, producer_id=1, producer_epoch=0, base_sequence=0, at_ms=5, now_ms=NOW_MS)
    append(log, producer_id=2, producer_epoch=0, base_sequence=0, at_ms=NOW_MS * 2, now_ms=NOW_MS - 1)
    append(log, producer_id=3, producer_epoch=0, base_sequence=0, now_ms=NOW_MS - 5000, transactional=True)
    assert log.expire_producers(NOW_MS + 999, 1000) == 1
    assert sorted(log.producers.by_id) == [1, 3], "an open transaction keeps its producer"


def test_snapshots_read_back_what_they_were_given() -> None:
    log = a_log()
    produce(log, 3, sequence=5, epoch=2, producer=11, transactional=True)
    a_marker(log, 12, producer_epoch=1, coordinator_epoch=6, commit=True)
    found = read_snapshot(snapshot_file(log.producers.by_id), NOW_MS)
    assert found == log.producers.by_id


def test_a_torn_snapshot_is_no_snapshot() -> None:
    log = a_log()
    produce(log, sequence=0)
    data = snapshot_file(log.producers.by_id)
    random = Random(1)
    for length in range(len(data)):
        assert read_snapshot(data[:length], 0) is None
        assert read_snapshot(data[:length] + bytes(len(data) - length), 0) is None or not any(data[length:])
    for _ in range(100):
        harmed = bytearray(data)
        harmed[random.randrange(len(data))] ^= 1 << random.randrange(8)
        assert read_snapshot(bytes(harmed), 0) is None


@pytest.mark.parametrize("clean", [True, False])
def test_repeats_are_known_after_a_restart(clean: bool) -> None:
    """A client with five requests in flight may repeat all of them, whatever happened to the broker."""
    disk = SimDisk()
    log = a_log(disk)
    for number in range(8):
        append(log, 1, sizes=40)
        produce(log, 2, sequence=2 * number)
    flush(log)
    if clean:
        from log_builders import opened

        opened(disk.restart()).close(now_ms=NOW_MS)
    again = reopened(disk.restart())
    for number in range(3, 8):
        found = check(again, 2, sequence=2 * number)
        assert found is not None and found.base_offset == 3 * number + 1
    produce(again, sequence=16)


def test_a_producer_takes_little_memory() -> None:
    """As was found: 60,000 producers took 70 MB of a broker."""
    log = a_log()
    ids = 2_000
    _, first = a_batch(1, producer_id=1, producer_epoch=0, base_sequence=0)
    tracemalloc.start()
    try:
        for producer_id in range(1, ids + 1):
            for sequence in range(7):
                header = first._replace(producer_id=producer_id, base_sequence=sequence)
                log.producers.data_appended(header, 10_000_000 + producer_id * 7 + sequence, NOW_MS + producer_id)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken / ids < 600


def test_of_too_many_producers_those_silent_for_longest_are_forgotten_but_for_open_transactions() -> None:
    log = a_log()
    append(log, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    for producer_id in range(2, 8):
        append(log, producer_id=producer_id, producer_epoch=0, base_sequence=0)
    append(log, producer_id=2, producer_epoch=0, base_sequence=1)
    assert log.forget_oldest_producers(3) == 3
    assert list(log.producers.by_id) == [1, 6, 7, 2], "in the order of last use"
    append(log, producer_id=3, producer_epoch=0, base_sequence=1)
    assert log.producers.by_id[3].last_sequence == 1, "a forgotten producer continues"
