"""Sinks, dead letters and tables of pipelines in an object store: each batch once, also with faults of the store."""

import json
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("obstore")
pytest.importorskip("moto")

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import InputPartition

from object_store import SECRET, ObjectStore
from ottla.lake.storage import Location, StoreUnavailable, location
from ottla.lake.table.delta import Overtaken, ensure, opened, schema_of_arrow
from ottla.spark.pipeline.config.file import parse
from ottla.spark.pipeline.config.model import Pipeline
from ottla.spark.pipeline.config.toml_table import PipelineError
from ottla.spark.pipeline.dead_letters import DeadLetterTarget
from ottla.spark.pipeline.delta_sink import DeltaAppendWriter
from ottla.spark.pipeline.parquet_sink import BatchFiles
from ottla.spark.pipeline.retryable_errors import is_retryable
from ottla.spark.pipeline.sinks import DeltaTarget, MicroBatch, ParquetTarget
from ottla.spark.pipeline.status import pipeline_status, status_text
from ottla.spark.pipeline.table_source import TableSource

from .conftest import Topic
from .test_pipeline_sinks import forget

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

RECORD = r"PUT .*/\.ottla/\w+\.json"
COMMIT = "PUT .*/_delta_log/"
STORES = pytest.mark.parametrize("object_store", ["s3", "gs", "az"], indirect=True)
LONG_BUT_S3 = pytest.mark.parametrize(
    "object_store", ["s3", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("gs", "az"))], indirect=True
)
_numbers = count()


@pytest.fixture
def store(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    monkeypatch.setenv("LAKE_SECRET", object_store.kind.secret)
    object_store.options |= object_store.kind.credentials("env:LAKE_SECRET")
    return object_store


@pytest.fixture
def place(store: ObjectStore) -> Location:
    """A prefix of its own."""
    return location(store.url(f"p{next(_numbers)}"), store.options)


def rows_of(*numbers: int) -> Iterator[pa.RecordBatch]:
    return iter([pa.record_batch({"n": pa.array(numbers, pa.int64()), "part": [str(number % 2) for number in numbers]})])


def parquet_rows(place: Location) -> list[int]:
    """Of the files that a reader sees."""
    names = [one.name for one in place.list() if one.name.endswith(".parquet")]
    return sorted(row for name in names for row in pq.read_table(place.open(name)).column("n").to_pylist())


def delta_rows(place: Location) -> list[dict[str, Any]]:
    table = opened(place)
    return [] if table is None else pa.table(table.scan().read_all()).to_pylist()


def a_batch(place: Location, number: int, *numbers: int, tasks: int = 1) -> BatchFiles:
    files = BatchFiles(place, "query/sink", number, ("part",)).begin()
    files.commit([files.write(rows_of(*numbers[task::tasks])) for task in range(tasks)])
    return files


@STORES
def test_a_retried_batch_of_parquet_objects_replaces_the_objects_of_the_first_attempt(place: Location) -> None:
    a_batch(place, 0, 1, 2, 3, 4, tasks=2)
    a_batch(place, 1, 5)
    assert parquet_rows(place) == [1, 2, 3, 4, 5]
    a_batch(place, 1, 6, 7)
    assert parquet_rows(place) == [1, 2, 3, 4, 6, 7]
    assert {one.name.rpartition("/")[0] for one in place.list() if one.name.endswith(".parquet")} == {"part=0", "part=1"}
    assert not [one.name for one in place.list() if one.name.endswith(".unfinished")]


@pytest.mark.parametrize("at", [RECORD, "PUT .*part-.*parquet", r"POST .*\?delete"])
def test_a_driver_that_ends_within_the_commit_of_parquet_objects_leaves_no_row_twice(
    at: str, store: ObjectStore, place: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_batch(place, 0, 1)
    # Two partitions are two objects: the commit ends at the second request of this kind, or the only one.
    store.inject(at, "pass", 0 if at == RECORD else 1)
    store.inject(at, "deny", 1)
    with pytest.raises(OSError, match="AccessDenied"):
        a_batch(place, 1, 2, 3)
    store.clear()
    assert set(parquet_rows(place)) <= {1, 2, 3}
    a_batch(place, 1, 3)
    assert parquet_rows(place) == [1, 3]
    assert not [one.name for one in place.list() if one.name.endswith(".unfinished")]


@LONG_BUT_S3
def test_a_lost_answer_to_the_commit_of_parquet_objects_is_looked_up(store: ObjectStore, place: Location) -> None:
    store.inject(RECORD, "lose answer")
    a_batch(place, 0, 1, 2)
    a_batch(place, 1, 3)
    assert parquet_rows(place) == [1, 2, 3]


@STORES
def test_a_driver_that_was_replaced_does_not_publish_its_attempt(place: Location) -> None:
    files = BatchFiles(place, "query/sink", 0).begin()
    written = files.write(rows_of(1))
    a_batch(place, 0, 2)
    with pytest.raises(Overtaken, match="another process writes batch 0 of this pipeline"):
        files.commit([written])
    assert parquet_rows(place) == [2]


@LONG_BUT_S3
def test_a_driver_that_stood_still_while_another_wrote_its_batch_and_the_next_publishes_nothing(place: Location) -> None:
    files = BatchFiles(place, "query/sink", 7, ("part",)).begin()
    a_batch(place, 7, 1, 2, 3, 4, tasks=2)
    a_batch(place, 8, 5)
    # Its tasks write after the other driver has removed their directory.
    written = files.write(rows_of(1, 2, 3, 4))
    with pytest.raises(Overtaken, match="another process writes batch 7 of this pipeline"):
        files.commit([written])
    assert parquet_rows(place) == [1, 2, 3, 4, 5]


@LONG_BUT_S3
def test_batches_that_run_again_after_an_older_checkpoint_was_restored_replace_their_objects(place: Location) -> None:
    for number, rows in enumerate(([1, 2, 3, 4], [5], [6])):
        a_batch(place, number, *rows, tasks=4)
    # In one task, so in fewer objects.
    for number, rows in enumerate(([1, 2, 3, 4], [5], [6])):
        a_batch(place, number, *rows)
        assert parquet_rows(place) == [1, 2, 3, 4, 5, 6]


@STORES
def test_a_failed_task_removes_its_objects(place: Location) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield from rows_of(1, 2)
        raise ValueError("no more")

    for write_task in (BatchFiles(place, "query/sink", 0, ("part",)).write, DeltaAppendWriter(place, "q", 0, None).write):
        with pytest.raises(ValueError, match="no more"):
            write_task(broken())
    assert list(place.list()) == []


def written_batch(place: Location, *numbers: int, batch: int) -> tuple[DeltaAppendWriter, list[Any]]:
    writer = DeltaAppendWriter(place, "q", batch, None, ("part",))
    return writer, [writer.write(rows_of(number)) for number in numbers]


@STORES
def test_objects_of_tasks_become_one_transaction_of_a_delta_table_once(place: Location) -> None:
    ensure(place, schema_of_arrow(next(rows_of(0)).schema), partition_by=["part"])
    one, written = written_batch(place, 1, 2, batch=7)
    other, again = written_batch(place, 1, 2, batch=7)
    assert delta_rows(place) == []
    one.commit(written)
    other.commit(again)
    assert sorted((row["n"], row["part"]) for row in delta_rows(place)) == [(1, "1"), (2, "0")]


@LONG_BUT_S3
def test_gathered_rows_are_merged_into_a_table_of_a_store_that_a_source_reads(place: Location) -> None:
    options = "".join(f"{name} = {json.dumps(value)}\n" for name, value in place.options)
    sources = f'[[source]]\nname = "s"\ntopic = "t"\n[[source]]\nname = "u"\ntype = "delta"\npath = "{place}"\n'
    sink = f'[[sink]]\ntype = "delta"\nmode = "merge"\nkeys = ["n"]\ncompact = "every 2 batches"\npath = "{place}"\n'
    pipeline = parse(f"[storage]\n{options}{sources}{sink}", Path("p.toml"), {})
    target = DeltaTarget(pipeline.sinks[0], pipeline)
    for number, values in enumerate(([1, 2], [2, 3], [3])):
        target.write_table(pa.table({"n": values, "at": [number] * len(values)}), MicroBatch("q", number))
    source = TableSource({"place": msgspec.json.encode(pipeline.sources[1].place).decode()})
    read = pa.Table.from_batches(source.reader(source.schema()).read(InputPartition(0)))
    assert sorted(zip(read["n"].to_pylist(), read["at"].to_pylist(), strict=True)) == [(1, 0), (2, 1), (3, 2)]


@LONG_BUT_S3
def test_a_lost_answer_to_a_commit_of_a_delta_table_ends_in_a_retry_that_finds_the_batch(store: ObjectStore, place: Location) -> None:
    ensure(place, schema_of_arrow(next(rows_of(0)).schema), partition_by=["part"])
    writer, written = written_batch(place, 1, batch=0)
    store.inject(COMMIT, "lose answer")
    try:
        writer.commit(written)
    except Overtaken as error:
        assert is_retryable(f"Traceback\n{type(error).__name__}: {error}")
    again, rewritten = written_batch(place, 1, batch=0)
    again.commit(rewritten)
    assert [row["n"] for row in delta_rows(place)] == [1]


def test_a_store_that_does_not_answer_is_retried_and_a_refusal_is_not(store: ObjectStore, place: Location) -> None:
    gone = location("s3://lake/x", {**store.options, "endpoint": "http://127.0.0.1:9", "timeout": "1s"})
    with pytest.raises(StoreUnavailable) as unavailable:
        gone.put("a", b"")
    assert is_retryable(f"Traceback\nottla.lake.storage.{unavailable.typename}: {unavailable.value}")
    store.inject("PUT", "deny")
    with pytest.raises(OSError, match="AccessDenied") as denied:
        place.put("a", b"")
    assert not is_retryable(f"Traceback\n{denied.typename}: {denied.value}")


# -- pipeline files


def pipeline_of(text: str, path: Path = Path("p.toml"), **variables: str) -> Pipeline:
    return parse('[source]\ntopic = "t"\n' + text, path, variables)


SINKS = '[[sink]]\ntype = "{}"\npath = "s3a://lake/orders/"\n'


@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_options_of_a_store_come_from_the_sink_else_from_the_top_of_the_file(kind: str) -> None:
    top = '[storage]\nendpoint = "http://s3"\nallow_http = true\n'
    assert pipeline_of(top + SINKS.format(kind)).sinks[0].place == Location(
        "s3://lake/orders", (("allow_http", "true"), ("endpoint", "http://s3"))
    )
    own = top + SINKS.format(kind) + 'storage = { region = "eu", "aws_secret_access_key" = "env:KEY" }\n'
    assert pipeline_of(own).sinks[0].storage == (("region", "eu"), ("secret_access_key", "env:KEY"))
    # A file with paths of variables may be tried with directories.
    assert pipeline_of(top + SINKS.format(kind).replace("s3a://lake", "${dir}"), dir="/tables").sinks[0].place == location("/tables/orders")


def test_options_of_a_store_come_from_the_profile_without_storage_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTTLA_CONFIG", str(tmp_path / "config.toml"))
    (tmp_path / "config.toml").write_text(
        '[profiles.lake]\nbootstrap_servers = "h:1"\n[profiles.lake.storage.s3]\nregion = "eu"\nsecret_access_key = "env:KEY"\n'
        '[profiles.lake.storage.gs]\nservice_account = "/g.json"\n'
    )
    text = """profile = "lake"
checkpoint = "/c"
source = { topic = "t" }
decode = { format = "json", fields = { n = "int" }, bad_records = "dead_letter" }
sink = [
    { type = "parquet", path = "s3a://lake/a" },
    { type = "parquet", path = "gs://lake/b" },
    { type = "parquet", path = "s3://lake/c", storage = { region = "us" } },
    { type = "parquet", path = "az://lake/d" },
    { type = "parquet", path = "/e" },
]
dead_letters = { path = "s3://lake/dead" }
"""
    pipeline = parse(text, tmp_path / "p.toml", {})
    s3 = {"region": "eu", "secret_access_key": "env:KEY"}
    assert [dict(sink.place.options) for sink in pipeline.sinks] == [s3, {"service_account": "/g.json"}, {"region": "us"}, {}, {}]
    assert pipeline.dead_letters is not None and dict(pipeline.dead_letters.storage) == s3
    only = text.replace('{ type = "parquet", path = "gs://lake/b" },', "")
    own = parse(f'storage = {{ allow_http = "true" }}\n{only}', tmp_path / "p.toml", {})
    assert dict(own.sinks[0].place.options) == {"allow_http": "true"}


@pytest.mark.parametrize(
    ("text", "where", "key", "sentence"),
    [
        (SINKS.format("delta") + 'storage = { regio = "eu" }\n', 6, "sink[0].storage", "option regio is not known for s3://; did you mean"),
        ('[storage]\nregio = "eu"\n' + SINKS.format("delta"), 3, "storage", "option regio is not known for s3://"),
        (
            SINKS.format("parquet") + 'storage = { secret_access_key = "abc" }\n',
            6,
            "sink[0].storage",
            "write secret_access_key=env:VARIABLE",
        ),
        (SINKS.format("delta").replace("s3a://lake/orders", "t") + "storage = {}\n", 6, "sink[0].storage", "path is a local directory"),
        (SINKS.format("delta").replace("lake/orders/", ""), 5, "sink[0].path", "names no bucket"),
        (SINKS.format("delta").replace("lake", "me:pw@lake"), 5, "sink[0].path", "credentials do not belong into an address"),
        ('[[sink]]\ntype = "console"\nstorage = {}\n', 5, "sink[0].storage", "unknown key"),
        ('[dead_letters]\ntopic = "d"\nstorage = {}\n' + SINKS.format("delta"), 5, "dead_letters.storage", "path is not set"),
    ],
)
def test_an_unusable_option_or_address_of_a_store_is_refused_with_its_line(text: str, where: int, key: str, sentence: str) -> None:
    with pytest.raises(PipelineError) as refused:
        pipeline_of(text)
    assert (refused.value.where, refused.value.key) == (f"p.toml:{where}", key) and sentence in str(refused.value), refused.value
    assert "abc" not in str(refused.value) and "pw@" not in str(refused.value)


def test_a_store_without_conditional_writes_or_bucket_or_key_is_refused_before_the_query_starts(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = "".join(f"{name} = {json.dumps(value)}\n" for name, value in store.options.items())
    text = '[dead_letters]\npath = "s3://lake/dead"\n[storage]\n' + options + SINKS.format("delta") + SINKS.format("parquet")
    rules = '[[rule]]\nname = "r"\ncheck = "value IS NOT NULL"\n'

    def targets(text: str) -> Any:
        pipeline = pipeline_of(text + rules)
        delta, parquet = pipeline.sinks
        yield DeltaTarget(delta, pipeline), "sink[0].path"
        yield ParquetTarget(parquet, pipeline), "sink[1].path"
        yield DeadLetterTarget(pipeline), "dead_letters.path"

    def refused(text: str, sentence: str) -> None:
        for target, key in targets(text):
            with pytest.raises(PipelineError, match=sentence) as error:
                target.prepare(None)
            assert error.value.key == key and SECRET not in str(error.value)

    store.inject("PUT .*probe", "unconditional", 100)
    refused(text, "does not make conditional writes")
    store.clear()
    refused(text.replace("lake/", "no-such-bucket/"), "NoSuchBucket")
    monkeypatch.delenv("LAKE_SECRET")
    refused(text.replace("lake/", "lake/other/"), "secret_access_key: the environment has no variable LAKE_SECRET")


SINKS_OF_A_RUN = """
[decode]
format = "json"
fields = { user = "string", n = "bigint" }
bad_records = "dead_letter"
[dead_letters]
path = "${place}/dead"
[[sink]]
type = "delta"
path = "${place}/table"
partition_by = ["user"]
[[sink]]
type = "parquet"
path = "${place}/files"
partition_by = ["user"]
"""


@LONG_BUT_S3
def test_a_pipeline_writes_tables_files_and_dead_letters_to_an_object_store_each_batch_once(
    run: Any, a_topic: Callable[..., Topic], store: ObjectStore, place: Location, tmp_path: Path
) -> None:
    topic = a_topic()
    # Spark's processes are older than the variables of this test.
    (tmp_path / "key").write_text(f"{store.kind.secret}\n")
    options = store.options | store.kind.credentials(f"file:{tmp_path}/key")
    text = SINKS_OF_A_RUN + "[storage]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in options.items())
    topic.add(*(json.dumps({"user": f"u{n % 2}", "n": n}).encode() for n in range(10)), b"no json")
    run(topic, text, trigger="once", place=str(place))
    forget(tmp_path, "records-append")
    run(topic, text, trigger="once", place=str(place))

    assert sorted(row["n"] for row in delta_rows(place.below("table"))) == list(range(10))
    assert parquet_rows(place.below("files")) == list(range(10))
    assert [row["value"] for row in delta_rows(place.below("dead"))] == [b"no json"]
    head = f'bootstrap = "{topic.bootstrap}"\ncheckpoint = "{tmp_path}/checkpoint"\n'
    status = status_text(
        pipeline_status(parse(head + f'[source]\ntopic = "{topic.name}"\n' + text, tmp_path / "p.toml", {"place": str(place)}))
    )
    for name in ("table", "dead"):
        assert f"{place}/{name}, version " in status
    written = "".join(path.read_text(errors="replace") for path in (tmp_path / "checkpoint").rglob("*") if path.is_file())
    assert SECRET not in status + written
