"""Reads and writes topics of a secured broker with Spark in every way, and writes down all that Spark shows of it.

python secured_job.py SETTINGS      a JSON file: options (of format("ottla")), directory, and text (of a pipeline file)

The directory gets ``shown.json`` (what plans, progress, the REST API and the pages of the UI contain), the event log, and checkpoints.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ottla.spark.pipeline.config.file import load
from ottla.spark.pipeline.plan import plan
from ottla.spark.pipeline.run import RunningPipeline
from ottla.spark.pipeline.status import pipeline_status
from ottla.spark.session import start_session

PAGES = ("jobs", "stages", "storage", "environment", "executors", "SQL", "StreamingQuery")
API = ("environment", "jobs", "stages", "executors", "sql?details=true&planDescription=true&length=1000")


def explained(frame: Any) -> str:
    """``explain(True)`` and the other forms."""
    jvm = frame.sparkSession._jvm
    return "\n".join(str(jvm.PythonSQLUtils.explainString(frame._jdf.queryExecution(), mode)) for mode in ("extended", "formatted"))


def fetched(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


def arguments() -> Iterator[tuple[str, str]]:
    """Command lines of the JVM and the Python workers."""
    for path in Path("/proc").iterdir():
        try:
            command = (path / "cmdline").read_bytes().decode(errors="replace") if path.name.isdigit() else ""
            if "spark" in command.lower() and int(path.name) != os.getpid():
                yield f"arguments of {path.name}", command
        except OSError:
            continue


def main(settings: dict[str, Any]) -> None:
    directory, options = Path(settings["directory"]), settings["options"]
    (directory / "events").mkdir()
    conf = {
        "spark.ui.enabled": "true", "spark.ui.port": "0", "spark.eventLog.enabled": "true", "spark.eventLog.dir": f"file://{directory}/events",
        "spark.eventLog.logBlockUpdates.enabled": "true", "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        # Also plans that Spark would cut short.
        "spark.sql.maxMetadataStringLength": "100000", "spark.sql.debug.maxToStringFields": "1000", "spark.ui.prometheus.enabled": "false",
    }  # fmt: skip
    spark = start_session("secured", conf, log_file=directory / "spark.log", cores=1)
    shown: dict[str, str] = {}
    read = {**options, "subscribe": "in"}
    try:
        rows = spark.range(10).selectExpr("CAST(id AS STRING) AS value")
        rows.write.format("ottla").mode("append").options(**options, topic="in").save()
        rows.write.format("ottla").mode("append").options(**options, topic="in", txnAppId="a", txnVersion="1").save()
        batch = spark.read.format("ottla").options(**read).load()
        shown["batch plan"] = explained(batch)
        shown["batch rows"] = str(batch.count())
        batch.createOrReplaceTempView("records")
        shown["sql plan"] = str(spark.sql("EXPLAIN EXTENDED SELECT count(*) FROM records").collect())
        stream = spark.readStream.format("ottla").options(**read, startingOffsets="earliest").load()
        shown["stream plan"] = explained(stream)
        query = (
            stream.select("value").writeStream.format("ottla").options(**options, topic="out", checkpointLocation=str(directory / "stream"))
            .trigger(availableNow=True).start()
        )  # fmt: skip
        assert query.awaitTermination(120), "the query ends"
        shown["progress"] = "\n".join(each.json for each in query.recentProgress)
        shown["status"] = str(query.status)
        shown["plan of the stream's last batch"] = str(query._jsq.explainInternal(True))
        shown["rows out"] = str(spark.read.format("ottla").options(**options, subscribe="out").load().count())
        wrong = {**read, **settings["wrong"]}
        attempts: tuple[tuple[str, Callable[[], Any]], ...] = (
            ("error of a reader", lambda: spark.read.format("ottla").options(**wrong).load().count()),
            (
                "error of a writer",
                lambda: rows.write.format("ottla").mode("append").options(**{**options, **settings["wrong"]}, topic="in").save(),
            ),
        )
        for name, attempt in attempts:
            try:
                attempt()
                shown[name] = "none"
            except Exception as error:
                shown[name] = f"{error}\n{error!r}"
        file = directory / "pipeline.toml"
        file.write_text(settings["text"])
        pipeline = load(file)
        shown["pipeline"] = repr(pipeline)
        shown["pipeline plan"] = json.dumps(plan(pipeline, spark, physical=True))
        running = RunningPipeline(pipeline, spark, lambda *_: None)
        running.start()
        for each in running.queries:
            assert each.query.awaitTermination(120), "the pipeline ends"
        shown["pipeline reports"] = str(running.reports())
        running.stop()
        shown["pipeline status"] = json.dumps(pipeline_status(pipeline))
        shown["rows of the pipeline"] = str(spark.read.format("ottla").options(**options, subscribe="piped").load().count())
        shown.update(arguments())
        web = spark.sparkContext.uiWebUrl
        application = spark.sparkContext.applicationId
        for path in API:
            shown[f"api {path}"] = fetched(f"{web}/api/v1/applications/{application}/{path}")
        for path in PAGES:
            shown[f"page {path}"] = fetched(f"{web}/{path}/")
        for execution in json.loads(shown[f"api {API[-1]}"]):
            shown[f"page of execution {execution['id']}"] = fetched(f"{web}/SQL/execution/?id={execution['id']}")
    finally:
        (directory / "shown.json").write_text(json.dumps(shown))
        spark.stop()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
