"""The fetcher alone: which partitions it requests, which records it returns, and how it handles errors."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from ottla.base.ids import TopicPartition
from ottla.client.errors import LogTruncated, NoOffsetToStart
from ottla.client.fetch.fetcher import CHUNKS_MAX, FULL_WAIT_MS, Fetcher
from ottla.client.fetch.offsets import EARLIEST, LATEST
from ottla.client.fetch.position import FetchPlan
from ottla.client.options import ConsumerOptions, from_keywords
from ottla.records.build import build_batch
from ottla.records.read import ABORT_MARKER, COMMIT_MARKER, marker
from ottla.wire import messages as m
from ottla.wire.errors import CorruptMessage, NotLeaderOrFollower, OffsetNotAvailable, OffsetOutOfRange, TopicAuthorizationFailed
from ottla.wire.messages.fetch import AbortedTransaction, EpochEndOffset, FetchableTopicResponse, PartitionData

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
ID = b"i" * 16


def a_fetcher(*partitions: TopicPartition, at: int | None = 0, **settings: Any) -> Fetcher:
    fetcher = Fetcher(from_keywords(ConsumerOptions, {"retry_backoff_ms": 10, "retry_backoff_max_ms": 10, **settings}), Random(1))
    fetcher.assign(partitions or (A,))
    for tp in partitions or (A,):
        if at is not None:
            fetcher.seek(tp, at)
    return fetcher


def plans(fetcher: Fetcher, now_ms: float = 0, leaders: dict[int, int] | None = None) -> list[FetchPlan]:
    return fetcher.plans(now_ms, lambda t, p: ((leaders or {}).get(p, 1), 4), lambda t: ID, lambda node: True)[0]


def batch(base: int, *values: bytes, **fields: Any) -> bytes:
    return bytes(build_batch([(1000 + base + i, b"k", value, ()) for i, value in enumerate(values)], base_offset=base, **fields))


def give(fetcher: Fetcher, plan: FetchPlan, *parts: PartitionData, error: int = 0, now_ms: float = 0) -> bool:
    response = m.FetchResponse(error_code=error, session_id=1, responses=[FetchableTopicResponse(topic_id=ID, partitions=list(parts))])
    return fetcher.answered(plan, response, now_ms)


def fetched(fetcher: Fetcher, records: bytes, partition: int = 0, **fields: Any) -> None:
    (plan,) = plans(fetcher)
    give(fetcher, plan, PartitionData(partition_index=partition, records=records, high_watermark=100, log_start_offset=0, **fields))


def values(fetcher: Fetcher, most: int = 500) -> list[bytes]:
    return [record.value for record in fetcher.take(most)]


def test_records_come_in_order_and_move_the_position() -> None:
    fetcher = a_fetcher()
    fetched(fetcher, batch(0, b"a", b"b") + batch(2, b"c"))
    assert values(fetcher, 1) == [b"a"]
    assert fetcher.position(A) == 1
    assert values(fetcher) == [b"b", b"c"]
    assert fetcher.position(A) == 3
    assert fetcher.ends(A) == (0, 100, -1)


def test_a_record_has_its_partition_offset_and_timestamp() -> None:
    fetcher = a_fetcher(at=7)
    fetched(fetcher, bytes(build_batch([(55, b"k", None, [("h", b"x")])], base_offset=7)))
    (record,) = fetcher.take(5)
    assert (record.topic, record.partition, record.offset, record.timestamp, record.key, record.value) == ("t", 0, 7, 55, b"k", None)
    assert list(record.headers) == [("h", b"x")]


def test_records_before_the_position_are_skipped_in_a_batch() -> None:
    fetcher = a_fetcher(at=2)
    fetched(fetcher, batch(0, b"a", b"b", b"c", b"d"))
    assert values(fetcher) == [b"c", b"d"]


def test_the_next_fetch_starts_after_the_buffered_records() -> None:
    fetcher = a_fetcher()
    fetched(fetcher, batch(0, b"a", b"b"))
    (plan,) = plans(fetcher)
    assert plan.wanted[A].offset == 2


def test_a_partition_with_enough_buffered_is_not_requested() -> None:
    fetcher = a_fetcher()
    for index in range(CHUNKS_MAX):
        fetched(fetcher, batch(index, b"a"))
    assert plans(fetcher) == []
    values(fetcher, 1)
    values(fetcher, 1)
    assert len(plans(fetcher)) == 1


def test_a_quiet_partition_does_not_block_a_full_one() -> None:
    fetcher = a_fetcher(A, B)
    for index in range(CHUNKS_MAX):
        fetched(fetcher, batch(index, b"a"))
    (plan,) = plans(fetcher)
    assert set(plan.wanted) == {B}
    assert plan.max_wait_ms == FULL_WAIT_MS


def test_each_broker_has_at_most_one_fetch_in_flight() -> None:
    fetcher = a_fetcher(A, B)
    first = plans(fetcher, leaders={0: 1, 1: 2})
    assert [(plan.node_id, set(plan.wanted)) for plan in first] == [(1, {A}), (2, {B})]
    assert plans(fetcher, leaders={0: 1, 1: 2}) == []
    give(fetcher, first[1], PartitionData(partition_index=1))
    assert [plan.node_id for plan in plans(fetcher, leaders={0: 1, 1: 2})] == [2]


def test_partitions_are_served_in_turn() -> None:
    fetcher = a_fetcher(A, B)
    (plan,) = plans(fetcher)
    give(fetcher, plan, PartitionData(partition_index=0, records=batch(0, b"a")), PartitionData(partition_index=1, records=batch(0, b"b")))
    (plan,) = plans(fetcher)
    give(fetcher, plan, PartitionData(partition_index=0, records=batch(1, b"c")))
    assert values(fetcher, 1) == [b"a"]
    assert values(fetcher) == [b"c", b"b"]


def test_a_paused_partition_is_neither_fetched_nor_returned_and_keeps_its_buffer() -> None:
    fetcher = a_fetcher()
    fetched(fetcher, batch(0, b"a"))
    fetcher.pause(A)
    assert fetcher.paused == [A]
    assert plans(fetcher) == []
    assert values(fetcher) == []
    fetcher.pause(A, False)
    assert values(fetcher) == [b"a"]


def test_a_seek_drops_buffered_and_in_flight_records() -> None:
    fetcher = a_fetcher()
    fetched(fetcher, batch(0, b"old"))
    (plan,) = plans(fetcher)
    fetcher.seek(A, 50)
    give(fetcher, plan, PartitionData(partition_index=0, records=batch(1, b"old")))
    assert values(fetcher) == []
    (plan,) = plans(fetcher)
    assert plan.wanted[A].offset == 50


def test_records_of_a_revoked_partition_are_not_returned() -> None:
    fetcher = a_fetcher(A, B)
    (plan,) = plans(fetcher)
    give(fetcher, plan, PartitionData(partition_index=0, records=batch(0, b"a")), PartitionData(partition_index=1, records=batch(0, b"b")))
    fetcher.assign([B])
    assert values(fetcher) == [b"b"]
    with pytest.raises(ValueError, match="t-0 is not assigned"):
        fetcher.seek(A, 0)


def test_a_new_assignment_keeps_positions() -> None:
    fetcher = a_fetcher(A, at=5)
    fetcher.assign([A, B])
    assert fetcher.position(A) == 5
    assert fetcher.position(B) is None


@pytest.mark.parametrize(("policy", "when"), [("earliest", EARLIEST), ("latest", LATEST)])
def test_a_partition_without_a_position_starts_at_the_reset_policy(policy: str, when: int) -> None:
    fetcher = a_fetcher(at=None, auto_offset_reset=policy)
    ((tp, (asked, generation)),) = fetcher.lookups().items()
    assert (tp, asked) == (A, when)
    assert fetcher.lookups() == {}
    fetcher.looked_up(A, generation, 42)
    assert fetcher.position(A) == 42


def test_an_offset_lookup_is_dropped_after_a_seek() -> None:
    fetcher = a_fetcher(at=None, auto_offset_reset="latest")
    ((_, (_, generation)),) = fetcher.lookups().items()
    fetcher.seek(A, 7)
    fetcher.looked_up(A, generation, 42)
    assert fetcher.position(A) == 7


def test_without_position_and_reset_policy_an_error_is_raised() -> None:
    fetcher = a_fetcher(at=None, auto_offset_reset="none")
    assert fetcher.lookups() == {}
    with pytest.raises(NoOffsetToStart, match="t-0"):
        fetcher.take(1)


@pytest.mark.parametrize(("policy", "when"), [("earliest", EARLIEST), ("latest", LATEST)])
def test_an_offset_out_of_range_is_reset_by_the_policy(policy: str, when: int) -> None:
    fetcher = a_fetcher(at=5, auto_offset_reset=policy)
    (plan,) = plans(fetcher)
    give(fetcher, plan, PartitionData(partition_index=0, error_code=1, log_start_offset=9))
    assert [asked for asked, _ in fetcher.lookups().values()] == [when]


def test_an_offset_out_of_range_without_policy_raises_with_the_log_start() -> None:
    fetcher = a_fetcher(at=5, auto_offset_reset="none")
    (plan,) = plans(fetcher)
    give(fetcher, plan, PartitionData(partition_index=0, error_code=1, log_start_offset=9))
    with pytest.raises(NoOffsetToStart, match="offset 5 is not in the log, which starts at 9"):
        fetcher.take(1)
    fetcher.seek(A, 9)
    assert len(plans(fetcher)) == 1


@pytest.mark.parametrize("code", [3, 6, 74, 75, 100])
def test_a_not_leader_error_requests_metadata_and_backs_off(code: int) -> None:
    fetcher = a_fetcher()
    (plan,) = plans(fetcher)
    assert give(fetcher, plan, PartitionData(partition_index=0, error_code=code))
    assert plans(fetcher, 1) == []
    assert len(plans(fetcher, 20)) == 1


def test_a_response_is_matched_by_topic_id_and_an_unknown_id_backs_off() -> None:
    """The metadata can have another id for the topic when the response arrives."""
    fetcher = a_fetcher()
    (plan,) = plans(fetcher)
    data = PartitionData(partition_index=0, records=batch(0, b"a"))
    assert not fetcher.answered(plan, m.FetchResponse(responses=[FetchableTopicResponse(topic_id=ID, partitions=[data])]), 0)
    assert values(fetcher) == [b"a"]
    (plan,) = plans(fetcher)
    strange = m.FetchResponse(responses=[FetchableTopicResponse(topic_id=b"x" * 16, partitions=[PartitionData(error_code=100)])])
    assert fetcher.answered(plan, strange, 0), "metadata is requested"
    assert plans(fetcher, 1) == []
    assert len(plans(fetcher, 20)) == 1


def test_a_fatal_error_is_raised_once_and_other_partitions_continue() -> None:
    fetcher = a_fetcher(A, B)
    (plan,) = plans(fetcher)
    give(fetcher, plan, PartitionData(partition_index=0, error_code=29), PartitionData(partition_index=1, records=batch(0, b"b")))
    assert values(fetcher) == [b"b"]
    with pytest.raises(TopicAuthorizationFailed, match="t-0"):
        fetcher.take(1)
    assert values(fetcher) == []


def test_a_failed_fetch_is_repeated_after_a_backoff() -> None:
    fetcher = a_fetcher()
    (plan,) = plans(fetcher)
    fetcher.failed(plan, 0)
    assert plans(fetcher, 1) == []
    (again,) = plans(fetcher, 20)
    assert again.wanted == plan.wanted


def test_a_damaged_batch_is_an_error_with_its_offset() -> None:
    fetcher = a_fetcher()
    damaged = bytearray(batch(0, b"a") + batch(1, b"b"))
    damaged[-1] ^= 1
    fetched(fetcher, bytes(damaged))
    assert values(fetcher) == [b"a"]
    with pytest.raises(CorruptMessage, match="offset 1"):
        fetcher.take(5)


def test_a_batch_truncated_at_the_end_of_a_response_is_fetched_again() -> None:
    fetcher = a_fetcher()
    fetched(fetcher, batch(0, b"a") + batch(1, b"b")[:-3])
    assert values(fetcher) == [b"a"]
    assert plans(fetcher)[0].wanted[A].offset == 1


def test_control_batches_move_the_position_and_are_not_returned() -> None:
    fetcher = a_fetcher()
    key, value = marker(COMMIT_MARKER, 0)
    control = build_batch([(1, key, value, ())], base_offset=0, control=True, transactional=True, producer_id=5, producer_epoch=0)
    fetched(fetcher, bytes(control))
    assert values(fetcher) == []
    assert fetcher.position(A) == 1


def _a_log_with_an_aborted_transaction() -> bytes:
    key, value = marker(ABORT_MARKER, 0)
    transactional = {"transactional": True, "producer_epoch": 0, "base_sequence": 0}
    return b"".join(
        [
            batch(0, b"aborted", producer_id=5, **transactional),
            batch(1, b"plain"),
            batch(2, b"committed", producer_id=6, **transactional),
            bytes(build_batch([(1, key, value, ())], base_offset=3, control=True, transactional=True, producer_id=5, producer_epoch=0)),
            batch(4, b"after", producer_id=5, **transactional),
        ]
    )


def test_read_committed_omits_exactly_the_aborted_records() -> None:
    fetcher = a_fetcher(isolation_level="read_committed")
    fetched(fetcher, _a_log_with_an_aborted_transaction(), aborted_transactions=[AbortedTransaction(producer_id=5, first_offset=0)])
    assert values(fetcher) == [b"plain", b"committed", b"after"]
    assert fetcher.position(A) == 5


def test_read_uncommitted_returns_all_records() -> None:
    fetcher = a_fetcher()
    fetched(fetcher, _a_log_with_an_aborted_transaction(), aborted_transactions=[AbortedTransaction(producer_id=5, first_offset=0)])
    assert values(fetcher) == [b"aborted", b"plain", b"committed", b"after"]


def test_the_epoch_of_the_last_batch_is_sent_so_that_the_leader_detects_divergence() -> None:
    fetcher = a_fetcher()
    assert plans(fetcher)[0].wanted[A].last_fetched_epoch == -1
    fetcher = a_fetcher()
    fetched(fetcher, batch(0, b"a", leader_epoch=3))
    ask = plans(fetcher)[0].wanted[A]
    assert (ask.last_fetched_epoch, ask.leader_epoch) == (3, 4)


def test_a_log_truncated_after_the_position_continues_from_there() -> None:
    fetcher = a_fetcher()
    fetched(fetcher, batch(0, b"a", b"b", b"c"))
    assert values(fetcher, 1) == [b"a"]
    fetched(fetcher, b"", diverging_epoch=EpochEndOffset(epoch=2, end_offset=2))
    assert fetcher.position(A) == 1
    assert plans(fetcher)[0].wanted[A].offset == 1


def test_a_log_truncated_below_the_position_seeks_back_or_raises() -> None:
    for policy in ("latest", "none"):
        fetcher = a_fetcher(at=8, auto_offset_reset=policy)
        fetched(fetcher, b"", diverging_epoch=EpochEndOffset(epoch=2, end_offset=6))
        if policy == "latest":
            assert fetcher.position(A) == 6
        else:
            with pytest.raises(LogTruncated, match="ends at 6 before the consumed offset 8"):
                fetcher.take(1)


def test_a_session_error_makes_the_next_fetch_full() -> None:
    fetcher = a_fetcher()
    (plan,) = plans(fetcher)
    fetcher.session(1).request(plan.wanted, by_id=True)
    give(fetcher, plan, PartitionData(partition_index=0))
    (plan,) = plans(fetcher)
    fetcher.session(1).request(plan.wanted, by_id=True)
    give(fetcher, plan, error=70)
    (plan,) = plans(fetcher, 20)
    assert fetcher.session(1).request(plan.wanted, by_id=True).epoch == 0


def test_seeking_a_negative_offset_is_refused() -> None:
    with pytest.raises(ValueError, match="seek_to_beginning"):
        a_fetcher().seek(A, -1)


# Preferred read replicas (KIP-392).


def redirected_to_replica(**settings: Any) -> Fetcher:
    """A consumer in rack r, which leader 1 has redirected to replica 7."""
    fetcher = a_fetcher(client_rack="r", metadata_max_age_ms=60_000, **settings)
    (plan,) = plans(fetcher)
    assert (plan.node_id, plan.rack) == (1, "r")
    give(fetcher, plan, PartitionData(partition_index=0, records=b"", high_watermark=100, log_start_offset=0, preferred_read_replica=7))
    return fetcher


def test_a_consumer_reads_from_the_preferred_replica_until_the_metadata_expires() -> None:
    fetcher = redirected_to_replica()
    (plan,) = plans(fetcher, 59_999)
    assert plan.node_id == 7 and plan.wanted[A].leader_epoch == 4
    give(fetcher, plan, PartitionData(partition_index=0, records=batch(0, b"a"), high_watermark=100, log_start_offset=0))
    assert values(fetcher) == [b"a"]
    assert [plan.node_id for plan in plans(fetcher, 60_000)] == [1]


@pytest.mark.parametrize("code", [OffsetOutOfRange.code, OffsetNotAvailable.code, NotLeaderOrFollower.code])
def test_a_consumer_that_cannot_read_from_the_replica_returns_to_the_leader(code: int) -> None:
    fetcher = redirected_to_replica(auto_offset_reset="none")
    (plan,) = plans(fetcher)
    give(fetcher, plan, PartitionData(partition_index=0, error_code=code, high_watermark=-1, log_start_offset=5, records=b""))
    (plan,) = plans(fetcher, 50)
    assert (plan.node_id, plan.rack, plan.wanted[A].offset) == (1, "", 0), "and does not restart at another offset"
    give(fetcher, plan, PartitionData(partition_index=0, records=batch(0, b"a"), high_watermark=100, log_start_offset=0), now_ms=50)
    assert values(fetcher) == [b"a"]
    assert plans(fetcher, 20_000)[0].rack == "r", "later the client may be redirected there again"


def test_a_preferred_replica_that_fails_or_disappears_is_dropped() -> None:
    fetcher = redirected_to_replica()
    (plan,) = plans(fetcher)
    fetcher.failed(plan, 0)
    assert [plan.node_id for plan in plans(fetcher, 50)] == [1]
    fetcher = redirected_to_replica()
    assert fetcher.preferred_replicas.nodes == {7}
    fetcher.preferred_replicas.unreachable({7}, 0)
    assert [(plan.node_id, plan.rack) for plan in plans(fetcher)] == [(1, "")]


def test_an_out_of_range_error_of_the_leader_is_final() -> None:
    fetcher = a_fetcher(client_rack="r", auto_offset_reset="none")
    (plan,) = plans(fetcher)
    give(fetcher, plan, PartitionData(partition_index=0, error_code=OffsetOutOfRange.code, high_watermark=-1, log_start_offset=5))
    with pytest.raises(NoOffsetToStart):
        fetcher.take(1)
