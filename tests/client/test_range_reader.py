"""Offset ranges read to their end, from simulated brokers."""

from __future__ import annotations

from typing import Any, cast

import pytest

from ottla.base.ids import TopicPartition
from ottla.client.fetch.range_reader import RangeReader
from ottla.client.fetch.raw_fetch import RawFetch

T0 = TopicPartition("t", 0)


class Answered:
    """A fetch with a fixed duration and result."""

    def __init__(self, reading: Reading, seconds: float, raw: RawFetch) -> None:
        self._reading = reading
        self._seconds = seconds
        self._raw = raw

    def result(self) -> RawFetch:
        self._reading.now_s += self._seconds
        self._reading.answers += 1
        return self._raw


NOTHING = RawFetch(memoryview(b""), 10, 0, 10)


class Reading:
    def __init__(self, seconds: float, raw: RawFetch = NOTHING) -> None:
        self.now_s = 0.0
        self.answers = 0
        self.reader = RangeReader(
            lambda tp, offset: cast("Any", Answered(self, seconds, raw)), check_crcs=True, read_committed=False, clock=lambda: self.now_s
        )


@pytest.mark.parametrize(("seconds", "answers"), [(0.01, 200), (0.5, 4), (30.0, 1)])
def test_a_read_times_out_however_brokers_respond(seconds: float, answers: int) -> None:
    reading = Reading(seconds)
    with pytest.raises(TimeoutError, match="nothing came from offset 3 on for 2000 ms, and 5 is the end wanted"):
        list(reading.reader.read(T0, 3, 5, timeout_ms=2000, gone=lambda offset: offset))
    assert answers <= reading.answers <= answers + 1


def test_a_gap_at_the_end_of_the_log_ends_the_range_with_its_last_offset() -> None:
    reading = Reading(0.01, RawFetch(memoryview(b""), 10, 0, 10, empty_until=10))
    (fetched,) = reading.reader.read(T0, 3, 5, timeout_ms=2000, gone=lambda offset: offset)
    assert (reading.answers, fetched.raw.empty_until, list(fetched.columns(with_headers=False))) == (1, 10, [])
