"""Timestamps of records at given offsets: the fetches, and the evaluation of responses."""

from __future__ import annotations

import pytest

from ottla.base.ids import TopicPartition
from ottla.client.admin.record_times import IDLE_MAX, LITTLE_BYTES, MUCH_BYTES, OffsetRead, Piece, RecordPosition, TimeSearch
from ottla.records.build import build_batch
from ottla.records.compression import Codec
from ottla.wire.errors import CorruptMessage, KafkaError, NotLeaderOrFollower, UnknownServerError

A, B, C = (TopicPartition("t", number) for number in range(3))


def batch(base_offset: int, *times: int, codec: Codec = Codec.NONE) -> bytes:
    """A batch whose records have these timestamps."""
    return bytes(build_batch([(when, None, b"v", ()) for when in times], base_offset=base_offset, codec=codec))


def found_by(search: TimeSearch, *answers: dict[TopicPartition, Piece | KafkaError]) -> dict[RecordPosition, object]:
    """Request and respond until the responses are used up; the search must then be complete."""
    for answer in answers:
        asks = search.asks()
        assert asks, "a request was left"
        search.learn(asks, answer)
    assert not search.asks()
    return dict(search.found)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_the_timestamp_inside_a_batch_is_found(codec: Codec) -> None:
    search = TimeSearch([(A, 11)])
    assert search.asks() == {A: OffsetRead(11, LITTLE_BYTES)}
    assert found_by(search, {A: Piece(batch(10, 100, 200, 300, codec=codec), 20)}) == {(A, 11): 200}


def test_all_partitions_are_requested_at_once() -> None:
    search = TimeSearch([(A, 1), (B, 2)])
    assert search.asks() == {A: OffsetRead(1, LITTLE_BYTES), B: OffsetRead(2, LITTLE_BYTES)}
    assert found_by(search, {A: Piece(batch(1, 7), 9), B: Piece(batch(2, 8), 9)}) == {(A, 1): 7, (B, 2): 8}


def test_a_partition_with_an_empty_response_is_requested_first_with_a_larger_limit() -> None:
    search = TimeSearch([(A, 0), (B, 0), (C, 5)])
    search.learn(search.asks(), {A: Piece(b"", 9), B: Piece(batch(0, 8), 9), C: Piece(batch(3, 1), 9)})
    assert list(search.asks().items()) == [(A, OffsetRead(0, MUCH_BYTES)), (C, OffsetRead(5, MUCH_BYTES))]
    assert found_by(search, {A: Piece(batch(0, 7), 9), C: Piece(batch(5, 6), 9)}) == {(A, 0): 7, (B, 0): 8, (C, 5): 6}


def test_a_truncated_batch_counts_as_none() -> None:
    search = TimeSearch([(A, 0)])
    search.learn(search.asks(), {A: Piece(batch(0, 7)[:-1], 9)})
    assert search.asks() == {A: OffsetRead(0, MUCH_BYTES)}


def test_for_a_compacted_record_the_next_one_counts() -> None:
    """The first batch spans offsets 10 to 14, of which only 10 remains; the next record is 20."""
    first = bytearray(batch(10, 100))
    first[23:27] = (4).to_bytes(4, "big")
    assert found_by(TimeSearch([(A, 12)]), {A: Piece(bytes(first) + batch(20, 300), 30)}) == {(A, 12): 300}
    search = TimeSearch([(A, 12)])
    search.learn(search.asks(), {A: Piece(bytes(first), 30)})
    assert search.asks() == {A: OffsetRead(15, LITTLE_BYTES)}
    assert found_by(search, {A: Piece(batch(20, 300), 30)}) == {(A, 12): 300}


def test_control_batches_are_skipped() -> None:
    marker = bytes(build_batch([(50, b"\0\0\0\1", b"\0\0\0\0\0\0", ())], base_offset=4, producer_id=1, producer_epoch=0, control=True))
    assert found_by(TimeSearch([(A, 4)]), {A: Piece(marker + batch(5, 60), 9)}) == {(A, 4): 60}


def test_the_end_of_the_log_has_no_timestamp() -> None:
    assert found_by(TimeSearch([(A, 9)]), {A: Piece(b"", 9)}) == {(A, 9): None}


def test_one_response_can_resolve_several_offsets_of_a_partition() -> None:
    search = TimeSearch([(A, 2), (A, 0), (A, 7)])
    assert search.asks() == {A: OffsetRead(0, LITTLE_BYTES)}
    search.learn(search.asks(), {A: Piece(batch(0, 1, 2, 3), 9)})
    assert search.found == {(A, 0): 1, (A, 2): 3}
    assert search.asks() == {A: OffsetRead(7, LITTLE_BYTES)}
    assert found_by(search, {A: Piece(batch(7, 8), 9)})[A, 7] == 8


def test_an_error_affects_only_its_partition() -> None:
    found = found_by(TimeSearch([(A, 0), (B, 0)]), {A: NotLeaderOrFollower(), B: Piece(batch(0, 5), 9)})
    assert isinstance(found[A, 0], NotLeaderOrFollower)
    assert found[B, 0] == 5


def test_a_damaged_batch_is_reported() -> None:
    broken = bytearray(batch(0, 5))
    broken[16] = 9
    assert isinstance(found_by(TimeSearch([(A, 0)]), {A: Piece(bytes(broken), 9)})[A, 0], CorruptMessage)


def test_a_partition_missing_in_the_response_is_reported() -> None:
    assert isinstance(found_by(TimeSearch([(A, 0)]), {})[A, 0], UnknownServerError)


def test_partitions_take_turns_as_long_as_the_search_advances() -> None:
    """Each response holds one partition's batch; every partition gets its turn."""
    many = [TopicPartition("t", number) for number in range(40)]
    search = TimeSearch([(tp, 0) for tp in many])
    rounds = 0
    while asks := search.asks():
        first = next(iter(asks))
        search.learn(asks, {tp: Piece(batch(0, tp.partition) if tp == first else b"", 9) for tp in asks})
        rounds += 1
    assert search.found == {(tp, 0): tp.partition for tp in many}
    assert rounds == len(many)


def test_a_broker_that_never_returns_records_is_given_up() -> None:
    search = TimeSearch([(A, 0)])
    for _ in range(IDLE_MAX + 1):
        search.learn(search.asks(), {A: Piece(b"", 9)})
    assert not search.asks()
    assert isinstance(search.found[A, 0], UnknownServerError)
