"""Options of a write, without Spark."""

import pytest

from ottla.spark.sink.options import BATCH_BYTES, SinkOptions
from ottla.spark.source.options import OptionError


def parsed(**options: str) -> SinkOptions:
    return SinkOptions.of({"bootstrap.servers": "h:1", **{name.replace("_", "."): value for name, value in options.items()}})


def test_a_sink_accepts_a_topic_and_ignores_sparks_own_options() -> None:
    options = SinkOptions.of({"bootstrap.servers": "h:1", "topic": "out", "checkpointLocation": "/c", "queryName": "q"})
    assert (options.topic, options.compression, options.partitioner, dict(options.client)) == ("out", "none", "default", {})


def test_a_sink_refuses_a_sources_option() -> None:
    with pytest.raises(OptionError, match="not an option of a write"):
        parsed(subscribe="t")


def test_the_codec_is_set_by_ottlas_option_or_by_kafkas() -> None:
    assert parsed(compression="lz4").compression == parsed(kafka_compression_type="lz4").compression == "lz4"
    assert parsed(compression="lz4", kafka_compression_type="lz4").producer_settings()["compression_type"] == "lz4"


@pytest.mark.parametrize(
    ("options", "partitioner"),
    [
        ({}, "default"),
        ({"partitioner": "round_robin"}, "round_robin"),
        ({"kafka_partitioner_class": "org.apache.kafka.clients.producer.RoundRobinPartitioner"}, "round_robin"),
        ({"kafka_partitioner_class": "org.apache.kafka.clients.producer.UniformStickyPartitioner"}, "uniform"),
        ({"kafka_partitioner_class": "org.apache.kafka.clients.producer.internals.DefaultPartitioner"}, "default"),
        ({"kafka_partitioner_ignore_keys": "true"}, "uniform"),
        ({"kafka_partitioner_ignore_keys": "true", "partitioner": "random"}, "random"),
        ({"kafka_partitioner_ignore_keys": "false"}, "default"),
    ],
)
def test_the_partitioner_is_set_by_ottlas_option_or_by_javas_class(options: dict[str, str], partitioner: str) -> None:
    found = parsed(**options)
    assert (found.partitioner, dict(found.client)) == (partitioner, {})


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"kafka_acks": "2"}, "option kafka.acks: "),
        ({"kafka_max_request_siz": "1"}, "option kafka.max.request.siz: unknown setting; did you mean max_request_size?"),
        ({"kafka_retries": "often"}, "option kafka.retries: "),
        ({"kafka_delivery_timeout_ms": "10"}, "option kafka.delivery.timeout.ms: 10 is less than"),
        ({"kafka_acks": "1", "kafka_enable_idempotence": "true"}, "option kafka.enable.idempotence: needs acks=all"),
        ({"delivery": "at_most_once"}, "option delivery: expected exactly_once or at_least_once"),
        ({"delivery": "exactly_once", "kafka_acks": "1"}, "exactly_once needs acks=all and idempotence; leave out kafka.acks"),
        ({"delivery": "at_least_once", "kafka_transactional_id": "mine"}, "option kafka.transactional.id: needs delivery exactly_once"),
        ({"kafka_acks": "1", "kafka_transaction_timeout_ms": "9"}, "option kafka.transaction.timeout.ms: needs delivery exactly_once"),
        ({"kafka_transaction_two_phase_commit_enable": "true", "kafka_transaction_timeout_ms": "9"}, "these transactions have no timeout"),
        ({"txnAppId": "mine"}, "option txnVersion: is missing: txnAppId needs it"),
        ({"txnVersion": "1"}, "option txnAppId: is missing: txnVersion needs it"),
        ({"txnAppId": "mine", "txnVersion": "1", "delivery": "at_least_once"}, "option txnAppId: needs delivery exactly_once"),
        ({"kafka_value_serializer": "x"}, "cast the column value"),
        ({"compression": "brotli"}, "option compression: expected none or gzip"),
        ({"kafka_compression_type": "brotli"}, "option kafka.compression.type: expected none or gzip"),
        ({"compression": "lz4", "kafka_compression_type": "gzip"}, "differs from kafka.compression.type"),
        ({"partitioner": "sticky"}, "option partitioner: expected default or uniform or round_robin or random"),
        ({"kafka_partitioner_class": "com.example.Mine"}, "com.example.Mine cannot run here; use partitioner"),
        ({"kafka_partitioner_class": "a.RoundRobinPartitioner", "partitioner": "random"}, "differs from kafka.partitioner.class"),
    ],
)
def test_invalid_options_are_refused_before_a_write(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(OptionError) as refused:
        parsed(**options)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("options", "transactional", "required"),
    [
        ({}, True, False),
        ({"delivery": "exactly_once"}, True, True),
        ({"delivery": "at_least_once"}, False, True),
        ({"kafka_acks": "1"}, False, False),
        ({"kafka_enable_idempotence": "false"}, False, False),
    ],
)
def test_rows_are_written_in_transactions_unless_the_options_speak_against_it(
    options: dict[str, str], transactional: bool, required: bool
) -> None:
    found = parsed(**options)
    assert (found.transactional, found.required) == (transactional, required)


def test_settings_of_transactions_are_the_sinks() -> None:
    found = parsed(kafka_transactional_id="mine", kafka_transaction_timeout_ms="5000")
    assert (found.prefix, found.timeout_ms, found.two_phase) == ("mine", 5000, False)
    assert (parsed().prefix, parsed().timeout_ms, parsed().two_phase) == ("ottla-spark", 900_000, None)
    assert not {"transactional_id", "transaction_timeout_ms"} & set(found.producer_settings())


def test_settings_of_a_consumer_are_omitted() -> None:
    settings = parsed(kafka_isolation_level="read_committed", kafka_group_id="g", kafka_client_id="me").producer_settings()
    assert settings["client_id"] == "me"
    assert not {"isolation_level", "group_id"} & set(settings)


def test_batches_are_large_by_default() -> None:
    assert parsed().producer_settings()["batch_size_backlog"] == BATCH_BYTES
    assert "batch_size_backlog" not in parsed(kafka_batch_size="1000").producer_settings()
