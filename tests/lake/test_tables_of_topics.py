"""`ottla table sync` and `ottla pipeline export` against a broker: the rows of the table, each record exactly once."""

import json
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from conftest import Ottla  # type: ignore[attr-defined]
from ottla import Producer
from ottla.client.admin.results import NewTopic
from ottla.client.sync.admin import Admin
from ottla.lake.table.delta import Overtaken, opened
from ottla.lake.table.rows import Rows
from ottla.lake.table.schema import TableFormat
from ottla.lake.table.status import status
from ottla.lake.table.sync import SyncOptions, SyncProgress, TableSync
from ottla.lake.table.target import DeltaTarget, LakeTarget, TableOrigin
from ottla.lake.table.topic import Topic
from serving import Serving

pytestmark = pytest.mark.server
NEEDS_PYICEBERG = pytest.mark.skipif(find_spec("pyiceberg") is None, reason="needs pyiceberg")

Topics = Callable[..., str]
Send = Callable[..., None]


def delta_rows(path: Path, *names: str) -> list[dict[str, Any]]:
    table = pa.table(opened(str(path)).scan().read_all())
    return sorted(table.select(names or table.column_names).to_pylist(), key=str)


def parquet_rows(path: Path, *names: str) -> list[dict[str, Any]]:
    files = [str(one) for one in path.rglob("*.parquet")]
    table = ds.dataset(files, format="parquet").to_table()
    return sorted(table.select(names or table.column_names).to_pylist(), key=str)


def iceberg_rows(path: Path, *names: str) -> list[dict[str, Any]]:
    from ottla.lake.table.iceberg_catalog import embedded, opened_table

    with opened_table(embedded(path)) as table:
        found = table.scan().to_arrow()
    return sorted(found.select(names or found.column_names).to_pylist(), key=str)


def a_target(form: str, path: Path) -> LakeTarget:
    if form == "delta":
        return DeltaTarget(path)
    from ottla.lake.table.iceberg_catalog import embedded
    from ottla.lake.table.iceberg_target import IcebergTarget

    return IcebergTarget(embedded(path))


ROWS = {"delta": delta_rows, "parquet": parquet_rows, "iceberg": iceberg_rows}
LAKES = pytest.mark.parametrize("form", ["delta", pytest.param("iceberg", marks=NEEDS_PYICEBERG)])


def notes(lines: list[dict[str, Any]], kind: str) -> list[str]:
    return [line["text"] for line in lines if line.get("kind") == kind]


def test_fields_of_values_become_columns_and_bad_values_keep_their_offset(
    a_topic: Topics, send: Send, ottla: Ottla, tmp_path: Path
) -> None:
    topic = a_topic(1)
    send(topic, [("a", {"id": 1, "at": "2026-01-01"}), ("b", {"id": 2, "tags": ["x"]}), ("c", None)])
    lines = ottla("table", "sync", topic, "--to", tmp_path / "t", "--once")
    assert notes(lines, "form") == ["value json, key text, append"]
    send(topic, [(None, b"{broken"), (None, {"id": "three"})])
    end = ottla("table", "sync", topic, "--to", tmp_path / "t", "--once")[-1]
    assert (end["event"], end["records"], end["corrupt"], end["lag"]) == ("end", 2, 2, 0)
    assert delta_rows(tmp_path / "t", "_offset", "_key", "id", "at", "tags", "_corrupt") == [
        {"_offset": 0, "_key": "a", "id": 1, "at": "2026-01-01", "tags": None, "_corrupt": None},
        {"_offset": 1, "_key": "b", "id": 2, "at": None, "tags": ["x"], "_corrupt": None},
        {"_offset": 2, "_key": "c", "id": None, "at": None, "tags": None, "_corrupt": None},
        {"_offset": 3, "_key": None, "id": None, "at": None, "tags": None, "_corrupt": b"{broken"},
        {"_offset": 4, "_key": None, "id": None, "at": None, "tags": None, "_corrupt": b'{"id": "three"}'},
    ]
    assert opened(str(tmp_path / "t")).schema().to_arrow().names[:3] == ["id", "at", "tags"]


@LAKES
def test_new_fields_become_columns_and_integers_are_widened_to_doubles(
    form: str, a_topic: Topics, send: Send, ottla: Ottla, tmp_path: Path
) -> None:
    topic = a_topic(1)
    send(topic, [{"n": 1}])
    keep = ("table", "sync", topic, "--to", tmp_path / "t", "--once", "--format", form)
    ottla(*keep)
    send(topic, [{"n": 2, "more": {"x": True}}, {"n": 0.5}])
    lines = ottla(*keep)
    assert sorted(notes(lines, "column")) == ["more struct<x: boolean>", "n double"]
    assert ROWS[form](tmp_path / "t", "n", "more", "_corrupt") == [
        {"n": 0.5, "more": None, "_corrupt": None},
        {"n": 1.0, "more": None, "_corrupt": None},
        {"n": 2.0, "more": {"x": True}, "_corrupt": None},
    ]


@LAKES
def test_a_compacted_topic_becomes_a_table_of_its_last_values(form: str, a_topic: Topics, send: Send, ottla: Ottla, tmp_path: Path) -> None:
    topic = a_topic(2, cleanup_policy="compact")
    send(topic, [("a", {"n": 1}), ("b", {"n": 1}), ("a", {"n": 2}), ("gone", {"n": 0}), ("gone", None)])
    keep = ("table", "sync", topic, "--to", tmp_path / "t", "--once", "--format", form)
    assert notes(ottla(*keep), "form") == ["value json, key text, upsert"]
    assert ROWS[form](tmp_path / "t", "_key", "n") == [{"_key": "a", "n": 2}, {"_key": "b", "n": 1}]
    send(topic, [("b", {"n": 3, "new": "x"}), ("a", None), ("c", {"n": 4}), ("never", None)])
    ottla(*keep)
    assert ROWS[form](tmp_path / "t", "_key", "n", "new") == [{"_key": "b", "n": 3, "new": "x"}, {"_key": "c", "n": 4, "new": None}]


def test_a_record_without_a_key_is_an_error_in_upsert_mode(a_topic: Topics, send: Send, ottla: Ottla, tmp_path: Path) -> None:
    topic = a_topic(1)
    send(topic, [("a", {"n": 1}), {"n": 1}])
    message = ottla("table", "sync", topic, "--to", tmp_path / "t", "--once", "--mode", "upsert", code=1)[0]["refused"]
    assert "offset 1 has no key" in message and "--mode append" in message


class Watch:
    """Counts commits and ignores other progress."""

    def __init__(self) -> None:
        self.commits = 0

    def moved(self, progress: SyncProgress) -> None: ...

    def noted(self, kind: str, story: str) -> None: ...

    def committed(self, progress: SyncProgress) -> None:
        self.commits += 1


@contextmanager
def syncing(
    bootstrap: str, topic_name: str, path: Path, errors: list[Exception], group: str | None = None, form: str = "delta"
) -> Iterator[Watch]:
    """A table sync in its own thread."""
    stop, watch = threading.Event(), Watch()

    def run() -> None:
        with Topic(topic_name, bootstrap_servers=bootstrap) as topic:
            plan = SyncOptions(commit_interval_s=0.02, group=group, compact_commits=3)
            try:
                rows = Rows(TableFormat(value="json", key="text"))
                TableSync(topic, a_target(form, path), rows, plan, watcher=watch, stop=stop).run()  # type: ignore[arg-type]
            except Exception as error:
                errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield watch
    finally:
        stop.set()
        thread.join(60)
        assert not thread.is_alive()


def eventually(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@LAKES
def test_a_table_follows_its_topic_compacts_files_and_commits_for_a_group(
    form: str, a_topic: Topics, send: Send, tmp_path: Path, bootstrap: str
) -> None:
    topic, errors = a_topic(2), list[Exception]()
    with syncing(bootstrap, topic, tmp_path / "t", errors, f"{topic}-lag", form) as watch:
        for number in range(6):
            send(topic, [{"n": number}])
            eventually(lambda number=number: watch.commits > number)  # type: ignore[misc]
    assert not errors
    assert [row["n"] for row in ROWS[form](tmp_path / "t", "n")] == list(range(6))
    assert status(tmp_path / "t").files < 6
    with Admin(bootstrap_servers=bootstrap) as admin:
        assert sum(found.offset for found in admin.list_consumer_group_offsets([f"{topic}-lag"])[f"{topic}-lag"].values()) == 6  # type: ignore[misc, union-attr]


@LAKES
def test_the_second_of_two_writers_of_a_table_ends(form: str, a_topic: Topics, send: Send, tmp_path: Path, bootstrap: str) -> None:
    topic, errors, number = a_topic(1), list[Exception](), 0
    sync = partial(syncing, bootstrap, topic, tmp_path / "t", errors, form=form)
    with sync() as one, sync() as two:
        deadline = time.monotonic() + 60
        while not errors:
            assert time.monotonic() < deadline, "one of the two should have ended"
            send(topic, [{"n": number}])
            number += 1
        assert isinstance(errors[0], Overtaken) and "another process" in str(errors[0])
        eventually(lambda: one.commits + two.commits > 0 and len(ROWS[form](tmp_path / "t", "n")) == number)
    assert [row["n"] for row in sorted(ROWS[form](tmp_path / "t", "n"), key=lambda row: row["n"])] == list(range(number))


@pytest.mark.parametrize("form", ["delta", "parquet", pytest.param("iceberg", marks=NEEDS_PYICEBERG)])
def test_a_killed_and_repeated_export_has_each_record_once(form: str, a_topic: Topics, send: Send, ottla: Ottla, tmp_path: Path) -> None:
    topic, chance = a_topic(3), random.Random(form)
    send(topic, [{"n": number, "text": "x" * 200} for number in range(20_000)])
    export = ("pipeline", "export", topic, "--to", tmp_path / "t", "--format", form, "--commit-bytes", "50KB", "--partition-by", "date")
    settings = ("-X", "max.partition.fetch.bytes=40000")
    # A start with Iceberg takes longer.
    for _ in range(1 if form == "iceberg" else 2):
        process = ottla.start(*export, *settings)
        assert process.stdout is not None
        # At some moment after its first commit.
        for line in process.stdout:
            if json.loads(line)["event"] == "commit":
                break
        time.sleep(chance.random() / 4)
        process.kill()
        process.wait(30)
        process.stdout.close()
        rows = ROWS[form](tmp_path / "t", "n")
        assert len({row["n"] for row in rows}) == len(rows)
    send(topic, [{"n": 20_000, "text": ""}])
    ottla(*export)
    rows = ROWS[form](tmp_path / "t", "n")
    assert [row["n"] for row in sorted(rows, key=lambda row: row["n"])] == list(range(20_001))
    assert not list((tmp_path / "t").rglob("*.unfinished"))


@LAKES
def test_a_stopped_and_killed_sync_has_the_newest_record_of_each_key(
    form: str, a_topic: Topics, send: Send, ottla: Ottla, tmp_path: Path
) -> None:
    topic, chance = a_topic(2), random.Random(5)
    keep = ("table", "sync", topic, "--to", tmp_path / "t", "--mode", "upsert", "--commit-interval", "200ms", "--format", form)
    newest: dict[str, int] = {}
    numbers = count()

    def more() -> None:
        changes = [(f"k{chance.randrange(200)}", next(numbers)) for _ in range(300)]
        send(topic, [(key, {"n": n}) for key, n in changes])
        newest.update(changes)

    all_ends = ((signal.SIGINT, 0), (signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL))
    for ends, code in all_ends[2:] if form == "iceberg" else all_ends:
        more()
        process = ottla.start(*keep)
        assert process.stdout is not None
        for line in process.stdout:
            if json.loads(line)["event"] == "commit":
                break
        # At some moment before, during or after the next commit.
        more()
        time.sleep(chance.random() / 2)
        process.send_signal(ends)
        rest, _ = process.communicate(timeout=30)
        assert process.returncode == code, rest
        kept = {row["_key"]: row["n"] for row in ROWS[form](tmp_path / "t", "_key", "n")}
        assert kept.keys() <= newest.keys() and all(n <= newest[key] for key, n in kept.items())
    ottla(*keep, "--once")
    rows = ROWS[form](tmp_path / "t", "_key", "n")
    assert {row["_key"]: row["n"] for row in rows} == newest
    assert len(rows) == len(newest)


def test_a_sync_continues_when_its_broker_returns(tmp_path: Path) -> None:
    with Serving(tmp_path / "data") as server:
        with Admin(bootstrap_servers=server.bootstrap) as admin:
            admin.create_topic(NewTopic("t", 1))
        with Producer(bootstrap_servers=server.bootstrap) as producer:
            producer.send("t", value=b'{"n": 0}').result()
        errors: list[Exception] = []
        with syncing(server.bootstrap, "t", tmp_path / "t", errors) as watch:
            eventually(lambda: watch.commits == 1)
            server.kill()
            server.start()
            with Producer(bootstrap_servers=server.bootstrap) as producer:
                producer.send("t", value=b'{"n": 1}').result()
            eventually(lambda: bool(errors) or watch.commits == 2)
    assert not errors
    assert [row["n"] for row in delta_rows(tmp_path / "t", "n")] == [0, 1]


def test_export_files_have_one_type_per_column(a_topic: Topics, send: Send, ottla: Ottla, tmp_path: Path) -> None:
    topic = a_topic(1)
    export = ("pipeline", "export", topic, "--to", tmp_path / "t", "--format", "parquet")
    send(topic, [{"n": 1}])
    ottla(*export)
    send(topic, [{"n": 0.5, "new": "x"}, {"n": 2, "new": "y"}])
    lines = ottla(*export)
    assert "n long, not double" in notes(lines, "conflict")[0] and lines[-1]["corrupt"] == 1
    last = pq.read_table(max((tmp_path / "t").glob("*.parquet"), key=lambda one: one.stat().st_mtime_ns))
    assert last.select(["n", "new", "_corrupt"]).to_pylist() == [
        {"n": None, "new": None, "_corrupt": b'{"n": 0.5, "new": "x"}'},
        {"n": 2, "new": "y", "_corrupt": None},
    ]


def test_a_recreated_topic_is_refused(a_topic: Topics, send: Send, ottla: Ottla, tmp_path: Path, bootstrap: str) -> None:
    topic = a_topic(1)
    send(topic, [b"some text"])
    ottla("table", "sync", topic, "--to", tmp_path / "t", "--once")
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.delete_topic(topic)
        admin.create_topic(NewTopic(topic, 1))
    message = ottla("table", "sync", topic, "--to", tmp_path / "t", "--once", code=1)[0]["refused"]
    assert "was deleted and recreated" in message and "another directory" in message


def test_records_deleted_before_they_were_read_end_it_or_are_counted(
    a_topic: Topics, send: Send, ottla: Ottla, tmp_path: Path, bootstrap: str
) -> None:
    topic = a_topic(1)
    send(topic, [b"one"])
    ottla("table", "sync", topic, "--to", tmp_path / "t", "--once")
    send(topic, [b"two", b"three", b"four"])
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.delete_records({(topic, 0): 3})
    keep = ("table", "sync", topic, "--to", tmp_path / "t", "--once")
    assert f"{topic}-0 offsets 1 to 2" in ottla(*keep, code=1)[0]["refused"]
    assert ottla(*keep, "--on-loss", "warn")[-1]["lost"] == 2
    assert [row["value"] for row in delta_rows(tmp_path / "t", "value")] == ["four", "one"]


def test_all_remaining_records_can_be_deleted(a_topic: Topics, send: Send, ottla: Ottla, tmp_path: Path, bootstrap: str) -> None:
    topic = a_topic(1)
    send(topic, [b"one", b"two"])
    export = ("pipeline", "export", topic, "--to", tmp_path / "t", "--on-loss", "warn")
    ottla(*export)
    send(topic, [b"three"])
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.delete_records({(topic, 0): 3})
    assert ottla(*export)[-1]["offsets"] == {"0": 3}


def test_a_log_that_ends_before_the_position_of_the_table_was_truncated(
    a_topic: Topics, send: Send, ottla: Ottla, tmp_path: Path, bootstrap: str
) -> None:
    topic = a_topic(1)
    send(topic, [b"one"])
    keep = ("table", "sync", topic, "--to", tmp_path / "t", "--once")
    ottla(*keep)
    with Topic(topic, bootstrap_servers=bootstrap) as there:
        target = DeltaTarget(tmp_path / "t")
        target.begin(TableOrigin(topic, there.topic_id), TableFormat(), pa.schema([]))
        target.commit([], {0: 1}, {0: 3})
    assert f"{topic}-0" in (message := ottla(*keep, code=1)[0]["refused"]) and "ends at 1 and the table at 3" in message
    assert len(notes(ottla(*keep, "--on-loss", "warn"), "cut off")) == 1
    send(topic, [b"two"])
    ottla(*keep)
    assert delta_rows(tmp_path / "t", "offset", "value") == [{"offset": 0, "value": "one"}, {"offset": 1, "value": "two"}]


def test_an_export_can_take_a_range_and_add_new_records(a_topic: Topics, send: Send, ottla: Ottla, tmp_path: Path) -> None:
    topic = a_topic(1)
    send(topic, [b"%d" % number for number in range(10)])
    ottla("pipeline", "export", f"{topic}@-4:", "--to", tmp_path / "t", "--format", "parquet")
    send(topic, [b"10"])
    ottla("pipeline", "export", topic, "--to", tmp_path / "t", "--format", "parquet")
    assert [int(row["value"]) for row in parquet_rows(tmp_path / "t", "value")] == [10, 6, 7, 8, 9]
    assert (
        "value" in ottla("pipeline", "export", topic, "--to", tmp_path / "t", "--value", "raw", "--format", "parquet", code=1)[0]["refused"]
    )


def test_status_describes_a_table(a_topic: Topics, send: Send, ottla: Ottla, tmp_path: Path) -> None:
    topic = a_topic(2)
    send(topic, [{"n": 1}] * 3, partition=1)
    ottla("table", "sync", topic, "--to", tmp_path / "t", "--once")
    send(topic, [{"n": 1}], partition=0)
    (found,) = ottla("table", "status", tmp_path / "t", "-o", "json")
    assert (found["topic"], found["rows"], found["files"], found["offsets"]["1"], found["lag"]) == (topic, 3, 1, 3, 1)
    assert found["columns"]["n"] == "long"
    assert "there is no table" in ottla("table", "status", tmp_path, code=1)[0]["refused"]
