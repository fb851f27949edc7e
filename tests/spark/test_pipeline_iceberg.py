"""Pipelines that write Iceberg tables: each batch once, merges, partitions, columns, errors and commands."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyiceberg")

from ottla.lake.table.iceberg_batches import IcebergBatches
from ottla.lake.table.iceberg_catalog import CatalogError, CatalogUnavailable, embedded, opened_table
from ottla.spark.pipeline.backfill import sinks_to_fill, table_to_fill
from ottla.spark.pipeline.config.file import parse
from ottla.spark.pipeline.config.model import Pipeline
from ottla.spark.pipeline.config.toml_table import PipelineError
from ottla.spark.pipeline.iceberg_sink import IcebergSink
from ottla.spark.pipeline.quick_check import quick_check, quick_plan
from ottla.spark.pipeline.reset import plan_reset
from ottla.spark.pipeline.retryable_errors import is_retryable
from ottla.spark.pipeline.run import QueryFailed
from ottla.spark.pipeline.sinks import MicroBatch
from ottla.spark.pipeline.status import pipeline_status

from .conftest import Topic
from .pipelines import records
from .test_pipeline_sinks import forget

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

Topics = Callable[..., Topic]
JSON = '[decode]\nformat = "json"\nfields = { user = "string", n = "bigint", at = "bigint" }\n'
ROWS = '[[step]]\nname = "rows"\nsql = "SELECT user, n, timestamp_millis(at) AS at, struct(1 AS one) AS more FROM records"\n'
COUNTS = '[[step]]\nname = "counts"\nsql = "SELECT user, count(*) AS n FROM records GROUP BY user"\n'
SINK = '[[sink]]\ntype = "iceberg"\npath = "${dir}/table"\n'
MERGE = SINK + 'mode = "merge"\nkeys = ["user"]\n'
SMALL = 'bootstrap = "127.0.0.1:1"\ncheckpoint = "${dir}/checkpoint"\n[source]\ntopic = "t"\n' + JSON


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Read by polars, as others read it."""
    polars = pytest.importorskip("polars")
    with opened_table(embedded(path)) as table:
        return list(polars.scan_iceberg(table).collect().to_dicts())


def a_pipeline(text: str, directory: Path) -> Pipeline:
    return parse(SMALL + text, directory / "p.toml", {"dir": str(directory)})


def test_a_topic_is_appended_once_with_partitions_also_if_a_batch_is_retried(run: Any, a_topic: Topics, tmp_path: Path) -> None:
    topic = a_topic(partitions=2)
    limited = JSON.replace("[decode]", "options = { maxOffsetsPerTrigger = 12 }\n[decode]")
    sink = SINK + 'partition_by = ["day(at)", "bucket(2, user)", "truncate(2, user)"]\ncompact = "every 2 batches"\nexpire = "1 hour"\n'
    topic.add(*records(0, 12), partition=0)
    topic.add(*records(12, 24), partition=1)
    reports = run(topic, limited + ROWS + sink)
    assert [report.rows_out for report in reports if report.rows_in] == [12, 12]
    with opened_table(embedded(tmp_path / "table")) as table:
        assert len(list(table.scan().plan_files())) == 3, "one for each partition after the second batch"
    forget(tmp_path, "rows-append")
    topic.add(*records(24, 26), partition=0)
    assert sum(report.rows_out for report in run(topic, limited + ROWS + sink)) == 2
    rows = rows_of(tmp_path / "table")
    assert sorted((row["n"], row["user"], row["more"]["one"]) for row in rows) == [(n, f"u{n % 3}", 1) for n in range(26)]
    assert {row["at"].isoformat() for row in rows if row["n"] == 7} == {"2023-11-14T22:13:20.007000+00:00"}


def test_aggregates_are_merged_by_key_also_if_a_batch_is_retried(run: Any, a_topic: Topics, tmp_path: Path) -> None:
    topic = a_topic()
    topic.add(*records(0, 9))
    run(topic, JSON + COUNTS + MERGE)
    forget(tmp_path, "counts-update")
    topic.add(*records(9, 13))
    run(topic, JSON + COUNTS + MERGE)
    assert sorted((row["user"], row["n"]) for row in rows_of(tmp_path / "table")) == [("u0", 5), ("u1", 4), ("u2", 4)]

    pipeline = parse(
        f'bootstrap = "{topic.bootstrap}"\n' + SMALL.partition("\n")[2].replace('"t"', f'"{topic.name}"') + COUNTS + MERGE,
        tmp_path / "p.toml",
        {"dir": str(tmp_path)},
    )
    (target,) = pipeline_status(pipeline)["targets"]
    assert (target["type"], target["version"], target["promise"]) == ("iceberg", 3, "exactly once")
    assert (
        f"table {tmp_path}/table keeps its rows; rows that are read again replace rows with the same keys"
        in plan_reset(pipeline, None).sentences
    )


def test_new_columns_and_wider_types_are_added_if_allowed(run: Any, a_topic: Topics, tmp_path: Path) -> None:
    topic = a_topic()
    step = '[[step]]\nname = "rows"\nsql = "SELECT %s FROM records"\n'
    topic.add(*records(0, 2))
    run(topic, JSON + step % "user, CAST(n AS INT) AS n" + SINK)
    topic.add(*records(2, 4))
    with pytest.raises(QueryFailed, match=r"has the columns .* and the results have"):
        run(topic, JSON + step % "n, user, n * 2 AS twice" + SINK)
    run(topic, JSON + step % "n, user, n * 2 AS twice" + SINK + 'schema = "evolve"\n')
    rows = sorted(rows_of(tmp_path / "table"), key=lambda row: int(row["n"]))
    assert [(row["n"], row["twice"]) for row in rows] == [(0, None), (1, None), (2, 4), (3, 6)]
    topic.add(*records(4, 5))
    with pytest.raises(QueryFailed, match="cast the column"):
        run(topic, JSON + step % "user AS n" + SINK + 'schema = "evolve"\n')


@pytest.mark.parametrize(
    ("text", "key", "problem"),
    [
        ("", "path", "name the directory of the table, or catalog and table"),
        ('path = "t"\nmode = "upsert"', "mode", "did you mean merge?"),
        ('path = "t"\nmode = "merge"', "keys", "merge replaces the row with the same keys"),
        ('path = "t"\nkeys = ["user"]', "keys", 'is only for mode = "merge"'),
        ('catalog = "lake"', "table", "name the table in the catalog, NAMESPACE.TABLE"),
        ('catalog = "lake"\ntable = "t"\ncatalog_options = { uri = "http://x" }', "catalog", "NAMESPACE.TABLE, such as lake.orders"),
        ('catalog = "nowhere"\ntable = "a.t"', "catalog", "catalog nowhere is not configured"),
        ('path = "t"\ncatalog = "lake"\ntable = "a.t"', "catalog", "and path exclude each other"),
        ('path = "t"\ntable = "a.t"', "table", "needs catalog"),
        ('path = "t"\ncatalog_options = { uri = "x" }', "catalog_options", "needs catalog"),
        ('catalog = "lake"\ntable = "a.t"\ncatalog_options = { token = "abc" }', "catalog", "token=env:VARIABLE"),
        ('path = "s3://lake/t"', "path", "object stores"),
        ('path = "a#b"', "path", "another one"),
        ('path = "t"\nexpire = "1 day"', "compact", "old snapshots are removed after a compaction"),
        ('path = "t"\ncompact = "every 9 batches"\nexpire = "soon"', "expire", "7 days"),
        ('path = "t"\npartition_by = ["day(att)"]', "partition_by", "no column att; did you mean at?"),
        ('path = "t"\npartition_by = ["bucket(8, usr)"]', "partition_by", "no column usr; did you mean user?"),
        ('path = "t"\npartition_by = ["bucket(user, 8)"]', "partition_by", "such as bucket(16, user)"),
        ('path = "t"\npartition_by = ["truncate(0, user)"]', "partition_by", "needs a number from 1 to"),
        ('path = "t"\nmode = "merge"\nkeys = ["usr"]', "keys", "no column usr; did you mean user?"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_are_refused_by_name(text: str, key: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(PipelineError) as refused:
        quick_check(a_pipeline(f'[[sink]]\ntype = "iceberg"\n{text}\n', tmp_path))
    assert refused.value.key == f"sink[0].{key}"
    assert problem in refused.value.problem and "abc" not in refused.value.problem


def test_tasks_do_not_import_pyiceberg() -> None:
    program = "import sys, ottla.spark.pipeline.iceberg_append; sys.exit('pyiceberg' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_commands_name_the_table_of_a_catalog(tmp_path: Path) -> None:
    catalog = 'catalog = "lake"\ntable = "a.t"\ncatalog_options = { uri = "http://127.0.0.1:1" }\n'
    pipeline = a_pipeline(f'[[sink]]\ntype = "iceberg"\n{catalog}', tmp_path)
    (sink,) = quick_plan(pipeline, [])["sinks"]
    assert (sink["type"], sink["to"], sink["promise"]) == ("iceberg", "a.t in catalog lake", "exactly once")
    assert sinks_to_fill(pipeline, "a.t") == list(pipeline.sinks)
    with pytest.raises(PipelineError, match=r"there is no Delta or Iceberg sink other to fill; there is a\.t"):
        sinks_to_fill(pipeline, "other")
    with pytest.raises(PipelineError, match=r"nothing was written: a.t in catalog lake") as refused:
        table_to_fill(pipeline, pipeline.sinks[0]).columns()
    assert refused.value.key == "sink[0].catalog"


def test_a_catalog_that_does_not_answer_refuses_the_start_and_is_retried_later(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise CatalogUnavailable("a.t in catalog lake: connection refused")

    pipeline = a_pipeline(SINK, tmp_path)
    sink = IcebergSink(pipeline.sinks[0], pipeline)
    frame = spark.createDataFrame([("u", 1)], "user string, n bigint")
    sink.prepare(frame)
    monkeypatch.setattr(IcebergBatches, "has", fail)
    with pytest.raises(PipelineError, match="connection refused"):
        sink.prepare(frame)
    with pytest.raises(CatalogUnavailable) as failed:
        sink.write_frame(frame, MicroBatch("q", 0))
    assert isinstance(failed.value, CatalogError)
    assert is_retryable(f"ottla.lake.table.iceberg_catalog.CatalogUnavailable: {failed.value}")
    assert not is_retryable(f"ottla.lake.table.iceberg_catalog.CatalogError: {json.dumps('not authorized')}")
