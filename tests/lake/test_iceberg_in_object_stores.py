"""Iceberg tables in object stores, by a catalog of SQLite and by AWS Glue (moto's), with kills and faults between upload and commit: each
record once, as in a directory.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")
pytest.importorskip("obstore")
pytest.importorskip("moto")

import pyarrow as pa
from botocore.exceptions import EndpointConnectionError
from click.testing import CliRunner

from conftest import Ottla  # type: ignore[attr-defined]
from object_store import KEY, ObjectStore
from ottla.cli.main import main
from ottla.lake.storage import location
from ottla.lake.table.delta import Overtaken
from ottla.lake.table.iceberg_batches import IcebergBatches
from ottla.lake.table.iceberg_catalog import CatalogError, CatalogUnavailable, IcebergPlace, catalog_error, in_catalog, opened_table
from ottla.lake.table.iceberg_target import IcebergTarget
from ottla.lake.table.schema import TableFormat
from ottla.lake.table.target import TableOrigin
from store_servers import STORE_SECRET

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("object_stores"), pytest.mark.timeout(300)]

#: The uploads of a commit, in their order.
DATA, MANIFEST, MANIFESTS, METADATA = (
    rf"(PUT|POST) .*{name}" for name in (r"/data/.*\.parquet", r"-m\d+\.avro", r"/snap-", r"\.metadata\.json")
)
#: The commit of Glue.
UPDATE = r"POST / AWSGlue\.UpdateTable"
ORIGIN = TableOrigin("orders", "id")
FORM = TableFormat(value="json", key="text", columns=("key",))
_numbers = count()


def long(*values: str) -> Any:
    return pytest.param(*values, marks=pytest.mark.long)


@pytest.fixture
def catalog(request: pytest.FixtureRequest) -> str:
    """sql or glue."""
    return str(getattr(request, "param", "sql"))


@pytest.fixture
def store(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    for name, value in object_store.kind.variables.items():
        monkeypatch.setenv(name, value)
    return object_store


@pytest.fixture
def options(store: ObjectStore, catalog: str, tmp_path: Path) -> dict[str, str]:
    """Of a catalog, whose tables lie in a prefix of their own."""
    where = store.iceberg(f"lake{next(_numbers)}")
    if catalog == "sql":
        return {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.sqlite", **where}
    keys = {"glue.access-key-id": KEY, "glue.secret-access-key": f"env:{STORE_SECRET}"}
    return {"type": "glue", "glue.endpoint": store.endpoint, "glue.region": "us-east-1", **keys, **where}


@pytest.fixture
def name() -> str:
    """Of a table. Glue's are of the account, not of a warehouse."""
    return f"shop.orders{next(_numbers)}"


@pytest.fixture
def place(options: dict[str, str], name: str) -> IcebergPlace:
    return in_catalog("lake", name, options)


def data_files(store: ObjectStore, options: dict[str, str]) -> int:
    bucket = location(store.url(options["warehouse"].rpartition("/")[2]), store.options)
    return len([one for one in bucket.list() if one.name.endswith(".parquet")])


def numbers(place: IcebergPlace) -> list[int]:
    with opened_table(place) as table:
        return sorted(table.scan().to_arrow().column("n").to_pylist())


@pytest.mark.parametrize(
    ("object_store", "catalog", "mode", "at"),
    [
        ("s3", "sql", "append", DATA),
        *(long("s3", "sql", "append", at) for at in (MANIFEST, MANIFESTS, METADATA)),
        long("s3", "sql", "upsert", DATA),
        ("s3", "sql", "upsert", METADATA),
        ("s3", "glue", "append", UPDATE),
        long("s3", "glue", "upsert", UPDATE),
        *(long(store, "sql", *case) for store in ("gs", "az") for case in (("append", DATA), ("append", METADATA), ("upsert", METADATA))),
    ],
    indirect=["object_store", "catalog"],
)
def test_a_sync_killed_between_upload_and_commit_leaves_no_rows_and_the_next_continues(
    mode: str,
    at: str,
    a_topic: Callable[..., str],
    send: Callable[..., None],
    ottla: Ottla,
    store: ObjectStore,
    place: IcebergPlace,
    options: dict[str, str],
    name: str,
) -> None:
    named = ["--catalog", "lake", *(word for option, value in options.items() for word in ("--catalog-option", f"{option}={value}"))]
    topic = a_topic(1)
    words = ["table", "sync", topic, "--to", name, "--format", "iceberg", "--once", "--mode", mode, "--key", "text", *named]
    send(topic, [(str(n), {"n": n}) for n in range(20)])
    assert ottla(*words)[-1]["records"] == 20
    # With upsert, half of the keys are those of rows that are there.
    send(topic, [(str(n), {"n": n + (100 if n < 20 else 0)}) for n in range(10, 30)])
    store.inject(at, "hold")
    process = ottla.start(*words)
    assert store.happened(), process.communicate(timeout=5)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    store.clear()
    assert numbers(place) == list(range(20))
    assert ottla(*words)[-1]["records"] == 20
    added = [*range(110, 120), *range(20, 30)]
    assert numbers(place) == sorted([*range(20 if mode == "append" else 10), *added])
    before = data_files(store, options)
    done = CliRunner().invoke(main, ["table", "compact", name, *named, "--vacuum-hours", "0", "-o", "json"])
    assert json.loads(done.output)["vacuumed_files"] > 0, done.output
    assert data_files(store, options) == 1 < before
    assert ottla(*words)[-1]["records"] == 0


def a_target(place: IcebergPlace) -> IcebergTarget:
    target = IcebergTarget(place, pause=lambda _: None)
    target.form(ORIGIN)
    target.begin(ORIGIN, FORM, pa.schema([("n", pa.int64()), *FORM.metadata_schema()]))
    return target


def put(target: IcebergTarget, offset: int) -> None:
    """One record."""
    files = target.files()
    files.write(pa.table({"n": [offset], "_key": ["k"]}))
    target.commit(files.finish(), {0: offset} if offset else {}, {0: offset + 1})


@pytest.mark.parametrize("object_store", ["s3", long("gs"), long("az")], indirect=True)
def test_throttling_errors_torn_uploads_and_lost_answers_of_the_store_are_retried(store: ObjectStore, place: IcebergPlace) -> None:
    target = a_target(place)
    for number, kind in enumerate(("slow down", "internal error", "tear", "lose answer")):
        for pattern in (DATA, MANIFEST, MANIFESTS, METADATA):
            store.inject(pattern, kind)
        put(target, number)
        assert store.happened(), kind
        store.clear()
    assert numbers(place) == [0, 1, 2, 3] and target.positions([0]) == {0: 4}


@pytest.mark.parametrize("catalog", ["glue"], indirect=True)
def test_a_commit_whose_answer_glue_loses_or_that_it_fails_counts_once(store: ObjectStore, place: IcebergPlace) -> None:
    target = a_target(place)
    put(target, 0)
    # The client repeats the request, and the version that it names is not the newest any more.
    store.inject(UPDATE, "lose answer")
    store.inject(UPDATE, "conflict")
    put(target, 1)
    store.inject(UPDATE, "internal error")
    put(target, 2)
    assert store.happened() and numbers(place) == [0, 1, 2] and target.positions([0]) == {0: 3}
    assert target.evolve(pa.schema([("n", pa.float64()), ("more", pa.string())]), rewrite=True) == ["more string", "n double"]
    put(target, 3)
    assert target.compact().removed > 1 and target.vacuum(0) > 0 and numbers(place) == [0, 1, 2, 3]
    slow, fast = a_target(place), a_target(place)
    put(slow, 4)
    with pytest.raises(Overtaken, match="another process syncs"):
        put(fast, 4)


@pytest.mark.parametrize("catalog", ["glue"], indirect=True)
def test_a_glue_that_refuses_or_is_not_there_is_named(store: ObjectStore, place: IcebergPlace, name: str) -> None:
    target = a_target(place)
    store.inject(UPDATE, "deny")
    with pytest.raises(CatalogError, match=f"{name} in catalog lake: .*AccessDenied"):
        put(target, 0)
    unreachable = catalog_error(place, EndpointConnectionError(endpoint_url="http://glue.example"))
    assert isinstance(unreachable, CatalogUnavailable) and "Could not connect to the endpoint URL" in str(unreachable)


#: A driver of a pipeline: it writes a batch, whose files tasks have uploaded where rows are not gathered.
DRIVER = """
import json, pickle, sys
from pathlib import Path
import pyarrow as pa
from ottla.spark.pipeline.config.file import parse
from ottla.spark.pipeline.iceberg_sink import IcebergSink
from ottla.spark.pipeline.sinks import MicroBatch

text, directory, mode, batch, rows = json.loads(sys.argv[1])
pipeline = parse(text, Path(directory) / "p.toml", {})
sink, rows = IcebergSink(pipeline.sinks[0], pipeline), pa.Table.from_pylist(rows)
if mode == "spread":
    writer = sink.append_writer(rows.schema, MicroBatch("q", batch))
    parts = [pickle.loads(pickle.dumps(writer)).write(iter(part.to_batches())) for part in (rows.slice(0, 1), rows.slice(1))]
    writer.commit(parts)
else:
    sink.write_table(rows, MicroBatch("q", batch))
"""


@pytest.mark.parametrize(
    ("object_store", "catalog", "mode", "at"),
    [
        ("s3", "sql", "spread", DATA),
        long("s3", "sql", "spread", MANIFEST),
        ("s3", "sql", "spread", METADATA),
        long("s3", "sql", "gathered", DATA),
        long("s3", "sql", "gathered", METADATA),
        long("s3", "sql", "merge", MANIFEST),
        ("s3", "sql", "merge", METADATA),
        *(long("s3", "glue", mode, UPDATE) for mode in ("spread", "gathered", "merge")),
        *(long(store, "sql", mode, METADATA) for store in ("gs", "az") for mode in ("spread", "merge")),
    ],
    indirect=["object_store", "catalog"],
)
def test_a_driver_killed_between_upload_and_commit_leaves_no_rows_and_the_next_writes_the_batch_once(
    mode: str, at: str, store: ObjectStore, place: IcebergPlace, options: dict[str, str], name: str, tmp_path: Path
) -> None:
    pytest.importorskip("pyspark")
    given = ", ".join(f'"{option}" = "{value}"' for option, value in options.items())
    text = f'''bootstrap = "h:1"
checkpoint = "{tmp_path}/checkpoint"
source = {{ topic = "t" }}
decode = {{ format = "json", fields = {{ k = "string", n = "bigint" }} }}
[[sink]]
type = "iceberg"
catalog = "lake"
table = "{name}"
catalog_options = {{ {given} }}
partition_by = ["k"]
''' + ('mode = "merge"\nkeys = ["k"]\n' if mode == "merge" else "")

    def driver(batch: int, *rows: tuple[str, int]) -> subprocess.Popen[str]:
        found = [{"k": k, "n": n} for k, n in rows]
        word = json.dumps([text, str(tmp_path), mode, batch, found])
        return subprocess.Popen([sys.executable, "-c", DRIVER, word], stderr=subprocess.PIPE, text=True)

    def finish(process: subprocess.Popen[str]) -> None:
        _, problems = process.communicate(timeout=120)
        assert process.returncode == 0, problems

    finish(driver(0, ("a", 1), ("b", 2)))
    store.inject(at, "hold")
    killed = driver(1, ("a", 3), ("c", 4))
    assert store.happened(), killed.communicate(timeout=5)
    killed.kill()
    killed.communicate()
    store.clear()
    assert numbers(place) == [1, 2]
    for _ in range(2):
        finish(driver(1, ("a", 3), ("c", 4)))
        assert numbers(place) == ([2, 3, 4] if mode == "merge" else [1, 2, 3, 4])
    table = IcebergBatches(place)
    assert table.has("", 0) is False and table.vacuum(0) > 0
    table.close()
    assert len(numbers(place)) == (3 if mode == "merge" else 4)
