"""A query's progress as a consumer group's, without Spark and without brokers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from ottla.base.ids import TopicPartition
from ottla.client.commits import OffsetAndMetadata
from ottla.spark.progress_group import ProgressGroup, ids_committed, topic_id_noted
from ottla.wire.errors import GroupAuthorizationFailed

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@dataclass
class MemoryGroups:
    """One group's offsets; `refuses` for the next commit alone."""

    offsets: dict[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)
    refuses: bool = False
    asked: int = 0

    def commit(self, group: str, offsets: Mapping[TopicPartition | tuple[str, int], int | OffsetAndMetadata]) -> None:
        self.asked += 1
        if self.refuses:
            self.refuses = False
            raise GroupAuthorizationFailed("not yours")
        self.offsets |= {TopicPartition(*tp): one for tp, one in offsets.items() if isinstance(one, OffsetAndMetadata)}

    def commits(self, group: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        return {tp: self.offsets[tp] for tp in partitions if tp in self.offsets}

    def topic_ids(self, names: frozenset[str]) -> dict[str, str]:
        return dict.fromkeys(names, "id-1")


def test_what_is_done_is_committed_once() -> None:
    groups, progress = MemoryGroups(), ProgressGroup("g")
    assert progress.publish(groups, {T0: 5, T1: 0})
    assert progress.publish(groups, {T0: 5, T1: 0})
    assert groups.asked == 1
    assert {tp: one.offset for tp, one in groups.offsets.items()} == {T0: 5, T1: 0}


def test_a_commit_that_fails_is_a_warning_and_made_up_for_by_the_next(caplog: pytest.LogCaptureFixture) -> None:
    groups, progress = MemoryGroups(refuses=True), ProgressGroup("g")
    assert not progress.publish(groups, {T0: 5})
    assert "consumer group g is not told how far the query is (t-0 at 5), which goes on: not yours" in caplog.text
    assert progress.publish(groups, {T0: 5})
    assert groups.offsets[T0].offset == 5


def test_the_ids_of_topics_are_known_again_from_offsets_that_are_still_the_same() -> None:
    groups = MemoryGroups()
    ProgressGroup("g").publish(groups, {T0: 5})
    assert topic_id_noted(groups.offsets[T0].metadata) == "id-1"
    assert ids_committed(groups, "g", {T0: 5}) == {"t": "id-1"}
    assert ids_committed(groups, "g", {T0: 6}) == {}


def test_metadata_of_others_is_no_id() -> None:
    groups = MemoryGroups({T0: OffsetAndMetadata(5, "a note")})
    assert ids_committed(groups, "g", {T0: 5}) == {}
