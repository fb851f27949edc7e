"""A pipeline over several runs: what its status tells, whether a changed file fits its checkpoint, starting over."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.spark.pipeline.file import parse
from ottla.spark.pipeline.reset import carry_out, planned_reset
from ottla.spark.pipeline.status import pipeline_status
from ottla.spark.pipeline.table import PipelineError

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
    told = pipeline_status(pipeline)
    assert told["brokers"] is None and told["state"] == "stopped"
    (query,) = told["queries"]
    assert query["sources"] == {topic.name: {"0": {"offset": 9, "end": 11, "lag": 2}}}
    assert (query["query"], query["lag"], query["rows_in"], query["rows_out"], query["state_rows"]) == ("sums-update", 2, 9, 3, 3)
    assert [(target["type"], target["version"]) for target in told["targets"]] == [("delta", 1)]

    with pytest.raises(PipelineError) as refused:
        run(topic, SUMS.replace("sum(n)", "max(n)"))
    assert refused.value.key == "step[0].sql"
    assert "sums keeps" in refused.value.problem and "ottla pipeline reset" in refused.value.problem
    run(topic, SUMS.replace("AS n FROM", "AS  n FROM"))
    assert {row["user"]: row["records"] for row in table(tmp_path / "table")} == {"u0": 4, "u1": 4, "u2": 3}

    carry_out(pipeline, planned_reset(pipeline, json.dumps({topic.name: {"0": 9}})))
    assert pipeline_status(pipeline)["state"] == "new"
    run(topic, SUMS.replace("sum(n)", "max(n)"))
    assert {row["user"]: (row["records"], row["n"]) for row in table(tmp_path / "table")} == {"u0": (1, 9), "u1": (1, 10), "u2": (3, 15)}


def test_a_console_that_shows_few_rows_leaves_what_is_kept_whole(run: Any, a_topic: Callable[..., Topic], tmp_path: Path) -> None:
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
    # A batch without records may follow, with which the watermark moves on.
    (last,) = [report for report in run(topic, shown) if report.rows_in]
    assert (last.rows_in, last.rows_out, last.state_rows) == (1, 1, 101)
