"""Sinks of pipelines: their results, also after a retried batch."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from ottla.spark.pipeline.config.toml_table import PipelineError
from ottla.spark.pipeline.run import QueryFailed

from .conftest import Topic
from .pipelines import records, table

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

Topics = Callable[..., Topic]
JSON = '[decode]\nformat = "json"\nfields = { user = "string", n = "bigint" }\n'
PARQUET = '[[sink]]\ntype = "parquet"\npath = "${dir}/files"\npartition_by = ["user"]\n'
COUNTS = '[[step]]\nname = "counts"\nsql = "SELECT user, count(*) AS n FROM records GROUP BY user"\n'
DERBY = '[[sink]]\ntype = "jdbc"\ndriver = "org.apache.derby.jdbc.EmbeddedDriver"\ntable = "counts"\n'


def forget(directory: Path, query: str) -> None:
    """Simulates a power failure between a sink's commit and Spark's: the batch is retried."""
    newest = max((directory / "checkpoint" / query / "commits").glob("[0-9]*"), key=lambda note: int(note.name))
    newest.unlink()


def test_parquet_files_of_a_retried_batch_are_replaced(run: Any, a_topic: Topics, tmp_path: Path) -> None:
    topic = a_topic()
    topic.add(*records(0, 20))
    run(topic, JSON + PARQUET)
    before = sorted(path.name for path in (tmp_path / "files").rglob("*.parquet"))
    forget(tmp_path, "records-append")
    topic.add(*records(20, 30))
    run(topic, JSON + PARQUET)
    rows = pq.read_table(tmp_path / "files").to_pylist()
    assert sorted((row["n"], row["user"]) for row in rows) == [(n, f"u{n % 3}") for n in range(30)]
    assert {path.name for path in (tmp_path / "files").rglob("*")} >= {*before, "user=u0"}
    assert not list((tmp_path / "files").rglob("*.unfinished"))


def test_a_topic_gets_chosen_key_value_partition_and_headers(run: Any, spark: Any, a_topic: Topics) -> None:
    topic, out = a_topic(), a_topic(partitions=2)
    topic.add(*records(0, 4))
    sink = f"""
[[sink]]
type = "topic"
topic = "{out.name}"
key = "n"
value = "struct(user, n AS number)"
partition = "n % 2"
headers = {{ from = "_topic", offset = "_offset", who = "struct(user)" }}
"""
    run(topic, JSON + sink)
    rows = out.source(spark.read, includeHeaders="true").load().collect()
    found = {
        bytes(row.key).decode(): (json.loads(row.value), row.partition, [(h.key, bytes(h.value)) for h in row.headers]) for row in rows
    }
    assert found["3"] == ({"user": "u0", "number": 3}, 1, [("from", topic.name.encode()), ("offset", b"3"), ("who", b'{"user":"u0"}')])
    assert sorted(found) == ["0", "1", "2", "3"]


def test_a_database_merges_batches_by_key_and_a_retried_one_once(run: Any, spark: Any, a_topic: Topics, tmp_path: Path) -> None:
    topic = a_topic()
    url = f"jdbc:derby:{tmp_path}/base;create=true"
    merge = COUNTS + DERBY + f'url = "{url}"\nmode = "merge"\nkeys = ["user"]\n'
    merge += 'options = { createTableColumnTypes = "user VARCHAR(40)" }\n'
    topic.add(*records(0, 9))
    reports = run(topic, JSON + merge)
    forget(tmp_path, "counts-update")
    topic.add(*records(9, 13))
    run(topic, JSON + merge)
    rows = spark.read.format("jdbc").options(url=url, dbtable="counts", driver="org.apache.derby.jdbc.EmbeddedDriver").load().collect()
    assert sorted((row.user, row.n) for row in rows) == [("u0", 5), ("u1", 4), ("u2", 4)]
    assert [report.rows_out for report in reports if report.rows_in] == [3]


def test_a_database_accepts_rows_that_do_not_change(run: Any, spark: Any, a_topic: Topics, tmp_path: Path) -> None:
    topic = a_topic()
    url = f"jdbc:derby:{tmp_path}/base;create=true"
    topic.add(*records(0, 5))
    step = '[[step]]\nname = "plain"\nsql = "SELECT user, n FROM records"\n'
    (report,) = [one for one in run(topic, JSON + step + DERBY + f'url = "{url}"\n') if one.rows_in]
    assert report.rows_out == 5
    rows = spark.read.format("jdbc").options(url=url, dbtable="counts", driver="org.apache.derby.jdbc.EmbeddedDriver").load().collect()
    assert sorted(row.n for row in rows) == list(range(5))


def test_a_delta_table_accepts_new_columns_and_narrower_types_if_allowed(run: Any, a_topic: Topics, tmp_path: Path) -> None:
    topic = a_topic()
    sink = '[[sink]]\ntype = "delta"\npath = "${dir}/table"\nschema = "evolve"\n'
    topic.add(*records(0, 2))
    run(topic, JSON + '[[step]]\nname = "rows"\nsql = "SELECT user, n FROM records"\n' + sink)
    topic.add(*records(2, 4))
    run(topic, JSON + '[[step]]\nname = "rows"\nsql = "SELECT CAST(n AS INT) AS n, user, n * 2 AS twice FROM records"\n' + sink)
    rows = sorted(table(tmp_path / "table"), key=lambda row: int(row["n"]))
    assert [(row["n"], row["twice"]) for row in rows] == [(0, None), (1, None), (2, 4), (3, 6)]
    topic.add(*records(4, 5))
    with pytest.raises(QueryFailed, match="cast the column"):
        run(topic, JSON + '[[step]]\nname = "rows"\nsql = "SELECT user AS n FROM records"\n' + sink)


def test_a_delta_table_has_partitions_and_small_files_are_compacted(run: Any, a_topic: Topics, tmp_path: Path) -> None:
    topic = a_topic()
    sink = '[[sink]]\ntype = "delta"\npath = "${dir}/table"\npartition_by = ["user"]\ncompact = "every 3 batches"\n'
    step = '[[step]]\nname = "rows"\nsql = "SELECT concat(user, \'/ä %\') AS user, n FROM records"\n'
    limited = JSON.replace("[decode]", "options = { maxOffsetsPerTrigger = 6 }\n[decode]")
    topic.add(*records(0, 18))
    run(topic, limited + step + sink)
    there = DeltaTable(str(tmp_path / "table"))
    assert there.metadata().partition_columns == ["user"]
    assert len(there.file_uris()) == 3, "one for each partition after the third batch"
    rows = table(tmp_path / "table")
    assert sorted((row["n"], row["user"]) for row in rows) == [(n, f"u{n % 3}/ä %") for n in range(18)]
    forget(tmp_path, "rows-append")
    topic.add(*records(18, 19))
    run(topic, limited + step + sink)
    assert sorted(row["n"] for row in table(tmp_path / "table")) == list(range(19))


def test_after_a_failed_sink_the_others_get_each_batch_once(run: Any, a_topic: Topics, tmp_path: Path) -> None:
    topic = a_topic()
    both = PARQUET + '[[sink]]\ntype = "delta"\npath = "${dir}/table"\n'
    topic.add(*records(0, 3))
    (tmp_path / "table").write_text("in the way of the table")
    with pytest.raises(QueryFailed):
        run(topic, JSON + both)
    (tmp_path / "table").unlink()
    topic.add(*records(3, 5))
    run(topic, JSON + both)
    assert sorted(row["n"] for row in pq.read_table(tmp_path / "files").to_pylist()) == list(range(5))
    assert sorted(row["n"] for row in table(tmp_path / "table")) == list(range(5))


@pytest.mark.parametrize(
    ("sink", "key", "sentence"),
    [
        ('type = "delta"\npath = "t"\nmode = "merge"\nkeys = ["usr"]', "sink[0].keys", "records has no column usr; did you mean user?"),
        ('type = "parquet"\npath = "t"\npartition_by = ["day"]', "sink[0].partition_by", "records has no column day"),
        ('type = "topic"\ntopic = "t"\nvalue = "struct(usr)"', "sink[0].value", "there is no column usr; did you mean user?"),
        ('type = "topic"\ntopic = "t"\nheaders = { a = "usr" }', "sink[0].headers", "there is no column usr; did you mean user?"),
        (
            'type = "jdbc"\nurl = "jdbc:none:"\ntable = "t"\ndriver = "org.none.Driver"',
            "sink[0].driver",
            'name its jar in [spark] jars = "',
        ),
    ],
)
def test_a_sink_that_does_not_support_its_view_is_refused_before_the_run(
    run: Any, a_topic: Topics, sink: str, key: str, sentence: str
) -> None:
    with pytest.raises(PipelineError) as refused:
        run(a_topic(), JSON + f"[[sink]]\n{sink}\n")
    assert refused.value.key == key
    assert sentence in refused.value.problem


@pytest.mark.parametrize(("trigger", "batches"), [("once", 1), ("available-now", 3)])
def test_a_trigger_that_ends_reads_the_existing_records(run: Any, a_topic: Topics, tmp_path: Path, trigger: str, batches: int) -> None:
    topic = a_topic()
    topic.add(*records(0, 30))
    limited = JSON.replace("[decode]", "options = { maxOffsetsPerTrigger = 10 }\n[decode]")
    reports = run(topic, limited + '[[sink]]\ntype = "delta"\npath = "${dir}/table"\n', trigger=trigger)
    assert len([report for report in reports if report.rows_in]) == batches
    assert len(table(tmp_path / "table")) == 30


def test_a_partitioned_table_keeps_its_partition_columns(run: Any, a_topic: Topics, tmp_path: Path) -> None:
    sink = '[[sink]]\ntype = "delta"\npath = "${dir}/table"\n'
    topic = a_topic()
    topic.add(*records(0, 3))
    run(topic, JSON + sink + 'partition_by = ["user"]\n')
    topic.add(*records(3, 6))
    run(topic, JSON + sink)
    assert sorted((row["n"], row["user"]) for row in table(tmp_path / "table")) == [(n, f"u{n % 3}") for n in range(6)]
    topic.add(*records(6, 7))
    with pytest.raises(QueryFailed, match=r"partition_by.*is partitioned by user; write to another path"):
        run(topic, JSON + sink + 'partition_by = ["n"]\n')


def test_rows_to_merge_need_unique_keys(run: Any, a_topic: Topics, tmp_path: Path) -> None:
    topic = a_topic()
    topic.add(*records(0, 4))
    with pytest.raises(QueryFailed, match="keys: a batch has 2 rows with user = 'u0'; merge needs one row for each"):
        run(topic, JSON + '[[sink]]\ntype = "delta"\npath = "${dir}/table"\nmode = "merge"\nkeys = ["user"]\n')
    assert not (tmp_path / "table" / "_delta_log").exists()


def test_a_batch_is_recognized_after_a_sink_was_added_before_its_sink(run: Any, a_topic: Topics, tmp_path: Path) -> None:
    sink, first = '[[sink]]\ntype = "delta"\npath = "${dir}/table"\n', '[[sink]]\ntype = "delta"\npath = "${dir}/other"\n'
    topic = a_topic()
    topic.add(*records(0, 3))
    run(topic, JSON + sink)
    forget(tmp_path, "records-append")
    run(topic, JSON + first + sink)
    assert sorted(row["n"] for row in table(tmp_path / "table")) == sorted(row["n"] for row in table(tmp_path / "other")) == [0, 1, 2]


def test_a_timestamp_out_of_range_is_malformed(run: Any, a_topic: Topics, tmp_path: Path) -> None:
    topic = a_topic()
    topic.add(b'{"at": 1747468800123456789}', b'{"at": 1747468800123}')
    decode = '[decode]\nformat = "json"\nfields = { at = { type = "timestamp", format = "epoch_ms" } }\n'
    run(topic, decode + '[[sink]]\ntype = "delta"\npath = "${dir}/table"\n')
    rows = sorted(table(tmp_path / "table"), key=lambda row: row["_offset"])
    assert [(row["at"] is None, row["_malformed"]) for row in rows] == [(True, True), (False, False)]
