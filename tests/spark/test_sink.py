"""DataFrames into topics and back."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from ottla.records import partition_for_key

from .conftest import Topic
from .test_source import refusal

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

Topics = Callable[..., Topic]


def write(frame: Any, target: Topic, **options: str) -> None:
    frame.write.format("ottla").option("kafka.bootstrap.servers", target.bootstrap).options(**options).mode("append").save()


def rows(spark: Any, topic: Topic, **options: str) -> list[Any]:
    found: list[Any] = topic.source(spark.read, **options).load().orderBy("partition", "offset").collect()
    return found


def test_keys_values_and_headers_come_back_as_they_were_written(spark: Any, a_topic: Topics) -> None:
    topic = a_topic()
    header = "array(struct('h' AS key, CAST('1' AS BINARY) AS value))"
    query = f"SELECT * FROM VALUES ('k', 'v', {header}), (NULL, 'no key', NULL), ('tombstone', NULL, array()) AS t(key, value, headers)"
    write(spark.sql(query).coalesce(1), topic, topic=topic.name, includeHeaders="true")
    found = [row.asDict(recursive=True) for row in rows(spark, topic, includeHeaders="true")]
    assert [(row["key"], row["value"], row["headers"]) for row in found] == [
        (b"k", b"v", [{"key": "h", "value": b"1"}]),
        (None, b"no key", []),
        (b"tombstone", None, []),
    ]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_many_rows_go_where_javas_partitioner_sends_their_keys(spark: Any, a_topic: Topics, codec: str) -> None:
    topic = a_topic(partitions=4)
    frame = spark.range(0, 20_000, 1, 2).selectExpr("CAST(id AS STRING) AS key", "repeat(CAST(id AS STRING), 20) AS value")
    write(frame, topic, topic=topic.name, compression=codec)
    found = rows(spark, topic)
    assert sorted(int(row.key) for row in found) == list(range(20_000))
    assert all(row.partition == partition_for_key(bytes(row.key), 4) for row in found)
    assert all(bytes(row.value) == bytes(row.key) * 20 for row in found)


def test_rows_name_their_topic_and_partition(spark: Any, a_topic: Topics) -> None:
    one, other = a_topic(partitions=3), a_topic()
    query = (
        f"SELECT * FROM VALUES ('a', '{one.name}', 2), ('b', '{other.name}', 0), ('c', '{one.name}', NULL) AS t(value, topic, partition)"
    )
    write(spark.sql(query), one)
    assert {bytes(row.value): row.partition for row in rows(spark, one)}[b"a"] == 2
    assert sorted(bytes(row.value) for row in rows(spark, one)) == [b"a", b"c"]
    assert [bytes(row.value) for row in rows(spark, other)] == [b"b"]


def test_the_option_topic_beats_the_column(spark: Any, a_topic: Topics) -> None:
    topic = a_topic()
    write(spark.sql("SELECT 'v' AS value, 'elsewhere' AS topic"), topic, topic=topic.name)
    assert [bytes(row.value) for row in rows(spark, topic)] == [b"v"]


@pytest.mark.parametrize(
    ("query", "options", "sentence"),
    [
        ("SELECT 'v' AS value", {}, "set the option topic, or select a column topic"),
        ("SELECT 1 AS value", {"topic": "t"}, "column value is int and must be string or binary"),
        ("SELECT 'v' AS valeu", {"topic": "t"}, "takes no column"),
        ("SELECT 'k' AS key", {"topic": "t"}, "there is no column value"),
        ("SELECT 'v' AS value, array(struct('h' AS key, X'00' AS value)) AS headers", {"topic": "t"}, "set the option includeHeaders"),
        ("SELECT 'v' AS value", {"topic": "not-there"}, "topic not-there does not exist"),
        ("SELECT 'v' AS value, 9 AS partition", {"topic": ""}, "is for partition 9, and there are 1"),
    ],
)
def test_what_cannot_be_written_is_refused_with_what_to_do(
    spark: Any, a_topic: Topics, query: str, options: dict[str, str], sentence: str
) -> None:
    topic = a_topic()
    named = {name: value or topic.name for name, value in options.items()}
    assert sentence in refusal(lambda: write(spark.sql(query), topic, **named))


def test_a_topic_cannot_be_overwritten(spark: Any, a_topic: Topics) -> None:
    topic = a_topic()
    writer = spark.sql("SELECT 'v' AS value").write.format("ottla").option("kafka.bootstrap.servers", topic.bootstrap)
    assert 'write with .mode("append")' in refusal(lambda: writer.option("topic", topic.name).mode("overwrite").save())


def test_a_stream_goes_from_topic_to_topic(spark: Any, a_topic: Topics, checkpoint: str) -> None:
    source, target = a_topic(partitions=2), a_topic(partitions=2)
    source.add(*[json.dumps({"n": number}).encode() for number in range(10)])
    frame = source.source(spark.readStream, startingOffsets="earliest").load().selectExpr("CAST(value AS STRING) AS value")
    writer = frame.writeStream.format("ottla").option("kafka.bootstrap.servers", source.bootstrap).option("topic", target.name)
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    assert sorted(json.loads(row.value)["n"] for row in rows(spark, target)) == list(range(10))
