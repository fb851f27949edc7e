"""The worked examples in examples/, run over small generated inputs and compared with independent counts."""

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ottla import Consumer
from ottla.demo.verification import read_table
from ottla.spark.pipeline.config.file import load
from ottla.spark.pipeline.run import RunningPipeline

from .conftest import Topic
from .example_inputs import flights, ssh_log, web_log

EXAMPLES = Path(__file__).parents[2] / "examples"
HAULS = str(EXAMPLES / "flight-delays" / "hauls.csv")
FILES = sorted(EXAMPLES.glob("*/*.toml"))

Run = Callable[..., None]


@pytest.fixture
def run(spark: Any, tmp_path: Path) -> Run:
    """Runs an example over a topic's current records."""

    def run(file: str, topic: Topic, **variables: str) -> None:
        given = {"OTTLA_BOOTSTRAP_SERVERS": topic.bootstrap, "topic": topic.name, "dir": str(tmp_path), "hauls": HAULS, **variables}
        pipeline = replace(load(EXAMPLES / file, given), trigger="available-now")
        running = RunningPipeline(pipeline, spark, lambda *_: None)
        try:
            running.start()
            for query in running.queries:
                assert query.query.awaitTermination(240), "the query ends by itself"
            running.reports()
        finally:
            running.stop()

    return run


def rows(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read_table(path).to_pylist()
    return found


def values(topic: Topic) -> list[dict[str, Any]]:
    with Consumer(bootstrap_servers=topic.bootstrap, auto_offset_reset="earliest") as consumer:
        partitions = consumer.partitions_for(topic.name)
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        found: list[dict[str, Any]] = []
        # A transaction marker takes an offset.
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            found += [json.loads(record.value) for record in consumer.poll(timeout_ms=1000)]
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_an_example_is_a_valid_pipeline_file_without_variables(file: Path) -> None:
    assert load(file).sinks


def test_every_example_has_a_readme_that_names_its_files() -> None:
    for directory in {file.parent for file in FILES}:
        readme = (directory / "README.md").read_text()
        assert [file.name for file in directory.iterdir() if file.is_file() and file.name != "README.md" and file.name not in readme] == []


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(300)
def test_a_web_log_is_stored_counted_and_cleaned_of_invalid_lines(run: Run, a_topic: Callable[..., Topic], tmp_path: Path) -> None:
    made, topic = web_log(), a_topic()
    topic.add(*made.lines)
    run("web-log/web-log.toml", topic)
    read = {
        (row["hour"], row["answer"], row["robot"]): (row["requests"], row["clients"], row["bytes"])
        for row in rows(tmp_path / "requests_by_hour")
    }
    assert read == {group: (requests, len(clients), total) for group, (requests, clients, total) in made.by_hour.items()}
    assert sorted(row["_offset"] for row in rows(tmp_path / "requests")) == [n for n in range(300) if n not in made.unreadable]
    assert {row["offset"]: row["value"] for row in rows(tmp_path / "unreadable")} == made.unreadable


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(300)
def test_an_ssh_log_separates_failed_guessers_from_successful_ones(run: Run, a_topic: Callable[..., Topic], tmp_path: Path) -> None:
    topic, alerts = a_topic(), a_topic()
    topic.add(*ssh_log())
    run("ssh-intrusions/ssh-intrusions.toml", topic, alerts=alerts.name, year="2026")
    found = {(f"{row['since']:%H:%M}", row["address"]): row for row in rows(tmp_path / "ssh_alerts")}
    # One window of an hour every half hour; bob, who mistyped once, is in none.
    assert sorted(found) == [
        ("09:30", "192.0.2.7"),
        ("09:30", "198.51.100.9"),
        ("10:00", "192.0.2.7"),
        ("10:00", "198.51.100.9"),
    ]
    guesser, intruder = found["10:00", "192.0.2.7"], found["10:00", "198.51.100.9"]
    assert (guesser["alert"], guesser["failures"], guesser["users_tried"], guesser["entered"]) == ("guessing", 30, 3, None)
    assert (intruder["alert"], intruder["failures"], intruder["failures_before"], intruder["entered_as"]) == ("break-in", 8, 7, "alice")
    assert intruder["entered"] == datetime(2026, 3, 7, 10, 16, 40, tzinfo=UTC)
    assert sorted((value["address"], value["alert"]) for value in values(alerts)) == sorted(
        (row["address"], row["alert"]) for row in found.values()
    )
    assert sorted((row["user"], row["tries"], row["addresses"]) for row in rows(tmp_path / "ssh_invalid_users")) == [
        ("admin", 10, 1),
        ("oracle", 10, 1),
    ]


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(300)
def test_flights_have_their_delays_by_hour_and_haul(run: Run, a_topic: Callable[..., Topic], tmp_path: Path) -> None:
    made, topic = list(flights()), a_topic(partitions=2)
    topic.add(*[value for value, _ in made])
    run("flight-delays/flight-delays.toml", topic)
    groups: dict[tuple[int, str], list[int]] = defaultdict(list)
    for _, (hour, haul, delay) in made:
        groups[hour, haul].append(delay)
    found = {(row["hour"], row["haul"]): row for row in rows(tmp_path / "flight_delays")}
    assert found.keys() == groups.keys()
    for group, delays in groups.items():
        row, delays = found[group], sorted(delays)
        assert (row["flights"], row["worst"]) == (len(delays), delays[-1])
        assert row["mean"] == pytest.approx(sum(delays) / len(delays), abs=0.01)
        assert row["late"] == pytest.approx(sum(delay > 15 for delay in delays) / len(delays), abs=0.0001)
        # With so few values the approximation is exact: the smallest value not exceeded by half, or nine in ten.
        assert row["median"] == delays[(len(delays) + 1) // 2 - 1]
        assert row["p90"] == delays[-(-len(delays) * 9 // 10) - 1]
