"""Triggers of a pipeline: parsing, effect and documentation."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ottla import Admin, TopicPartition
from ottla.cli.groups import pipeline as command
from ottla.spark.pipeline.config.file import parse
from ottla.spark.pipeline.config.sink import TRIGGERS
from ottla.spark.pipeline.query import with_trigger
from ottla.spark.pipeline.run import RunningPipeline

from .conftest import Topic
from .pipelines import records, table
from .test_stream import wait_until

PAGE = (Path(__file__).parent.parent.parent / "docs" / "pipelines.md").read_text()
PIPELINE = """
bootstrap = "${bootstrap:-h:1}"
checkpoint = "${dir:-d}/checkpoint"
trigger = "${trigger}"
[source]
topic = "${topic:-t}"
[[sink]]
type = "delta"
path = "${dir:-d}/table"
"""


class Writer:
    """A stream's writer that records its trigger."""

    def __init__(self) -> None:
        self.arguments: dict[str, Any] = {}

    def trigger(self, **arguments: Any) -> "Writer":
        self.arguments = arguments
        return self


@pytest.mark.parametrize(
    ("trigger", "arguments"),
    [
        ("continuous", {"processingTime": "0 seconds"}),
        ("available-now", {"availableNow": True}),
        ("once", {"once": True}),
        ("5 seconds", {"processingTime": "5 seconds"}),
    ],
)
def test_a_trigger_is_translated_to_sparks(trigger: str, arguments: dict[str, Any]) -> None:
    assert with_trigger(Writer(), trigger).arguments == arguments


def validated(directory: Path, trigger: str) -> tuple[int, str]:
    """Exit code and output of `ottla pipeline validate`."""
    file = directory / "p.toml"
    file.write_text(PIPELINE)
    done = CliRunner().invoke(command, ["validate", str(file), "--no-spark", "--var", f"trigger={trigger}"])
    return done.exit_code, done.output


@pytest.mark.parametrize("trigger", [*TRIGGERS, "1 second", "250 milliseconds"])
def test_each_trigger_of_the_page_is_accepted(tmp_path: Path, trigger: str) -> None:
    (row,) = [line for line in PAGE.splitlines() if line.startswith("| `trigger` | `1 second` |")]
    assert " second" in trigger or " milliseconds" in trigger or f"`{trigger}`: " in row
    assert validated(tmp_path, trigger)[0] == 0


@pytest.mark.parametrize("trigger", ["continuous 1 second", "continously", "5s"])
def test_an_unknown_trigger_is_refused_with_the_known_ones(tmp_path: Path, trigger: str) -> None:
    code, message = validated(tmp_path, trigger)
    assert code == 2
    assert "p.toml:4: trigger: expected continuous, available-now, once, or a time between batches such as" in message
    assert repr(trigger) in message


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("trigger", ["continuous", "200 milliseconds"])
def test_a_trigger_that_does_not_end_reads_new_records(spark: Any, a_topic: Callable[..., Topic], tmp_path: Path, trigger: str) -> None:
    topic = a_topic()
    given = {"bootstrap": topic.bootstrap, "dir": str(tmp_path), "topic": topic.name, "trigger": trigger}
    running = RunningPipeline(parse(PIPELINE, tmp_path / "p.toml", given), spark, lambda *_: None)
    counts: list[int] = []

    def read(total: int) -> Callable[[], bool]:
        def all_read() -> bool:
            counts.extend(report.rows_in for report in running.reports() if report.rows_in)
            return sum(counts) == total

        return all_read

    try:
        running.start()
        (query,) = running.queries
        for turn in range(3):
            topic.add(*records(turn, turn + 1))
            wait_until(read(turn + 1), query.query)
        assert running.active
    finally:
        running.stop()
    assert counts == [1, 1, 1], "a batch for each record, without a restart"
    assert [row["_offset"] for row in sorted(table(tmp_path / "table"), key=lambda row: int(row["_offset"]))] == [0, 1, 2]


@pytest.mark.spark
def test_the_group_of_a_stopped_pipeline_has_its_last_batch(spark: Any, a_topic: Callable[..., Topic], tmp_path: Path) -> None:
    topic = a_topic()
    topic.add(*records(0, 10))
    group, variables = f"g-{topic.name}", {"bootstrap": topic.bootstrap, "dir": str(tmp_path), "topic": topic.name}
    text = PIPELINE.replace("[[sink]]", f'options = {{ "kafka.group.id" = "{group}" }}\n[[sink]]')
    running = RunningPipeline(parse(text, tmp_path / "p.toml", {**variables, "trigger": "1 hour"}), spark, lambda *_: None)
    try:
        running.start()
        wait_until(lambda: running.caught_up({TopicPartition(topic.name, 0): 10}), running.queries[0].query)
    finally:
        running.stop()
    with Admin(bootstrap_servers=topic.bootstrap) as admin:
        found = admin.list_consumer_group_offsets([group])[group]
    assert {tp.partition: one.offset for tp, one in found.items()} == {0: 10}  # type: ignore[union-attr]
