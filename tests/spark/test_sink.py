"""The sink: DataFrames written to topics and read back."""

import asyncio
import json
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException

from ottla import aio
from ottla.base.ids import TopicPartition
from ottla.client.options import ProducerOptions
from ottla.records import partition_for_key
from ottla.records.batch import BatchHeader, headers
from ottla.records.compression import Codec
from ottla.spark.sink.options import OF_TRANSACTIONS, SinkOptions
from ottla.spark.sink.writer import BatchWriter, StreamWriter, TaskResult, sink_columns
from ottla.spark.source.data_source import OttlaDataSource

from .conftest import Topic
from .test_source import refusal

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

Topics = Callable[..., Topic]


def write(frame: Any, target: Topic, **options: str) -> None:
    frame.write.format("ottla").option("kafka.bootstrap.servers", target.bootstrap).options(**options).mode("append").save()


def rows(spark: Any, topic: Topic, **options: str) -> list[Any]:
    found: list[Any] = topic.source(spark.read, **options).load().orderBy("partition", "offset").collect()
    return found


def batches(topic: Topic, partition: int = 0) -> list[BatchHeader]:
    """The batches of records of a partition in the log."""

    async def fetch() -> list[BatchHeader]:
        async with aio.Consumer(bootstrap_servers=topic.bootstrap, max_partition_fetch_bytes=2**25) as consumer:
            fetched = await consumer.fetch_raw(TopicPartition(topic.name, partition), 0, max_wait_ms=500)
            return [header for _, header in headers(fetched.records) if not header.is_control]

    return asyncio.run(fetch())


def run_to_end(writer: Any) -> Any:
    """Runs a stream whose trigger ends, and returns the query. A busy machine may be too slow to start Spark's Python process in time."""
    from pyspark.errors import StreamingQueryException

    for left in reversed(range(5)):
        query = writer.start()
        try:
            assert query.awaitTermination(120)
            break
        except StreamingQueryException as error:
            if "Python worker failed to connect back" not in str(error) or not left:
                raise
    return query


class ReportedResult(TaskResult):
    """The result of a task, with the settings of its producer."""

    def __init__(self, written: TaskResult, settings: dict[str, Any]) -> None:
        super().__init__(written.records, written.origin)
        self.settings = settings


class Recorded:
    """Mixin of a writer: appends the messages of each write as one line to the file in the option `reportTo`."""

    def write(self, iterator: Iterator[Any]) -> ReportedResult:
        from ottla.spark.sink.task_producer import producer_for

        written = self.write_all(iterator)  # type: ignore[attr-defined]
        made = producer_for(self.options).options  # type: ignore[attr-defined]
        return ReportedResult(written, {spec.name: getattr(made, spec.attribute) for spec in made.SPECS.values()})

    def commit(self, messages: list[Any], *batch_id: int) -> None:
        lines = [{"commit": batch_id, "settings": one.settings, **asdict(one.origin)} for one in messages]
        with Path(self.options.report_to).open("a") as report:  # type: ignore[attr-defined]
            report.write(json.dumps(lines) + "\n")


class RecordedBatch(Recorded, BatchWriter):
    pass


class RecordedStream(Recorded, StreamWriter):
    pass


class RecordedSource(OttlaDataSource):
    """The sink with recorded messages."""

    @classmethod
    def name(cls) -> str:
        return "ottla_recorded"

    def writer(self, schema: Any, overwrite: bool) -> Any:
        return RecordedBatch(SinkOptions.of(dict(self.options)), sink_columns(schema))

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        return RecordedStream(SinkOptions.of(dict(self.options)), sink_columns(schema))


def recorded(report: Path) -> list[list[dict[str, Any]]]:
    return [json.loads(line) for line in report.read_text().splitlines()]


def test_keys_values_and_headers_come_back_as_they_were_written(spark: Any, a_topic: Topics) -> None:
    topic = a_topic()
    header = "array(struct('h' AS key, CAST('1' AS BINARY) AS value))"
    query = f"SELECT * FROM VALUES ('k', 'v', {header}), (NULL, 'no key', NULL), ('tombstone', NULL, array()) AS t(key, value, headers)"
    write(spark.sql(query).coalesce(1), topic, topic=topic.name)
    found = [row.asDict(recursive=True) for row in rows(spark, topic, includeHeaders="true")]
    assert [(row["key"], row["value"], row["headers"]) for row in found] == [
        (b"k", b"v", [{"key": "h", "value": b"1"}]),
        (None, b"no key", None),
        (b"tombstone", None, None),
    ]


def test_rows_of_the_source_can_be_written_unchanged(spark: Any, a_topic: Topics) -> None:
    topic, copy = a_topic(partitions=2), a_topic(partitions=2)
    topic.add(b"one", key=b"k", partition=1, headers=[("h", b"1")])
    topic.add(b"two", partition=0)
    write(topic.source(spark.read, includeHeaders="true").load(), copy, topic=copy.name)
    found = [
        (row.partition, row.key, row.value, row.headers and [tuple(one) for one in row.headers])
        for row in rows(spark, copy, includeHeaders="true")
    ]
    assert sorted(found) == [(0, None, b"two", None), (1, b"k", b"one", [("h", b"1")])]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_many_rows_are_partitioned_by_key_as_in_java(spark: Any, a_topic: Topics, codec: str) -> None:
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


def test_the_option_topic_overrides_the_column(spark: Any, a_topic: Topics) -> None:
    topic = a_topic()
    write(spark.sql("SELECT 'v' AS value, 'elsewhere' AS topic"), topic, topic=topic.name)
    assert [bytes(row.value) for row in rows(spark, topic)] == [b"v"]


@pytest.mark.parametrize(
    ("partitioner", "partitions"),
    [
        ({"partitioner": "round_robin"}, {0: 50, 1: 50, 2: 50, 3: 50}),
        ({"kafka.partitioner.class": "org.apache.kafka.clients.producer.RoundRobinPartitioner"}, {0: 50, 1: 50, 2: 50, 3: 50}),
        ({"partitioner": "uniform"}, 1),
        ({"kafka.partitioner.ignore.keys": "true"}, 1),
        ({"partitioner": "random"}, 4),
    ],
)
def test_the_partitioner_chooses_the_partition_of_rows_with_a_key(
    spark: Any, a_topic: Topics, partitioner: dict[str, str], partitions: dict[int, int] | int
) -> None:
    topic = a_topic(partitions=4)
    write(spark.range(0, 200, 1, 1).selectExpr("CAST(id AS STRING) AS key", "'v' AS value"), topic, topic=topic.name, **partitioner)
    found = Counter(row.partition for row in rows(spark, topic))
    assert sum(found.values()) == 200
    # With few rows per partition, all rows of one task are adjacent.
    assert found == partitions if isinstance(partitions, dict) else len(found) == partitions


def test_the_partition_column_overrides_the_partitioner(spark: Any, a_topic: Topics) -> None:
    topic = a_topic(partitions=4)
    frame = spark.range(0, 80, 1, 1).selectExpr("CAST(id AS STRING) AS value", "CASE WHEN id < 40 THEN 3 END AS partition")
    write(frame, topic, topic=topic.name, partitioner="round_robin")
    found = rows(spark, topic)
    assert {row.partition for row in found if int(row.value) < 40} == {3}
    assert Counter(row.partition for row in found if int(row.value) >= 40) == dict.fromkeys(range(4), 10)


#: Settings that restrict each other or a timeout differ from their defaults in a consistent way.
OTHERWISE = {
    "acks": "all", "enable.idempotence": "false", "compression.type": "zstd", "request.timeout.ms": "20000", "batch.size": "5000",
    "batch.size.backlog": "70000", "max.request.size": "2000000", "delivery.timeout.ms": "90000", "retries": "7",
}  # fmt: skip


def test_every_producer_setting_reaches_the_producer(spark: Any, a_topic: Topics, tmp_path: Path) -> None:
    spark.dataSource.register(RecordedSource)
    topic = a_topic()
    # Ottla's partitioner runs before the producer's. Settings of TLS and SASL need each other.
    of_security = {name for name in ProducerOptions.SPECS if name.startswith(("ssl.", "sasl.", "security."))}
    ours = {"bootstrap.servers", "partitioner.ignore.keys", *OF_TRANSACTIONS, *of_security}
    settings = {}
    for name, spec in ProducerOptions.SPECS.items():
        if name not in ours:
            other = str(not spec.default).lower() if isinstance(spec.default, bool) else "other" if name == "client.id" else None
            settings[name] = OTHERWISE.get(name) or other or str((spec.default if spec.default > 0 else 100_000) + 1)
    settings["compression.gzip.level"] = "7"
    options = {f"kafka.{name}": value for name, value in settings.items()}
    frame = spark.sql("SELECT 'v' AS value").write.format("ottla_recorded").options(**options).option("topic", topic.name)
    frame.option("kafka.bootstrap.servers", topic.bootstrap).option("reportTo", str(tmp_path / "report")).mode("append").save()
    [[task]] = recorded(tmp_path / "report")
    assert {name: str(value).lower() for name, value in task["settings"].items() if name not in ours} == settings


@pytest.mark.parametrize(
    ("options", "true"),
    [
        ({}, lambda found: all(one.has_producer and one.is_transactional for one in found) and len(found) == 1),
        ({"delivery": "at_least_once"}, lambda found: all(one.has_producer and not one.is_transactional for one in found)),
        ({"kafka.acks": "1"}, lambda found: not any(one.has_producer for one in found)),
        ({"kafka.acks": "0"}, lambda found: not any(one.has_producer for one in found)),
        ({"kafka.enable.idempotence": "false"}, lambda found: not any(one.has_producer for one in found)),
        ({"kafka.compression.type": "zstd"}, lambda found: all(one.codec is Codec.ZSTD for one in found)),
        ({"compression": "snappy"}, lambda found: all(one.codec is Codec.SNAPPY for one in found)),
        ({"kafka.batch.size": "2000"}, lambda found: len(found) > 10 and max(one.size for one in found) <= 2000),
        ({"kafka.max.request.size": "3000"}, lambda found: len(found) > 7 and max(one.size for one in found) <= 3000),
    ],
)
def test_settings_of_the_producer_show_in_the_log(
    spark: Any, a_topic: Topics, options: dict[str, str], true: Callable[[list[BatchHeader]], bool]
) -> None:
    topic = a_topic()
    write(spark.range(0, 1000, 1, 1).selectExpr("lpad(id, 20, '0') AS value"), topic, topic=topic.name, **options)
    found = batches(topic)
    assert sum(one.count for one in found) == 1000
    assert true(found), found


def test_larger_records_need_higher_limits_of_producer_and_topic(spark: Any, a_topic: Topics) -> None:
    large, small = a_topic(**{"max.message.bytes": "3000000"}), a_topic(**{"max.message.bytes": "2000"})
    frame = spark.sql("SELECT repeat('x', 2000000) AS value")
    write(frame, large, topic=large.name, **{"kafka.max.request.size": "3000000"})
    assert [len(row.value) for row in rows(spark, large)] == [2_000_000]
    # Batches over the topic's limit are split; a record cannot be.
    write(spark.range(0, 500, 1, 1).selectExpr("lpad(id, 20, '0') AS value"), small, topic=small.name)
    assert len(rows(spark, small)) == 500
    for topic in (large, small):
        assert "raise the option kafka.max.request.size and the topic's max.message.bytes" in refusal(
            lambda topic=topic: write(frame, topic, topic=topic.name, **({} if topic is large else {"kafka.max.request.size": "3000000"}))  # type: ignore[misc]
        )
    assert (len(rows(spark, large)), len(rows(spark, small))) == (1, 500)


@pytest.mark.parametrize(
    ("query", "options", "sentence"),
    [
        ("SELECT 'v' AS value", {}, "set the option topic, or select a column topic"),
        ("SELECT 1 AS value", {"topic": "t"}, "column value is int and must be string or binary"),
        ("SELECT 'v' AS valeu", {"topic": "t"}, "has no column"),
        ("SELECT 'k' AS key", {"topic": "t"}, "there is no column value"),
        ("SELECT 'v' AS value", {"topic": "not-there"}, "topic not-there does not exist; create it with: ottla topic create not-there"),
        ("SELECT 'v' AS value, 9 AS partition", {"topic": ""}, "is for partition 9, and there are 1"),
        ("SELECT 'v' AS value, -1 AS partition", {"topic": ""}, "is for partition -1; partitions count from 0"),
        ("SELECT 'v' AS value, CAST(NULL AS STRING) AS topic", {}, "a row has no topic: its column topic is null"),
        ("SELECT 'v' AS value", {"topic": "", "kafka.acks": "most"}, "option kafka.acks: "),
    ],
)
def test_unsupported_columns_are_refused_with_advice(
    spark: Any, a_topic: Topics, query: str, options: dict[str, str], sentence: str
) -> None:
    topic = a_topic()
    named = {name: value or topic.name for name, value in options.items()}
    assert sentence in refusal(lambda: write(spark.sql(query), topic, **named))


def test_a_write_without_a_mode_appends_as_sparks_kafka_sink_does_and_others_name_the_line_to_write(spark: Any, a_topic: Topics) -> None:
    topic = a_topic()

    def writer() -> Any:
        frame = spark.sql("SELECT 'v' AS value").write.format("ottla")
        return frame.option("kafka.bootstrap.servers", topic.bootstrap).option("topic", topic.name)

    writer().save()
    writer().mode("error").save()
    spark.sql("SELECT 'w' AS value").write.save(format="OTTLA", **{"kafka.bootstrap.servers": topic.bootstrap, "topic": topic.name})
    assert sorted(bytes(row.value) for row in rows(spark, topic)) == [b"v", b"v", b"w"]
    assert 'write with .mode("append")' in refusal(lambda: writer().mode("overwrite").save())
    with pytest.raises(ValueError, match=r"mode ignore: records are always added; write .mode\(\"append\"\).save\(\)"):
        writer().mode("ignore").save()
    with pytest.raises(AnalysisException, match="ErrorIfExists"):
        spark.range(1).write.format("noop").save()


def test_a_stream_can_read_and_write_topics(spark: Any, a_topic: Topics, checkpoint: str) -> None:
    source, target = a_topic(partitions=2), a_topic(partitions=2)
    source.add(*[json.dumps({"n": number}).encode() for number in range(10)])
    frame = source.source(spark.readStream, startingOffsets="earliest").load().selectExpr("CAST(value AS STRING) AS value")
    writer = frame.writeStream.format("ottla").option("kafka.bootstrap.servers", source.bootstrap).option("topic", target.name)
    run_to_end(writer.option("checkpointLocation", checkpoint).trigger(availableNow=True))
    assert sorted(json.loads(row.value)["n"] for row in rows(spark, target)) == list(range(10))


def test_a_compacted_topic_refuses_rows_without_a_key_with_advice(spark: Any, a_topic: Topics) -> None:
    topic = a_topic(**{"cleanup.policy": "compact"})
    assert "needs a key in every row" in refusal(lambda: write(spark.sql("SELECT 'v' AS value"), topic, topic=topic.name))
    write(spark.sql("SELECT 'k' AS key, CAST(NULL AS STRING) AS value"), topic, topic=topic.name)
    assert [(bytes(row.key), row.value) for row in rows(spark, topic)] == [(b"k", None)]


def test_unreachable_brokers_are_named(spark: Any) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        frame = spark.sql("SELECT 'v' AS value").write.format("ottla").option("topic", "t").option("kafka.bootstrap.servers", address)
        assert address in refusal(lambda: frame.option("kafka.max.block.ms", "300").mode("append").save())


def test_a_failed_write_does_not_affect_the_next(spark: Any, a_topic: Topics) -> None:
    topic, refusing = a_topic(), a_topic(**{"cleanup.policy": "compact"})
    for _ in range(2):
        refusal(lambda: write(spark.range(0, 100, 1, 2).selectExpr("'v' AS value"), refusing, topic=refusing.name))
    write(spark.range(0, 100, 1, 2).selectExpr("'v' AS value"), topic, topic=topic.name)
    assert len(rows(spark, topic)) == 100


def test_a_task_knows_query_and_batch_in_a_stream_and_in_foreach_batch(
    spark: Any, a_topic: Topics, checkpoint: str, tmp_path: Path
) -> None:
    spark.dataSource.register(RecordedSource)
    source, target = a_topic(partitions=2), a_topic()
    source.add(*[b"%d" % number for number in range(10)], partition=0)
    options = {"kafka.bootstrap.servers": source.bootstrap, "topic": target.name}

    def stream() -> Any:
        return source.source(spark.readStream, startingOffsets="earliest", maxOffsetsPerTrigger=6).load().select("value").writeStream

    def in_batch(frame: Any, number: int) -> None:
        frame.write.format("ottla_recorded").options(**options, reportTo=str(tmp_path / "inside")).mode("append").save()

    ways = {
        "stream": stream().format("ottla_recorded").options(**options, reportTo=str(tmp_path / "stream")),
        "inside": stream().foreachBatch(in_batch),
    }
    for way, writer in ways.items():
        query = run_to_end(writer.option("checkpointLocation", f"{checkpoint}-{way}").trigger(availableNow=True))
        tasks = [task for line in recorded(tmp_path / way) for task in line]
        assert {task["query_id"] for task in tasks} == {query.id}
        assert {task["batch_id"] for task in tasks} == {0, 1}
        assert {task["attempt"] for task in tasks} == {0}
        if way == "stream":
            assert all(task["commit"] == [task["batch_id"]] for task in tasks), "the task and Spark's commit agree"
    spark.range(1).selectExpr("'v' AS value").write.format("ottla_recorded").options(**options, reportTo=str(tmp_path / "alone")).mode(
        "append"
    ).save()
    assert {(task["query_id"], task["batch_id"]) for line in recorded(tmp_path / "alone") for task in line} == {(None, None)}


def test_output_mode_update_goes_through_foreach_batch(spark: Any, a_topic: Topics, checkpoint: str) -> None:
    source, target = a_topic(), a_topic()
    source.add(b"a", b"b", b"a")
    counts = source.source(spark.readStream, startingOffsets="earliest").load().groupBy("value").count()
    frame = counts.selectExpr("value AS key", "CAST(count AS STRING) AS value")
    options = {"kafka.bootstrap.servers": source.bootstrap, "topic": target.name}
    direct = frame.writeStream.format("ottla").options(**options).outputMode("update").option("checkpointLocation", f"{checkpoint}-direct")
    with pytest.raises(ValueError, match=r'txnVersion=number\)\.mode\("append"\)\.save\(\)'):
        direct.trigger(availableNow=True).start()

    def in_batch(batch: Any, number: int) -> None:
        batch.write.format("ottla").options(**options).mode("append").save()

    query = frame.writeStream.foreachBatch(in_batch).outputMode("update").option("checkpointLocation", checkpoint)
    run_to_end(query.trigger(availableNow=True))
    assert {bytes(row.key): int(row.value) for row in rows(spark, target)} == {b"a": 2, b"b": 1}
