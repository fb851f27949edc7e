"""The Spark session of a pipeline: which one it is, and what is said where it cannot be."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ottla.spark.pipeline import foreground
from ottla.spark.pipeline.file import parse
from ottla.spark.pipeline.model import MASTER, Pipeline

PAGE = Path(__file__).parents[2] / "docs" / "pipelines.md"


def a_pipeline(directory: Path, spark: str = "") -> Pipeline:
    text = f'checkpoint = "{directory}/state"\n[source]\ntopic = "t"\n[[sink]]\ntype = "console"\n{spark}'
    return parse(text, directory / "p.toml", {})


class Asked(Exception):
    """A session was asked for."""


@pytest.mark.parametrize(("spark", "master"), [("", MASTER), ('[spark]\nmaster = "local[2,4]"\n', "local[2,4]")])
def test_a_run_has_the_master_that_a_plan_shows_and_the_page_tells(
    spark: str, master: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Mapping[str, str]] = []

    def start_session(_: str, settings: Mapping[str, str], **__: Any) -> None:
        asked.append(settings)
        raise Asked

    monkeypatch.setattr(foreground, "start_session", start_session)
    pipeline = a_pipeline(tmp_path, spark)
    with pytest.raises(Asked):
        foreground.run_until_stopped(pipeline, output="json")
    assert asked[0]["spark.master"] == pipeline.master == master
    told = re.search(r"`master`, by default `([^`]+)`", PAGE.read_text())
    assert told is not None and told[1] == MASTER
