"""Batch reads through Spark: columns, positions, errors."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from .conftest import Topic

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

Topics = Callable[..., Topic]


def values(frame: Any) -> list[bytes | None]:
    return [None if row.value is None else bytes(row.value) for row in frame.orderBy("partition", "offset").select("value").collect()]


def refusal(read: Callable[[], Any]) -> str:
    """The message of a refused read."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    with pytest.raises((PySparkException, Py4JJavaError)) as refused:
        read()
    return str(refused.value)


def test_the_columns_are_those_of_sparks_kafka_source(spark: Any, a_topic: Topics) -> None:
    topic = a_topic()
    frame = topic.source(spark.read).load()
    assert [(field.name, field.dataType.simpleString()) for field in frame.schema] == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
    ]


def test_a_record_arrives_with_all_its_fields(spark: Any, a_topic: Topics) -> None:
    topic = a_topic(partitions=2)
    topic.add(b"one", key=b"k", partition=1, headers=[("h", b"1"), ("empty", None)], timestamp_ms=1_700_000_000_123)
    topic.add(None, b"", partition=1, timestamp_ms=1_700_000_000_124)
    rows = topic.source(spark.read, includeHeaders="true").load().orderBy("offset").collect()
    first = rows[0].asDict(recursive=True)
    assert first.pop("timestamp").astimezone(UTC) == datetime(2023, 11, 14, 22, 13, 20, 123000, UTC)
    assert first == {
        "key": b"k", "value": b"one", "topic": topic.name, "partition": 1, "offset": 0, "timestampType": 0,
        "headers": [{"key": "h", "value": b"1"}, {"key": "empty", "value": None}],
    }  # fmt: skip
    assert [(row.key, row.value, row.headers) for row in rows[1:]] == [(None, None, None), (None, b"", None)], "as in Spark's own source"


def test_a_topic_without_records_is_an_empty_frame(spark: Any, a_topic: Topics) -> None:
    assert a_topic(partitions=3).source(spark.read).load().count() == 0


def test_a_user_defined_schema_reads_only_these_columns(spark: Any, a_topic: Topics) -> None:
    topic = a_topic()
    topic.add(b"a", b"b")
    frame = topic.source(spark.read).schema("offset BIGINT, value BINARY").load()
    assert [(row.offset, bytes(row.value)) for row in frame.orderBy("offset").collect()] == [(0, b"a"), (1, b"b")]


@pytest.mark.parametrize(
    ("schema", "sentence"), [("valeu BINARY", "did you mean 'value'?"), ("value STRING", "column value is BINARY, not string; cast it")]
)
def test_a_column_that_the_source_does_not_have_is_refused(spark: Any, a_topic: Topics, schema: str, sentence: str) -> None:
    message = refusal(lambda: a_topic().source(spark.read).schema(schema).load().count())
    assert sentence.replace("'", "") in message.replace("'", "")


def test_starting_and_ending_offsets_select_a_range(spark: Any, a_topic: Topics) -> None:
    topic = a_topic(partitions=2)
    topic.add(*[b"%d" % number for number in range(10)], partition=0)
    topic.add(b"x", b"y", partition=1)
    read = topic.source(
        spark.read, startingOffsets=json.dumps({topic.name: {"0": 3, "1": -2}}), endingOffsets=json.dumps({topic.name: {"0": 5, "1": -1}})
    )
    assert values(read.load()) == [b"3", b"4", b"x", b"y"]


def test_timestamps_select_a_range(spark: Any, a_topic: Topics) -> None:
    topic = a_topic()
    for time_ms in (1000, 2000, 3000):
        topic.add(b"%d" % time_ms, timestamp_ms=time_ms)
    assert values(topic.source(spark.read, startingTimestamp="1500", endingTimestamp="2500").load()) == [b"2000"]


def test_assign_reads_one_partition_and_a_pattern_many_topics(spark: Any, a_topic: Topics) -> None:
    one, other = a_topic(partitions=2), a_topic()
    one.add(b"a", partition=0)
    one.add(b"b", partition=1)
    other.add(b"c")
    reader = spark.read.format("ottla").option("kafka.bootstrap.servers", one.bootstrap)
    assert values(reader.option("assign", json.dumps({one.name: [1]})).load()) == [b"b"]
    pattern = (
        spark.read.format("ottla").option("kafka.bootstrap.servers", one.bootstrap).option("subscribePattern", f"{one.name}|{other.name}")
    )
    assert sorted(value or b"" for value in values(pattern.load())) == [b"a", b"b", b"c"]


def test_min_partitions_splits_a_range_into_tasks(spark: Any, a_topic: Topics) -> None:
    topic = a_topic()
    topic.add(*[b"%d" % number for number in range(100)])
    frame = topic.source(spark.read, minPartitions="4").load()
    assert frame.rdd.getNumPartitions() == 4
    assert len(set(values(frame))) == 100


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"startingOffset": "earliest"}, "did you mean startingOffsets?"),
        ({"assign": '{"x": [0]}'}, "exactly one of"),
        ({"kafka.auto.offset.reset": "earliest"}, "use startingOffsets"),
        ({"kafka.fetch.maximum": "3"}, "unknown setting"),
    ],
)
def test_an_invalid_option_is_refused_with_advice(spark: Any, a_topic: Topics, options: dict[str, str], sentence: str) -> None:
    assert sentence in refusal(lambda: a_topic().source(spark.read, **options).load().count())


def test_a_missing_topic_is_refused_by_name(spark: Any, bootstrap: str) -> None:
    read = spark.read.format("ottla").option("kafka.bootstrap.servers", bootstrap).option("subscribe", "no-such-topic")
    assert "topic no-such-topic does not exist" in refusal(lambda: read.load().count())


def test_sql_can_name_the_source(spark: Any, a_topic: Topics) -> None:
    topic = a_topic()
    topic.add(b"a", b"b", b"c")
    options = f"`kafka.bootstrap.servers` '{topic.bootstrap}', subscribe '{topic.name}'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW of_topic USING ottla OPTIONS ({options})")
    assert spark.sql("SELECT count(*) AS n FROM of_topic").first().n == 3
