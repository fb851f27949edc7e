"""What a dead process had written, read from the log by the numbers on its batches."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.base.ids import TopicPartition
from ottla.client.fetch.raw_fetch import RawFetch
from ottla.lake.load import log_tail
from ottla.lake.load.load_journal import Writer
from ottla.lake.load.log_tail import Tail, tail
from ottla.records.build import build_batch
from ottla.wire.errors import OffsetOutOfRange


class Logs:
    """A consumer of logs that are lists of batches; some only appear after so many fetches."""

    def __init__(self, *batches: tuple[int, int, int, int], start: int = 0) -> None:
        self.start, self.end, self.fetches = start, start, 0
        self.batches: list[tuple[int, bytes]] = []
        self.late: list[tuple[int, int, int, int]] = []
        for batch in batches:
            self.append(*batch)

    def append(self, producer: int, epoch: int, sequence: int, count: int) -> None:
        """A batch of so many records under this number, epoch and sequence."""
        numbers = {"producer_id": producer, "producer_epoch": epoch, "base_sequence": sequence % 2**31}
        data = build_batch([(0, None, b"v", ())] * count, base_offset=self.end, **numbers)  # type: ignore[arg-type]
        self.batches.append((self.end + count - 1, bytes(data)))
        self.end += count

    def fetch_raw(self, tp: TopicPartition, offset: int, max_bytes: int, *, max_wait_ms: int) -> RawFetch:
        if offset < self.start:
            raise OffsetOutOfRange()
        self.fetches += 1
        if self.fetches > 3 and self.late:
            self.append(*self.late.pop(0))
        # One batch at a time, as large ones come.
        found = next((data for last, data in self.batches if last >= offset), b"")
        return RawFetch(memoryview(found), self.end, self.start, self.end)

    def beginning_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, self.start)


def found(logs: Logs, *writers: Writer, since: int = 0) -> Tail:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    return tail(as_consumer(logs), "t", {0: since}, writers, clock=lambda: now[0], sleep=sleep)


def as_consumer(logs: Logs) -> Any:
    return logs


def test_records_of_the_writer_are_counted_from_where_it_was_noted() -> None:
    logs = Logs((7, 0, 0, 10), (9, 0, 0, 5), (-1, -1, -1, 3), (7, 0, 10, 4))
    assert found(logs, Writer(7, 0, {"0": 6}), since=6) == Tail({0: 8}, {0: 22})
    assert found(logs, Writer(7, 0, {"0": 10}), since=10) == Tail({0: 4}, {0: 22})
    assert found(logs, Writer(8, 0, {}), since=0) == Tail({}, {0: 22})


def test_what_several_wrote_one_after_the_other_is_added_up() -> None:
    assert found(Logs((7, 0, 100, 10), (8, 0, 0, 5)), Writer(7, 0, {"0": 100}), Writer(8, 0, {})).written == {0: 15}


def test_numbers_begin_anew_behind_the_largest() -> None:
    assert found(Logs((7, 0, 2**31 - 4, 4), (7, 0, 0, 3)), Writer(7, 0, {"0": 2**31 - 4})).written == {0: 7}


def test_records_under_another_epoch_are_told_and_not_relied_upon() -> None:
    assert found(Logs((7, 0, 0, 10), (7, 1, 0, 5)), Writer(7, 0, {})) == Tail({0: 10}, {0: 15}, unsure=5)


def test_numbers_tell_also_where_compaction_took_batches_away() -> None:
    logs = Logs((7, 0, 0, 10), (7, 0, 10, 10))
    del logs.batches[0]
    assert found(logs, Writer(7, 0, {})).written == {0: 20}


def test_what_retention_deleted_is_told() -> None:
    assert found(Logs((7, 0, 10, 5), start=10), Writer(7, 0, {})) == Tail({0: 15}, {0: 15}, gone={0})


@pytest.mark.parametrize("batches", [1, 5])
def test_what_comes_late_is_waited_for(batches: int) -> None:
    logs = Logs((7, 0, 0, 10))
    logs.late = [(7, 0, 10 * number, 10) for number in range(1, batches + 1)]
    assert found(logs, Writer(7, 0, {})).written == {0: 10 + 10 * batches}
    assert log_tail.LOOK_S < log_tail.QUIET_S
