"""A query's progress as a consumer group's, without Spark and without brokers."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from ottla.base.ids import TopicPartition
from ottla.spark.progress_group import ProgressGroup
from ottla.wire.errors import GroupAuthorizationFailed

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@dataclass
class MemoryGroups:
    """One group's offsets; `refuses` for the next commit alone."""

    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    refuses: bool = False
    asked: int = 0

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        self.asked += 1
        if self.refuses:
            self.refuses = False
            raise GroupAuthorizationFailed("not yours")
        self.offsets |= offsets


def test_what_is_done_is_committed_once() -> None:
    groups, progress = MemoryGroups(), ProgressGroup("g")
    assert progress.publish(groups, {T0: 5, T1: 0})
    assert progress.publish(groups, {T0: 5, T1: 0})
    assert groups.asked == 1
    assert groups.offsets == {T0: 5, T1: 0}


def test_a_commit_that_fails_is_a_warning_and_made_up_for_by_the_next(caplog: pytest.LogCaptureFixture) -> None:
    groups, progress = MemoryGroups(refuses=True), ProgressGroup("g")
    assert not progress.publish(groups, {T0: 5})
    assert "consumer group g is not told how far the query is (t-0 at 5), which goes on: not yours" in caplog.text
    assert progress.publish(groups, {T0: 5})
    assert groups.offsets == {T0: 5}
