"""Archives of Java classes for the tests: a JVM that maps one starts with a third less processor time.

python tools/class_archives.py

Most of the time of a short Spark session goes into loading and verifying classes. A JVM can write the classes that it has to a file at its
end, and map this file at later starts (class data sharing, JEP 350). It ignores a file of another JVM or of other jars, so a file can be
useless but not wrong. The files are in ``build/classes``; ``options_for`` has the options that name one. A session of Spark with six small
queries costs 22 s of processor time instead of 34, a start of Apache Kafka 6 instead of 9.
"""

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DIRECTORY = ROOT / "build" / "classes"
WAIT_S = 240


def options_for(program: str) -> tuple[str, ...]:
    """Options for a JVM of ``spark`` or ``kafka``; none if there is no archive."""
    archive = DIRECTORY / f"{program}.jsa"
    # Without the last two, a JVM that cannot use the file says so on its standard output.
    return (f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off") if archive.exists() else ()


def main() -> int:
    sys.path.insert(0, str(ROOT))
    from bench.maven import PeerUnavailable

    from ottla.spark.java import NoJava

    DIRECTORY.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
    for program, archive in (("Spark", archive_spark), ("Apache Kafka", archive_kafka)):
        try:
            archive()
        except (NoJava, PeerUnavailable, ImportError) as why:
            print(f"{program} starts in the tests without an archive of its classes: {why}", file=sys.stderr)
    return 0


@contextmanager
def archived(program: str) -> Iterator[str]:
    """An option with which a JVM writes its classes at its end, which the block awaits. A file that is not complete is never used."""
    archive = DIRECTORY / f"{program}.jsa"
    written = archive.with_suffix(".new")
    written.unlink(missing_ok=True)
    yield f"-XX:ArchiveClassesAtExit={written}"
    if written.exists():
        written.replace(archive)
    else:
        print(f"{program}'s JVM has written no archive of its classes; the tests start it without", file=sys.stderr)


def archive_spark() -> None:
    from ottla.spark.session import start_session

    with tempfile.TemporaryDirectory(prefix="ottla-classes-") as scratch, archived("spark") as option:
        session = start_session("classes", {"spark.driver.extraJavaOptions": option}, cores=2)
        jvm = session.sparkContext._gateway.proc
        use(session, Path(scratch))
        session.stop()
        jvm.stdin.close()
        jvm.wait(WAIT_S)


def use(session: Any, scratch: Path) -> None:
    """What most tests do: batches, Arrow in Python, Parquet, a stream with state."""
    rows = session.range(1000).selectExpr("id % 10 AS key", "id", "cast(id AS string) AS text")
    rows.write.parquet(str(scratch / "rows"))
    session.read.parquet(str(scratch / "rows")).createOrReplaceTempView("rows")
    counted = session.sql("SELECT key, count(*) AS n, max(from_json(text, 'a INT').a) AS most FROM rows GROUP BY key ORDER BY key")
    counted.mapInArrow(lambda batches: batches, counted.schema).toPandas()
    session.createDataFrame([(1, "a")], ["x", "y"]).join(rows.withColumnRenamed("key", "x"), "x").collect()
    stream = session.readStream.format("rate").load().withWatermark("timestamp", "1 second")
    windows = stream.groupBy("timestamp").count().writeStream.outputMode("update")
    query = windows.foreachBatch(lambda batch, number: batch.toArrow()).option("checkpointLocation", str(scratch / "checkpoint")).start()
    deadline_s = time.monotonic() + WAIT_S
    while len(query.recentProgress) < 2 and time.monotonic() < deadline_s:
        query.awaitTermination(1)
    query.stop()


def archive_kafka() -> None:
    from bench import kafka

    found = kafka.distribution()
    with (
        tempfile.TemporaryDirectory(prefix="ottla-classes-") as scratch,
        archived("kafka") as option,
        kafka.running(replace(found, options=(option,)), Path(scratch)) as (_, process),
    ):
        process.stop(timeout_s=WAIT_S)


if __name__ == "__main__":
    sys.exit(main())
