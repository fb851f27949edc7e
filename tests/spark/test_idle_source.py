"""A stream with nothing to read: Spark asks it without end, and it asks the brokers some times a second. By a clock of the test's own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMinRows

from ottla.base.ids import TopicPartition
from ottla.spark import source
from ottla.spark.columns import ddl
from ottla.spark.ddl import columns_of
from ottla.spark.offsets import EARLIEST
from ottla.spark.rows import RowPlan
from ottla.spark.source import LATEST_MAX_AGE_MS, StreamReader

from .test_positions import T0, T1, MemoryCatalog, options

ASKED_PER_S_MAX = 20
SECONDS = 5
#: How long an answer of the brokers takes, and how long Spark waits before it asks again.
ANSWER_MS, SPARK_MS = 2.0, 10.0


@dataclass
class Clock:
    """Stands in for the module `time`: passes when somebody sleeps, or when the test says so."""

    now_ms: float = 1000.0

    def monotonic_ns(self) -> int:
        return int(self.now_ms * 1_000_000)

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now_ms += seconds * 1000


@dataclass
class Brokers(MemoryCatalog):
    """Logs in memory that note when they are asked for their ends."""

    clock: Clock = field(default_factory=Clock)
    asked_ms: list[float] = field(default_factory=list)
    listed_ms: list[float] = field(default_factory=list)

    def topics(self, names: Sequence[str] | None = None) -> dict[str, int]:
        self.listed_ms.append(self.clock.now_ms)
        return super().topics(names)

    def end_offsets(self, partitions: Sequence[TopicPartition], at: int) -> dict[TopicPartition, int]:
        if at != EARLIEST:
            self.asked_ms.append(self.clock.now_ms)
            self.clock.now_ms += ANSWER_MS
        return super().end_offsets(partitions, at)

    def topic_ids(self, names: frozenset[str]) -> Mapping[str, str]:
        return dict.fromkeys(names, "an-id")


class OverBrokers(StreamReader):
    """The stream over these brokers."""

    brokers: Brokers

    def log(self) -> Brokers:  # type: ignore[override]
        return self.brokers


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> OverBrokers:
    made = OverBrokers(
        options(startingOffsets="earliest", minOffsetsPerTrigger="1000"), RowPlan.of(columns_of(ddl(headers=False)), None, ())
    )
    made.brokers = Brokers()
    monkeypatch.setattr(source, "time", made.brokers.clock)
    return made


def test_brokers_are_asked_twenty_times_a_second_however_often_spark_asks(stream: OverBrokers) -> None:
    assert 1000 / LATEST_MAX_AGE_MS == ASKED_PER_S_MAX
    clock, brokers = stream.brokers.clock, stream.brokers
    read = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    brokers.asked_ms.clear()
    brokers.listed_ms.clear()
    begun_ms, asked = clock.now_ms, 0
    while clock.now_ms < begun_ms + SECONDS * 1000:
        assert stream.latestOffset(read, ReadAllAvailable()) == read
        assert stream.reportLatestOffset() == read
        # As good as at once, and as Spark does.
        clock.now_ms += 0.1 if asked % 2 else SPARK_MS
        asked += 1
    assert SECONDS <= len(brokers.asked_ms) <= SECONDS * ASKED_PER_S_MAX
    assert len(brokers.listed_ms) <= SECONDS * ASKED_PER_S_MAX
    assert min(later - one for one, later in zip(brokers.asked_ms, brokers.asked_ms[1:], strict=False)) >= LATEST_MAX_AGE_MS


def test_a_stream_that_waits_for_more_records_asks_no_more_often(stream: OverBrokers) -> None:
    clock, brokers, enough = stream.brokers.clock, stream.brokers, ReadMinRows(1000)
    read = stream.latestOffset(stream.initialOffset(), enough)
    brokers.logs[T0] = (0, 103)
    brokers.asked_ms.clear()
    begun_ms, calls = clock.now_ms, 0
    while clock.now_ms < begun_ms + SECONDS * 1000:
        assert stream.latestOffset(read, enough) == read, "three records are not enough"
        clock.now_ms += SPARK_MS
        calls += 1
    assert calls > 2 * len(brokers.asked_ms), "it answers at once from what it knows"
    assert len(brokers.asked_ms) <= SECONDS * ASKED_PER_S_MAX


def test_a_record_that_comes_is_seen_with_the_next_answer(stream: OverBrokers) -> None:
    clock, brokers = stream.brokers.clock, stream.brokers
    read = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    for _ in range(3):
        assert stream.latestOffset(read, ReadAllAvailable()) == read
    came_ms = clock.now_ms
    brokers.logs[T1] = (20, 51)
    while (found := stream.latestOffset(read, ReadAllAvailable())) == read:
        clock.now_ms += SPARK_MS
    assert found["orders"] == {"0": 100, "1": 51}
    assert clock.now_ms - came_ms <= LATEST_MAX_AGE_MS + SPARK_MS + ANSWER_MS
