"""Several sources, functions, deduplication and formats, in the shared session."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.spark.pipeline.config.file import parse
from ottla.spark.pipeline.run import RunningPipeline

from .conftest import Topic
from .pipelines import table

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

Topics = Callable[..., Topic]
FUNCTIONS = """
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.functions import arrow_udf


@dataclass
class Name:
    short: str
    length: int


def name_of(text: str | None) -> Name | None:
    return None if text is None else Name(text[:2], len(text))


@arrow_udf("bigint")
def doubled(number: pa.Array) -> pa.Array:
    import pyarrow.compute as pc

    return pc.multiply(number, 2)


def unchanged(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch
"""
JOINED = """
[functions]
module = "pipeline_words.py"

[[source]]
name = "events"
topic = "${events}"
watermark = { column = "at", delay = "1 minute" }
[source.decode]
format = "csv"
schema = "code STRING, n INT, at TIMESTAMP"
separator = ";"
headers = true
key = { format = "json", schema = "user STRING" }

[[source]]
name = "clicks"
topic = "${clicks}"
watermark = { column = "at", delay = "1 minute" }
decode = { format = "json", schema = "code STRING, at TIMESTAMP" }

[[source]]
name = "labels"
type = "files"
path = "${dir}/labels*.csv"

[[source]]
name = "limits"
type = "delta"
path = "${dir}/limits"

[[step]]
name = "once"
sql = "SELECT * FROM events"
deduplicate = ["code", "at"]
within = "watermark"

[[step]]
name = "joined"
sql = '''
SELECT once.code, n, once._malformed, once._key.user AS user, _headers[0].key AS header, label, name_of(label) AS name,
       doubled(most) AS most, region, c.at AS clicked
FROM once
JOIN clicks c ON c.code = once.code AND c.at BETWEEN once.at AND once.at + INTERVAL 10 MINUTES
LEFT JOIN labels ON labels.code = once.code
LEFT JOIN limits ON limits.code = once.code
'''
function = "unchanged"
columns = '''code STRING, n INT, _malformed BOOLEAN, user STRING, header STRING, label STRING, name STRUCT<short: STRING, length: BIGINT>,
most BIGINT, region STRING, clicked TIMESTAMP'''

[[sink]]
type = "delta"
path = "${dir}/table"
"""


def until_ended(session: Any, text: str, directory: Path, show: Any = lambda *_: None, **variables: str) -> None:
    head = f'checkpoint = "{directory}/checkpoint"\ntrigger = "available-now"\n'
    running = RunningPipeline(parse(head + text, directory / "p.toml", {"dir": str(directory), **variables}), session, show)
    try:
        running.start()
        for query in running.queries:
            assert query.query.awaitTermination(200), "the query ends by itself"
    finally:
        running.stop()


def a_table(path: Path, **columns: list[Any]) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    write_deltalake(str(path), pa.table(columns), mode="overwrite")


def test_streams_are_joined_with_each_other_with_files_and_with_tables(spark: Any, a_topic: Topics, tmp_path: Path) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    events, clicks = a_topic(), a_topic()
    once = b"a;1;2026-01-01T00:00:00Z"
    events.add(once, once, b"b;;2026-01-01T00:00:05Z", b"b;x;2026-01-01T00:00:06Z", key=b'{"user": "u"}', headers=[("trace", b"1")])
    clicks.add(b'{"code": "a", "at": "2026-01-01T00:00:03Z"}', b'{"code": "b", "at": "2026-01-01T00:10:05Z"}')
    (tmp_path / "labels-1.csv").write_text("code,label\na,Alpha\n")
    (tmp_path / "labels-2.csv").write_text("code,label\nb,\n")
    limits = pa.table({"code": ["a", "b"], "most": [10, 20], "region": ["x", "y"]})
    write_deltalake(str(tmp_path / "limits"), limits, partition_by=["region"])
    (tmp_path / "pipeline_words.py").write_text(FUNCTIONS)
    head = f'bootstrap = "{events.bootstrap}"\n'
    until_ended(spark, head + JOINED, tmp_path, events=events.name, clicks=clicks.name)
    found = sorted(table(tmp_path / "table"), key=lambda row: (row["code"], row["_malformed"]))
    assert [(row["code"], row["n"], row["_malformed"], row["user"], row["header"]) for row in found] == [
        ("a", 1, False, "u", "trace"),
        ("b", None, False, "u", "trace"),
        ("b", None, True, "u", "trace"),
    ]
    assert [(row["label"], row["name"], row["most"], row["region"]) for row in found[:2]] == [
        ("Alpha", {"short": "Al", "length": 5}, 20, "x"),
        (None, None, 40, "y"),
    ]


def test_a_table_is_read_again_by_each_batch(spark: Any, a_topic: Topics, tmp_path: Path) -> None:
    topic = a_topic()
    topic.add(b"k", b"k")
    a_table(tmp_path / "names", id=["k"], name=["before"])
    seen: list[str] = []

    def show(sink: Any, batch: Any, rows: Any, total: int | None) -> None:
        seen.extend(rows.column("name").to_pylist())
        a_table(tmp_path / "names", id=["k"], name=["after"])

    text = f"""
bootstrap = "{topic.bootstrap}"
[[source]]
name = "events"
topic = "{topic.name}"
options = {{ maxOffsetsPerTrigger = 1 }}
[[source]]
name = "names"
type = "table"
path = "${{dir}}/names"
[[step]]
name = "named"
sql = "SELECT name FROM events JOIN names ON id = value"
[[sink]]
type = "console"
"""
    until_ended(spark, text, tmp_path, show)
    assert seen == ["before", "after"]


def test_avro_is_decoded_by_the_source_and_new_files_are_a_stream(spark: Any, a_topic: Topics, tmp_path: Path) -> None:
    import fastavro

    schema = {"type": "record", "name": "O", "fields": [{"name": "id", "type": "string"}, {"name": "n", "type": ["null", "long"]}]}
    written = io.BytesIO()
    fastavro.schemaless_writer(written, schema, {"id": "x", "n": 5})
    topic = a_topic()
    topic.add(written.getvalue(), b"\xff\xff\xff", None)
    (tmp_path / "o.avsc").write_text(json.dumps(schema))
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.jsonl").write_text('{"id": "file", "n": 7}\n')
    text = f"""
bootstrap = "{topic.bootstrap}"
[[source]]
name = "orders"
topic = "{topic.name}"
decode = {{ format = "avro", schema_file = "o.avsc" }}
[[source]]
name = "more"
type = "files"
path = "${{dir}}/in/*.jsonl"
schema = "id STRING, n BIGINT"
stream = true
[[step]]
name = "all"
sql = "SELECT id, n, _malformed FROM orders UNION ALL SELECT id, n, FALSE FROM more"
[[sink]]
type = "delta"
path = "${{dir}}/table"
"""
    until_ended(spark, text, tmp_path)
    found = {(row["id"], row["n"], row["_malformed"]) for row in table(tmp_path / "table")}
    assert found == {("x", 5, False), (None, None, True), (None, None, False), ("file", 7, False)}
    (tmp_path / "in" / "2.jsonl").write_text('{"id": "late", "n": 8}\n')
    until_ended(spark, text, tmp_path)
    assert sorted(row["id"] for row in table(tmp_path / "table") if row["id"]) == ["file", "late", "x"]
