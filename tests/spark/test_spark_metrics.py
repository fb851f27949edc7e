"""Metrics of sources and sinks in Python: what Spark shows of ``format("ottla")`` in its UI and its progress (docs/pipelines.md)."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyspark.sql.datasource as data_sources
import pytest
from pyspark.sql import functions as sql

from .conftest import Topic

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

PYTHON = "org.apache.spark.sql.execution.datasources.v2.python"
STREAMING = "org.apache.spark.sql.connector.read.streaming"


def test_the_scan_in_the_ui_has_rows_and_bytes_of_python_workers(spark: Any, a_topic: Callable[..., Topic]) -> None:
    topic = a_topic()
    topic.add(b"a", b"b", b"c")
    frame = topic.source(spark.read).load()
    assert len(frame.collect()) == 3
    scan = frame._jdf.queryExecution().executedPlan().collectLeaves().head()
    found, metrics = {}, scan.metrics().iterator()
    while metrics.hasNext():
        metric = metrics.next()._2()
        found[metric.name().get()] = metric.value()
    assert found["number of output rows"] == 3
    assert set(found) == {"number of output rows", "data sent to Python workers", "data returned from Python workers"}


def test_progress_has_offsets_rows_and_observed_metrics(spark: Any, a_topic: Callable[..., Topic], tmp_path: Path) -> None:
    topic, copy = a_topic(), a_topic()
    topic.add(b"a", b"b", b"c")
    stream = topic.source(spark.readStream).option("startingOffsets", "earliest").load()
    observed = stream.observe("visits", sql.count(sql.lit(1)).alias("rows"), sql.sum(sql.length("value")).alias("bytes"))
    writer = observed.select("value").writeStream.format("ottla").option("bootstrap.servers", copy.bootstrap).option("topic", copy.name)
    query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
    query.awaitTermination()
    progress = json.loads(query.recentProgress[0].json)
    (source,) = progress["sources"]
    assert (source["numInputRows"], progress["sink"]["numOutputRows"]) == (3, 3)
    assert source["endOffset"][topic.name] == source["latestOffset"][topic.name] == {"0": 3}
    assert progress["observedMetrics"]["visits"] == {"rows": 3, "bytes": 3}
    # Where the JVM's sources and sinks put theirs.
    assert "metrics" not in source and "metrics" not in progress["sink"]


def test_spark_still_takes_no_metrics_of_sources_and_sinks_in_python(spark: Any) -> None:
    """If this fails, Spark takes some: `format("ottla")` can then report lag, fetches and retries (docs/requests-to-spark.md)."""
    classes = [
        getattr(data_sources, name) for name in ("DataSourceReader", "DataSourceStreamReader", "DataSourceWriter", "DataSourceStreamWriter")
    ]
    assert [name for one in classes for name in dir(one) if "metric" in name.lower()] == []

    def java(name: str) -> Any:
        return spark._jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)

    reports_source, reports_sink = (java(f"{STREAMING}.Reports{kind}Metrics") for kind in ("Source", "Sink"))
    for name in ("PythonMicroBatchStream", "PythonMicroBatchStreamWithAdmissionControl", "PythonMicroBatchStreamWithTriggerAvailableNow"):
        assert not reports_source.isAssignableFrom(java(f"{PYTHON}.{name}")), name
    for name in ("PythonTable", "PythonWrite", "PythonStreamingWrite"):
        assert not reports_sink.isAssignableFrom(java(f"{PYTHON}.{name}")), name
