"""The table of leader epochs."""

import itertools

from hypothesis import given
from hypothesis import strategies as st
from log_builders import a_log, append, flush, reopened

from ottla.log.leader_epochs import LeaderEpochs
from ottla.sim.disk import SimDisk


def table(*entries: tuple[int, int], end: int) -> LeaderEpochs:
    epochs = LeaderEpochs(list(entries))  # type: ignore[arg-type]
    epochs.end_offset = end  # type: ignore[assignment]
    return epochs


def test_an_epoch_ends_where_the_next_one_begins() -> None:
    epochs = table((0, 0), (2, 4), (5, 10), end=12)
    assert [epochs.end_of(epoch) for epoch in range(-1, 7)] == [None, (0, 4), (0, 4), (2, 10), (2, 10), (2, 10), (5, 12), None]


def test_an_epoch_before_the_first_one_known_ends_where_that_one_begins() -> None:
    assert table((3, 7), end=9).end_of(1) == (1, 7)


def test_without_any_epoch_nothing_is_known() -> None:
    epochs = table(end=0)
    assert epochs.end_of(0) is None and epochs.latest == -1 and epochs.epoch_at(0) == -1


def test_the_epoch_at_an_offset_is_that_of_its_batch() -> None:
    epochs = table((1, 2), (4, 5), end=9)
    assert [epochs.epoch_at(offset) for offset in (1, 2, 4, 5, 100)] == [-1, 1, 1, 4, 4]


def test_an_entry_that_contradicts_the_table_wins_over_later_ones() -> None:
    epochs = table((1, 0), (2, 5), (3, 8), end=10)
    assert epochs.assign(4, 5) and epochs.entries == [(1, 0), (4, 5)]
    assert not epochs.assign(4, 9), "the epoch has begun already"
    assert epochs.assign(2, 7) and epochs.entries == [(1, 0), (2, 7)]


def test_truncating_the_end_drops_epochs_that_begin_there_or_later() -> None:
    epochs = table((1, 0), (2, 5), (3, 8), end=10)
    epochs.truncate_end(8)
    assert epochs.entries == [(1, 0), (2, 5)] and epochs.dirty


def test_truncating_the_start_moves_the_epoch_that_contains_it() -> None:
    epochs = table((1, 0), (2, 5), (3, 8), end=10)
    epochs.truncate_start(6)
    assert epochs.entries == [(2, 6), (3, 8)]
    epochs.truncate_start(8)
    assert epochs.entries == [(3, 8)]
    version = epochs.version
    epochs.truncate_start(8)
    epochs.truncate_start(2)
    assert epochs.entries == [(3, 8)] and epochs.version == version


def test_a_table_that_changed_while_it_was_saved_is_not_clean() -> None:
    epochs = table(end=0)
    epochs.assign(1, 0)
    version = epochs.version
    epochs.assign(2, 3)
    epochs.saved(version)
    assert epochs.dirty and epochs.unsaved_from == 0
    epochs.saved(epochs.version)
    assert not epochs.dirty


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 30)), max_size=15))
def test_epochs_and_offsets_always_grow(entries: list[tuple[int, int]]) -> None:
    epochs = table(end=30)
    for epoch, start in entries:
        epochs.assign(epoch, start)
        kept = epochs.entries
        assert (epoch, start) in kept or any(known == epoch and begun <= start for known, begun in kept)
        assert all(a[0] < b[0] and a[1] < b[1] for a, b in itertools.pairwise(kept))


def test_the_recovery_point_is_not_recorded_above_an_epoch_that_is_not_saved() -> None:
    disk = SimDisk()
    log = a_log(disk)
    append(log, 5, epoch=1)
    flush(log)
    append(log, 5, epoch=2)
    log.recovery_point = log.end_offset
    assert log.checkpoint_offset == 5
    flush(log)
    assert log.checkpoint_offset == 10 and reopened(disk.restart()).epochs.entries == [(1, 0), (2, 5)]


def test_only_an_epoch_without_records_is_lost_by_a_restart() -> None:
    disk = SimDisk()
    log = a_log(disk)
    append(log, 5, epoch=1)
    log.epochs.assign(2, 5)
    flush(log)
    assert reopened(disk.restart()).epochs.entries == [(1, 0)]
