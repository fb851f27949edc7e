"""Options of the source: parsing and errors."""

import json
import re

import pytest

from ottla.base.ids import TopicPartition
from ottla.spark.source.offset_ranges import EARLIEST, LATEST
from ottla.spark.source.options import FORBIDDEN, OptionError, Position, SourceOptions

BASE = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "orders"}
T0, T1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def stream(**options: str) -> SourceOptions:
    return SourceOptions.of({**BASE, **options}, streaming=True)


def batch(**options: str) -> SourceOptions:
    return SourceOptions.of({**BASE, **options}, streaming=False)


def test_a_stream_starts_at_the_latest_and_a_batch_at_the_earliest_offset() -> None:
    assert stream().starting.special == LATEST
    assert batch().starting.special == EARLIEST
    assert batch().ending.special == LATEST


@pytest.mark.parametrize("name", ["SUBSCRIBE", "Subscribe", "subscribe"])
def test_option_names_do_not_depend_on_case(name: str) -> None:
    parsed = SourceOptions.of({"Kafka.Bootstrap.Servers": "h:1", name: "a, b,a"}, streaming=True)
    assert parsed.subscription.topics == ("a", "b")
    assert parsed.bootstrap == "h:1"


def test_bootstrap_servers_need_no_prefix() -> None:
    assert SourceOptions.of({"bootstrap.servers": "h:1", "subscribe": "t"}, streaming=True).bootstrap == "h:1"


@pytest.mark.parametrize(
    ("option", "value", "attribute", "expected"),
    [
        ("failOnDataLoss", "false", "on_data_loss", "warn"),
        ("onDataLoss", "skip", "on_data_loss", "skip"),
        ("dataLossReportTo", "/x", "loss_report_to", "/x"),
        ("fetchOffset.numRetries", "0", "offset_retries", 0),
        ("fetchOffset.retryIntervalMs", "25", "offset_retry_ms", 25),
        ("kafka.group.id", "g", "commits", True),
        ("includeHeaders", "TRUE", "include_headers", True),
        ("minPartitions", "12", "tasks_min", 12),
        ("maxRecordsPerPartition", "1000", "records_per_task_max", 1000),
        ("maxOffsetsPerTrigger", "500", "records_per_trigger_max", 500),
        ("minOffsetsPerTrigger", "50", "records_per_trigger_min", 50),
        ("kafkaConsumer.pollTimeoutMs", "700", "poll_timeout_ms", 700),
        ("kafka.group.id", "g", "client", {"group.id": "g"}),
        ("groupIdPrefix", "mine", "bootstrap", "127.0.0.1:9092"),
    ],
)
def test_each_option_is_parsed_to_its_type(option: str, value: str, attribute: str, expected: object) -> None:
    assert getattr(stream(**{option: value}), attribute) == expected


@pytest.mark.parametrize(
    ("text", "expected_ms"), [("30s", 30_000), ("15m", 900_000), ("1 hour", 3_600_000), ("250ms", 250), ("5 minutes", 300_000), ("7", 7)]
)
def test_a_trigger_delay_is_a_number_with_a_unit(text: str, expected_ms: int) -> None:
    assert stream(minOffsetsPerTrigger="1", maxTriggerDelay=text).trigger_delay_max_ms == expected_ms


def test_offsets_as_json_keep_the_special_offsets() -> None:
    parsed = stream(startingOffsets='{"orders": {"0": -2, "1": 42}}')
    assert parsed.starting.offsets == {T0: EARLIEST, T1: 42}
    assert batch(endingOffsets='{"orders": {"0": -1, "1": 42}}').ending.offsets == {T0: LATEST, T1: 42}


def test_a_timestamp_beats_timestamps_by_partition_and_these_beat_offsets() -> None:
    by_partition = '{"orders": {"0": 5}}'
    assert stream(startingTimestamp="9", startingOffsetsByTimestamp=by_partition, startingOffsets="earliest").starting.timestamp_ms == 9
    assert stream(startingOffsetsByTimestamp=by_partition, startingOffsets="earliest").starting.timestamps_ms == {T0: 5}
    assert batch(endingTimestamp="9", endingOffsets="latest").ending.timestamp_ms == 9


def test_assign_names_partitions() -> None:
    parsed = SourceOptions.of({"bootstrap.servers": "h:1", "assign": '{"orders": [1, 0]}'}, streaming=True)
    assert parsed.subscription.partitions == (T0, T1)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"startingOffset": "earliest"}, "did you mean startingOffsets?"),
        ({"assign": '{"orders": [0]}'}, "exactly one of assign, subscribe, subscribePattern"),
        ({"subscribe": " , "}, "names no topic"),
        ({"startingOffsets": "begin"}, "is not JSON"),
        ({"startingOffsets": '{"orders": [0]}'}, 'expected {"partition": offset}'),
        ({"startingOffsets": '{"orders": {"0": -3}}'}, "-2 is the earliest"),
        ({"startingOffsets": '{"other": {"0": 1}}'}, "not among what subscribe names"),
        ({"endingOffsets": "latest"}, "only for a batch read"),
        ({"maxOffsetsPerTrigger": "0"}, "a whole number above 0"),
        ({"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"}, "more than maxOffsetsPerTrigger"),
        ({"maxTriggerDelay": "5m"}, "together with minOffsetsPerTrigger"),
        ({"minOffsetsPerTrigger": "1", "maxTriggerDelay": "soon"}, "such as 30s, 15m or 1h"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
        ({"startingTimestamp": "yesterday"}, "milliseconds since 1970"),
        ({"startingOffsetsByTimestampStrategy": "latest"}, "only applies with startingTimestamp"),
        ({"startingTimestamp": "1", "startingOffsetsByTimestampStrategy": "guess"}, "error or latest"),
        ({"kafka.auto.offset.reset": "earliest"}, "use startingOffsets"),
        ({"startingOffsets": "committed"}, "name it with kafka.group.id"),
        ({"startingOffsets": "committed", "kafka.group.id": "g", "kafka.auto.offset.reset": "first"}, "earliest or latest or none"),
        ({"commitOffsets": "true"}, "needs a consumer group"),
        ({"onDataLoss": "ignore"}, "fail or warn or skip"),
        ({"onDataLoss": "warn", "failOnDataLoss": "true"}, "contradicts failOnDataLoss"),
        ({"path": "/tmp/x"}, "has no path"),
        ({"bootstrap.servers": "elsewhere:1"}, "give only one of them"),
    ],
)
def test_invalid_options_of_a_stream_are_refused_with_advice(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(OptionError) as refused:
        stream(**options)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"startingOffsets": "latest"}, "reads nothing"),
        ({"startingOffsets": '{"orders": {"0": -1}}'}, "reads nothing"),
        ({"endingOffsets": "earliest"}, "would read nothing"),
        ({"endingOffsets": '{"orders": {"0": -2}}'}, "cannot be an end"),
        ({"maxOffsetsPerTrigger": "5"}, "only for a stream"),
        ({"commitOffsets": "false"}, "only for a stream"),
    ],
)
def test_a_batch_refuses_options_of_streams(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(OptionError) as refused:
        batch(**options)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"subscribe": "t"}, "kafka.bootstrap.servers: is missing"),
        (
            {"subscribe": "t", "kafka.bootstrap.servers": "a:1,broker1"},
            "kafka.bootstrap.servers: 'broker1' has no port; write broker1:9092",
        ),
        ({"subscribe": "t", "bootstrap.servers": "::1"}, "bootstrap.servers: '::1' has no port; write [::1]:9092"),
        ({"bootstrap.servers": "h:1"}, "subscribe: is missing"),
        ({"bootstrap.servers": "h:1", "subscribePattern": "("}, "not a regular expression"),
        ({"bootstrap.servers": "h:1", "assign": json.dumps({"t": ["0"]})}, 'expected {"topic": [partitions]}'),
        ({"bootstrap.servers": "h:1", "assign": "{}"}, 'expected {"topic": [partitions]}'),
    ],
)
def test_a_read_needs_a_broker_and_topics(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(OptionError) as refused:
        SourceOptions.of(options, streaming=True)
    assert sentence in str(refused.value)


def test_only_streams_commit_progress_and_only_if_allowed() -> None:
    assert not stream().commits
    assert not stream(**{"kafka.group.id": "g", "commitOffsets": "false"}).commits
    assert not batch(**{"kafka.group.id": "g"}).commits


def test_a_start_at_committed_offsets_has_a_reset_position() -> None:
    asked = {"startingOffsets": "committed", "kafka.group.id": "g"}
    assert stream(**asked).starting == Position(special=EARLIEST, committed=True)
    assert batch(**asked, **{"kafka.auto.offset.reset": "latest"}).starting == Position(special=LATEST, committed=True)
    assert "auto.offset.reset" not in batch(**asked, **{"kafka.auto.offset.reset": "none"}).client


@pytest.mark.parametrize("name", sorted(FORBIDDEN))
def test_settings_that_break_sparks_guarantees_are_refused_with_advice(name: str) -> None:
    for make in (stream, batch):
        with pytest.raises(OptionError, match=re.escape(f"option {name}: may not be set; {FORBIDDEN[name]}")):
            make(**{name: "x"})


def test_settings_of_sasl_go_to_the_client_and_are_not_shown() -> None:
    module = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="a" password="SECRET";'
    given = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": module}
    javas = {
        "kafka.sasl.login.refresh.window.factor": "0.8",
        "kafka.sasl.login.callback.handler.class": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler",
    }
    made = stream(**{f"kafka.{name}": value for name, value in given.items()}, **javas)
    assert made.client == given
    assert "SECRET" not in repr(made)


def test_settings_of_the_java_client_are_ignored() -> None:
    given = {
        "kafka.security.protocol": "PLAINTEXT",
        "kafka.client.dns.lookup": "use_all_dns_ips",
        "kafka.isolation.level": "read_committed",
    }
    assert stream(**given).client == {"isolation.level": "read_committed"}


def test_a_delay_may_be_days() -> None:
    assert stream(minOffsetsPerTrigger="1", maxTriggerDelay="1d").trigger_delay_max_ms == 24 * 3600 * 1000
