"""A batch read of a whole topic by Spark, into nothing: what a source can deliver when nobody does anything with the rows.

The first pass counts the rows, which checks the source and warms the JVM and its Python workers; the passes after it write to Spark's
"noop" sink, all columns, and are timed one by one.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from typing import Any

from pyspark.sql import SparkSession

from bench.load import Window


def read(
    host: str, port: int, pid: int, topic: str, *, source: str, jars: list[str], rows: int, passes: int, java_home: str
) -> dict[str, Any]:
    """Reads `topic` with `format(source)`; rows a second of the median pass."""
    os.environ.setdefault("JAVA_HOME", java_home)
    # Spark starts its workers with the first python3 on the PATH, which may know nothing of Ottla.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[*]").appName("ottla-bench")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.log.level": "ERROR",
        **({"spark.jars": ",".join(jars)} if jars else {}),
    }.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    try:
        frame = (
            session.read.format(source)
            .option("kafka.bootstrap.servers", f"{host}:{port}")
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .option("endingOffsets", "latest")
            .load()
        )
        counted = frame.count()
        if counted != rows:
            raise RuntimeError(f"format({source!r}) read {counted:,} rows of {rows:,}")
        frame.write.format("noop").mode("overwrite").save()
        window = Window(pid)
        window.open()
        seconds = []
        for _ in range(passes):
            began = time.perf_counter()
            frame.write.format("noop").mode("overwrite").save()
            seconds.append(time.perf_counter() - began)
        return {**window.close(), "records": rows * passes, "rows_per_s": rows / statistics.median(seconds), "pass_seconds": seconds}
    finally:
        session.stop()
