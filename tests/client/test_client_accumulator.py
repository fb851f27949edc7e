"""The accumulator alone: which batches are sent when, in which order, with which sequence numbers."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from ottla.client.errors import AlreadyClosed, DeliveryTimedOut
from ottla.client.options import ProducerOptions, from_keywords
from ottla.client.producer.accumulator import Accumulator
from ottla.client.producer.batches import SEQUENCES, ProducerBatch
from ottla.client.producer.partition_queue import EPOCH_MAX
from ottla.client.transport.cluster import PartitionInfo, TopicInfo
from ottla.records.batch import crc_ok, parse_header
from ottla.records.build import build_batch
from ottla.records.read import records
from ottla.wire.errors import InvalidRecord, MessageTooLarge, NotLeaderOrFollower, OutOfOrderSequenceNumber, error_for

NOW = 1_000_000.0
TOPIC = TopicInfo("t", bytes(16), tuple(PartitionInfo(partition, 1, 0) for partition in range(3)))


def an_accumulator(**settings: Any) -> Accumulator:
    settings = {"linger_ms": 0, "retry_backoff_ms": 10, "retry_backoff_max_ms": 10, **settings}
    made = Accumulator(from_keywords(ProducerOptions, settings), Random(1))
    made.producer = (77, 0)
    return made


def add(accumulator: Accumulator, value: bytes = b"v", *, partition: int = 0, now_ms: float = NOW) -> ProducerBatch:
    batch = offer(accumulator, value, partition=partition, now_ms=now_ms)
    assert batch is not None
    return batch


def offer(accumulator: Accumulator, value: bytes = b"v", *, partition: int = 0, now_ms: float = NOW) -> ProducerBatch | None:
    """Add a record if there is memory for it."""
    added = accumulator.add("t", partition, 1, None, value, ())
    added = added or accumulator.begin("t", partition, 1, None, value, (), now_ms, TOPIC)
    return added[0] if added is not None else None


def drain(accumulator: Accumulator, now_ms: float = NOW) -> list[ProducerBatch]:
    drained = accumulator.drain(now_ms, lambda topic, partition: 1, lambda node: True)
    return [batch for batches in drained.requests.values() for batch in batches]


def in_flight(accumulator: Accumulator, count: int) -> list[ProducerBatch]:
    """`count` batches of one record each, all in flight, after one that the broker has acknowledged."""
    made: list[ProducerBatch] = []
    if ("t", 0) not in accumulator._partitions:
        add(accumulator, b"first")
        (first,) = drain(accumulator)
        accumulator.succeeded(first, 0)
    for index in range(count):
        add(accumulator, b"%d" % index)
        made += drain(accumulator)
    return made


def one_by_one(accumulator: Accumulator, count: int) -> list[ProducerBatch]:
    """Send batches again, each after the previous one was acknowledged."""
    made = []
    for _ in range(count):
        (batch,) = drain(accumulator, NOW + 100)
        assert not accumulator._partitions["t", 0].retries or not drain(accumulator, NOW + 100)
        accumulator.succeeded(batch, 0)
        made.append(batch)
    return made


def test_records_of_a_partition_share_a_batch_until_it_is_full() -> None:
    accumulator = an_accumulator(batch_size=300, linger_ms=1000)
    batches = [add(accumulator, b"x" * 100) for _ in range(5)]
    assert len(set(batches)) == 3
    assert drain(accumulator) == [batches[0]]
    assert batches[0].count == 2


def test_an_open_batch_is_sent_after_its_linger() -> None:
    accumulator = an_accumulator(linger_ms=20)
    batch = add(accumulator)
    assert drain(accumulator, NOW + 19) == []
    assert accumulator.drain(NOW + 19, lambda t, p: 1, lambda n: True).next_ms == NOW + 20
    assert drain(accumulator, NOW + 20) == [batch]


def test_batches_that_wait_for_others_may_be_larger_and_do_not_linger() -> None:
    accumulator = an_accumulator(batch_size=300, batch_size_backlog=900, linger_ms=1000)
    batches = list(dict.fromkeys(add(accumulator, b"x" * 100) for _ in range(12)))
    assert [batch.size_now for batch in batches] == [279, 279, 824, 170]
    for batch in batches[:3]:
        assert drain(accumulator) == [batch]
        accumulator.succeeded(batch, 0)
    assert drain(accumulator) == []
    later = an_accumulator(batch_size=300, batch_size_backlog=900, linger_ms=1000)
    grown = list(dict.fromkeys(add(later, b"x" * 100) for _ in range(8)))
    for batch in grown:
        assert drain(later) == [batch]
        later.succeeded(batch, 0)


def test_an_explicit_batch_size_is_used_unless_overridden() -> None:
    assert from_keywords(ProducerOptions, {"batch_size": 300}).batch_size_backlog == 300
    assert from_keywords(ProducerOptions, {}).batch_size_backlog == 512 * 1024


def test_flush_sends_open_batches_at_once() -> None:
    accumulator = an_accumulator(linger_ms=1000)
    batch = add(accumulator)
    assert accumulator.close_open() == [batch]
    assert drain(accumulator) == [batch]


def test_a_request_holds_at_most_one_batch_per_partition_and_the_allowed_bytes() -> None:
    accumulator = an_accumulator(batch_size=1000, max_request_size=2500)
    for partition in range(3):
        for _ in range(2):
            add(accumulator, b"x" * 900, partition=partition)
    first, second, third = drain(accumulator), drain(accumulator), drain(accumulator)
    assert [batch.partition for batch in first] == [0]
    # The partition that was served moves to the end of the queue.
    assert [batch.partition for batch in (*second, *third)] == [1, 2]


def test_a_record_larger_than_a_request_is_refused_without_side_effects() -> None:
    accumulator = an_accumulator(max_request_size=1000)
    with pytest.raises(MessageTooLarge, match="max_request_size"):
        add(accumulator, b"x" * 1000)
    assert accumulator.empty
    assert accumulator.used_bytes == 0


def test_memory_is_reserved_until_the_result() -> None:
    accumulator = an_accumulator(buffer_memory=1024, batch_size=100)
    while offer(accumulator, b"x" * 100) is not None:
        pass
    assert accumulator.used_bytes >= 1024
    (batch,) = drain(accumulator)
    assert offer(accumulator) is None
    accumulator.succeeded(batch, 0)
    assert offer(accumulator) is not None


def test_an_open_batch_does_not_linger_when_the_memory_is_full() -> None:
    accumulator = an_accumulator(buffer_memory=1024, linger_ms=60_000)
    add(accumulator, b"x" * 2000)
    assert len(drain(accumulator)) == 1


def test_batches_have_consecutive_sequence_numbers_per_partition() -> None:
    accumulator = an_accumulator(linger_ms=10)
    for index in range(6):
        add(accumulator, partition=index % 2)
    for batch in drain(accumulator, NOW + 10):
        header = parse_header(batch.seal())
        assert (header.producer_id, header.producer_epoch, header.base_sequence, header.count) == (77, 0, 0, 3)
    for batch in in_flight(accumulator, 1):
        assert parse_header(batch.seal()).base_sequence == 3


def test_sequence_numbers_wrap_after_the_largest_int32() -> None:
    accumulator = an_accumulator()
    (first,) = in_flight(accumulator, 1)
    accumulator.succeeded(first, 0)
    accumulator._partitions["t", 0].next_sequence = SEQUENCES
    (batch,) = in_flight(accumulator, 1)
    assert parse_header(batch.seal()).base_sequence == 0


def test_nothing_is_sent_without_a_producer_id() -> None:
    accumulator = an_accumulator()
    accumulator.producer = None
    batch = add(accumulator)
    assert drain(accumulator) == []
    accumulator.producer = (5, 3)
    assert drain(accumulator) == [batch]
    assert parse_header(batch.seal()).producer_epoch == 3


def test_after_a_failure_new_batches_wait_until_all_in_flight_are_answered() -> None:
    accumulator = an_accumulator()
    first, second = in_flight(accumulator, 2)
    third = add(accumulator, b"third")
    assert accumulator.failed(first, NotLeaderOrFollower(), NOW)
    assert drain(accumulator, NOW + 100) == []
    assert accumulator.failed(second, OutOfOrderSequenceNumber(), NOW)
    assert one_by_one(accumulator, 3) == [first, second, third]


def test_a_retry_waits_for_its_backoff_and_keeps_sequence_and_bytes() -> None:
    accumulator = an_accumulator()
    (batch,) = in_flight(accumulator, 1)
    sent = bytes(batch.seal())
    accumulator.failed(batch, NotLeaderOrFollower(), NOW)
    assert drain(accumulator, NOW + 1) == []
    assert drain(accumulator, NOW + 20) == [batch]
    assert bytes(batch.seal()) == sent


def test_retries_are_sent_in_sequence_order_whatever_the_order_of_failures() -> None:
    accumulator = an_accumulator()
    first, second, third = in_flight(accumulator, 3)
    for batch in (third, first, second):
        accumulator.failed(batch, NotLeaderOrFollower(), NOW)
    assert one_by_one(accumulator, 3) == [first, second, third]


def test_a_retry_answered_as_duplicate_counts_as_written() -> None:
    accumulator = an_accumulator()
    (batch,) = in_flight(accumulator, 1)
    assert not accumulator.failed(batch, error_for(46), NOW)
    assert batch.done
    assert batch.error is None
    assert batch.outcome(0, 5).offset == -1


def test_a_refused_batch_leaves_a_gap_and_later_batches_are_renumbered_only_when_the_broker_confirms_it() -> None:
    accumulator = an_accumulator()
    first, second, third = in_flight(accumulator, 3)
    assert not accumulator.failed(first, MessageTooLarge(), NOW)
    assert accumulator.failed(second, OutOfOrderSequenceNumber(), NOW)
    assert accumulator.failed(third, OutOfOrderSequenceNumber(), NOW)
    assert one_by_one(accumulator, 2) == [second, third]
    for batch, sequence in ((second, 0), (third, 1)):
        header = parse_header(batch.seal())
        assert (header.producer_epoch, header.base_sequence) == (1, sequence)
        assert crc_ok(batch.seal())
    assert [record[3] for record in records(second.seal())] == [b"1"]


def test_a_gap_that_turns_out_written_renumbers_nothing() -> None:
    accumulator = an_accumulator(delivery_timeout_ms=40_000)
    (first,) = in_flight(accumulator, 1)
    accumulator.failed(first, error_for(13), NOW)
    add(accumulator, b"later", now_ms=NOW + 39_000)
    accumulator.expire(NOW + 40_000)
    assert isinstance(first.error, DeliveryTimedOut)
    (second,) = drain(accumulator, NOW + 41_000)
    assert second.sequence == 2
    accumulator.succeeded(second, 1)
    add(accumulator)
    (third,) = drain(accumulator, NOW + 41_000)
    assert (third.epoch, third.sequence) == (0, 3)


def test_an_out_of_order_error_without_a_gap_fails_the_batch_and_bumps_the_epoch() -> None:
    accumulator = an_accumulator()
    (first,) = in_flight(accumulator, 1)
    accumulator.succeeded(first, 0)
    (lost,) = in_flight(accumulator, 1)
    assert not accumulator.failed(lost, OutOfOrderSequenceNumber(), NOW)
    assert isinstance(lost.error, OutOfOrderSequenceNumber)
    (following,) = in_flight(accumulator, 1)
    assert (following.epoch, following.sequence) == (1, 0)


def test_the_epoch_is_not_bumped_while_a_batch_is_in_flight() -> None:
    accumulator = an_accumulator()
    first, second, third = in_flight(accumulator, 3)
    accumulator.failed(first, MessageTooLarge(), NOW)
    accumulator.failed(second, OutOfOrderSequenceNumber(), NOW)
    assert drain(accumulator, NOW + 100) == []
    accumulator.failed(third, OutOfOrderSequenceNumber(), NOW)
    assert drain(accumulator, NOW + 100) == [second]


def test_a_broker_that_lost_the_producer_state_gets_the_batch_with_the_next_epoch() -> None:
    accumulator = an_accumulator()
    (first,) = in_flight(accumulator, 1)
    accumulator.succeeded(first, 0)
    (second,) = in_flight(accumulator, 1)
    assert accumulator.failed(second, error_for(59), NOW)
    assert drain(accumulator, NOW + 100) == [second]
    assert (second.epoch, second.sequence) == (1, 0)


def test_after_the_last_epoch_the_producer_waits_for_a_new_id() -> None:
    accumulator = an_accumulator()
    accumulator.producer = (77, EPOCH_MAX)
    (first,) = in_flight(accumulator, 1)
    accumulator.failed(first, OutOfOrderSequenceNumber(), NOW)
    add(accumulator)
    assert drain(accumulator) == []
    assert accumulator.producer is None
    accumulator.producer = (78, 0)
    (second,) = drain(accumulator)
    assert (second.producer_id, second.epoch, second.sequence) == (78, 0, 0)


def test_a_batch_out_of_retries_fails_with_its_last_error() -> None:
    accumulator = an_accumulator(retries=1)
    (batch,) = in_flight(accumulator, 1)
    assert accumulator.failed(batch, NotLeaderOrFollower(), NOW)
    drain(accumulator, NOW + 100)
    assert not accumulator.failed(batch, NotLeaderOrFollower("again"), NOW + 100)
    with pytest.raises(NotLeaderOrFollower, match="again"):
        batch.outcome(0, 0)


def test_an_unsent_batch_expires_with_an_error_that_says_so() -> None:
    accumulator = an_accumulator(delivery_timeout_ms=40_000)
    batch = add(accumulator)
    assert accumulator.expire(NOW + 39_999) == NOW + 40_000
    assert accumulator.expire(NOW + 40_000) == float("inf")
    with pytest.raises(DeliveryTimedOut, match=r"1 records for t-0 .* 40000 ms, never sent"):
        batch.outcome(0, 0)
    assert accumulator.used_bytes == 0
    assert drain(accumulator) == []


def test_a_batch_that_expires_in_flight_ignores_a_late_response() -> None:
    accumulator = an_accumulator(delivery_timeout_ms=40_000)
    (batch,) = in_flight(accumulator, 1)
    accumulator.expire(NOW + 40_000)
    accumulator.succeeded(batch, 9)
    assert isinstance(batch.error, DeliveryTimedOut)
    (following,) = in_flight(accumulator, 1)
    assert following.sequence == 2


def test_abandoning_fails_every_record() -> None:
    accumulator = an_accumulator()
    flying, waiting = *in_flight(accumulator, 1), add(accumulator)
    called: list[ProducerBatch] = []
    for batch in (flying, waiting):
        batch.when_done(lambda batch=batch: called.append(batch))  # type: ignore[misc]
    accumulator.fail_all(AlreadyClosed())
    assert not called
    accumulator.notify_finished()
    assert set(called) == {flying, waiting}
    assert accumulator.empty


def test_a_partition_has_at_most_five_batches_in_flight_at_the_old_and_the_new_leader_together() -> None:
    accumulator = an_accumulator()
    at_the_old_leader = in_flight(accumulator, 4)
    at_the_new_leader = in_flight(accumulator, 3)
    assert len(at_the_new_leader) == 1, "the new leader knows five batches, so it recognizes all of the old one's when they are repeated"
    accumulator.succeeded(at_the_old_leader[0], 1)
    assert len(drain(accumulator)) == 1


def test_partitions_without_a_leader_are_reported_and_the_others_sent() -> None:
    accumulator = an_accumulator()
    add(accumulator, partition=0)
    sent = add(accumulator, partition=1)
    drained = accumulator.drain(NOW, lambda topic, partition: 1 if partition else None, lambda node: True)
    assert drained.leaderless == [("t", 0)]
    assert drained.requests == {1: [sent]}


def test_an_encoded_batch_is_sent_after_earlier_records_and_numbered() -> None:
    accumulator = an_accumulator(linger_ms=1000)
    earlier = add(accumulator)
    data = build_batch([(5, b"k", b"v", ()), (6, None, b"w", ())])
    batch = accumulator.append_batch("t", 0, data, NOW)
    assert batch is not None
    assert drain(accumulator) == [earlier]
    accumulator.succeeded(earlier, 0)
    assert drain(accumulator) == [batch]
    header = parse_header(batch.seal())
    assert (header.producer_id, header.base_sequence, header.count) == (77, 1, 2)
    assert crc_ok(batch.seal())


def test_two_batches_in_one_buffer_are_refused() -> None:
    accumulator = an_accumulator()
    data = build_batch([(5, b"k", b"v", ())])
    with pytest.raises(ValueError, match="but there are"):
        accumulator.append_batch("t", 0, data + data, NOW)


def test_the_first_batch_of_a_producer_is_sent_alone() -> None:
    accumulator = an_accumulator()
    first, second = add(accumulator), None
    assert drain(accumulator) == [first]
    second = add(accumulator)
    assert drain(accumulator) == []
    accumulator.succeeded(first, 0)
    assert drain(accumulator) == [second]


def test_without_idempotence_batches_have_no_sequence_and_still_retry_in_order() -> None:
    accumulator = an_accumulator(enable_idempotence=False)
    accumulator.producer = None
    first, second = in_flight(accumulator, 2)
    assert parse_header(first.seal()).base_sequence == -1
    accumulator.failed(second, error_for(13), NOW)
    accumulator.failed(first, error_for(13), NOW)
    assert one_by_one(accumulator, 2) == [first, second]


# -- batches that are too large (KIP-126)


def full(accumulator: Accumulator, count: int, *, size: int = 100) -> ProducerBatch:
    """One batch of `count` records, in flight, after one that was acknowledged."""
    in_flight(accumulator, 0)
    for index in range(count):
        batch = add(accumulator, b"%d" % index * size)
    (sent,) = drain(accumulator)
    assert sent is batch and batch.count == count
    return batch


def test_a_batch_that_is_too_large_is_sent_again_in_halves_with_the_same_sequences() -> None:
    accumulator = an_accumulator()
    batch = full(accumulator, 8)
    outcomes = [batch.outcome] * 8
    waiting = add(accumulator, b"behind")
    assert accumulator.failed(batch, MessageTooLarge(), NOW)
    first, second = (one_by_one(accumulator, 1)[0] for _ in range(2))
    assert [part.sequence for part in (first, second)] == [1, 5]
    assert [record[3] for part in (first, second) for record in records(part.seal())] == [b"%d" % index * 100 for index in range(8)]
    assert parse_header(second.seal()).base_sequence == 5
    assert one_by_one(accumulator, 1) == [waiting]
    assert not batch.done
    accumulator.notify_finished()
    assert batch.done and batch.error is None
    assert outcomes[6](6, 0).offset == 2
    assert (accumulator.used_bytes, accumulator.splits, accumulator.empty) == (0, 1, True)


def test_batches_are_split_until_the_record_that_is_too_large_fails_alone() -> None:
    accumulator = an_accumulator()
    batch = full(accumulator, 4)
    accumulator.failed(batch, MessageTooLarge(), NOW)
    refused = 0
    for _ in range(20):
        for part in drain(accumulator, NOW + 100):
            if any(record[3] == b"2" * 100 for record in records(part.seal())):
                refused += 1
                accumulator.failed(part, MessageTooLarge("too large"), NOW)
            else:
                accumulator.succeeded(part, part.sequence)
        accumulator.notify_finished()
    assert batch.done and refused == 2
    assert [batch.error_of(index) is None for index in range(4)] == [True, True, False, True]
    with pytest.raises(MessageTooLarge):
        batch.outcome(2, 0)


def test_parts_of_a_split_batch_keep_its_deadline() -> None:
    accumulator = an_accumulator(delivery_timeout_ms=40_000)
    batch = full(accumulator, 4)
    add(accumulator, b"younger", now_ms=NOW + 5)
    accumulator.failed(batch, MessageTooLarge(), NOW)
    assert accumulator.expire(NOW + 40_000) == NOW + 40_005
    accumulator.notify_finished()
    assert isinstance(batch.error_of(3), DeliveryTimedOut)


def test_compressed_batches_are_split_too_and_keep_headers_and_timestamps() -> None:
    accumulator = an_accumulator(compression_type="gzip", compression_gzip_level=1)
    in_flight(accumulator, 0)
    for index in range(4):
        accumulator.add("t", 0, 100 + index, b"k", b"v%d" % index, [("h", b"%d" % index)]) or accumulator.begin(
            "t", 0, 100 + index, b"k", b"v%d" % index, [("h", b"%d" % index)], NOW, TOPIC
        )
    (batch,) = drain(accumulator)
    accumulator.failed(batch, MessageTooLarge(), NOW)
    parts = [one_by_one(accumulator, 1)[0] for _ in range(2)]
    found = [(time, key, value, list(headers)) for part in parts for _, time, key, value, headers in records(part.seal())]
    assert found == [(100 + index, b"k", b"v%d" % index, [("h", b"%d" % index)]) for index in range(4)]
    assert {parse_header(part.seal()).codec.wire_name for part in parts} == {"gzip"}


# -- results


def test_records_that_failed_because_of_another_one_say_so() -> None:
    accumulator = an_accumulator()
    batch = full(accumulator, 3)
    batch.refused = {1: "has no key"}
    accumulator.failed(batch, InvalidRecord("two rules"), NOW)
    with pytest.raises(InvalidRecord, match="has no key"):
        batch.outcome(1, 0)
    with pytest.raises(InvalidRecord, match=r"another record of the batch is invalid.*two rules"):
        batch.outcome(0, 0)


def test_a_callback_that_raises_does_not_stop_other_callbacks(caplog: pytest.LogCaptureFixture) -> None:
    accumulator = an_accumulator()
    (batch,) = in_flight(accumulator, 1)
    called: list[int] = []
    batch.when_done(lambda: called.append(1))
    batch.when_done(lambda: called.append(1 // 0))
    batch.when_done(lambda: called.append(3))
    accumulator.succeeded(batch, 0)
    accumulator.notify_finished()
    assert called == [1, 3]
    assert "a callback for records of t-0 failed" in caplog.text
