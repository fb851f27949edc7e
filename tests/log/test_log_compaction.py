"""Compaction of a whole log: which segments are due, which records stay, and readers, producers and crashes afterwards."""

from random import Random
from typing import Any

import pytest
from compaction import COMPACT, MEANS, compact, everything, flushed, put, table
from hypothesis import given, settings
from hypothesis import strategies as st
from log_builders import NOW_MS, ORDERS, a_log, a_marker, opened, options, reopened
from msgspec.structs import replace

from ottla.base.units import DAY_MS, HOUR_MS
from ottla.log import checkpoints, compactor, recovery
from ottla.log.compaction import dirty_range, is_due, plan, swap
from ottla.log.compactor import CompactionResult, carry_out
from ottla.log.errors import CorruptLog, OutOfOrderSequence
from ottla.log.log import Log
from ottla.log.producer_state import BATCHES_KEPT, Duplicate
from ottla.records.batch import headers, parse_header
from ottla.records.build import build_batch
from ottla.records.compression import Codec
from ottla.sim.disk import PowerCut, SimDisk


def a_compacted_log(disk: SimDisk | None = None, **texts: Any) -> Log:
    return a_log(disk, **{**COMPACT, **texts})


def rolled(log: Log) -> Log:
    """Begins a new segment, so that everything so far may be compacted."""
    flushed(log)
    log.roll(NOW_MS)
    flushed(log)
    return log


def filled(log: Log, keys: int = 7, count: int = 60) -> Log:
    for number in range(count):
        put(log, (b"key-%d" % (number * number % keys), b"value-%03d" % number), at_ms=NOW_MS + number)
    return log


def test_the_last_value_of_each_key_stays_at_its_offset_and_the_log_shrinks() -> None:
    log = filled(a_compacted_log())
    before, size = table(everything(log)), log.size
    cleaned = compact(log)
    assert cleaned is not None and cleaned.upto == log.active.base_offset == log.clean_offset
    found = everything(log)
    assert table(found) == before and log.size < size // 2
    offsets = [offset for offset, _, _ in found]
    assert offsets == sorted(set(offsets))
    below = [key for offset, key, _ in found if offset < cleaned.upto]
    assert len(below) == len(set(below))
    assert compact(log) is None, "nothing is dirty"


def test_only_the_last_batch_of_all_stays_without_records() -> None:
    """A client may get one alone, and some (kafka-go) do not know how to go on behind it."""
    log = a_compacted_log(internal_segment_bytes=100)
    for number in range(6):
        put(log, (b"a", b"%d" % number))
    put(log, (b"b", b"6"))
    put(log, (None, b"7"))
    rolled(log)
    put(log, (b"a", b"8"))
    assert len(log.segments) == 9 and compact(log) is not None
    for again in (log, reopened(log.disk, **COMPACT)):  # type: ignore[arg-type]
        found = [each for segment in again.segments for _, each in headers(segment.file.read(0, segment.size))]
        assert [(each.last_offset, each.count) for each in found] == [(5, 1), (6, 1), (7, 0), (8, 1)]
        assert everything(again) == [(5, b"a", b"5"), (6, b"b", b"6"), (8, b"a", b"8")]
        assert everything(again, 3) == everything(again)


def test_the_active_segment_and_what_is_not_stable_are_left_alone() -> None:
    log = a_compacted_log(internal_segment_bytes=100_000)
    for _ in range(5):
        put(log, (b"a", b"1"))
    assert compact(log) is None
    rolled(log)
    put(log, (b"a", b"2"))
    assert compact(log, high_watermark=3) is None, "the segment is not wholly below the high watermark"
    assert compact(log) is not None
    assert [offset for offset, *_ in everything(log)] == [4, 5]


def test_an_open_transaction_bounds_compaction_at_its_segment() -> None:
    log = a_compacted_log(internal_segment_bytes=100_000)
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"))
    rolled(log)
    put(log, (b"a", b"3"), transactional=True, producer_id=5, producer_epoch=0, base_sequence=0)
    rolled(log)
    rolled_at = log.end_offset
    put(log, (b"b", b"4"))
    assert dirty_range(log, high_watermark=log.end_offset, now_ms=NOW_MS).upto == 2  # type: ignore[union-attr]
    a_marker(log, 5, commit=True)
    flushed(log)
    assert dirty_range(log, high_watermark=log.end_offset, now_ms=NOW_MS).upto == rolled_at  # type: ignore[union-attr]


def test_a_log_is_due_by_the_part_that_is_dirty() -> None:
    log = rolled(filled(a_compacted_log(min_cleanable_dirty_ratio=0.5, internal_segment_bytes=1000)))
    assert compact(log) is not None
    clean = sum(segment.size for segment in log.segments)
    while sum(segment.size for segment in log.segments if segment.base_offset >= (log.clean_offset or 0)) < clean * 0.9:
        put(log, (b"key-1", b"again"))
    rolled(log)
    assert compact(log) is None
    while sum(segment.size for segment in log.segments if segment.base_offset >= (log.clean_offset or 0)) < clean * 1.2:
        put(log, (b"key-1", b"again"))
    rolled(log)
    assert compact(log) is not None


def test_the_smallest_lag_keeps_young_segments_as_they_are() -> None:
    log = a_compacted_log(min_compaction_lag_ms=HOUR_MS, internal_segment_bytes=100_000)
    put(log, (b"a", b"1"), (b"a", b"2"), at_ms=NOW_MS - 2 * HOUR_MS)
    rolled(log)
    put(log, (b"a", b"3"), (b"a", b"4"), at_ms=NOW_MS - HOUR_MS // 2)
    rolled(log)
    assert compact(log) is not None
    assert [offset for offset, *_ in everything(log)] == [1, 2, 3]
    assert compact(log, now_ms=NOW_MS + HOUR_MS) is not None
    assert [offset for offset, *_ in everything(log)] == [3]


def test_the_largest_lag_has_a_log_compacted_however_clean_it_is() -> None:
    log = a_compacted_log(max_compaction_lag_ms=HOUR_MS, min_cleanable_dirty_ratio=1, internal_segment_bytes=100_000)
    put(log, (b"a", b"1"), (b"a", b"2"))
    rolled(log)
    assert compact(log, now_ms=NOW_MS + HOUR_MS) is None
    assert compact(log, now_ms=NOW_MS + HOUR_MS + 1) is not None


def test_the_largest_lag_also_ends_a_segment() -> None:
    log = a_compacted_log(max_compaction_lag_ms=HOUR_MS, internal_segment_bytes=100_000)
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"), at_ms=NOW_MS + HOUR_MS + 1)
    assert len(log.segments) == 2


def test_a_tombstone_outlasts_the_values_it_hides_by_the_retention_of_deletes() -> None:
    log = a_compacted_log(delete_retention_ms=1000, internal_segment_bytes=100_000)
    put(log, (b"a", b"1"))
    put(log, (b"a", None), (b"b", b"2"))
    rolled(log)
    compact(log)
    assert everything(log) == [(1, b"a", None), (2, b"b", b"2")]
    for later_ms, expected in ((999, [1, 2, 3]), (1000, [2, 4])):
        put(log, (b"c", b"3"))
        rolled(log)
        compact(log, now_ms=NOW_MS + later_ms)
        assert [offset for offset, *_ in everything(log)] == expected


def test_aborted_records_go_their_marker_stays_until_its_horizon_and_then_goes_too() -> None:
    log = a_compacted_log(delete_retention_ms=1000, internal_segment_bytes=100_000)
    put(log, (b"a", b"1"))
    put(log, (b"a", b"aborted"), (b"b", b"aborted"), transactional=True, producer_id=5, producer_epoch=0, base_sequence=0)
    a_marker(log, 5, commit=False)
    put(log, (b"x", b"2"), transactional=True, producer_id=5, producer_epoch=0, base_sequence=2)
    a_marker(log, 5, commit=True)
    for sequence in range(3, 3 + BATCHES_KEPT):
        put(log, (b"x", b"3"), producer_id=5, producer_epoch=0, base_sequence=sequence)
    rolled(log)

    def batches() -> list[tuple[int, bool]]:
        file = log.segments[0].file
        return [(header.base_offset, header.is_control) for _, header in headers(file.read(0, file.size)) if header.count]

    compact(log)
    assert [offset for offset, *_ in everything(log)] == [0, 10]
    assert batches() == [(0, False), (3, True), (5, True), (10, False)]
    assert [entry.first_offset for entry in log.aborted_transactions(0, log.end_offset)] == [1]
    for later_ms, expected in ((1000, [0, 3, 5, 10, 11]), (2000, [0, 10, 12])):
        # The second compaction finds the transactions empty and sets the horizon; the third is behind it.
        put(log, (b"y", b"4"))
        rolled(log)
        compact(log, now_ms=NOW_MS + later_ms)
        assert [offset for offset, *_ in batches()] == expected
        assert log.aborted_transactions(0, log.end_offset) == []


def test_a_small_map_takes_several_rounds_to_the_same_result() -> None:
    large, small = (filled(a_compacted_log(internal_segment_bytes=500), keys=50, count=150) for _ in range(2))
    compact(large)
    rounds = 0
    while compact(small, means=replace(MEANS, buffer_bytes=8 * 24)) is not None:
        rounds += 1
    assert rounds > 3 and everything(small) == everything(large)


def test_the_map_is_no_larger_than_the_dirty_part_needs_nor_than_its_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    original = compactor.OffsetMap  # type: ignore[attr-defined]

    def noted(slots: int, entries_max: int, key: bytes) -> Any:
        made.append(slots)
        return original(slots, entries_max, key)

    monkeypatch.setattr(compactor, "OffsetMap", noted)
    for buffer_bytes in (1 << 30, 20 * 24):
        compact(filled(a_compacted_log()), means=replace(MEANS, buffer_bytes=buffer_bytes))
    assert 60 <= made[0] < 80 and made[1] == 20


def test_segments_are_merged_up_to_the_size_of_one() -> None:
    log = filled(a_compacted_log(internal_segment_bytes=300), count=80)
    assert len(log.segments) > 15
    log.set_options(options(**{**COMPACT, "internal_segment_bytes": 2000}))
    compact(log)
    bases = [segment.base_offset for segment in log.segments]
    assert bases == log.bases and len(bases) < 8
    assert all(segment.size <= 2000 for segment in log.segments)


def test_new_segments_have_sound_indexes_and_times() -> None:
    disk = SimDisk()
    log = filled(a_compacted_log(disk), keys=30, count=200)
    expected = [(offset, key) for offset, key, _ in everything(log)]
    compact(log)
    kept = everything(log)
    for segment in log.segments[:-1]:
        held = (segment.offsets.entries(), segment.times.entries(), segment.max_timestamp)
        segment.rebuild()
        assert held == (segment.offsets.entries(), segment.times.entries(), segment.max_timestamp)
    for start, _ in expected:
        assert everything(log, start) == [record for record in kept if record[0] >= start]
    for offset, _, _ in kept:
        found = log.offset_for_time(NOW_MS + offset, upto=log.end_offset)
        assert found is not None and found.offset == offset
    latest = log.max_timestamp(log.end_offset)
    assert latest is not None and latest.offset == log.end_offset - 1


@pytest.mark.parametrize("codec", list(Codec))
def test_compressed_batches_are_compacted(codec: Codec) -> None:
    log = a_compacted_log()
    for number in range(40):
        put(log, (b"a", b"%d" % number), (b"key-%d" % (number % 3), b"v" * 50), codec=codec)
    before = table(everything(log))
    compact(log)
    assert table(everything(log)) == before and len(everything(log)) < 20


def a_batch_of(sequence: int) -> Any:
    return parse_header(build_batch([(NOW_MS, b"a", b"x", ())], producer_id=1, producer_epoch=0, base_sequence=sequence))


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("snapshots", [True, False])
def test_a_producer_goes_on_and_may_repeat_after_compaction_and_restart(clean: bool, snapshots: bool) -> None:
    disk = SimDisk()
    directory = opened(disk, options(**COMPACT))
    log = directory.create(ORDERS, bytes(range(16)), options(**COMPACT), NOW_MS)  # type: ignore[arg-type]
    for number in range(30):
        put(log, (b"a", b"%d" % number), producer_id=1, producer_epoch=0, base_sequence=number)
    for number in range(10):
        put(log, (b"a", b"%d" % number))
    rolled(log)
    compact(log)
    assert [offset for offset, *_ in everything(log)] == [39]
    if clean:
        directory.close({}, NOW_MS)
        disk = disk.restart()
    else:
        directory.write_checkpoints()
        disk = disk.crash(Random(1))
    for name in disk.listdir("orders-0"):
        if name.endswith(".snapshot") and not snapshots:
            disk.unlink(f"orders-0/{name}")
    again = reopened(disk, **COMPACT)
    for sequence in range(25, 30):
        assert isinstance(again.sequence_check(a_batch_of(sequence), now_ms=NOW_MS), Duplicate)
    with pytest.raises(OutOfOrderSequence):
        again.sequence_check(a_batch_of(24), now_ms=NOW_MS)
    assert again.sequence_check(a_batch_of(30), now_ms=NOW_MS) is None


def test_leader_epochs_and_the_start_of_the_log_stay() -> None:
    log = a_compacted_log()
    for number in range(60):
        put(log, (b"k", b"%d" % number), leader_epoch=number // 20)
    log.delete_before(7, NOW_MS)
    entries = log.epochs.entries
    compact(log)
    assert (log.start_offset, log.epochs.entries) == (7, entries)
    assert log.epochs.end_of(0) == (0, 20)


def test_a_slice_in_flight_is_not_disturbed() -> None:
    log = filled(a_compacted_log())
    flushed(log)
    held = log.locate(3, max_bytes=300, upto=log.end_offset)
    assert held is not None
    before = held.read()
    compact(log)
    assert held.read() == before and ".deleted" in held.file.path


def begun(log: Log) -> tuple[Any, CompactionResult]:
    flushed(log)
    found = dirty_range(log, high_watermark=log.end_offset, now_ms=NOW_MS)
    assert found is not None
    *_, cleaned = carry_out(log.disk, plan(log, found, means=MEANS, now_ms=NOW_MS))
    assert isinstance(cleaned, CompactionResult)
    return found, cleaned


def test_a_log_truncated_meanwhile_keeps_its_segments() -> None:
    log = filled(a_compacted_log())
    found, cleaned = begun(log)
    log.truncate_to(20)
    before = everything(log)
    assert swap(log, found, cleaned, NOW_MS) is None
    assert everything(log) == before and len(before) == 20


def test_a_segment_cut_and_grown_again_meanwhile_is_not_taken_for_the_one_it_was() -> None:
    log = filled(a_compacted_log(internal_segment_bytes=100_000), count=20)
    rolled(log)
    found, cleaned = begun(log)
    log.truncate_to(10)
    for number in range(10, 20):
        put(log, (b"key-%d" % (number * number % 7), b"another-%01d" % (number % 10)), at_ms=NOW_MS + number)
    rolled(log)
    assert [segment.size for segment in log.segments[:1]] == [found.segments[0].size] and log.segments[0] is found.segments[0]
    before = everything(log)
    assert swap(log, found, cleaned, NOW_MS) is None
    assert everything(log) == before


def test_segments_that_retention_took_meanwhile_do_not_come_back() -> None:
    log = filled(a_compacted_log(internal_segment_bytes=300), count=80)
    found, cleaned = begun(log)
    assert len(cleaned.groups) > 3
    log.delete_before(cleaned.groups[0].end_offset, NOW_MS)
    removed = swap(log, found, cleaned, NOW_MS)
    assert removed is not None and any(path.endswith(".cleaned") for path in removed)
    assert log.bases[0] == cleaned.groups[1].bases[0]
    again = filled(a_compacted_log(internal_segment_bytes=300), count=80)
    again.set_options(options(**{**COMPACT, "internal_segment_bytes": 2000}))
    found, cleaned = begun(again)
    again.delete_before(cleaned.groups[0].bases[1], NOW_MS)
    assert swap(again, found, cleaned, NOW_MS) is None, "part of a new segment's records are gone"


def test_retention_applies_to_compacted_logs_that_also_delete() -> None:
    log = a_compacted_log(cleanup_policy="compact,delete", retention_ms=DAY_MS)
    for number in range(40):
        put(log, (b"old-%d" % (number % 9), b"x" * 20), at_ms=NOW_MS - 2 * DAY_MS)
    for number in range(40):
        put(log, (b"new-%d" % (number % 9), b"x" * 20))
    compact(log)
    assert {key[:3] for _, key, _ in everything(log) if key} == {b"old", b"new"}
    log.retain(NOW_MS, log.end_offset)
    assert {key[:3] for _, key, _ in everything(log) if key} == {b"new"}


@pytest.mark.parametrize("position", [5, 30, 70])
def test_a_damaged_batch_is_named_and_nothing_is_replaced(position: int) -> None:
    disk = SimDisk()
    log = filled(a_compacted_log(disk))
    flushed(log)
    found = dirty_range(log, high_watermark=log.end_offset, now_ms=NOW_MS)
    assert found is not None and is_due(log, found)
    disk.flip_bit(log.segments[1].file.path, position)
    if position == 5:
        disk.flip_bit(log.segments[1].file.path, 9)  # The base offset is outside of the checksum; the length is not beyond notice.
    with pytest.raises(CorruptLog):
        list(carry_out(disk, plan(log, found, means=MEANS, now_ms=NOW_MS)))
    assert not [name for name in disk.listdir("orders-0") if name.endswith(".swap")]


def test_a_plan_no_longer_wanted_ends_early() -> None:
    log = filled(a_compacted_log())
    flushed(log)
    found = dirty_range(log, high_watermark=log.end_offset, now_ms=NOW_MS)
    assert found is not None
    work = plan(log, found, means=MEANS, now_ms=NOW_MS)
    steps = carry_out(log.disk, work)
    next(steps)
    work.wanted = False
    assert list(steps) == []


def test_the_checkpoint_of_the_cleaner_outlives_a_restart_and_a_removed_partition_leaves_it() -> None:
    disk = SimDisk()
    directory = opened(disk, options(**COMPACT))
    log = filled(directory.create(ORDERS, bytes(range(16)), options(**COMPACT), NOW_MS))  # type: ignore[arg-type]
    assert directory.close({}, NOW_MS)
    assert "cleaner-offset-checkpoint" not in disk.listdir(), "nothing was compacted"
    disk = disk.restart()
    directory = opened(disk, options(**COMPACT))
    log = directory.logs[ORDERS]
    cleaned = compact(log)
    assert cleaned is not None
    directory.close({}, NOW_MS)
    assert disk.read_file("cleaner-offset-checkpoint") == b"0\n1\norders 0 %d\n" % cleaned.upto
    disk = disk.restart()
    directory = opened(disk, options(**COMPACT))
    assert directory.logs[ORDERS].clean_offset == cleaned.upto
    directory.remove(ORDERS)
    directory.write_checkpoints()
    assert disk.read_file("cleaner-offset-checkpoint") == b"0\n0\n"


@pytest.mark.parametrize("created_as", ["compact", "delete"])
def test_holes_of_compaction_survive_a_crash_whatever_policy_and_checkpoints(created_as: str) -> None:
    disk = SimDisk()
    first = options(**{**COMPACT, "cleanup_policy": created_as})
    log = filled(opened(disk, first).create(ORDERS, bytes(range(16)), first, NOW_MS))  # type: ignore[arg-type]
    log.set_options(options(**COMPACT))
    flushed(log)
    compact(log)
    before = everything(log)
    assert len(before) < 40
    disk = disk.crash(Random(3))
    for turn in range(3):
        again = reopened(disk, internal_segment_bytes=600, cleanup_policy="delete")
        assert again.recovered is not None and everything(again) == before
        disk = disk.crash(Random(turn))
        for name in disk.listdir():
            if name.endswith("-checkpoint"):
                disk.unlink(name)


def a_log_with_a_lost_middle(*, compacted: bool) -> tuple[SimDisk, int]:
    """A compacted topic's log of which a crash took the end of a segment, but not the segment behind; and where it was."""
    disk = SimDisk()
    log = filled(a_compacted_log(disk, internal_segment_bytes=300))
    if compacted:
        compact(log)
        filled(log, count=20)
    segment = log.segments[-3]
    lost_from = log.bases[-2] - 1
    found = segment.header_of(lost_from)
    assert found is not None and found[0] > 0
    segment.file.truncate(found[0])
    return disk, lost_from


@pytest.mark.parametrize("compacted", [False, True])
def test_a_hole_above_what_was_compacted_is_a_flaw_in_a_compacted_log_too(compacted: bool) -> None:
    disk, lost_from = a_log_with_a_lost_middle(compacted=compacted)
    again = reopened(disk.restart(), **COMPACT)
    assert again.end_offset == lost_from


@pytest.mark.parametrize("torn", [None, b"", b"0\n1\n"])
def test_in_a_log_of_kafka_holes_stay_and_from_then_on_the_log_has_no_new_ones(torn: bytes | None) -> None:
    disk, lost_from = a_log_with_a_lost_middle(compacted=False)
    path = "orders-0/holes-checkpoint"
    disk.unlink(path)
    if torn is not None:
        disk.replace_file(path, torn)
    again = reopened(disk.restart(), **COMPACT)
    assert again.end_offset > lost_from + 1
    end = again.end_offset
    assert disk.restart().read_file(path) == b"0\n1\n%d\n" % end
    filled(again, count=30)
    segment = again.segments[-3]
    lost_from = again.bases[-2] - 1
    found = segment.header_of(lost_from)
    assert found is not None and lost_from > end
    segment.file.truncate(found[0])
    assert reopened(again.disk.restart(), **COMPACT).end_offset == lost_from  # type: ignore[attr-defined]


def test_what_a_former_compaction_left_stays_known_when_a_later_one_comes_less_far() -> None:
    disk = SimDisk()
    log = filled(a_compacted_log(disk))
    compact(log)
    first = log.holes_below
    log.clean_offset = None  # As a start finds it when the checkpoint of the cleaner was lost.
    put(log, (b"key-1", b"again"))
    rolled(log)
    compact(log, means=replace(MEANS, buffer_bytes=3 * 24))
    assert log.clean_offset is not None and log.clean_offset < first
    assert disk.read_file("orders-0/holes-checkpoint") == b"0\n1\n%d\n" % max(first, log.holes_below)
    before = everything(log)
    assert everything(reopened(disk.crash(Random(1)), internal_segment_bytes=600)) == before


def test_a_log_cut_below_its_holes_forgets_them_and_what_comes_then_is_dirty() -> None:
    disk = SimDisk()
    directory = opened(disk, options(**COMPACT))
    log = filled(directory.create(ORDERS, bytes(range(16)), options(**COMPACT), NOW_MS))  # type: ignore[arg-type]
    compact(log)
    directory.write_checkpoints()
    log.truncate_to(10)
    assert log.holes_below == log.clean_offset == log.end_offset == 10
    filled(log)
    again = reopened(disk.restart(), **COMPACT)
    assert again.end_offset > 50 and again.clean_offset == 10


def test_a_log_cut_before_its_compaction_was_durable_is_dirty_from_the_cut_on() -> None:
    log = filled(a_compacted_log())
    found, cleaned = begun(log)
    assert swap(log, found, cleaned, NOW_MS) is not None and log.clean_checkpoint is None
    log.truncate_to(10)
    assert log.clean_offset == 10


PAIRS = st.tuples(st.sampled_from([b"a", b"b", b"c", b"d", b"e"]), st.one_of(st.none(), st.binary(min_size=1, max_size=6)))
BATCHES = st.lists(
    st.tuples(st.lists(PAIRS, min_size=1, max_size=5), st.sampled_from([None, 1, 2]), st.sampled_from(list(Codec)), st.booleans()),
    min_size=1,
    max_size=25,
)


@settings(max_examples=120, deadline=None)
@given(BATCHES, st.integers(2, 9), st.integers(0, 3))
def test_a_reader_from_the_start_makes_the_same_table_of_the_compacted_log(batches: Any, slots: int, later: int) -> None:
    disk = SimDisk()
    log = a_compacted_log(disk, internal_segment_bytes=400, delete_retention_ms=10)
    sequences = {1: 0, 2: 0}
    before: dict[int, tuple[bytes | None, bytes | None]] = {}
    for number, (pairs, producer, codec, clean) in enumerate(batches):
        fields: dict[str, Any] = {"codec": codec}
        if producer is not None:
            fields |= {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequences[producer]}
            sequences[producer] += len(pairs)
        base = put(log, *pairs, at_ms=NOW_MS + number, **fields)
        before |= {base + place: pair for place, pair in enumerate(pairs)}
        if clean:
            compact(log, now_ms=NOW_MS + number * later * 5, means=replace(MEANS, buffer_bytes=slots * 24))
    rolled(log)
    for turn in range(2):
        compact(log, now_ms=NOW_MS + turn * 100, means=replace(MEANS, buffer_bytes=slots * 24))
    found = everything(log)
    assert table(found) == table((offset, *pair) for offset, pair in sorted(before.items()))
    offsets = [offset for offset, _, _ in found]
    assert offsets == sorted(set(offsets))
    assert all(before[offset] == (key, value) for offset, key, value in found)
    again = reopened(disk.restart(), **COMPACT)
    assert everything(again) == found
    for producer, sequence in sequences.items():
        if sequence:
            assert again.producers.by_id[producer].batches[-1].last_sequence == sequence - 1


# The power goes.


def prepared() -> tuple[SimDisk, Log, list[Any]]:
    disk = SimDisk()
    texts = {**COMPACT, "internal_segment_bytes": 500}
    log = opened(disk, options(**texts)).create(ORDERS, bytes(range(16)), options(**texts), NOW_MS)  # type: ignore[arg-type]
    filled(log, count=45)
    a_marker(log, 8, commit=False)
    put(log, (b"key-1", b"gone"), transactional=True, producer_id=9, producer_epoch=0, base_sequence=0)
    a_marker(log, 9, commit=False)
    filled(log, count=15)
    flushed(log)
    return disk, log, everything(log)


@pytest.mark.slow
def test_a_power_cut_at_any_step_of_a_compaction_leaves_the_old_segments_or_the_new() -> None:
    disk, log, _ = prepared()
    first = disk.steps
    compact(log)
    assert len(log.segments) > 2, "several new segments are swapped in"
    whole, steps = everything(log), disk.steps
    for step in range(first + 1, steps + 1):
        for seed in range(2):
            disk, log, before = prepared()
            disk.cut_power_at = step
            with pytest.raises(PowerCut):
                compact(log)
            end = log.end_offset
            after = disk.crash(Random(1000 * seed + step))
            again = reopened(after, **COMPACT, **({"write_caching": "true"} if seed else {}))
            found = everything(again)
            assert again.end_offset == end
            assert set(whole) <= set(found) <= set(before), f"step {step}"
            committed = [record for record in before if record[2] != b"gone"]
            assert table(record for record in found if record[2] != b"gone") == table(committed)
            assert not [name for name in after.listdir("orders-0") if name.endswith((".cleaned", ".swap", ".deleted"))]
            compact(again)
            assert table(everything(again)) == table(whole)


@pytest.mark.slow
def test_a_start_that_passes_over_files_that_were_to_be_swapped_in_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "SWAP", ".another")
    with pytest.raises(AssertionError):
        test_a_power_cut_at_any_step_of_a_compaction_leaves_the_old_segments_or_the_new()


def test_a_compaction_that_does_not_tell_of_its_holes_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "holes_file", lambda offset: b"0\n1\n0\n")
    with pytest.raises(AssertionError):
        test_a_power_cut_at_any_step_of_a_compaction_leaves_the_old_segments_or_the_new()


def test_a_power_cut_while_a_start_settles_a_half_done_swap_is_settled_by_the_next() -> None:
    disk, log, _ = prepared()
    first = disk.steps
    compact(log)
    whole, steps = everything(log), disk.steps
    for step in range(first + 1, steps + 1, 3):
        disk, log, before = prepared()
        disk.cut_power_at = step
        with pytest.raises(PowerCut):
            compact(log)
        half = disk.crash(Random(step))
        for cut in range(1, 12):
            half.cut_power_at = half.steps + cut
            try:
                reopened(half, **COMPACT)
            except PowerCut:
                half = half.crash(Random(cut))
            else:
                break
        found = everything(reopened(half.restart(), **COMPACT))
        assert set(whole) <= set(found) <= set(before)


def test_a_full_disk_leaves_the_log_as_it_was() -> None:
    disk, log, before = prepared()
    found = dirty_range(log, high_watermark=log.end_offset, now_ms=NOW_MS)
    assert found is not None
    disk.capacity_bytes = disk.used_bytes + 300
    with pytest.raises(OSError, match="full"):
        list(carry_out(disk, plan(log, found, means=MEANS, now_ms=NOW_MS)))
    assert everything(log) == before
