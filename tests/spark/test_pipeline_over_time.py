"""A pipeline over several runs: status, compatibility of a changed file, reset."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.spark.pipeline.checkpoint import CheckpointNotes
from ottla.spark.pipeline.checkpoint_compatibility import query_dependencies, require_compatible
from ottla.spark.pipeline.config.file import parse
from ottla.spark.pipeline.config.toml_table import PipelineError
from ottla.spark.pipeline.reset import apply_reset, plan_reset
from ottla.spark.pipeline.status import pipeline_status
from ottla.spark.pipeline.views import build_views

from .conftest import Topic
from .pipelines import records, table

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

SUMS = """
[decode]
format = "json"
fields = { user = "string", n = "bigint" }
[[step]]
name = "sums"
sql = "SELECT user, count(*) AS records, sum(n) AS n FROM records GROUP BY user"
[[sink]]
type = "delta"
path = "${dir}/table"
mode = "merge"
keys = ["user"]
"""


def test_status_change_and_reset_of_a_pipeline_with_state(run: Any, a_topic: Callable[..., Topic], tmp_path: Path) -> None:
    topic = a_topic()
    topic.add(*records(0, 9))
    run(topic, SUMS)
    topic.add(*records(9, 11))
    head = f'bootstrap = "{topic.bootstrap}"\ncheckpoint = "{tmp_path}/checkpoint"\n[source]\ntopic = "{topic.name}"\n'
    pipeline = parse(head + SUMS, tmp_path / "p.toml", {"dir": str(tmp_path)})
    reported = pipeline_status(pipeline)
    assert reported["brokers"] is None and reported["state"] == "stopped"
    (query,) = reported["queries"]
    assert query["sources"] == {topic.name: {"0": {"offset": 9, "end": 11, "lag": 2}}}
    assert (query["query"], query["lag"], query["rows_in"], query["rows_out"], query["state_rows"]) == ("sums-update", 2, 9, 3, 3)
    assert [(target["type"], target["version"]) for target in reported["targets"]] == [("delta", 1)]

    with pytest.raises(PipelineError) as refused:
        run(topic, SUMS.replace("sum(n)", "max(n)"))
    assert refused.value.key == "step[0].sql"
    assert "sums keeps" in refused.value.problem and "ottla pipeline reset" in refused.value.problem
    run(topic, SUMS.replace("AS n FROM", "AS  n FROM"))
    assert {row["user"]: row["records"] for row in table(tmp_path / "table")} == {"u0": 4, "u1": 4, "u2": 3}

    apply_reset(pipeline, plan_reset(pipeline, json.dumps({topic.name: {"0": 9}})))
    assert pipeline_status(pipeline)["state"] == "new"
    run(topic, SUMS.replace("sum(n)", "max(n)"))
    assert {row["user"]: (row["records"], row["n"]) for row in table(tmp_path / "table")} == {"u0": (1, 9), "u1": (1, 10), "u2": (3, 15)}


def test_a_console_with_few_rows_does_not_truncate_state(run: Any, a_topic: Callable[..., Topic], tmp_path: Path) -> None:
    shown = """
    [decode]
    format = "json"
    fields = { user = "string", n = "bigint" }
    [[step]]
    name = "once"
    sql = "SELECT n, _timestamp FROM records"
    deduplicate = ["n"]
    within = "watermark"
    watermark = { column = "_timestamp", delay = "1 hour" }
    [[sink]]
    type = "console"
    rows = 2
    """
    topic = a_topic()
    topic.add(*records(0, 100))
    run(topic, shown)
    topic.add(*records(0, 100))
    run(topic, shown)
    topic.add(*records(100, 101))
    # A batch without records can follow, with which the watermark advances.
    (last,) = [report for report in run(topic, shown) if report.rows_in]
    assert (last.rows_in, last.rows_out, last.state_rows) == (1, 1, 101)


TWO = """
bootstrap = "127.0.0.1:1"
checkpoint = "${dir}/checkpoint"
[[source]]
name = "a"
topic = "first"
[[source]]
name = "b"
topics = ["second"]
[[step]]
name = "both"
sql = "SELECT value FROM a UNION ALL SELECT value FROM b"
[[sink]]
from = "both"
type = "console"
"""


def test_sources_can_be_reordered_in_the_file_and_not_in_the_plan(spark: Any, tmp_path: Path) -> None:
    def fitted(text: str, noted: dict[str, Any]) -> dict[str, Any]:
        pipeline = parse(text, tmp_path / "p.toml", {"dir": str(tmp_path)})
        notes = CheckpointNotes(tmp_path / "checkpoint")
        notes.begin("both-append", noted, [])
        notes.save()
        require_compatible(pipeline, tmp_path / "checkpoint", spark.version)
        return query_dependencies(pipeline, "both", "append", build_views(pipeline, spark)["both"], noted, spark.version)

    noted = fitted(TWO, {})
    assert noted["plan"] == [{"subscribe": "first"}, {"subscribe": "second"}]
    (tmp_path / "checkpoint" / "both-append" / "offsets").mkdir(parents=True)
    head, one, two, rest = re.split(r"(?=\[\[source\]\])|(?=\[\[step\]\])", TWO)
    assert fitted(head + two + one + rest, noted)["plan"] == noted["plan"]
    assert fitted(TWO.replace('["second"]', '["third", "second"]'), noted)["plan"] == [
        {"subscribe": "first"},
        {"subscribe": "third,second"},
    ]

    swapped = TWO.replace("FROM a", "FROM x").replace("FROM b", "FROM a").replace("FROM x", "FROM b")
    with pytest.raises(PipelineError) as refused:
        fitted(swapped, noted)
    assert refused.value.key == "step[0].sql"
    assert "both reads, in this order, second; first, and read first; second before; put what it reads back" in refused.value.problem

    # A checkpoint from before plans were recorded has only the order in the file.
    earlier = {name: value for name, value in noted.items() if name != "plan"}
    assert fitted(TWO, earlier) == noted
    with pytest.raises(PipelineError, match="b reads second and a read first before"):
        fitted(head + two + one + rest, earlier)
