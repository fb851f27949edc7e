"""Iceberg tables in an object store, with kills and faults between upload and commit: each record once, as in a directory."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")
pytest.importorskip("obstore")
pytest.importorskip("moto")

import pyarrow as pa
from click.testing import CliRunner

from conftest import Ottla  # type: ignore[attr-defined]
from object_store import BUCKET, KEY, SECRET, ObjectStore
from ottla.cli.main import main
from ottla.lake.storage import location
from ottla.lake.table.iceberg_batches import IcebergBatches
from ottla.lake.table.iceberg_catalog import IcebergPlace, in_catalog, opened_table
from ottla.lake.table.iceberg_target import IcebergTarget
from ottla.lake.table.schema import TableFormat
from ottla.lake.table.target import TableOrigin

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("object_stores"), pytest.mark.timeout(300)]

#: The uploads of a commit, in their order.
DATA, MANIFEST, MANIFESTS, METADATA = (
    rf"(PUT|POST) .*{name}" for name in (r"/data/.*\.parquet", r"-m\d+\.avro", r"/snap-", r"\.metadata\.json")
)
ORIGIN = TableOrigin("orders", "id")
FORM = TableFormat(value="json", key="text", columns=("key",))
_numbers = count()


@pytest.fixture
def store(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    monkeypatch.setenv("S3_SECRET", SECRET)
    return object_store


@pytest.fixture
def options(store: ObjectStore, tmp_path: Path) -> dict[str, str]:
    """Of a catalog, whose tables lie in a prefix of their own."""
    return {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.sqlite",
        "warehouse": f"s3://{BUCKET}/lake{next(_numbers)}",
        "s3.endpoint": store.endpoint,
        "s3.region": "us-east-1",
        "s3.access-key-id": KEY,
        "s3.secret-access-key": "env:S3_SECRET",
    }


@pytest.fixture
def place(options: dict[str, str]) -> IcebergPlace:
    return in_catalog("lake", "shop.orders", options)


def data_files(store: ObjectStore, options: dict[str, str]) -> int:
    bucket = location(options["warehouse"], {**store.options, "access_key_id": KEY, "secret_access_key": "env:S3_SECRET"})
    return len([one for one in bucket.list() if one.name.endswith(".parquet")])


def numbers(place: IcebergPlace) -> list[int]:
    with opened_table(place) as table:
        return sorted(table.scan().to_arrow().column("n").to_pylist())


@pytest.mark.parametrize(
    ("mode", "at"),
    [
        ("append", DATA),
        pytest.param("append", MANIFEST, marks=pytest.mark.long),
        pytest.param("append", MANIFESTS, marks=pytest.mark.long),
        pytest.param("append", METADATA, marks=pytest.mark.long),
        pytest.param("upsert", DATA, marks=pytest.mark.long),
        ("upsert", METADATA),
    ],
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
) -> None:
    catalog = ["--catalog", "lake", *(word for name, value in options.items() for word in ("--catalog-option", f"{name}={value}"))]
    topic = a_topic(1)
    words = ["table", "sync", topic, "--to", "shop.orders", "--format", "iceberg", "--once", "--mode", mode, "--key", "text", *catalog]
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
    done = CliRunner().invoke(main, ["table", "compact", "shop.orders", *catalog, "--vacuum-hours", "0", "-o", "json"])
    assert json.loads(done.output)["vacuumed_files"] > 0, done.output
    assert data_files(store, options) == 1 < before
    assert ottla(*words)[-1]["records"] == 0


def test_throttling_errors_torn_uploads_and_lost_answers_of_the_store_are_retried(store: ObjectStore, place: IcebergPlace) -> None:
    target = IcebergTarget(place, pause=lambda _: None)
    target.form(ORIGIN)
    target.begin(ORIGIN, FORM, pa.schema([("n", pa.int64()), *FORM.metadata_schema()]))

    def put(before: int) -> None:
        files = target.files()
        files.write(pa.table({"n": [before], "_key": ["k"]}))
        target.commit(files.finish(), {0: before} if before else {}, {0: before + 1})

    for number, kind in enumerate(("slow down", "internal error", "tear", "lose answer")):
        for pattern in (DATA, MANIFEST, MANIFESTS, METADATA):
            store.inject(pattern, kind)
        put(number)
        assert store.happened(), kind
        store.clear()
    assert numbers(place) == [0, 1, 2, 3] and target.positions([0]) == {0: 4}


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
    ("mode", "at"),
    [
        ("spread", DATA),
        pytest.param("spread", MANIFEST, marks=pytest.mark.long),
        ("spread", METADATA),
        pytest.param("gathered", DATA, marks=pytest.mark.long),
        pytest.param("gathered", METADATA, marks=pytest.mark.long),
        pytest.param("merge", MANIFEST, marks=pytest.mark.long),
        ("merge", METADATA),
    ],
)
def test_a_driver_killed_between_upload_and_commit_leaves_no_rows_and_the_next_writes_the_batch_once(
    mode: str, at: str, store: ObjectStore, place: IcebergPlace, options: dict[str, str], tmp_path: Path
) -> None:
    pytest.importorskip("pyspark")
    given = ", ".join(f'"{name}" = "{value}"' for name, value in options.items())
    text = f'''bootstrap = "h:1"
checkpoint = "{tmp_path}/checkpoint"
source = {{ topic = "t" }}
decode = {{ format = "json", fields = {{ k = "string", n = "bigint" }} }}
[[sink]]
type = "iceberg"
catalog = "lake"
table = "shop.orders"
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
