"""A source with a test clock: how often it asks the brokers, when a batch is due and where it ends."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMinRows

from ottla.base.ids import TopicPartition
from ottla.spark.source import data_source
from ottla.spark.source.data_source import LATEST_MAX_AGE_MS, BatchReader, StreamReader
from ottla.spark.source.offset_ranges import EARLIEST
from ottla.spark.source.rows import RowPlan, ddl
from ottla.spark.values.decode import columns_of

from .test_starting_offsets import T0, T1, MemoryCatalog, options

ASKED_PER_S_MAX = 20
SECONDS = 5
#: Response time of the brokers, and Spark's delay between two requests.
ANSWER_MS, SPARK_MS = 2.0, 10.0


@dataclass
class Clock:
    """Replaces the module `time`: advances by `sleep`, or by the test."""

    now_ms: float = 1000.0

    def monotonic_ns(self) -> int:
        return int(self.now_ms * 1_000_000)

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now_ms += seconds * 1000


@dataclass
class Brokers(MemoryCatalog):
    """Logs in memory that record when their end offsets are requested."""

    clock: Clock = field(default_factory=Clock)
    asked_ms: list[float] = field(default_factory=list)
    listed_ms: list[float] = field(default_factory=list)
    sizes: dict[TopicPartition, float] = field(default_factory=dict)

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

    def bytes_per_offset(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, float]:
        return self.sizes


class StreamOverBrokers(StreamReader):
    """The stream over these brokers."""

    brokers: Brokers

    def log_client(self) -> Brokers:  # type: ignore[override]
        return self.brokers


def over_brokers(**given: str) -> StreamOverBrokers:
    made = StreamOverBrokers(options(startingOffsets="earliest", **given), RowPlan.of(columns_of(ddl(headers=False)), None, ()))  # type: ignore[arg-type]
    made.brokers = Brokers()
    return made


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> StreamOverBrokers:
    made = over_brokers(minOffsetsPerTrigger="1000")
    monkeypatch.setattr(data_source, "time", made.brokers.clock)
    return made


def test_brokers_get_at_most_twenty_requests_a_second(stream: StreamOverBrokers) -> None:
    assert 1000 / LATEST_MAX_AGE_MS == ASKED_PER_S_MAX
    clock, brokers = stream.brokers.clock, stream.brokers
    read = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    brokers.asked_ms.clear()
    brokers.listed_ms.clear()
    begun_ms, asked = clock.now_ms, 0
    while clock.now_ms < begun_ms + SECONDS * 1000:
        assert stream.latestOffset(read, ReadAllAvailable()) == read
        assert stream.reportLatestOffset() == read
        # Spark calls almost immediately or after its delay.
        clock.now_ms += 0.1 if asked % 2 else SPARK_MS
        asked += 1
    assert SECONDS <= len(brokers.asked_ms) <= SECONDS * ASKED_PER_S_MAX
    assert len(brokers.listed_ms) <= SECONDS * ASKED_PER_S_MAX
    assert min(later - one for one, later in zip(brokers.asked_ms, brokers.asked_ms[1:], strict=False)) >= LATEST_MAX_AGE_MS


def test_a_stream_that_waits_for_more_records_sends_no_more_requests(stream: StreamOverBrokers) -> None:
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


def test_a_new_record_is_seen_with_the_next_response(stream: StreamOverBrokers) -> None:
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


@pytest.mark.parametrize("most", [None, "2"])
def test_a_small_backlog_is_read_after_the_maximum_delay(monkeypatch: pytest.MonkeyPatch, most: str | None) -> None:
    given = {"maxOffsetsPerTrigger": most, "minOffsetsPerTrigger": "2"} if most else {"minOffsetsPerTrigger": "1000"}
    stream = over_brokers(maxTriggerDelay="2s", **given)
    clock, brokers, limit = stream.brokers.clock, stream.brokers, stream.getDefaultReadLimit()
    monkeypatch.setattr(data_source, "time", clock)
    read = stream.initialOffset()
    while (following := stream.latestOffset(read, limit)) != read:
        read = following
    begun_ms = clock.now_ms
    brokers.logs[T0] = (0, 101)
    while (found := stream.latestOffset(read, limit)) == read:
        clock.now_ms += SPARK_MS
        assert clock.now_ms - begun_ms < 10_000, "it arrived eventually"
    assert 1_500 < clock.now_ms - begun_ms <= 2_000 + 2 * LATEST_MAX_AGE_MS
    assert found["orders"]["0"] == 101


def test_an_available_now_query_ends_at_the_log_end_of_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = over_brokers()
    brokers = stream.brokers
    monkeypatch.setattr(data_source, "time", brokers.clock)
    stream.prepareForTriggerAvailableNow()
    begun = stream.initialOffset()
    brokers.logs |= {T0: (0, 5000), T1: (20, 5000)}
    brokers.clock.now_ms += 1000
    first = stream.latestOffset(begun, ReadAllAvailable())
    assert {int(one): end for one, end in first["orders"].items()} == {0: 100, 1: 50}
    assert stream.latestOffset(first, ReadAllAvailable()) == first, "there is no further batch"


def test_the_ranges_of_a_batch_are_split_by_the_reported_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_source.os, "cpu_count", lambda: 4)  # type: ignore[attr-defined]
    stream = over_brokers()
    stream.brokers.sizes = {T0: 10_000.0, T1: 10.0}
    tasks = stream.partitions({"orders": {"0": 0, "1": 0}}, {"orders": {"0": 10_000, "1": 10_000}})
    ranges = [one for task in tasks for one in task.value]
    assert sorted((one.partition, len(one)) for one in ranges) == [(0, 2500)] * 4 + [(1, 10_000)]


def test_a_partition_added_during_planning_is_not_read() -> None:
    class Growing(Brokers):
        def end_offsets(self, partitions: Sequence[TopicPartition], at: int) -> dict[TopicPartition, int]:
            found = super().end_offsets(partitions, at)
            self.logs[TopicPartition("orders", 2)] = (0, 9)
            return found

    class OverGrowing(BatchReader):
        brokers: Brokers

        def log_client(self) -> Brokers:  # type: ignore[override]
            return self.brokers

    reader = OverGrowing(options(streaming=False), RowPlan.of(columns_of(ddl(headers=False)), None, ()))
    reader.brokers = Growing()
    assert sorted((one.partition, one.end) for task in reader.partitions() for one in task.value) == [(0, 100), (1, 50)]
