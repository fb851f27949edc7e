"""`ottla pipeline load` against an in-memory cluster: loaded records, a second run, and output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from click.testing import CliRunner, Result
from memory_cluster import MemoryCluster

from ottla.cli.main import main
from ottla.lake.load import log_tail
from ottla.lake.load.load_journal import JournalEntry, LoadJournal
from ottla.records import partition_for_key
from ottla.records.read import records


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Journals and files are in the test's own directory; waits take no time."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(log_tail, "QUIET_S", 0.0)
    return tmp_path


def load(*arguments: str, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(main, ["pipeline", "load", *arguments, "-b", "boot:1"], input=stdin)


def loaded(*arguments: str, stdin: bytes = b"") -> dict[str, Any]:
    """Summary of a load that succeeded."""
    result = load(*arguments, stdin=stdin)
    assert result.exit_code == 0, result.output
    last: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    assert last["event"] == "loaded"
    return last


def stored(cluster: MemoryCluster, topic: str) -> list[list[Any]]:
    """(key, value) of each record, by partition."""
    return [[(key, value) for batch in log.batches for _, _, key, value, _ in records(batch)] for log in cluster.logs[topic]]


def values(cluster: MemoryCluster, topic: str = "many") -> list[bytes]:
    return [value for log in stored(cluster, topic) for _, value in log]


def numbered(rows: int) -> str:
    return "id,v\n" + "".join(f"{n},value {n}\n" for n in range(rows))


def test_rows_arrive_as_json_with_key_headers_and_timestamp(cluster: MemoryCluster) -> None:
    Path("a.csv").write_text("id,name,at\n1,Ann,2026-01-31T00:00:00\n2,,2026-01-31T00:00:01\n")
    summary = loaded("a.csv", "--to", "t", "--key", "{name}/{id}", "--columns", "id,name", "-H", "src={_file}", "--timestamp", "at")
    assert (summary["files"], summary["records"]) == (1, 2)
    found = [record[1:] for batch in cluster.logs["t"][0].batches for record in records(batch)]
    assert found == [
        (1_769_817_600_000, b"Ann/1", b'{"id":1,"name":"Ann"}', (("src", b"a.csv"),)),
        (1_769_817_601_000, None, b'{"id":2,"name":null}', (("src", b"a.csv"),)),
    ]


def test_each_format_is_reported_by_its_name(cluster: MemoryCluster) -> None:
    table = pa.table({"id": [1, 2]})
    pyarrow.parquet.write_table(table, "a.parquet")
    with pa.ipc.new_file("b.arrow", table.schema) as writer:
        writer.write_table(table)
    Path("c.jsonl").write_text('{"id": 3}\n')
    Path("d.txt").write_text("4\n")
    assert loaded(".", "--to", "t")["files"] == 4
    assert values(cluster, "t") == [b'{"id":1}', b'{"id":2}', b'{"id":1}', b'{"id":2}', b'{"id": 3}', b"4"]
    assert (
        loaded("-", "--format", "json", "--value", "n", "--key", "id", "--to", "many", stdin=b'{"id":5,"n":"x"}\n{"id":6}')["records"] == 2
    )
    assert {pair for log in stored(cluster, "many") for pair in log} == {(b"5", b"x"), (b"6", None)}


def test_keys_are_partitioned_as_in_java_and_rows_without_one_alternate(cluster: MemoryCluster) -> None:
    Path("a.csv").write_text(numbered(5000))
    loaded("a.csv", "--to", "many", "--key", "id")
    for partition, log in enumerate(stored(cluster, "many")):
        numbers = [int(key) for key, _ in log]
        assert numbers == [n for n in range(5000) if partition_for_key(b"%d" % n, 3) == partition]
    cluster.create("turns", 3)
    loaded("a.csv", "--to", "turns", "--value", "id")
    assert [[int(value) // 1000 for value in (log[0][1], log[-1][1])] for log in stored(cluster, "turns")] == [[0, 3], [1, 4], [2, 2]]


def test_a_second_run_loads_only_new_rows(cluster: MemoryCluster) -> None:
    Path("a.csv").write_text(numbered(3))
    assert loaded("a.csv", "--to", "many")["records"] == 3
    Path("b.csv").write_text("id,v\n7,x\n")
    summary = loaded("*.csv", "--to", "many")
    assert (summary["records"], summary["files"], summary["already_loaded"]) == (1, 1, 1)
    assert loaded("*.csv", "--to", "many", "--again")["records"] == 4
    assert loaded("*.csv", "--to", "t")["records"] == 4, "another topic has a journal of its own"


def test_the_next_run_continues_after_a_limit(cluster: MemoryCluster) -> None:
    Path("a.csv").write_text(numbered(2500))
    Path("b.csv").write_text(numbered(10))
    assert [loaded("a.csv", "b.csv", "--to", "many", "--value", "id", "--limit", "1200")["records"] for _ in range(4)] == [
        1200,
        1200,
        110,
        0,
    ]
    assert sorted(map(int, values(cluster))) == sorted([*range(2500), *range(10)])


# -- a process that dies


class Dying(LoadJournal):
    """A journal whose process dies after it recorded the start of a write."""

    notes = 1

    def note(self, entry: JournalEntry) -> None:
        if self.notes:
            self.notes -= 1
            super().note(entry)


@pytest.mark.parametrize("key", [(), ("--key", "id")])
def test_records_written_before_a_crash_are_found_in_the_log(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch, key: tuple[str, ...]
) -> None:
    Path("a.csv").write_text(numbered(5000))
    command = ("a.csv", "--to", "many", "--value", "id", *key)
    loaded("a.csv", "--to", "t", "--value", "id")
    with monkeypatch.context() as dying:
        dying.setattr("ottla.lake.load.load_journal.LoadJournal", Dying)
        assert loaded(*command, "--limit", "1234")["records"] == 1234
        Dying.notes = 1
        summary = loaded(*command, "--limit", "500")
        assert (summary["records"], summary["found"]) == (500, 1234)
        Dying.notes = 1
    summary = loaded(*command)
    assert (summary["records"], summary["found"]) == (5000 - 1734, 1734)
    assert sorted(map(int, values(cluster))) == list(range(5000))


def test_records_of_other_producers_are_not_mistaken_for_its_own(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("a.csv").write_text(numbered(100))
    with monkeypatch.context() as dying:
        dying.setattr("ottla.lake.load.load_journal.LoadJournal", Dying)
        Dying.notes = 1
        loaded("a.csv", "--to", "t", "--value", "id", "--limit", "40")
    assert CliRunner().invoke(main, ["produce", "t", "-b", "boot:1"], input=b"of another\n" * 30).exit_code == 0
    summary = loaded("a.csv", "--to", "t", "--value", "id")
    assert (summary["records"], summary["found"]) == (60, 40)
    assert sorted(int(value) for value in values(cluster, "t") if value != b"of another") == list(range(100))


def test_a_load_continues_after_partitions_were_added(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("a.csv").write_text(numbered(5000))
    cluster.create("grows", 2)
    with monkeypatch.context() as dying:
        dying.setattr("ottla.lake.load.load_journal.LoadJournal", Dying)
        Dying.notes = 1
        loaded("a.csv", "--to", "grows", "--value", "id", "--key", "id", "--limit", "2000")
    cluster.create("other", 3)
    cluster.logs["grows"].append(cluster.logs["other"][2])
    cluster.leaders["grows", 2] = cluster.leaders["grows", 1]
    assert loaded("a.csv", "--to", "grows", "--value", "id", "--key", "id")["found"] == 2000
    assert sorted(map(int, values(cluster, "grows"))) == list(range(5000))


# -- unreadable input


BAD = "id,v\n1,a\n2,b\nx\n4,d\n"


def test_a_bad_line_ends_the_load_and_is_named(cluster: MemoryCluster) -> None:
    Path("a.csv").write_text(BAD)
    result = load("a.csv", "--to", "t")
    assert result.exit_code == 1
    assert "Error: a.csv, line 4: 1 fields, and there are 2 columns; 2 records were written before" in result.stderr
    Path("a.csv").write_text(BAD.replace("x\n", "3,c\n"))
    assert "--changed continue" in load("a.csv", "--to", "t").stderr
    assert loaded("a.csv", "--to", "t", "--changed", "continue")["records"] == 2
    assert [json.loads(value)["id"] for value in values(cluster, "t")] == [1, 2, 3, 4]


def test_bad_lines_can_be_skipped_or_kept_in_a_file(cluster: MemoryCluster) -> None:
    Path("a.csv").write_text(BAD)
    result = load("a.csv", "--to", "t", "--bad-records", "skip", "-o", "text")
    assert result.exit_code == 0 and "Warning: a.csv, line 4: 1 fields" in result.stderr and "1 record could not be read" in result.stderr
    summary = loaded("a.csv", "--to", "t", "--again", "--bad-records", "bad.jsonl")
    assert (summary["records"], summary["bad"]) == (3, 1)
    assert json.loads(Path("bad.jsonl").read_text()) == {
        "file": "a.csv", "line": 4, "why": "1 fields, and there are 2 columns", "data": "x",
    }  # fmt: skip


def test_a_row_that_makes_no_record_is_handled_alike(cluster: MemoryCluster) -> None:
    Path("a.jsonl").write_text('{"id":1,"at":"2026-01-31"}\n{"id":2,"at":"soon"}\n{"id":3}\n')
    result = load("a.jsonl", "--to", "t", "--timestamp", "at")
    assert result.exit_code == 1 and "a.jsonl, record 2: column at: 'soon' is not a time" in result.stderr
    assert loaded("a.jsonl", "--to", "t", "--timestamp", "at", "--bad-records", "skip")["records"] == 1
    assert values(cluster, "t") == [b'{"id":1,"at":"2026-01-31"}', b'{"id":3}']


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("a.csv", "--to", "t", "--key", "idd"), "no column 'idd'; did you mean id?; the columns are id, v"),
        (("a.csv", "--to", "tt"), "topic tt does not exist; did you mean t?; create it with --create --partitions 4"),
        (("a.csv", "--to", "many", "--create", "--partitions", "2"), "topic many exists with 3 partitions, not 2"),
        (("b.csv", "--to", "t"), "b.csv: no such file; did you mean a.csv?"),
        (("a.csv", "--to", "t", "-p", "1"), "row 0 names partition 1; the topic has 1 partitions"),
        (("a.csv", "--to", "t", "-X", "enable.idempotence=false"), "enable_idempotence is off"),
    ],
)
def test_invalid_options_are_reported_and_nothing_sent(cluster: MemoryCluster, arguments: tuple[str, ...], why: str) -> None:
    Path("a.csv").write_text(numbered(2))
    result = load(*arguments)
    assert result.exit_code == 1 and why in result.stderr, result.output
    assert not values(cluster, "t")


def test_a_dry_run_contacts_no_broker_and_shows_the_records() -> None:
    Path("a.csv").write_text(numbered(20))
    result = load("a.csv", "--to", "t", "--key", "id", "--dry-run", "--limit", "2")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        f'{{"key":"{n}","value":"{{\\"id\\":{n},\\"v\\":\\"value {n}\\"}}","headers":[]}}' for n in range(2)
    ]
