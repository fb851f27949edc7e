"""Tables, exports and loads with servers of S3, Google Cloud Storage and Azure, and with faults between: each record once, as in a local
directory.
"""

import json
import signal
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("obstore")
pytest.importorskip("moto")

import pyarrow as pa
import pyarrow.parquet as pq
from click.testing import CliRunner

from conftest import Ottla  # type: ignore[attr-defined]
from object_store import BUCKET, KEY, SECRET, ObjectStore
from ottla.cli.main import main
from ottla.lake.storage import Location, StorageError, location, matching
from ottla.lake.table.delta import Overtaken, opened
from ottla.lake.table.parquet_target import ParquetTarget, read_manifest
from ottla.lake.table.schema import TableFormat
from ottla.lake.table.target import DeltaTarget, TableOrigin

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("object_stores")]

ORIGIN = TableOrigin("orders", "an-id")
FORM = TableFormat(value="raw", columns=("offset",))
Topics = Callable[..., str]
Send = Callable[..., None]
_numbers = count()


@pytest.fixture
def store(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    for name, value in object_store.kind.variables.items():
        monkeypatch.setenv(name, value)
    return object_store


@pytest.fixture
def place(store: ObjectStore) -> Location:
    """A prefix of its own."""
    return location(store.url(f"t{next(_numbers)}"), store.options)


def a_target(kind: type[Any], place: Location) -> Any:
    target = kind(place)
    target.begin(ORIGIN, FORM, FORM.metadata_schema())
    return target


def put(target: Any, first: int, rows: int) -> None:
    files = target.files()
    files.write(pa.table({"value": [b"x"] * rows, "offset": range(first, first + rows)}))
    target.commit(files.finish(), {0: first} if first else {}, {0: first + rows})


def offsets(place: Location) -> list[int]:
    """Of all rows that a reader of the table sees, in order."""
    table = opened(place)
    if table is not None:
        tables = [pa.table(table.scan().read_all())]
    else:
        tables = [pq.read_table(place.open(one.name)) for one in place.list() if one.name.endswith(".parquet")]
    return sorted(offset for one in tables for offset in one.column("_offset" if "_offset" in one.column_names else "offset").to_pylist())


COMMIT = r"PUT .*(/_delta_log/|/_ottla/manifest\.json)"
DATA = "PUT .*/part-"
TARGETS = pytest.mark.parametrize("kind", [DeltaTarget, ParquetTarget])
STORES = pytest.mark.parametrize("object_store", ["s3", "gs", "az"], indirect=True)
LONG = [pytest.param(kind, marks=pytest.mark.long) for kind in ("gs", "az")]
LONG_BUT_S3 = pytest.mark.parametrize("object_store", ["s3", *LONG], indirect=True)
SYNC, EXPORT = ("table", "sync"), ("pipeline", "export", "--format", "parquet")
COMMANDS = pytest.mark.parametrize("command", [SYNC, EXPORT])


@pytest.mark.parametrize(
    ("object_store", "command"),
    [
        ("s3", SYNC),
        ("s3", EXPORT),
        pytest.param("gs", SYNC, marks=pytest.mark.long),
        ("gs", EXPORT),
        pytest.param("az", SYNC, marks=pytest.mark.long),
        ("az", EXPORT),
    ],
    indirect=["object_store"],
)
def test_each_record_is_once_in_a_table_of_an_object_store(
    command: tuple[str, ...], a_topic: Topics, send: Send, ottla: Ottla, store: ObjectStore, place: Location
) -> None:
    topic = a_topic(2)
    send(topic, [{"id": number} for number in range(300)], partition=0)
    group, verb, *more = command
    if verb == "sync":
        more = ["--once"]
    words = [group, verb, topic, "--to", str(place), *store.words, *more]
    assert ottla(*words)[-1]["records"] == 300
    send(topic, [{"id": number} for number in range(100)], partition=1)
    assert ottla(*words)[-1]["records"] == 100 and ottla(*words)[-1]["records"] == 0
    assert offsets(place) == sorted([*range(300), *range(100)])
    (status,) = ottla("table", "status", str(place), *store.words, "-o", "json")
    assert status["rows"] == 400 and status["offsets"] == {"0": 300, "1": 100} and status["lag"] == 0


@LONG_BUT_S3
@COMMANDS
def test_a_process_killed_between_upload_and_commit_leaves_no_rows_and_the_next_continues(
    command: tuple[str, ...], a_topic: Topics, send: Send, ottla: Ottla, store: ObjectStore, place: Location
) -> None:
    topic = a_topic(1)
    send(topic, [{"id": number} for number in range(200)])
    group, verb, *more = command
    if verb == "sync":
        more = ["--once"]
    words = [group, verb, topic, "--to", str(place), *store.words, *more]
    store.inject(COMMIT, "pass")
    store.inject(COMMIT, "hold")
    process = ottla.start(*words)
    assert store.happened(), process.communicate(timeout=5)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    store.clear()
    assert offsets(place) == []
    assert ottla(*words)[-1]["records"] == 200
    assert offsets(place) == list(range(200))
    assert not [one for one in place.list() if one.name.endswith(".unfinished")]


@LONG_BUT_S3
@TARGETS
def test_throttling_errors_and_timeouts_of_the_store_are_retried(kind: type[Any], store: ObjectStore, place: Location) -> None:
    target = a_target(kind, place)
    for pattern, kind_of_fault, times in (
        (DATA, "slow down", 2),
        (DATA, "internal error", 1),
        (COMMIT, "slow down", 1),
        (DATA, "stall", 1),
    ):
        store.inject(pattern, kind_of_fault, times)
    put(target, 0, 3)
    assert store.happened() and offsets(place) == [0, 1, 2]


@LONG_BUT_S3
@TARGETS
def test_a_commit_whose_answer_is_lost_counts_once(kind: type[Any], store: ObjectStore, place: Location) -> None:
    target = a_target(kind, place)
    store.inject(COMMIT, "lose answer")
    put(target, 0, 2)
    assert store.happened()
    put(target, 2, 1)
    assert offsets(place) == [0, 1, 2] and target.positions([0]) == {0: 3}


@STORES
@TARGETS
def test_of_two_writers_of_one_table_the_slower_one_is_refused(kind: type[Any], place: Location) -> None:
    slow = a_target(kind, place)
    files = slow.files()
    files.write(pa.table({"value": [b"x"], "offset": [0]}))
    written = files.finish()
    fast = a_target(kind, place)
    put(fast, 0, 2)
    for _ in ("first try", "a try after it knows of the other"):
        with pytest.raises(Overtaken, match="another process"):
            slow.commit(written, {}, {0: 1})
    assert offsets(place) == [0, 1]


@STORES
def test_a_torn_part_of_a_multipart_upload_is_sent_again(store: ObjectStore, place: Location, tmp_path: Any) -> None:
    file = tmp_path / "big"
    file.write_bytes(bytes(range(256)) * (11 << 12))
    store.inject(store.kind.second_part, "tear")
    place.upload("big", file)
    with place.open("big") as found:
        assert store.happened() and found.read() == file.read_bytes()


@pytest.mark.parametrize("object_store", ["s3", "gs"], indirect=True)  # Azure's signature includes the conditions.
@TARGETS
def test_a_store_that_ignores_conditions_of_writes_is_refused(kind: type[Any], store: ObjectStore, place: Location) -> None:
    store.inject("PUT ", "unconditional", 1000)
    with pytest.raises(StorageError, match=r"does not make conditional writes.*use a store that makes them"):
        a_target(kind, place)
    assert list(place.list()) == []


@STORES
def test_objects_are_loaded_once_by_pattern_prefix_and_name(
    a_topic: Topics, ottla: Ottla, store: ObjectStore, place: Location, tmp_path: Any
) -> None:
    topic = a_topic(1)
    place.put("in/day=1/a.csv", b"id,city\n1,Graz\n2,Wien\n")
    place.put("in/_hidden.csv", b"id,city\n9,no\n")
    pq.write_table(pa.table({"id": [3], "city": ["Linz"]}), tmp_path / "b.parquet")
    place.upload("in/b.parquet", tmp_path / "b.parquet")
    state = ["--state", tmp_path / "state.jsonl", "-o", "json"]
    load = ["pipeline", "load", "--to", topic, *store.words, *state]
    first = ottla(*load, f"{place}/in/**/*.csv")
    assert first[-1]["records"] == 2, first
    second = ottla(*load, "--mixed", f"{place}/in")
    assert second[-1]["records"] == 1, second
    assert ottla(*load, f"{place}/in/b.parquet")[-1]["records"] == 0
    assert "no object there" in ottla(*load, f"{place}/none", code=1)[0]["refused"]


@LONG_BUT_S3
def test_an_iceberg_table_is_in_an_object_store_by_its_catalog(
    a_topic: Topics, send: Send, ottla: Ottla, store: ObjectStore, tmp_path: Path
) -> None:
    pytest.importorskip("pyiceberg")
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.sqlite", **store.iceberg("iceberg")}
    catalog = ["--catalog", "lake", *(word for name, value in properties.items() for word in ("--catalog-option", f"{name}={value}"))]
    topic = a_topic(1)
    send(topic, [{"id": number} for number in range(200)])
    words = ["table", "sync", topic, "--to", "shop.orders", "--format", "iceberg", "--once", *catalog]
    store.inject(r"(PUT|POST) .*\.metadata\.json", "pass")
    store.inject(r"(PUT|POST) .*/00001-.*\.metadata\.json", "hold")
    process = ottla.start(*words)
    assert store.happened(), process.communicate(timeout=5)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    store.clear()
    assert ottla(*words)[-1]["records"] == 200
    (found,) = ottla("table", "status", "shop.orders", *catalog, "-o", "json")
    assert (found["rows"], found["offsets"], found["lag"]) == (200, {"0": 200}, 0)
    bucket = location(store.url("iceberg"), store.options)
    assert len([one for one in bucket.list() if one.name.endswith(".parquet")]) == 2, "one of the killed process"
    removed = CliRunner().invoke(main, ["table", "compact", "shop.orders", *catalog, "--vacuum-hours", "0", "-o", "json"])
    assert json.loads(removed.output)["vacuumed_files"] > 0
    assert len([one for one in bucket.list() if one.name.endswith(".parquet")]) == 1


@LONG_BUT_S3
def test_partitions_of_an_iceberg_table_are_uploaded_by_tasks_and_committed_once(store: ObjectStore, tmp_path: Path) -> None:
    pytest.importorskip("pyiceberg")
    from ottla.lake.table.iceberg_batches import IcebergBatches
    from ottla.lake.table.iceberg_catalog import in_catalog, opened_table

    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.sqlite", **store.iceberg("parts")}
    place = in_catalog("lake", "shop.counts", properties)
    rows = pa.table({"n": [1, 2, 3], "part": ["a", "b", None]})
    table = IcebergBatches(place)
    table.ensure(rows.schema, partition_by=("part",))
    plan = table.plan()
    assert plan.directory is None
    failed, files = plan.files(table.uploads()), plan.files(table.uploads())
    failed.write(rows)
    failed.finish()
    bucket = location(store.url("parts"), store.options)
    files.write(rows)
    written = files.finish()
    assert len([one for one in bucket.list() if one.name.endswith(".parquet")]) == 6
    assert IcebergBatches(place).append(written, "q", 0) and not IcebergBatches(place).append(written, "q", 0)
    with opened_table(place) as found:
        assert sorted(found.scan().to_arrow().column("n").to_pylist()) == [1, 2, 3]
    assert table.vacuum(0) > 0
    assert len([one for one in bucket.list() if one.name.endswith(".parquet")]) == 3, "those of the failed task are removed"
    assert store.kind.secret not in repr(place) + repr(plan)


def test_secrets_are_refused_on_the_command_line_and_in_no_output(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["table", "status", f"s3://{BUCKET}/none", "--offline", *store.words]
    shown = CliRunner().invoke(main, [*words, "--storage-option", "secret_access_key=hunter22"])
    assert shown.exit_code == 2 and "secret_access_key=env:VARIABLE" in shown.output and "hunter22" not in shown.output
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("MY_SECRET", "hunter22")
    done = CliRunner().invoke(main, [*words, "--storage-option", "secret_access_key=env:MY_SECRET"])
    assert done.exit_code == 1 and f"there is no table at s3://{BUCKET}/none" in done.output and "hunter22" not in done.output


def test_a_profile_has_the_options_of_a_store_for_tables_exports_and_loads(
    a_topic: Topics,
    send: Send,
    ottla: Ottla,
    store: ObjectStore,
    place: Location,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    bootstrap: str,
) -> None:
    monkeypatch.setenv("OTTLA_CONFIG", str(tmp_path / "config.toml"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    (tmp_path / "key").write_text(f"{SECRET}\n")
    options = {**store.options, "access_key_id": KEY, "secret_access_key": f"file:{tmp_path}/key"}
    words = [word for name, value in options.items() for word in ("--storage-option", f"s3.{name}={value}")]
    assert CliRunner().invoke(main, ["profile", "add", "lake", bootstrap, *words]).exit_code == 0
    topic = a_topic(1)
    send(topic, [{"id": number} for number in range(3)])
    lake = ["--profile", "lake"]
    assert ottla("table", "sync", topic, "--to", str(place), "--once", *lake)[-1]["records"] == 3
    assert ottla("pipeline", "export", topic, "--to", f"{place}/files", "--format", "parquet", *lake)[-1]["records"] == 3
    (file,) = (one.name for one in location(f"{place}/files", options).list() if one.name.endswith(".parquet"))
    load = ["pipeline", "load", "--to", a_topic(1), "--state", tmp_path / "state.jsonl", f"{place}/files/{file}", *lake]
    assert ottla(*load)[-1]["records"] == 3
    for command in (["status", "-o", "json"], ["compact", "-o", "json"]):
        assert CliRunner().invoke(main, ["table", command[0], str(place), *command[1:], *lake]).exit_code == 0
    # An option of the command comes first.
    shown = CliRunner().invoke(main, ["table", "compact", str(place), *lake, "--storage-option", "endpoint=http://127.0.0.1:9"])
    assert shown.exit_code == 1 and SECRET not in shown.output
    # Without the profile there are no keys, and no store.
    assert CliRunner().invoke(main, ["table", "status", f"{place}", "-b", bootstrap, *store.words]).exit_code == 1


def test_a_session_token_of_other_keys_is_refused(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-the-keys-of-the-environment")
    monkeypatch.setenv("MY_SECRET", SECRET)
    options = {**store.options, "access_key_id": "another", "secret_access_key": "env:MY_SECRET"}
    with pytest.raises(StorageError, match="AWS_SESSION_TOKEN is not the token of the storage option access_key_id"):
        location(f"s3://{BUCKET}/x", options).head("y")
    location(f"s3://{BUCKET}/x", {**options, "access_key_id": KEY}).head("y")


def test_locations_are_refused_with_what_to_do(store: ObjectStore) -> None:
    for url, options, told in (
        ("s3:///x", {}, "names no bucket"),
        ("s3://key:secret@b/x", {}, "credentials do not belong into an address"),
        ("s3://b/x", {"endpont": "x"}, "did you mean endpoint"),
        ("gs://b/x", {"region": "x"}, "is not known for gs://"),
        ("az://c/x", {"account_key": "abc"}, "account_key=env:VARIABLE"),
    ):
        with pytest.raises(StorageError, match=told) as refused:
            location(url, options)
        assert "secret@" not in str(refused.value) and "abc" not in str(refused.value)
    with pytest.raises(StorageError, match="allow_http=true"):
        location(f"s3://{BUCKET}/x", {"endpoint": store.endpoint}).storage_options()
    with pytest.raises(StorageError, match="no variable NO_SUCH"):
        location(f"s3://{BUCKET}/x", {"secret_access_key": "env:NO_SUCH"}).storage_options()


@STORES
def test_a_missing_bucket_and_an_unreachable_store_are_named(store: ObjectStore) -> None:
    scheme = store.kind.scheme
    nowhere = location(f"{scheme}://no-such-bucket/t", store.options)
    with pytest.raises(OSError, match="ContainerNotFound" if scheme == "az" else "NoSuchBucket"):
        nowhere.put("x", b"")
    assert str(nowhere) == f"{scheme}://no-such-bucket/t"


@STORES
def test_patterns_match_as_in_directories(place: Location) -> None:
    for name in ("a/1.csv", "a/b/2.csv", "a/b/c/3.csv", "a/x.txt"):
        place.put(name, b"")

    def found(pattern: str) -> list[str]:
        bucket, objects = matching(place.below(pattern))
        return [f"{bucket}/{one.name}".removeprefix(f"{place}/") for one in objects]

    assert found("a/*.csv") == ["a/1.csv"]
    assert found("a/**/*.csv") == ["a/1.csv", "a/b/2.csv", "a/b/c/3.csv"]
    assert found("a/?/[!3].csv") == ["a/b/2.csv"]
    assert found("a/b") == ["a/b/2.csv", "a/b/c/3.csv"]


@STORES
def test_an_object_that_is_replaced_while_it_is_read_ends_the_read(place: Location) -> None:
    place.put("x", b"1" * (9 << 20))
    with place.open("x") as reader:
        assert reader.read(10) == b"1" * 10
        place.put("x", b"2" * (9 << 20))
        with pytest.raises(OSError, match="was replaced while it was read"):
            reader.read()
    assert read_manifest(place) is None
