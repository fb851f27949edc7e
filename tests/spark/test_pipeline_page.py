"""Spark accepts the example pipelines of docs/pipelines.md."""

import re
from pathlib import Path
from typing import Any

import pytest

from ottla.spark.pipeline import plan as plans
from ottla.spark.pipeline.case_run import run_case
from ottla.spark.pipeline.config.cases import ENDING, read_cases
from ottla.spark.pipeline.config.file import load
from ottla.spark.pipeline.quick_check import quick_check

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

PAGE = (Path(__file__).parent.parent.parent / "docs" / "pipelines.md").read_text()
BLOCK = re.compile(r"^```(?:toml|python)\n# (\S+\.(?:toml|py))\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILES = {name: f"# {name}\n{text}" for name, text in BLOCK.findall(PAGE)}
PIPELINES = sorted(name for name in FILES if name.endswith(".toml") and not name.endswith(ENDING))


def test_the_page_has_examples() -> None:
    assert {"visits.toml", "orders.toml", "functions.py"} <= set(FILES)


@pytest.mark.parametrize("name", PIPELINES)
def test_spark_accepts_each_example(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    monkeypatch.chdir(tmp_path)
    for file, text in FILES.items():
        Path(file).write_text(text)
    Path("products.csv").write_text("code,label,category\na,Apple,food\n")
    write_deltalake("tables/limits", pa.table({"code": ["a"], "most": [100.0]}))
    pipeline = load(Path(name))
    quick_check(pipeline)
    document = plans.plan(pipeline, spark)
    kept = [state["until"] for view in document["views"] for state in view["state"]]
    # The first example has no watermark: its state grows without limit. Scores have no state.
    assert kept == {"visits.toml": ["never"], "scores.toml": []}.get(name, ["watermark", "watermark"])
    for case in read_cases(pipeline, {}) if name.replace(".toml", ENDING) in FILES else ():
        result = run_case(pipeline, case, spark)
        assert result.passed, result
