"""``ottla pipeline backfill``: rows of a time range are computed again and replaced, in one commit."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

from ottla.cli.main import main
from ottla.spark.pipeline import plan as plans
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
type = "delta"
path = "${dir}/table"
"""
HOUR_MS = 3_600_000


def test_rows_of_a_range_are_replaced_once(
    spark: Any, run: Callable[..., Any], a_topic: Callable[..., Topic], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def session(_: Any) -> Iterator[Any]:
        yield spark

    monkeypatch.setattr(plans, "planning_session", session)
    topic = a_topic()
    for hour in range(4):
        topic.add(*[json.dumps({"n": n}).encode() for n in range(hour * 3, hour * 3 + 3)], timestamp_ms=hour * HOUR_MS + 1000)
    run(topic, STEP, factor="1", part="1")
    version = DeltaTable(str(tmp_path / "table")).version()
    topic.add(b'{"n": 12}', timestamp_ms=HOUR_MS + 2000)
    file = tmp_path / "p.toml"
    file.write_text(f'bootstrap = "{topic.bootstrap}"\ncheckpoint = "{tmp_path}/checkpoint"\n[source]\ntopic = "{topic.name}"\n{STEP}')
    given = ["pipeline", "backfill", str(file), "--var", f"dir={tmp_path}", "--var", "factor=10", "--var", "part=2", "-o", "json"]
    given += ["--from", "1970-01-01T01:00:00Z", "--to", "1970-01-01T03:00:00Z"]
    planned = json.loads(CliRunner().invoke(main, [*given, "--dry-run"]).stdout)
    assert planned["tables"] == [{"path": f"{tmp_path}/table", "offsets": [f"{topic.name}-0 3:9"], "rows": 6, "new_rows": None}]
    for _ in range(2):
        done = CliRunner().invoke(main, [*given, "--yes"])
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["tables"][0]["new_rows"] == 3
    rows = sorted(row["m"] for row in table(tmp_path / "table"))
    assert rows == [0, 1, 2, 9, 10, 11, 40, 60, 80]
    assert DeltaTable(str(tmp_path / "table")).version() == version + 2
    # The next run goes on with the record that the first one had not read.
    run(topic, STEP, factor="1", part="1")
    assert sorted(row["m"] for row in table(tmp_path / "table")) == [0, 1, 2, 9, 10, 11, 12, 40, 60, 80]


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('= 0"', '= 0"\ndeduplicate = ["m"]', "keeps state"),
        ("_partition, _offset", "_partition AS p, _offset", "need the columns _partition, _offset"),
        ('path = "${dir}/table"', 'path = "${dir}/table"\nmode = "merge"\nkeys = ["m"]', "only append can be filled"),
        ("dir}/table", "dir}/none", "there is no table at"),
    ],
)
def test_a_table_without_what_identifies_rows_is_refused(spark: Any, tmp_path: Path, old: str, new: str, sentence: str) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    assert old in STEP
    write_deltalake(str(tmp_path / "table"), pa.table({"m": [1], "p": [1], "_offset": [1]}))
    text = f'bootstrap = "h:1"\ncheckpoint = "{tmp_path}/c"\n[source]\ntopic = "t"\n{STEP.replace(old, new)}'
    pipeline = parse(text, tmp_path / "p.toml", {"dir": str(tmp_path), "factor": "1", "part": "1"})
    with pytest.raises(PipelineError, match=sentence):
        plan_backfill(pipeline, sinks_to_fill(pipeline, None)[0], spark, 0, 1)
