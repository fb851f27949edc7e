"""The batches of a dead process, found in the log by producer id, epoch and sequence."""

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
    """A consumer of logs that are lists of batches. Some batches appear only after several fetches."""

    def __init__(self, *batches: tuple[int, int, int, int], start: int = 0) -> None:
        self.start, self.end, self.fetches = start, start, 0
        self.batches: list[tuple[int, bytes]] = []
        self.late: list[tuple[int, int, int, int]] = []
        for batch in batches:
            self.append(*batch)

    def append(self, producer: int, epoch: int, sequence: int, count: int) -> None:
        """Append a batch of `count` records with this producer id, epoch and sequence."""
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
        # One batch per fetch, as with large batches.
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


def test_the_writers_records_are_counted_from_the_recorded_offset() -> None:
    logs = Logs((7, 0, 0, 10), (9, 0, 0, 5), (-1, -1, -1, 3), (7, 0, 10, 4))
    assert found(logs, Writer(7, 0, {"0": 6}), since=6) == Tail({0: 8}, {0: 22})
    assert found(logs, Writer(7, 0, {"0": 10}), since=10) == Tail({0: 4}, {0: 22})
    assert found(logs, Writer(8, 0, {}), since=0) == Tail({}, {0: 22})


def test_records_of_several_writers_are_added_up() -> None:
    assert found(Logs((7, 0, 100, 10), (8, 0, 0, 5)), Writer(7, 0, {"0": 100}), Writer(8, 0, {})).written == {0: 15}


def test_sequence_numbers_wrap_after_the_largest() -> None:
    assert found(Logs((7, 0, 2**31 - 4, 4), (7, 0, 0, 3)), Writer(7, 0, {"0": 2**31 - 4})).written == {0: 7}


def test_records_of_another_epoch_are_reported_and_not_counted() -> None:
    assert found(Logs((7, 0, 0, 10), (7, 1, 0, 5)), Writer(7, 0, {})) == Tail({0: 10}, {0: 15}, unsure=5)


def test_sequence_numbers_count_batches_removed_by_compaction() -> None:
    logs = Logs((7, 0, 0, 10), (7, 0, 10, 10))
    del logs.batches[0]
    assert found(logs, Writer(7, 0, {})).written == {0: 20}


def test_records_deleted_by_retention_are_reported() -> None:
    assert found(Logs((7, 0, 10, 5), start=10), Writer(7, 0, {})) == Tail({0: 15}, {0: 15}, gone={0})


@pytest.mark.parametrize("batches", [1, 5])
def test_late_batches_are_waited_for(batches: int) -> None:
    logs = Logs((7, 0, 0, 10))
    logs.late = [(7, 0, 10 * number, 10) for number in range(1, batches + 1)]
    assert found(logs, Writer(7, 0, {})).written == {0: 10 + 10 * batches}
    assert log_tail.LOOK_S < log_tail.QUIET_S
