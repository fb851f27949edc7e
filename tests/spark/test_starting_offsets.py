"""Starting and ending offsets, resolved over a catalog in memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from ottla.base.ids import TopicPartition
from ottla.spark.source.data_loss import DataLoss
from ottla.spark.source.offset_ranges import EARLIEST
from ottla.spark.source.options import SourceOptions
from ottla.spark.source.starting_offsets import (
    NoSuchData,
    latest_offsets,
    resolve_end,
    resolve_start,
    resume_offsets,
    subscribed_partitions,
)

T0, T1, U0 = TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("users", 0)


@dataclass
class MemoryCatalog:
    """Logs as (earliest, latest) per partition, with the time of each record equal to ten times its offset."""

    logs: dict[TopicPartition, tuple[int, int]] = field(default_factory=lambda: {T0: (0, 100), T1: (20, 50), U0: (0, 7)})
    groups: dict[str, dict[TopicPartition, int]] = field(default_factory=dict)

    def topics(self, names: Sequence[str] | None = None) -> dict[str, int]:
        return {
            name: max(tp.partition for tp in self.logs if tp.topic == name) + 1 for name, _ in self.logs if names is None or name in names
        }

    def end_offsets(self, partitions: Sequence[TopicPartition], at: int) -> dict[TopicPartition, int]:
        return {tp: self.logs[tp][0 if at == EARLIEST else 1] for tp in partitions}

    def committed(self, group: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int | None]:
        return {tp: self.groups.get(group, {}).get(tp) for tp in partitions}

    def offsets_at(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        found = {tp: max(self.logs[tp][0], -(-time_ms // 10)) for tp, time_ms in times_ms.items()}
        return {tp: offset if offset < self.logs[tp][1] else None for tp, offset in found.items()}


def options(streaming: bool = True, **given: str) -> SourceOptions:
    given = given if {"assign", "subscribePattern"} & set(given) else {"subscribe": "orders", **given}
    return SourceOptions.of({"bootstrap.servers": "h:1", **given}, streaming=streaming)


def test_subscribe_reads_every_partition_and_assign_the_named_ones() -> None:
    assert subscribed_partitions(MemoryCatalog(), options().subscription) == [T0, T1]
    assert subscribed_partitions(MemoryCatalog(), options(assign='{"orders": [1]}').subscription) == [T1]


def test_a_pattern_must_match_the_whole_name() -> None:
    assert subscribed_partitions(MemoryCatalog(), options(subscribePattern="user").subscription) == []
    assert subscribed_partitions(MemoryCatalog(), options(subscribePattern="user.|orders").subscription) == [T0, T1, U0]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"subscribe": "order"}, "topic order does not exist; did you mean orders?"),
        ({"assign": '{"orders": [4]}'}, "topic orders has 2 partitions, so there is no orders-4"),
    ],
)
def test_named_topics_and_partitions_must_exist(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(NoSuchData) as refused:
        resolve_start(MemoryCatalog(), options(**given))  # type: ignore[arg-type]
    assert sentence in str(refused.value)


def test_special_offsets_are_resolved() -> None:
    assert resolve_start(MemoryCatalog(), options(startingOffsets="earliest")) == {T0: 0, T1: 20}
    assert resolve_start(MemoryCatalog(), options()) == {T0: 100, T1: 50}
    assert resolve_start(MemoryCatalog(), options(startingOffsets='{"orders": {"0": -2, "1": -1}}')) == {T0: 0, T1: 50}


def test_offsets_as_json_must_name_every_partition() -> None:
    with pytest.raises(NoSuchData, match="orders-1 is missing"):
        resolve_start(MemoryCatalog(), options(startingOffsets='{"orders": {"0": 3}}'))
    with pytest.raises(NoSuchData, match="orders-7, which does not exist"):
        resolve_start(MemoryCatalog(), options(startingOffsets='{"orders": {"0": 3, "1": 30, "7": 1}}'))


@pytest.mark.parametrize("offsets", ['{"orders": {"0": 0, "1": 10}}', '{"orders": {"0": 0, "1": 51}}'])
def test_starting_outside_of_the_log_is_data_loss(offsets: str) -> None:
    with pytest.raises(DataLoss, match="orders-1 should be read from"):
        resolve_start(MemoryCatalog(), options(startingOffsets=offsets))


def test_allowed_data_loss_starts_with_the_remaining_records() -> None:
    allowed = options(startingOffsets='{"orders": {"0": 900, "1": 10}}', failOnDataLoss="false")
    assert resolve_start(MemoryCatalog(), allowed) == {T0: 100, T1: 20}


def test_a_starting_time_finds_the_first_record_at_or_after_it() -> None:
    assert resolve_start(MemoryCatalog(), options(startingTimestamp="305")) == {T0: 31, T1: 31}


def test_a_starting_time_after_the_last_record_fails_or_starts_at_the_end() -> None:
    with pytest.raises(NoSuchData, match="orders-1: no record at or after"):
        resolve_start(MemoryCatalog(), options(startingTimestamp="600"))
    reported = options(startingTimestamp="600", startingOffsetsByTimestampStrategy="latest")
    assert resolve_start(MemoryCatalog(), reported) == {T0: 60, T1: 50}


def test_a_batch_ends_at_the_end_at_a_time_or_at_offsets() -> None:
    assert resolve_end(MemoryCatalog(), options(streaming=False)) == {T0: 100, T1: 50}
    assert resolve_end(MemoryCatalog(), options(streaming=False, endingTimestamp="600")) == {T0: 60, T1: 50}
    assert resolve_end(MemoryCatalog(), options(streaming=False, endingOffsets='{"orders": {"0": 8, "1": -1}}')) == {T0: 8, T1: 50}


def test_a_batch_cannot_end_after_the_end() -> None:
    with pytest.raises(NoSuchData, match="orders-0 ends at 100"):
        resolve_end(MemoryCatalog(), options(streaming=False, endingOffsets='{"orders": {"0": 101, "1": -1}}'))


def test_an_added_partition_is_read_from_its_beginning() -> None:
    catalog = MemoryCatalog()
    assert resume_offsets(catalog, options(), {T1: 30}, latest_offsets(catalog, options())).begin == {T0: 0, T1: 30}


def test_an_added_partition_without_its_beginning_is_data_loss() -> None:
    catalog = MemoryCatalog()
    with pytest.raises(DataLoss, match="the new partition orders-1 begins at 20"):
        resume_offsets(catalog, options(), {T0: 30}, latest_offsets(catalog, options()))


def test_a_deleted_topic_is_data_loss_or_omitted() -> None:
    catalog = MemoryCatalog()
    known = {T0: 30, T1: 30, TopicPartition("orders", 2): 9}
    with pytest.raises(DataLoss, match="orders-2 was read up to 9 and is gone"):
        resume_offsets(catalog, options(), known, latest_offsets(catalog, options()))
    assert resume_offsets(catalog, options(failOnDataLoss="false"), known, latest_offsets(catalog, options())).begin == {T0: 30, T1: 30}


def test_a_recreated_topic_is_data_loss_or_read_from_its_beginning() -> None:
    catalog = MemoryCatalog()
    known = {T0: 101, T1: 30}
    with pytest.raises(DataLoss, match="now ends at 100"):
        resume_offsets(catalog, options(), known, latest_offsets(catalog, options()))
    assert resume_offsets(catalog, options(failOnDataLoss="false"), known, latest_offsets(catalog, options())).begin == {T0: 0, T1: 30}


def test_end_offsets_omit_a_deleted_topic() -> None:
    assert latest_offsets(MemoryCatalog(), options(subscribe="gone,users")) == {U0: 7}


def test_a_query_starts_at_committed_offsets_or_at_the_reset_position() -> None:
    catalog = MemoryCatalog(groups={"g": {T0: 40}})
    asked = {"startingOffsets": "committed", "kafka.group.id": "g"}
    assert resolve_start(catalog, options(**asked)) == {T0: 40, T1: 20}  # type: ignore[arg-type]
    assert resolve_start(catalog, options(**asked, **{"kafka.auto.offset.reset": "latest"})) == {T0: 40, T1: 50}  # type: ignore[arg-type]
    with pytest.raises(NoSuchData, match="group g has no committed offset for orders-1"):
        resolve_start(catalog, options(**asked, **{"kafka.auto.offset.reset": "none"}))  # type: ignore[arg-type]


def test_a_committed_offset_outside_of_the_log_is_data_loss() -> None:
    catalog = MemoryCatalog(groups={"g": {T0: 40, T1: 3}})
    asked = {"startingOffsets": "committed", "kafka.group.id": "g"}
    with pytest.raises(DataLoss, match="orders-1 should be read from 3 but begins at 20"):
        resolve_start(catalog, options(**asked))  # type: ignore[arg-type]
    assert resolve_start(catalog, options(**asked, onDataLoss="skip")) == {T0: 40, T1: 20}  # type: ignore[arg-type]
