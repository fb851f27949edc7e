"""Every option of the source with its effect: one table, and one batch and one streaming query that test each row.

The topic T: in partition 0 the records 0 to 4, at seconds 1 to 5; in partition 1 a and b, at seconds 2 and 4. The topic U: in partition 0
one row of numbers and one JSON object.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from ottla import Admin
from ottla.spark.source.options import BATCH_OPTIONS, SOURCE_OPTIONS, STREAM_OPTIONS

from .conftest import Topic

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

ALL = ["0", "1", "2", "3", "4", "a", "b"]
BEYOND = {"startingOffsets": '{"T": {"0": 99, "1": 1}}'}
#: Records of 1970 are old enough to be deleted.
UNBOUNDED_STATE = {"retention.ms": "-1"}
DECODED = "coalesce(CAST(value.n AS STRING), CAST(_corrupt AS STRING), 'null')"
DECODED_ALONE = "CAST(value.n AS STRING)"
CSV = {"valueFormat": "csv", "valueSchema": "n INT"}


@dataclass(frozen=True)
class Case:
    """One option or several, a query with them, and its rows. T and U are the topics, F is a file, G a group."""

    option: str
    options: dict[str, str]
    rows: list[str]
    #: Expression that prints a row.
    column: str = "CAST(value AS STRING)"
    #: Number of tasks that read the rows.
    tasks: int | None = None
    subscribed: bool = field(default=True)


BATCH = [
    Case("assign", {"assign": '{"T": [1]}'}, ["a", "b"], subscribed=False),
    Case("subscribe kafka.bootstrap.servers", {"subscribe": "T,U"}, [*ALL, "1;2", '{"n": 5}'], subscribed=False),
    Case("startingTimestamp", {"startingTimestamp": "3000", "startingOffsets": "earliest"}, ["2", "3", "4", "b"]),
    Case("startingOffsetsByTimestamp", {"startingOffsetsByTimestamp": '{"T": {"0": 4000, "1": 0}}'}, ["3", "4", "a", "b"]),
    Case("startingOffsets", {"startingOffsets": '{"T": {"0": 3, "1": -2}}'}, ["3", "4", "a", "b"]),
    Case("startingOffsetsByTimestampStrategy", {"startingTimestamp": "4500", "startingOffsetsByTimestampStrategy": "latest"}, ["4"]),
    Case("endingTimestamp", {"endingTimestamp": "2500", "endingOffsets": "latest"}, ["0", "1", "a"]),
    Case("endingOffsetsByTimestamp", {"endingOffsetsByTimestamp": '{"T": {"0": 2000, "1": 9000}}'}, ["0", "a", "b"]),
    Case("endingOffsets", {"endingOffsets": '{"T": {"0": 1, "1": -1}}'}, ["0", "a", "b"]),
    Case("failOnDataLoss groupIdPrefix", {"failOnDataLoss": "false", "groupIdPrefix": "mine", **BEYOND}, ["b"]),
    Case("onDataLoss dataLossReportTo", {"onDataLoss": "skip", "dataLossReportTo": "F", **BEYOND}, ["b"]),
    Case("minPartitions kafka.*", {"minPartitions": "7", "kafka.isolation.level": "read_committed"}, ALL, tasks=7),
    Case("maxRecordsPerPartition", {"maxRecordsPerPartition": "2"}, ALL, tasks=4),
    Case("kafka.group.id", {"startingOffsets": "committed", "kafka.group.id": "G"}, ["4", "a", "b"]),
    Case(
        "kafka.auto.offset.reset", {"startingOffsets": "committed", "kafka.group.id": "G", "kafka.auto.offset.reset": "latest"}, ["4"]
    ),
    Case("includeHeaders", {"includeHeaders": "true"}, [*["none"] * 6, "h"], "coalesce(get(headers, 0).key, 'none')"),
    Case("subscribePattern valueFormat", {**CSV, "valueFormat": "json", "subscribePattern": "(?i)U"}, ["1;2", "5"], DECODED, None, False),
    Case("valueSchema valueNull", {**CSV, "valueNull": "3"}, [*ALL[:3], "null", *ALL[4:]], DECODED),
    Case("valueMode", {**CSV, "valueMode": "dropmalformed"}, ALL[:5], DECODED_ALONE),
    Case(
        "valueSeparator", {**CSV, "valueSchema": "x INT, n INT", "valueSeparator": ";", "subscribe": "U"}, ["2", '{"n": 5}'], DECODED,
        subscribed=False,
    ),
]  # fmt: skip
#: Each is a stream in one query: the rows of each of its batches, and the offsets committed by its group, if it has one, at the end.
STREAMS: list[tuple[str, dict[str, str], list[list[str]], dict[str, int] | None]] = [
    (
        "maxOffsetsPerTrigger", {"kafka.group.id": "G-commits", "maxOffsetsPerTrigger": "3"},
        [["0", "1", "a"], ["2", "3", "b"], ["4"]], {"0": 5, "1": 2},
    ),
    ("commitOffsets bootstrap.servers", {"kafka.group.id": "G-silent", "commitOffsets": "false"}, [ALL, [], []], {}),
    # Options that batches have, too.
    ("assign", {"assign": '{"T": [1]}'}, [["a", "b"], [], []], None),
    ("subscribePattern", {"subscribePattern": "(?i)U"}, [["1;2", '{"n": 5}'], [], []], None),
    ("startingTimestamp", {"startingTimestamp": "3000"}, [["2", "3", "4", "b"], [], []], None),
    ("startingOffsetsByTimestamp", {"startingOffsetsByTimestamp": '{"T": {"0": 4000, "1": 0}}'}, [["3", "4", "a", "b"], [], []], None),
    (
        "startingOffsetsByTimestampStrategy", {"startingTimestamp": "4500", "startingOffsetsByTimestampStrategy": "latest"},
        [["4"], [], []], None,
    ),
    ("startingOffsets", {"startingOffsets": '{"T": {"0": 3, "1": -2}}'}, [["3", "4", "a", "b"], [], []], None),
    ("minPartitions", {"minPartitions": "7"}, [ALL, [], []], None),
    ("maxRecordsPerPartition", {"maxRecordsPerPartition": "2"}, [ALL, [], []], None),
    (
        "maxOffsetsPerTrigger minPartitions", {"maxOffsetsPerTrigger": "3", "minPartitions": "3"},
        [["0", "1", "a"], ["2", "3", "b"], ["4"]], None,
    ),
]  # fmt: skip
#: Number of tasks that read each batch.
STREAM_TASKS = {"minPartitions": [7, 0, 0], "maxRecordsPerPartition": [4, 0, 0], "maxOffsetsPerTrigger minPartitions": [3, 3, 1]}
#: Options that do not affect the rows, and the test that covers them.
TESTED_ELSEWHERE = {
    "profile": "test_cluster_profiles:test_a_source_takes_brokers_and_settings_of_a_profile",
    "kafkaConsumer.pollTimeoutMs": "test_log_client:test_a_range_that_the_log_never_fills_times_out",
    "fetchOffset.numRetries": "test_progress_group:test_offset_queries_are_retried_as_configured",
    "fetchOffset.retryIntervalMs": "test_progress_group:test_offset_queries_are_retried_as_configured",
    "minOffsetsPerTrigger": "test_stream:test_a_query_waits_for_the_minimum_number_of_records",
    "maxTriggerDelay": "test_stream:test_a_query_waits_for_the_minimum_number_of_records",
    "schema.registry.url": "test_values:test_framed_avro_is_read_with_the_schema_of_each_value",
    "valueSubject": "test_values:test_a_schema_missing_in_the_registry_is_named",
    "valueDescriptor": "test_values:test_protobuf_gives_the_columns_of_its_message",
    "valueMessage": "test_values:test_protobuf_gives_the_columns_of_its_message",
}


def test_every_option_has_an_example() -> None:
    known = {*SOURCE_OPTIONS, *STREAM_OPTIONS, *BATCH_OPTIONS, "kafka.group.id", "kafka.auto.offset.reset", "kafka.*"}
    assert known == {name for option in [*(one.option for one in BATCH), *(one[0] for one in STREAMS)] for name in option.split()} | {
        *TESTED_ELSEWHERE
    }
    for place in TESTED_ELSEWHERE.values():
        module, _, test = place.partition(":")
        assert f"def {test}(" in (Path(__file__).parent / f"{module}.py").read_text()


class KeyPositions:
    """The topics, and their names in the table."""

    def __init__(self, a_topic: Callable[..., Topic], directory: Path) -> None:
        self.topic, self.other = a_topic(partitions=2, **UNBOUNDED_STATE), a_topic(**UNBOUNDED_STATE)
        self.losses = directory / "losses"
        for number in range(5):
            self.topic.add(b"%d" % number, partition=0, timestamp_ms=1000 * (number + 1))
        self.topic.add(b"a", partition=1, timestamp_ms=2000, headers=[("h", b"1")])
        self.topic.add(b"b", partition=1, timestamp_ms=4000)
        self.other.add(b"1;2", b'{"n": 5}')
        self.words = {"T": self.topic.name, "U": self.other.name, "F": str(self.losses), "G": f"g-{self.topic.name}"}

    def filled(self, options: dict[str, str]) -> dict[str, str]:
        return {name: re.sub(r"\b[TUFG]\b", lambda found: self.words[found[0]], value) for name, value in options.items()}

    def frame(self, reader: Any, options: dict[str, str], *, subscribed: bool, servers: str = "kafka.bootstrap.servers") -> Any:
        given = {"subscribe": "T"} if subscribed else {}
        return reader.format("ottla").option(servers, self.topic.bootstrap).options(**self.filled({**given, **options})).load()

    def committed(self, group: str) -> dict[str, int]:
        with Admin(bootstrap_servers=self.topic.bootstrap) as admin:
            found: Any = admin.list_consumer_group_offsets([group])[group]
            return {str(tp.partition): one.offset for tp, one in found.items()}


@pytest.mark.slow
def test_each_documented_option_works_in_a_batch(spark: Any, a_topic: Callable[..., Topic], tmp_path: Path) -> None:
    from pyspark.sql import functions

    places = KeyPositions(a_topic, tmp_path)
    with Admin(bootstrap_servers=places.topic.bootstrap) as admin:
        admin.alter_consumer_group_offsets(places.words["G"], {(places.topic.name, 0): 4})
    frames = [
        places.frame(spark.read, one.options, subscribed=one.subscribed).select(
            functions.lit(one.option).alias("option"), functions.expr(one.column).alias("row"), functions.spark_partition_id().alias("task")
        )
        for one in BATCH
    ]
    found = reduce(lambda one, other: one.union(other), frames).collect()
    assert {one.option: sorted(row.row for row in found if row.option == one.option) for one in BATCH} == {
        one.option: sorted(one.rows) for one in BATCH
    }
    for one in BATCH:
        if one.tasks is not None:
            assert len({row.task for row in found if row.option == one.option}) == one.tasks, one.option
    reports = [json.loads(line) for line in places.losses.read_text().splitlines()]
    assert {(one["topic"], one["partition"], one["lost_from"], one["lost_to"]) for one in reports} == {(places.topic.name, 0, 5, 99)}


def test_each_documented_option_works_in_a_stream(spark: Any, a_topic: Callable[..., Topic], tmp_path: Path, checkpoint: str) -> None:
    from pyspark.sql import functions

    places = KeyPositions(a_topic, tmp_path)
    batches: list[dict[str, list[str]]] = []
    tasks: list[dict[str, int]] = []

    def keep(frame: Any, number: int) -> None:
        found = frame.collect()
        batches.append({option: sorted(row.row for row in found if row.option == option) for option, *_ in STREAMS})
        tasks.append({option: len({row.task for row in found if row.option == option}) for option in STREAM_TASKS})

    frames = []
    for option, options, _, _ in STREAMS:
        given = {"startingOffsets": "earliest", **options}
        servers = "bootstrap.servers" if option.endswith("bootstrap.servers") else "kafka.bootstrap.servers"
        subscribed = not {"assign", "subscribePattern"} & set(options)
        frame = places.frame(spark.readStream, given, subscribed=subscribed, servers=servers)
        row, task = functions.expr("CAST(value AS STRING)").alias("row"), functions.spark_partition_id().alias("task")
        frames.append(frame.select(functions.lit(option).alias("option"), row, task))
    union = reduce(lambda one, other: one.union(other), frames)
    query = union.writeStream.foreachBatch(keep).option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    assert query.awaitTermination(200), "the query ends by itself"
    assert {option: [batch[option] for batch in tasks] for option in STREAM_TASKS} == STREAM_TASKS
    for option, options, expected, offsets in STREAMS:
        assert [batch[option] for batch in batches] == expected, option
        if offsets is not None:
            assert places.committed(places.filled(options)["kafka.group.id"]) == offsets, "the last batch included"
