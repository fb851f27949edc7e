"""Logs of a group coordinator, compacted: a replay of what is left has the same offsets, also the pending ones of open transactions.

Two logs get the same batches. One is compacted after each of them, as far as that is possible: up to its last closed segment below the last
stable offset. Its replay is compared with a replay of the other one.
"""

from collections.abc import Iterator
from itertools import combinations_with_replacement, product
from random import Random
from typing import Any

import pytest
from compaction import COMPACT, compact, put
from log_builders import NOW_MS, a_log, a_marker

from ottla.broker.coordinator import replay
from ottla.broker.groups.offsets import Offsets
from ottla.broker.groups.records import OffsetCommitKey, OffsetCommitValue, decode_record, encode_record
from ottla.log.log import Log
from ottla.records.batch import headers

#: A commit by a producer of transactions, or by None: (producer, partition, offset), with offset None for a tombstone.
Step = tuple[int | None, int, int | None]
RETENTION_MS = 1000


class Replayed:
    """The machine of a shard, of which only the offsets matter here."""

    def __init__(self, log: Log) -> None:
        self.offsets = Offsets()
        offset = int(log.start_offset)
        while offset < log.end_offset:
            data = log.read(offset, max_bytes=1 << 16)
            for position, header in headers(data):
                replay(self, data, position, header)
                offset = header.last_offset + 1

    def encode(self, key: Any, value: Any) -> tuple[bytes, bytes | None]:
        return encode_record(key, value)

    def decode(self, key: bytes, value: bytes | None) -> tuple[Any, Any] | None:
        return decode_record(key, value)

    def apply(self, key: Any, value: Any) -> None:
        self.offsets.apply(key, value)

    def apply_transactional(self, key: Any, value: Any, *, producer_id: int, record_offset: int) -> None:
        self.offsets.apply_pending(key, value, producer_id=producer_id, record_offset=record_offset)

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        self.offsets.end_transaction(producer_id, commit=commit)

    def loaded(self) -> None: ...

    @property
    def state(self) -> tuple[Any, ...]:
        return self.offsets.by_group, self.offsets.pending.sorted_places(), self.offsets.bytes


class Twins:
    """The two logs. Each batch is a segment of its own, so a compaction reaches every position."""

    def __init__(self) -> None:
        texts: dict[str, Any] = {**COMPACT, "delete_retention_ms": RETENTION_MS, "internal_segment_bytes": 120}
        self.plain, self.compacted = a_log(**texts), a_log(**texts)
        self.now_ms = NOW_MS

    def step(self, producer: int | None, partition: int, offset: int | None) -> None:
        """A commit, or a tombstone."""
        value = None if offset is None else OffsetCommitValue(offset=offset, commit_timestamp=NOW_MS)
        record = encode_record(OffsetCommitKey(group="g", topic="t", partition=partition), value)
        fields = {} if producer is None else {"producer_id": producer, "producer_epoch": 0, "transactional": True}
        for log in (self.plain, self.compacted):
            put(log, record, now_ms=self.now_ms, at_ms=self.now_ms, **fields)

    def end(self, producer: int, *, commit: bool) -> None:
        for log in (self.plain, self.compacted):
            a_marker(log, producer, commit=commit, now_ms=self.now_ms)

    def check(self) -> bool:
        """Compacts one log, and compares the replays; whether there was something to compact."""
        done = compact(self.compacted, now_ms=self.now_ms)
        assert Replayed(self.compacted).state == Replayed(self.plain).state
        return done is not None

    def finish(self) -> int:
        """Compacts all that is decided, and then what only stays for a time; how many compactions that took."""
        done = 0
        for _ in range(3):
            self.now_ms += 2 * RETENTION_MS
            # Closes the segment before, and makes the log dirty.
            self.step(None, 9, 1)
            done += self.check()
        return done


#: Two producers and plain commits meet in partition 0. What is deleted there may be pending.
STEPS: tuple[Step, ...] = ((None, 1, 9), (1, 0, 10), (None, 0, 11), (2, 0, 12), (1, 1, 13), (None, 0, None), (2, 1, 14))


def marker_positions() -> Iterator[tuple[int, int]]:
    """Positions of the markers of producers 1 and 2, in either order: after the given number of steps."""
    for first, second in combinations_with_replacement(range(1, len(STEPS) + 1), 2):
        yield first, second
        if first != second:
            yield second, first


@pytest.mark.parametrize(("one_commits", "two_commits"), list(product((True, False), repeat=2)))
def test_offsets_survive_compaction_with_markers_at_every_position(one_commits: bool, two_commits: bool) -> None:
    compactions = 0
    for one, two in marker_positions():
        twins = Twins()
        for number, step in enumerate(STEPS, 1):
            twins.step(*step)
            for producer, position, commit in ((1, one, one_commits), (2, two, two_commits)):
                if number == position:
                    twins.end(producer, commit=commit)
                    compactions += twins.check()
        # What came after a marker began another transaction.
        twins.end(1, commit=one_commits)
        twins.end(2, commit=two_commits)
        assert twins.finish()
        assert twins.compacted.size < twins.plain.size
    assert compactions > 20, "an open transaction does not hold back every compaction"


@pytest.mark.parametrize("seed", range(12))
def test_offsets_survive_compaction_in_random_histories(seed: int) -> None:
    rng, twins, compactions = Random(seed), Twins(), 0
    for number in range(60):
        # Tombstones and markers go after their retention.
        twins.now_ms += rng.choice((0, 0, 100, 2 * RETENTION_MS))
        if rng.random() < 0.35:
            twins.end(rng.choice((1, 2, 3)), commit=rng.random() < 0.6)
        else:
            producer = rng.choice((None, 1, 2, 3))
            twins.step(producer, rng.randrange(3), None if producer is None and rng.random() < 0.4 else number)
        compactions += rng.random() < 0.5 and twins.check()
    for producer in (1, 2, 3):
        twins.end(producer, commit=rng.random() < 0.5)
    assert compactions + twins.finish() > 5
    assert twins.compacted.size < twins.plain.size / 2
