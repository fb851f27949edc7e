"""Iceberg tables in Apache Iceberg's own REST catalog, from Maven, with faults between: each record once, of topics and of pipelines."""

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import date
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")
# Its jars have Hadoop's file systems for the server.
pytest.importorskip("pyspark")

import pyarrow as pa
import pyspark
from bench import maven

from conftest import Ottla  # type: ignore[attr-defined]
from object_store import Fault, FaultProxy
from ottla.lake.table.delta import Overtaken
from ottla.lake.table.iceberg_catalog import IcebergPlace, in_catalog, opened_table
from ottla.lake.table.iceberg_target import IcebergTarget
from ottla.lake.table.schema import TableFormat
from ottla.lake.table.target import DELETED, TableOrigin
from ottla.spark.pipeline.config.file import parse
from ottla.spark.pipeline.iceberg_sink import IcebergSink
from ottla.spark.pipeline.sinks import MicroBatch

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("iceberg_rest")]

ICEBERG, JETTY, SQLITE, SLF4J = "1.10.0", "11.0.25", "3.50.3.0", "2.0.17"
COORDINATES = (
    f"org.apache.iceberg:iceberg-core:{ICEBERG}",
    # The server of its compatibility tests.
    f"org.apache.iceberg:iceberg-core:{ICEBERG}:tests",
    # Readers.
    f"org.apache.iceberg:iceberg-data:{ICEBERG}",
    f"org.apache.iceberg:iceberg-parquet:{ICEBERG}",
    f"org.eclipse.jetty:jetty-servlet:{JETTY}",
    f"org.xerial:sqlite-jdbc:{SQLITE}",
    f"org.slf4j:slf4j-nop:{SLF4J}",
)
COMMIT = "POST .*/tables/"
ORIGIN = TableOrigin("orders", "id")
FORM = TableFormat(value="json", key="text", columns=("key",), mode="upsert")
_numbers = count()


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultProxy]:
    """The catalog behind a proxy for faults."""
    try:
        jars, java = maven.resolved(f"iceberg-rest-and-readers-{ICEBERG}", *COORDINATES), maven.java()
    except maven.PeerUnavailable as why:
        pytest.skip(f"Apache Iceberg's REST catalog cannot be had here: {why}")
    spark = (Path(pyspark.__file__).parent / "jars").glob("*.jar")
    hadoop = [str(one) for one in spark if one.name.startswith(("hadoop-client", "commons-logging"))]
    directory = tmp_path_factory.mktemp("rest")
    options = ("-Xmx256M", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
    source = str(Path(__file__).parent / "foreign" / "RestCatalog.java")
    command = [java.path, *options, "-cp", ":".join([f"{jars}/*", *hadoop]), source, f"{directory}/catalog.db", f"file://{directory}/lake"]
    with (directory / "log").open("wb") as log:
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert server.stdout is not None
    address = server.stdout.readline().strip()
    assert address, (directory / "log").read_text()[-2000:]
    proxy = FaultProxy(address.removeprefix("http://"))
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    try:
        yield proxy
    finally:
        proxy.shutdown()
        server.kill()
        server.wait(20)


@pytest.fixture
def proxy(started: FaultProxy) -> FaultProxy:
    started.control("/-/clear", b"")
    return started


@pytest.fixture
def options(proxy: FaultProxy) -> dict[str, str]:
    return {"type": "rest", "uri": f"http://127.0.0.1:{proxy.server_address[1]}"}


@pytest.fixture
def place(options: dict[str, str]) -> IcebergPlace:
    return in_catalog("rest", f"shop.orders{next(_numbers)}", options)


def a_target(place: IcebergPlace) -> IcebergTarget:
    target = IcebergTarget(place, pause=lambda _: None)
    target.form(ORIGIN)
    target.begin(ORIGIN, FORM, pa.schema([("n", pa.int64()), *FORM.metadata_schema()]))
    return target


def put(target: IcebergTarget, before: int, *keys: str) -> None:
    files = target.files()
    files.write(pa.table({"n": range(before, before + len(keys)), "_key": keys}))
    target.commit(files.finish(), {0: before} if before else {}, {0: before + len(keys)})


def rows(place: IcebergPlace) -> list[tuple[str, Any]]:
    with opened_table(place) as table:
        found = table.scan().to_arrow().to_pylist()
    return sorted((row["_key"], row["n"]) for row in found)


def test_commits_merges_columns_and_maintenance_are_carried_out_by_the_server(place: IcebergPlace) -> None:
    target = a_target(place)
    put(target, 0, "a", "b")
    put(target, 2, "c")
    changed = pa.table({"n": [10, None], "_key": ["a", "b"], "_corrupt": pa.nulls(2, pa.binary()), DELETED: [False, True]})
    target.merge(changed, {0: 3}, {0: 5})
    assert target.evolve(pa.schema([("n", pa.float64()), ("more", pa.string())]), rewrite=True) == ["more string", "n double"]
    put(target, 5, "d")
    assert target.compact().removed > 1 and target.vacuum(0) > 0
    again = a_target(place)
    assert again.positions([0]) == {0: 6} and rows(place) == [("a", 10.0), ("c", 2.0), ("d", 5.0)]


def test_java_reads_the_rows_and_partitions_as_they_were_written(place: IcebergPlace, options: dict[str, str]) -> None:
    form = TableFormat(value="json", key="text", columns=("key", "headers"), by_date=True)
    target = IcebergTarget(place)
    target.form(ORIGIN)
    target.begin(ORIGIN, form, pa.schema([("n", pa.int32()), ("tags", pa.list_(pa.string())), *form.metadata_schema()]))

    def add(before: int, n: Any, tags: list[str] | None, headers: Any, day: int) -> None:
        files = target.files()
        row = {"n": n, "tags": tags, "_key": "k", "_headers": headers, "record_date": date(1970, 1, day)}
        files.write(pa.Table.from_pylist([row], pa.schema([(one, target.schema().field(one).type) for one in row])))
        target.commit(files.finish(), {0: before} if before else {}, {0: before + 1})

    add(0, 1, ["x", "y"], None, 1)
    add(1, 2, None, [{"key": "h", "value": b"v"}], 1)
    add(2, 3, [], [], 2)
    first = read_by_java(place, options, "1970-01-01")
    assert sorted(first) == ["Record(1, [x, y], k, null, null, 1970-01-01)", "Record(2, null, k, [Record(h, HEAP)], null, 1970-01-01)"]
    assert target.evolve(pa.schema([("n", pa.int64())]), rewrite=False) == ["n long"]
    add(3, 2**40, None, None, 2)
    assert target.compact() == (4, 2)
    assert sorted(read_by_java(place, options, "1970-01-01")) == sorted(first)
    second = [f"Record({2**40}, null, k, null, null, 1970-01-02)", "Record(3, [], k, [], null, 1970-01-02)"]
    assert sorted(read_by_java(place, options, "1970-01-02")) == second


def read_by_java(place: IcebergPlace, options: dict[str, str], value: str, column: str = "record_date") -> list[str]:
    asked = urlencode({"column": column, "value": value})
    with urlopen(f"{options['uri']}/read/{'.'.join(place.identifier)}?{asked}", timeout=60) as answer:
        return [re.sub(r"java\.nio\.HeapByteBuffer\[[^]]*\]", "HEAP", line) for line in answer.read().decode().splitlines()]


@pytest.fixture(scope="module")
def runtime() -> str:
    """Iceberg's runtime for the Spark in the directory of OTTLA_TEST_ICEBERG_SPARK, else for the installed one."""
    series = ".".join((_spark_version() or pyspark.__version__).split(".")[:2])
    name = f"iceberg-spark-runtime-{series}_2.13"
    try:
        version, jars = maven.newest(name, "org.apache.iceberg", name, pattern=r"\d+\.\d+\.\d+")
    except maven.PeerUnavailable as why:
        pytest.skip(f"Maven has no runtime of Iceberg for Spark {series}; OTTLA_TEST_ICEBERG_SPARK can name another Spark: {why}")
    return str(jars / f"{name}-{version}.jar")


def _spark_version() -> str | None:
    """The version of the Spark in OTTLA_TEST_ICEBERG_SPARK, a directory of `pip install --target DIR pyspark==4.1.*`."""
    directory = os.environ.get("OTTLA_TEST_ICEBERG_SPARK")
    if directory is None:
        return None
    found = re.search(r"\d+\.\d+\.\d+", (Path(directory) / "pyspark" / "version.py").read_text())
    assert found is not None, f"{directory} has no pyspark"
    return found[0]


def by_spark(runtime: str, options: dict[str, str], *queries: str) -> list[list[dict[str, Any]]]:
    """The rows of each query."""
    program = Path(__file__).parent / "foreign" / "spark_queries.py"
    command = [sys.executable, str(program), runtime, options["uri"], *queries]
    environment = {**os.environ, "PYTHONPATH": os.environ.get("OTTLA_TEST_ICEBERG_SPARK", "")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment)
    found = [json.loads(line.removeprefix("ROWS ")) for line in done.stdout.splitlines() if line.startswith("ROWS ")]
    assert len(found) == len(queries), done.stderr[-6000:]
    return found


@pytest.mark.timeout(300)
def test_spark_reads_tables_that_were_merged_evolved_partitioned_and_compacted(
    place: IcebergPlace, options: dict[str, str], runtime: str, tmp_path: Path
) -> None:
    target = a_target(place)
    put(target, 0, "a", "b", "c")
    changed = pa.table({"n": [10, None], "_key": ["a", "b"], "_corrupt": pa.nulls(2, pa.binary()), DELETED: [False, True]})
    target.merge(changed, {0: 3}, {0: 5})
    target.evolve(pa.schema([("n", pa.float64()), ("more", pa.string())]), rewrite=True)
    put(target, 5, "d")
    orders = f"lake.{'.'.join(place.identifier)}"
    sink = sink_of(in_catalog("rest", "shop.people", options), options, tmp_path, 'partition_by = ["bucket(4, user)", "truncate(10, n)"]')
    people = [{"user": f"{letter}\U0001f600", "n": n} for n in range(-12, 12) for letter in "ab"]
    sink.write_table(pa.Table.from_pylist(people, SCHEMA), MicroBatch("q", 0))
    rows_of_orders, summaries, of_one, files = by_spark(
        runtime,
        options,
        f"SELECT _key, n, more FROM {orders} ORDER BY _key",
        f"SELECT summary['ottla.offsets'] AS offsets FROM {orders}.snapshots ORDER BY committed_at DESC LIMIT 1",
        "SELECT n FROM lake.shop.people WHERE user = 'a\U0001f600' AND n < -9 ORDER BY n",
        "SELECT sum(record_count) AS rows, count(DISTINCT partition) AS partitions FROM lake.shop.people.files",
    )
    assert rows_of_orders == [
        {"_key": "a", "n": 10.0, "more": None},
        {"_key": "c", "n": 2.0, "more": None},
        {"_key": "d", "n": 5.0, "more": None},
    ]
    assert json.loads(summaries[0]["offsets"]) == {"0": 6}
    assert [row["n"] for row in of_one] == [-12, -11, -10]
    assert files[0]["rows"] == 48 and files[0]["partitions"] >= 4


def test_of_two_writers_the_slower_one_is_refused_by_the_server(place: IcebergPlace) -> None:
    slow, fast = a_target(place), a_target(place)
    put(slow, 0, "a")
    with pytest.raises(Overtaken, match="another process syncs"):
        put(fast, 0, "a")
    assert rows(place) == [("a", 0)]


def test_a_commit_whose_answer_is_lost_or_that_the_server_fails_counts_once(place: IcebergPlace, proxy: FaultProxy) -> None:
    target = a_target(place)
    proxy.faults += [Fault(COMMIT, kind) for kind in ("lose answer", "internal error", "slow down", "lose answer")]
    put(target, 0, "a", "b")
    put(target, 2, "c")
    assert proxy.control("/-/happened", b"") == b"true" and rows(place) == [("a", 0), ("b", 1), ("c", 2)]


def sink_of(place: IcebergPlace, options: dict[str, str], directory: Path, more: str) -> IcebergSink:
    """The sink of a pipeline file with the catalog's options."""
    given = ", ".join(f'{name} = "{value}"' for name, value in options.items())
    text = f'''bootstrap = "h:1"
checkpoint = "{directory}/checkpoint"
source = {{ topic = "t" }}
decode = {{ format = "json", fields = {{ user = "string", n = "bigint" }} }}
[[sink]]
type = "iceberg"
catalog = "{place.catalog}"
table = "{".".join(place.identifier)}"
catalog_options = {{ {given} }}
{more}
'''
    pipeline = parse(text, directory / "p.toml", {})
    return IcebergSink(pipeline.sinks[0], pipeline)


SCHEMA = pa.schema([("user", pa.string()), ("n", pa.int64())])


def test_a_batch_of_a_pipeline_that_is_appended_twice_is_there_once_and_java_finds_its_rows_by_partitions(
    place: IcebergPlace, options: dict[str, str], proxy: FaultProxy, tmp_path: Path
) -> None:
    sink = sink_of(place, options, tmp_path, 'partition_by = ["bucket(4, user)", "truncate(10, n)", "truncate(2, user)"]')
    people = [{"user": f"{letter}\U0001f600{n % 3}", "n": n} for n in range(-15, 15) for letter in "ab"]
    written = []
    proxy.faults += [Fault(COMMIT, kind) for kind in ("lose answer", "internal error")]
    for attempt in range(2):
        # As Spark does: the writer goes to the tasks, and their files to the driver, which commits them.
        writer = sink.append_writer(SCHEMA, MicroBatch("q", 7))
        task = pickle.loads(pickle.dumps(writer))
        parts = [task.write(iter(pa.Table.from_pylist(rows, SCHEMA).to_batches())) for rows in (people[::2], people[1::2])]
        writer.report_to = str(tmp_path / f"rows{attempt}")
        writer.commit(parts)
        written.append(int(Path(writer.report_to).read_text()))
    assert written == [60, 0] and proxy.control("/-/happened", b"") == b"true"
    for user in ("a\U0001f6000", "b\U0001f6002"):
        expected = [f"Record({user}, {row['n']})" for row in people if row["user"] == user]
        assert sorted(read_by_java(place, options, user, "user")) == sorted(expected) and len(expected) == 10
    assert sorted(read_by_java(place, options, "-11", "n")) == [f"Record({row['user']}, -11)" for row in people if row["n"] == -11]


def test_a_gathered_batch_of_a_pipeline_that_is_written_twice_is_there_once(
    place: IcebergPlace, options: dict[str, str], proxy: FaultProxy, tmp_path: Path
) -> None:
    sink = sink_of(place, options, tmp_path, 'partition_by = ["user"]')
    for number, n in ((0, 1), (0, 2), (1, 3), (1, 4)):
        proxy.faults.append(Fault(COMMIT, "lose answer"))
        sink.write_table(pa.table({"user": ["u"], "n": [n]}), MicroBatch("q", number))
        proxy.control("/-/clear", b"")
    with opened_table(place) as table:
        assert sorted(table.scan().to_arrow().column("n").to_pylist()) == [1, 3]


def test_a_process_killed_between_files_and_commit_leaves_no_rows_and_the_next_continues(
    proxy: FaultProxy,
    options: dict[str, str],
    place: IcebergPlace,
    a_topic: Callable[..., str],
    send: Callable[..., None],
    ottla: Ottla,
) -> None:
    topic = a_topic(1)
    send(topic, [(str(number), {"n": number}) for number in range(200)])
    catalog = ["--catalog", "rest", *(word for name, value in options.items() for word in ("--catalog-option", f"{name}={value}"))]
    words = ["table", "sync", topic, "--to", ".".join(place.identifier), "--format", "iceberg", "--once", *catalog]
    ottla(*words)
    send(topic, [(str(number), {"n": number}) for number in range(200, 300)])
    proxy.faults.append(Fault(COMMIT, "hold"))
    process = ottla.start(*words)
    assert proxy.control("/-/happened", b"") == b"true", process.communicate(timeout=5)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    proxy.control("/-/clear", b"")
    assert len(rows(place)) == 200
    assert ottla(*words)[-1]["records"] == 100
    assert [n for _, n in sorted(rows(place), key=lambda row: row[1])] == list(range(300))
