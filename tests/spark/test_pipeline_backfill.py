"""``ottla pipeline backfill``: rows of a time range are computed again and replaced, in one commit."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

pytest.importorskip("pyiceberg")

from ottla.base.ids import TopicPartition
from ottla.cli.main import main
from ottla.lake.table.iceberg_batches import IcebergBatches
from ottla.lake.table.iceberg_catalog import embedded, opened_table
from ottla.lake.table.newest_rows import NewestRows
from ottla.lake.table.record_ranges import RecordRanges
from ottla.spark.pipeline import session as sessions
from ottla.spark.pipeline.backfill import plan_backfill, sinks_to_fill, table_to_fill
from ottla.spark.pipeline.config.file import parse
from ottla.spark.pipeline.config.toml_table import PipelineError

from .conftest import Topic
from .pipelines import table

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

STEP = """[decode]
format = "json"
fields = { n = "int" }
[[step]]
name = "made"
sql = "SELECT n * ${factor} AS m, _partition, _offset FROM records WHERE n % ${part} = 0"
[[sink]]
type = "${type}"
path = "${dir}/table"
"""
BOTH = STEP + '[[sink]]\ntype = "iceberg"\npath = "${dir}/iceberg"\n'
HOUR_MS = 3_600_000


def rows_and_versions(directory: Path) -> list[tuple[list[int], int]]:
    """Of the Delta table and of the Iceberg table."""
    with opened_table(embedded(directory / "iceberg")) as found:
        iceberg = sorted(found.scan().to_arrow().column("m").to_pylist()), int(found.metadata.last_sequence_number)
    delta = sorted(row["m"] for row in table(directory / "table")), int(DeltaTable(str(directory / "table")).version())
    return [delta, iceberg]


def test_rows_of_a_range_are_replaced_once(
    spark: Any, run: Callable[..., Any], a_topic: Callable[..., Topic], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def session(_: Any) -> Iterator[Any]:
        yield spark

    monkeypatch.setattr(sessions, "planning_session", session)
    topic = a_topic()
    for hour in range(4):
        topic.add(*[json.dumps({"n": n}).encode() for n in range(hour * 3, hour * 3 + 3)], timestamp_ms=hour * HOUR_MS + 1000)
    first = {"factor": "1", "part": "1", "type": "delta"}
    run(topic, BOTH, **first)
    versions = [version for _, version in rows_and_versions(tmp_path)]
    topic.add(b'{"n": 12}', timestamp_ms=HOUR_MS + 2000)
    file = tmp_path / "p.toml"
    file.write_text(f'bootstrap = "{topic.bootstrap}"\ncheckpoint = "{tmp_path}/checkpoint"\n[source]\ntopic = "{topic.name}"\n{BOTH}')
    given = ["pipeline", "backfill", str(file), "-o", "json"]
    for name, value in (("dir", tmp_path), ("factor", "10"), ("part", "2"), ("type", "delta")):
        given += ["--var", f"{name}={value}"]
    given += ["--from", "1970-01-01T01:00:00Z", "--to", "1970-01-01T03:00:00Z"]
    planned = json.loads(CliRunner().invoke(main, [*given, "--dry-run"]).stdout)
    offsets = {"offsets": [f"{topic.name}-0 3:9"], "rows": 6, **dict.fromkeys(("new_rows", "superseded", "restored", "removed"))}
    assert planned["tables"] == [{"path": f"{tmp_path}/{name}", **offsets} for name in ("table", "iceberg")]
    for _ in range(2):
        done = CliRunner().invoke(main, [*given, "--yes"])
        assert done.exit_code == 0, done.output
        assert [one["new_rows"] for one in json.loads(done.stdout)["tables"]] == [3, 3]
    assert rows_and_versions(tmp_path) == [([0, 1, 2, 9, 10, 11, 40, 60, 80], version + 2) for version in versions]
    # The next run goes on with the record that the first one had not read.
    run(topic, BOTH, **first)
    assert [rows for rows, _ in rows_and_versions(tmp_path)] == [[0, 1, 2, 9, 10, 11, 12, 40, 60, 80]] * 2


MERGED = """[decode]
format = "json"
fields = { k = "string", n = "int" }
[[step]]
name = "made"
sql = "SELECT k, n * ${factor} AS m, _partition, _offset FROM records WHERE n NOT IN (${without})"
[[sink]]
type = "delta"
path = "${dir}/table"
mode = "merge"
keys = ["k"]
[[sink]]
type = "iceberg"
path = "${dir}/iceberg"
mode = "merge"
keys = ["k"]
"""


def test_merged_tables_keep_rows_of_later_records_and_get_back_rows_of_earlier_ones(
    spark: Any, run: Callable[..., Any], a_topic: Callable[..., Topic], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rows() -> list[dict[str, int]]:
        with opened_table(embedded(tmp_path / "iceberg")) as found:
            tables = table(tmp_path / "table"), found.scan().to_arrow().to_pylist()
        return [{row["k"]: row["m"] for row in rows} for rows in tables]

    @contextmanager
    def session(_: Any) -> Iterator[Any]:
        yield spark

    monkeypatch.setattr(sessions, "planning_session", session)
    topic = a_topic()
    first = {"factor": "1", "without": "9"}
    for hour, records in enumerate(("a1 b2 d3", "a4 c5 d9", "b6 e7", "a8")):
        values = [json.dumps({"k": one[0], "n": int(one[1])}).encode() for one in records.split()]
        topic.add(*values, timestamp_ms=hour * HOUR_MS + 1000)
        # A batch has one row of each key.
        run(topic, MERGED, **first)
    assert rows() == [{"a": 8, "b": 6, "c": 5, "d": 3, "e": 7}] * 2
    file = tmp_path / "p.toml"
    file.write_text(f'bootstrap = "{topic.bootstrap}"\ncheckpoint = "{tmp_path}/checkpoint"\n[source]\ntopic = "{topic.name}"\n{MERGED}')
    given = ["pipeline", "backfill", str(file), "-o", "json", "--yes"]
    for name, value in (("dir", tmp_path), ("factor", "10"), ("without", "5, 6")):
        given += ["--var", f"{name}={value}"]
    given += ["--from", "1970-01-01T01:00:00Z", "--to", "1970-01-01T03:00:00Z"]
    counted = []
    for _ in range(2):
        done = CliRunner().invoke(main, given)
        assert done.exit_code == 0, done.output
        counted.append(
            [[one[name] for name in ("rows", "new_rows", "superseded", "restored", "removed")] for one in json.loads(done.stdout)["tables"]]
        )
        # a has a later record, c has no other, the row of b is that of the first hour.
        assert rows() == [{"a": 8, "b": 20, "d": 90, "e": 70}] * 2
    assert counted == [[[3, 2, 1, 1, 1]] * 2, [[2, 2, 1, 0, 0]] * 2]
    topic.add(b'{"k": "b", "n": 3}')
    run(topic, MERGED, **first)
    assert rows() == [{"a": 8, "b": 3, "d": 90, "e": 70}] * 2


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_merge_after_a_commit_of_others_reads_again_or_writes_nothing(tmp_path: Path, kind: str) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    def add(m: int, offset: int) -> None:
        rows = pa.table({"m": [m], "_partition": [0], "_offset": [offset]})
        if kind == "delta":
            write_deltalake(str(tmp_path / "delta"), rows, mode="append")
        else:
            made = IcebergBatches(embedded(tmp_path / "iceberg"))
            made.write(rows, mode="append", keys=(), application=f"a{m}", batch=0, partition_by=(), evolving=False)
            made.close()

    def interfere(keys: pa.Table) -> pa.Table:
        calls.append(keys.num_rows)
        if len(calls) == 1:
            add(5, 20)
        assert schema is not None
        return schema.empty_table()

    calls: list[int] = []
    add(1, 1)
    pipeline = parse(MERGE_SINK, tmp_path / "p.toml", {"dir": str(tmp_path), "type": kind})
    filled = table_to_fill(pipeline, pipeline.sinks[0])
    schema = filled.columns()
    records = RecordRanges({TopicPartition("t", 0): (0, 9)}, several_topics=False)
    new = pa.Table.from_pylist([{"m": 2, "_partition": 0, "_offset": 2}], schema)
    newest = NewestRows(("m",), records, records.offsets, new, interfere)
    if kind == "delta":
        with pytest.raises(PipelineError, match="others have changed the table meanwhile; nothing was written"):
            filled.merge(newest)
        assert filled.count(records) == 1
    assert filled.merge(newest).removed.num_rows == 1 and calls == [1, 1]
    every = RecordRanges({TopicPartition("t", 0): (2, 21)}, several_topics=False)
    assert (filled.count(records), filled.count(every)) == (1, 2)


MERGE_SINK = """bootstrap = "h:1"
checkpoint = "${dir}/c"
source = { topic = "t" }
decode = { format = "json", fields = { m = "bigint" } }
[[sink]]
type = "${type}"
path = "${dir}/${type}"
mode = "merge"
keys = ["m"]
"""


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('= 0"', '= 0"\ndeduplicate = ["m"]', "keeps state"),
        ("_partition, _offset", "_partition AS p, _offset", "need the columns _partition, _offset"),
        ('path = "${dir}/table"', 'path = "${dir}/table"\nmode = "replace"', "only append and merge can be filled"),
        ("dir}/table", "dir}/none", "there is no table at"),
        ("dir}/table", "dir}/text", "_offset of the table is of type"),
    ],
)
def test_a_table_without_what_identifies_rows_is_refused(spark: Any, tmp_path: Path, old: str, new: str, sentence: str, kind: str) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    assert old in STEP
    positions: dict[str, list[Any]] = {"table": [1], "text": ["1"]}
    for name, offset in positions.items():
        rows = pa.table({"m": [1], "p" if name == "table" else "_partition": [1], "_offset": offset})
        if kind == "delta":
            write_deltalake(str(tmp_path / name), rows)
        else:
            made = IcebergBatches(embedded(tmp_path / name))
            made.write(rows, mode="append", keys=(), application="a", batch=0, partition_by=(), evolving=False)
            made.close()
    text = f'bootstrap = "h:1"\ncheckpoint = "{tmp_path}/c"\n[source]\ntopic = "t"\n{STEP.replace(old, new)}'
    pipeline = parse(text, tmp_path / "p.toml", {"dir": str(tmp_path), "factor": "1", "part": "1", "type": kind})
    with pytest.raises(PipelineError, match=sentence):
        plan_backfill(pipeline, sinks_to_fill(pipeline, None)[0], spark, 0, 1)
