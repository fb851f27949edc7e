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

from ottla.cli.main import main
from ottla.lake.table.iceberg_batches import IcebergBatches
from ottla.lake.table.iceberg_catalog import embedded, opened_table
from ottla.spark.pipeline import session as sessions
from ottla.spark.pipeline.backfill import plan_backfill, sinks_to_fill
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
    offsets = {"offsets": [f"{topic.name}-0 3:9"], "rows": 6, "new_rows": None}
    assert planned["tables"] == [{"path": f"{tmp_path}/{name}", **offsets} for name in ("table", "iceberg")]
    for _ in range(2):
        done = CliRunner().invoke(main, [*given, "--yes"])
        assert done.exit_code == 0, done.output
        assert [one["new_rows"] for one in json.loads(done.stdout)["tables"]] == [3, 3]
    assert rows_and_versions(tmp_path) == [([0, 1, 2, 9, 10, 11, 40, 60, 80], version + 2) for version in versions]
    # The next run goes on with the record that the first one had not read.
    run(topic, BOTH, **first)
    assert [rows for rows, _ in rows_and_versions(tmp_path)] == [[0, 1, 2, 9, 10, 11, 12, 40, 60, 80]] * 2


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('= 0"', '= 0"\ndeduplicate = ["m"]', "keeps state"),
        ("_partition, _offset", "_partition AS p, _offset", "need the columns _partition, _offset"),
        ('path = "${dir}/table"', 'path = "${dir}/table"\nmode = "merge"\nkeys = ["m"]', "only append can be filled"),
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
