"""Produce, as clients see it. Lines are those of docs/semantics.md."""

import random
from typing import Any

import crc32c
import pytest
from cluster import WALL_MS, Broker, Cluster, batch, fetch, fetch_request, produce, produce_request, unpacked, values

from ottla.base.units import HOUR_MS, INT64_MAX, MiB
from ottla.records.batch import crc_ok, parse_header
from ottla.records.build import build_batch
from ottla.records.compression import Codec
from ottla.wire import errors


def refused(broker: Broker, records: bytes | None, error: type[errors.KafkaError], **fields: Any) -> Any:
    """Produce is refused with this error and nothing is appended."""
    end = broker.leader("t").log.end_offset
    answer = produce(broker, records, **fields)
    assert answer.error_code == error.code, answer.error_message
    assert answer.base_offset == -1 and bool(answer.error_message) == (fields.get("version", 12) >= 8)
    assert broker.leader("t").log.end_offset == end
    return answer


# Acknowledgement.


def test_acks_all_is_answered_once_the_record_is_on_disk() -> None:
    """Line 24, and what acks=all means here; until then the record is not readable."""
    cluster = Cluster()
    broker = cluster.topic()
    cluster.flushing = False
    sent = broker.send(produce_request(batch(b"a"), acks=-1), 12)
    assert sent.waits
    assert broker.send(fetch_request(max_wait_ms=100), 12).waits
    broker.flush()
    assert sent.answer.responses[0].partition_responses[0].base_offset == 0
    assert values(fetch(broker).records) == [b"a"]


def test_requests_that_wait_together_share_one_flush() -> None:
    cluster = Cluster()
    broker = cluster.topic()
    cluster.flushing = False
    first = broker.send(produce_request(batch(b"a")), 12)
    others = [broker.send(produce_request(batch(b"b")), 12) for _ in range(5)]
    assert len(broker.flushes) == 1
    cluster.flushing = True
    broker.flush()
    assert [sent.answer.responses[0].partition_responses[0].base_offset for sent in (first, *others)] == [0, 1, 2, 3, 4, 5]


def test_acks_1_is_answered_before_the_record_is_on_disk() -> None:
    cluster = Cluster()
    broker = cluster.topic()
    cluster.flushing = False
    assert produce(broker, batch(b"a"), acks=1).base_offset == 0
    assert broker.send(fetch_request(max_wait_ms=100), 12).waits
    broker.flush()
    assert values(fetch(broker).records) == [b"a"]


def test_acks_0_has_no_answer_and_an_error_closes_the_connection() -> None:
    """Line 23."""
    broker = Cluster().topic()
    sent = broker.send(produce_request(batch(b"a"), acks=0), 12)
    assert sent.released and sent.waits and sent.closed is None
    assert values(fetch(broker).records) == [b"a"]
    bad = broker.send(produce_request(batch(b"a"), acks=0, partition=7), 12)
    assert bad.closed is not None and bad.waits and not bad.released


def test_a_refused_transaction_with_acks_0_closes_the_connection() -> None:
    """Found by the fuzzer: an answer that no client expects, which it would take for the answer to its next request."""
    data = [batch(b"a", transactional=True, producer_id=number, producer_epoch=0, base_sequence=0) for number in (1, 2)]
    broker = Cluster().topic(partitions=2)
    unknown = produce_request(data[0], acks=0, transactional_id="t")
    mixed = produce_request(data[0], acks=0, transactional_id="t")
    mixed.topic_data += produce_request(data[1], partition=1).topic_data
    for request in (unknown, mixed):
        bad = broker.send(request, 12)
        assert bad.closed is not None and bad.waits


@pytest.mark.parametrize("acks", [2, -2, 5])
def test_any_other_acks_is_refused(acks: int) -> None:
    """Line 23."""
    refused(Cluster().topic(), batch(b"a"), errors.InvalidRequiredAcks, acks=acks)


def test_too_few_in_sync_replicas_refuse_acks_all_before_the_append() -> None:
    """Line 24."""
    broker = Cluster().topic(configs={"min.insync.replicas": "2"})
    refused(broker, batch(b"a"), errors.NotEnoughReplicas, acks=-1)
    assert produce(broker, batch(b"a"), acks=1).error_code == 0


def test_a_flush_longer_than_the_request_timeout_is_a_timeout() -> None:
    """Line 24; the record may still be there afterwards."""
    cluster = Cluster()
    broker = cluster.topic()
    cluster.flushing = False
    sent = broker.send(produce_request(batch(b"a"), timeout_ms=300), 12)
    cluster.pass_ms(290)
    assert sent.waits
    cluster.pass_ms(20)
    answer = sent.answer.responses[0].partition_responses[0]
    assert (answer.error_code, answer.base_offset) == (errors.RequestTimedOut.code, -1)
    broker.flush()
    assert values(fetch(broker).records) == [b"a"]


def test_under_write_caching_acks_all_does_not_wait_for_the_disk() -> None:
    cluster = Cluster()
    broker = cluster.topic(configs={"write.caching": "true"})
    cluster.flushing = False
    assert produce(broker, batch(b"a")).base_offset == 0
    assert values(fetch(broker).records) == [b"a"]


def test_each_partition_succeeds_or_fails_by_itself() -> None:
    broker = Cluster().topic(partitions=2)
    request = produce_request(batch(b"a"))
    other = produce_request(b"garbage" * 20, partition=1).topic_data[0].partition_data
    missing = produce_request(batch(b"a"), partition=9).topic_data[0].partition_data
    request.topic_data[0].partition_data += other + missing
    answers = broker.ask(request, 12).responses[0].partition_responses
    assert [one.index for one in answers] == [0, 1, 9]
    assert answers[0].error_code == 0 and answers[1].error_code != 0
    assert answers[2].error_code == errors.UnknownTopicOrPartition.code


# What is in an answer.


def test_produce_response_has_base_offset_and_log_start_offset() -> None:
    """Line 31."""
    broker = Cluster().topic()
    produce(broker, batch(b"a", b"b"))
    answer = produce(broker, batch(b"c"))
    assert (answer.base_offset, answer.log_append_time_ms, answer.log_start_offset) == (2, -1, 0)
    assert produce(broker, batch(b"d"), version=4).log_start_offset == -1


def test_error_of_the_wrong_broker_names_the_leader_from_version_10_on() -> None:
    """Line 31."""
    cluster = Cluster(brokers=2)
    leader = cluster.topic()
    other = next(broker for broker in cluster.brokers.values() if broker is not leader)
    answer = other.ask(produce_request(batch(b"a")), 10)
    part = answer.responses[0].partition_responses[0]
    assert part.error_code == errors.NotLeaderOrFollower.code
    assert (part.current_leader.leader_id, part.current_leader.leader_epoch) == (leader.broker_id, 0)
    assert [(node.node_id, node.host) for node in answer.node_endpoints] == [(leader.broker_id, f"host{leader.broker_id}")]
    old = other.ask(produce_request(batch(b"a")), 9)
    assert old.responses[0].partition_responses[0].error_code == errors.NotLeaderOrFollower.code


def test_topics_are_named_by_id_from_version_13_on() -> None:
    """Line 57."""
    broker = Cluster().topic()
    topic_id = broker.node.context.image.topics["t"].topic_id
    answer = broker.ask(produce_request(batch(b"a"), topic=topic_id), 13).responses[0]
    assert (answer.topic_id, answer.partition_responses[0].error_code) == (topic_id, 0)
    for topic_id in (b"\7" * 16, bytes(16)):  # type: ignore[assignment]
        unknown = broker.ask(produce_request(batch(b"a"), topic=topic_id), 13).responses[0]
        assert (unknown.topic_id, unknown.partition_responses[0].error_code) == (topic_id, errors.UnknownTopicId.code)


# Batches.


def test_exactly_one_batch_per_partition() -> None:
    """Line 25."""
    broker = Cluster().topic()
    for records in (batch(b"a") + batch(b"b"), b"", None):
        refused(broker, records, errors.InvalidRecord)


def test_formats_before_2_are_refused() -> None:
    """Line 25."""
    broker = Cluster().topic()
    for magic in (0, 1):
        old = bytearray(batch(b"a"))
        old[16] = magic
        refused(broker, bytes(old), errors.InvalidRecord)


def test_zstd_needs_version_7() -> None:
    """Line 25."""
    broker = Cluster().topic()
    compressed = batch(b"a", codec=Codec.ZSTD)
    refused(broker, compressed, errors.UnsupportedCompressionType, version=6)
    assert produce(broker, compressed, version=7).error_code == 0


def test_a_batch_that_was_damaged_on_its_way_is_corrupt() -> None:
    """Line 26."""
    broker = Cluster().topic()
    for position in (17, 25, 60, -1):
        damaged = bytearray(batch(b"value"))
        damaged[position] ^= 1
        refused(broker, bytes(damaged), errors.CorruptMessage)
    refused(broker, batch(b"value")[:-1], errors.CorruptMessage)


@pytest.mark.parametrize(
    "records",
    [
        batch(b"a", b"b", last_offset_delta=5),
        batch(b"a", control=True),
        batch(b"a", producer_id=5, producer_epoch=0, base_sequence=-1),
    ],
)
def test_a_batch_that_breaks_a_rule_is_invalid(records: bytes) -> None:
    """Line 26."""
    refused(Cluster().topic(), records, errors.InvalidRecord)


def test_a_compressed_batch_must_hold_what_it_declares() -> None:
    """Line 26; the count stands outside of the compressed bytes."""
    broker = Cluster().topic()
    lying = bytearray(batch(b"a", b"b", codec=Codec.GZIP))
    lying[57:61] = (3).to_bytes(4, "big")
    lying[23:27] = (2).to_bytes(4, "big")
    lying[17:21] = crc32c.crc32c(bytes(lying[21:])).to_bytes(4, "big")
    refused(broker, bytes(lying), errors.InvalidRecord)


def test_a_batch_of_equal_records_is_taken_as_small_as_it_gets() -> None:
    broker = Cluster().topic(configs={"max.message.bytes": "10000"})
    zeros = batch(*[bytes(1 << 20)] * 3, codec=Codec.GZIP)
    assert len(zeros) < 10_000
    assert produce(broker, zeros).error_code == 0


def test_a_batch_may_decompress_to_more_than_ten_times_max_message_bytes() -> None:
    broker = Cluster().topic(configs={"max.message.bytes": "1000000"})
    large = batch(*[bytes(750_000) + random.Random(number).randbytes(30_000) for number in range(24)], codec=Codec.ZSTD)
    assert 700_000 < len(large) < 1_000_000
    assert produce(broker, large).error_code == 0


def test_a_batch_that_grows_too_much_is_refused() -> None:
    broker = Cluster().topic()
    refused(broker, batch(bytes(20 << 20), codec=Codec.ZSTD), errors.InvalidRecord)


def test_a_transactional_batch_needs_a_transactional_id_and_a_coordinator() -> None:
    broker = Cluster().topic()
    data = batch(b"a", transactional=True, producer_id=1, producer_epoch=0, base_sequence=0)
    refused(broker, data, errors.TransactionalIdAuthorizationFailed)
    assert produce(broker, data, transactional_id="x").error_code == errors.NotEnoughReplicas.code
    assert produce(broker, batch(b"a"), transactional_id="x").error_code == 0, "outside of the transaction"


def test_offset_and_epoch_are_the_brokers_and_the_rest_is_the_clients() -> None:
    """Line 27."""
    cluster = Cluster()
    broker = cluster.topic()
    produce(broker, batch(b"first"))
    broker = cluster.restart(1)
    sent = batch(b"a", b"b", base_offset=99, leader_epoch=7, codec=Codec.LZ4)
    produce(broker, sent)
    stored = bytes(fetch(broker, 1).records)
    header = parse_header(stored)
    assert (header.base_offset, header.leader_epoch) == (1, 1)
    assert stored[16:] == sent[16:] and crc_ok(stored)


def test_a_batch_above_max_message_bytes_is_refused() -> None:
    """Line 30; what counts is its size as it comes, compressed, and is looked at before what is in it."""
    broker = Cluster().topic(configs={"max.message.bytes": "200"})
    large = batch(b"x" * 200)
    refused(broker, large, errors.MessageTooLarge)
    assert produce(broker, batch(b"x" * 1000, codec=Codec.GZIP)).error_code == 0
    damaged = large[:-1] + b"\xff"
    refused(broker, damaged, errors.MessageTooLarge)
    refused(broker, large[:-1], errors.CorruptMessage)
    refused(broker, large + large, errors.InvalidRecord)


def test_batch_above_segment_bytes_is_refused() -> None:
    """Line 30; what counts is its size as it is written."""
    broker = Cluster().topic(configs={"segment.bytes": str(MiB), "max.message.bytes": str(2 * MiB)})
    answer = refused(broker, batch(bytes(MiB)), errors.RecordListTooLarge)
    assert "segment.bytes" in answer.error_message
    assert produce(broker, batch(bytes(MiB), codec=Codec.GZIP)).error_code == 0
    cluster = Cluster()
    configs = {"segment.bytes": str(MiB), "max.message.bytes": str(2 * MiB), "compression.type": "gzip"}
    assert produce(cluster.topic(configs=configs), batch(bytes(MiB))).error_code == 0


def test_a_compacted_topic_refuses_records_without_a_key() -> None:
    """Line 29; the whole batch is refused, and the records at fault are named."""
    broker = Cluster().topic(configs={"cleanup.policy": "compact"})
    mixed = bytes(build_batch([(WALL_MS, b"k", b"1", ()), (WALL_MS, None, b"2", ()), (WALL_MS, None, b"3", ())]))
    answer = refused(broker, mixed, errors.InvalidRecord, version=8)
    assert [fault.batch_index for fault in answer.record_errors] == [1, 2]
    assert all("key" in fault.batch_index_error_message for fault in answer.record_errors)
    assert produce(broker, batch(b"1", key=b"k")).error_code == 0


def test_clients_do_not_write_to_internal_topics() -> None:
    """Line 32."""
    cluster = Cluster()
    broker = cluster.topic("__consumer_offsets")
    assert produce(broker, batch(b"a", key=b"k"), topic="__consumer_offsets").error_code == errors.InvalidTopic.code
    assert broker.leader("__consumer_offsets").log.end_offset == 0


# Timestamps.


def test_under_log_append_time_the_broker_stamps_the_batch() -> None:
    """Lines 27 and 31."""
    cluster = Cluster()
    broker = cluster.topic(configs={"message.timestamp.type": "LogAppendTime"})
    cluster.pass_ms(5000)
    answer = produce(broker, batch(b"a", b"b", timestamp_ms=5))
    assert answer.log_append_time_ms == cluster.wall_ms
    stored = bytes(fetch(broker).records)
    header = parse_header(stored)
    assert (header.timestamp_type, header.max_timestamp) == (1, cluster.wall_ms) and crc_ok(stored)
    assert [record[1] for record in unpacked(stored)] == [cluster.wall_ms] * 2


def test_batch_with_log_append_time_from_a_client_is_refused() -> None:
    """Line 28."""
    refused(Cluster().topic(), batch(b"a", timestamp_type=1), errors.InvalidTimestamp)


@pytest.mark.parametrize(("before", "after", "timestamp_ms"), [(0, INT64_MAX, WALL_MS - 1), (INT64_MAX, 0, WALL_MS + 1)])
def test_limits_of_timestamps_may_be_as_large_as_a_timestamp(before: int, after: int, timestamp_ms: int) -> None:
    configs = {"message.timestamp.before.max.ms": str(before), "message.timestamp.after.max.ms": str(after)}
    broker = Cluster().topic(configs=configs)
    answer = refused(broker, batch(b"a", timestamp_ms=timestamp_ms), errors.InvalidTimestamp)
    assert [fault.batch_index for fault in answer.record_errors] == [0]
    assert produce(broker, batch(b"a")).error_code == 0


def test_timestamps_lie_within_the_topics_limits() -> None:
    """Line 28: an hour ahead at most, unless the topic says otherwise; -1 is no timestamp."""
    broker = Cluster().topic(configs={"message.timestamp.before.max.ms": "1000"})
    answer = refused(broker, batch(b"a", timestamp_ms=WALL_MS + HOUR_MS + 1), errors.InvalidTimestamp)
    assert [fault.batch_index for fault in answer.record_errors] == [0]
    refused(broker, batch(b"a", timestamp_ms=WALL_MS - 1001), errors.InvalidTimestamp)
    for good in (WALL_MS + HOUR_MS, WALL_MS - 1000, WALL_MS, -1):
        assert produce(broker, batch(b"a", timestamp_ms=good)).error_code == 0
    assert produce(Cluster().topic(), batch(b"a", timestamp_ms=0)).error_code == 0


def test_a_wrong_max_timestamp_of_a_batch_is_corrected() -> None:
    broker = Cluster().topic()
    lying = bytearray(build_batch([(WALL_MS - 5, None, b"a", ()), (WALL_MS - 9, None, b"b", ())]))
    lying[35:43] = (WALL_MS + 50 * HOUR_MS).to_bytes(8, "big")
    lying[17:21] = crc32c.crc32c(bytes(lying[21:])).to_bytes(4, "big")
    assert produce(broker, bytes(lying)).error_code == 0
    stored = bytes(fetch(broker).records)
    assert parse_header(stored).max_timestamp == WALL_MS - 5 and crc_ok(stored)


# Compression.


@pytest.mark.parametrize("codec", list(Codec))
def test_a_batch_is_stored_unchanged_unless_topic_settings_require_a_change(codec: Codec) -> None:
    broker = Cluster().topic()
    produce(broker, batch(b"a" * 100, codec=codec))
    assert parse_header(bytes(fetch(broker).records)).codec is codec


@pytest.mark.parametrize("wanted", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_a_topic_may_choose_its_codec(wanted: str, codec: Codec) -> None:
    broker = Cluster().topic(configs={"compression.type": wanted})
    assert produce(broker, batch(b"a" * 100, b"b", codec=codec)).base_offset == 0
    stored = bytes(fetch(broker).records)
    assert parse_header(stored).codec.wire_name == ("none" if wanted == "uncompressed" else wanted)
    assert crc_ok(stored) and values(stored) == [b"a" * 100, b"b"]


@pytest.mark.parametrize(("codec", "fast", "small"), [("gzip", "1", "9"), ("lz4", "9", "12"), ("zstd", "-100", "19")])
def test_a_topic_may_choose_the_level_of_its_codec(codec: str, fast: str, small: str) -> None:
    value, sizes = b"".join(b'{"id":%d,"of":"user-%d"}' % (n, n * n % 977) for n in range(500)), []
    for level in (fast, small):
        broker = Cluster().topic(configs={"compression.type": codec, f"compression.{codec}.level": level})
        produce(broker, batch(value))
        stored = bytes(fetch(broker).records)
        assert values(stored) == [value]
        sizes.append(len(stored))
    assert sizes[0] > sizes[1]
