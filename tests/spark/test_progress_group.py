"""A query's progress as committed offsets of a group, and retried offset queries, without Spark and brokers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from ottla.base.ids import TopicPartition
from ottla.spark.source.progress_group import BACKOFF_MAX_S, BACKOFF_MIN_S, ProgressGroup
from ottla.spark.source.starting_offsets import RetryingCatalog
from ottla.wire.errors import CoordinatorNotAvailable, GroupAuthorizationFailed, KafkaError

from .test_starting_offsets import MemoryCatalog

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@dataclass
class MemoryGroups:
    """Offsets of one group; `refuses` is the error of the next commit only."""

    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    refuses: bool = False
    asked: int = 0

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        self.asked += 1
        if self.refuses:
            self.refuses = False
            raise GroupAuthorizationFailed("not yours")
        self.offsets |= offsets


def test_finished_offsets_are_committed_once() -> None:
    groups, progress = MemoryGroups(), ProgressGroup("g")
    assert progress.publish(groups, {T0: 5, T1: 0})
    assert progress.publish(groups, {T0: 5, T1: 0})
    assert groups.asked == 1
    assert groups.offsets == {T0: 5, T1: 0}


def test_a_failed_commit_is_a_warning_and_the_next_one_replaces_it(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    groups, progress = MemoryGroups(refuses=True), ProgressGroup("g", lambda: now_s)
    assert not progress.publish(groups, {T0: 5})
    assert "cannot commit progress for consumer group g (t-0 at 5); the query continues: not yours" in caplog.text
    now_s += BACKOFF_MIN_S
    assert progress.publish(groups, {T0: 5})
    assert groups.offsets == {T0: 5}


def test_a_failing_commit_backs_off_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    now_s, asked_s = 0.0, []
    groups, progress = MemoryGroups(), ProgressGroup("g", lambda: now_s)
    for tick in range(40 * 600):
        now_s, asked, groups.refuses = tick / 40, groups.asked, True
        assert not progress.publish(groups, {T0: tick})
        if groups.asked > asked:
            asked_s.append(now_s)
    assert asked_s[:7] == [0, 1, 3, 7, 15, 31, 63]
    assert len(asked_s) == 7 + (600 - 64) // BACKOFF_MAX_S
    assert caplog.text.count("cannot commit progress") == 1
    groups.refuses, now_s = False, 1000.0
    assert progress.publish(groups, {T0: 1})
    assert progress.publish(groups, {T0: 2}), "immediately again"


@dataclass
class FailingCatalog(MemoryCatalog):
    """Fails with these errors, one after the other, before it answers."""

    errors: list[KafkaError] = field(default_factory=list)

    def committed(self, group: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int | None]:
        if self.errors:
            raise self.errors.pop(0)
        return super().committed(group, partitions)


def test_offset_queries_are_retried_as_configured() -> None:
    waits: list[float] = []
    catalog = FailingCatalog(groups={"g": {T0: 1}}, errors=[CoordinatorNotAvailable(), CoordinatorNotAvailable()])
    assert RetryingCatalog(catalog, 2, 250, waits.append).committed("g", [T0]) == {T0: 1}
    assert waits == [0.25, 0.25]
    catalog.errors = [CoordinatorNotAvailable(), CoordinatorNotAvailable()]
    with pytest.raises(CoordinatorNotAvailable):
        RetryingCatalog(catalog, 1, 0, waits.append).committed("g", [T0])


def test_a_fatal_error_is_not_retried() -> None:
    with pytest.raises(GroupAuthorizationFailed):
        RetryingCatalog(FailingCatalog(errors=[GroupAuthorizationFailed()]), 5, 0).committed("g", [T0])
