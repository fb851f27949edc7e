"""Several sources, functions, deduplication and formats at work, in the shared session."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.spark.pipeline.file import parse
from ottla.spark.pipeline.run import RunningPipeline

from .conftest import Topic
from .pipelines import table

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

Topics = Callable[..., Topic]


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


def test_a_table_is_read_anew_by_each_batch(spark: Any, a_topic: Topics, tmp_path: Path) -> None:
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
