"""`python -m bench.spark_delivery`: the price of exactly once in Spark's sink.

    batch      a batch write of rows that Spark makes
    stream     a stream of a topic into another one, several batches one after the other
    pipeline   the same with `[[sink]] type = "topic"`

Each way runs with delivery exactly_once and at_least_once in turn, in one session, with one server. Prints rows a second and CPU seconds
of all processes for a million rows: medians, and the ratio of each pair of adjacent runs.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ottla import Admin, NewTopic, Producer
from ottla.demo.brokers import serving
from ottla.spark.session import start_session

PARTITIONS = 4
VALUE_BYTES = 100
DELIVERIES = ("at_least_once", "exactly_once")
WAIT_S = 600
PIPELINE = """bootstrap = "{bootstrap}"
checkpoint = "{directory}/checkpoint"
trigger = "available-now"

[source]
topic = "source"
options = {{ maxOffsetsPerTrigger = {batch} }}

[[sink]]
type = "topic"
topic = "{topic}"
value = "value"
delivery = "{delivery}"
"""


def cpu_s(root: int | None = None) -> float:
    """CPU seconds of a process (this one by default) and its descendants, those that have ended included."""
    ticks = 0
    parents: dict[int, list[int]] = {}
    spent: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
            spent[int(entry.name)] = sum(map(int, fields[11:15]))
    waiting = [os.getpid() if root is None else root]
    while waiting:
        pid = waiting.pop()
        ticks += spent.get(pid, 0)
        waiting += parents.get(pid, [])
    return ticks / os.sysconf("SC_CLK_TCK")


class Ways:
    """The ways to write, each into a new topic."""

    def __init__(self, spark: Any, bootstrap: str, directory: Path, rows: int, batches: int) -> None:
        self.spark, self.bootstrap, self.directory = spark, bootstrap, directory
        self.rows, self.batch_rows = rows, rows // batches

    def _topic(self) -> str:
        topic = f"t-{uuid.uuid4().hex[:8]}"
        with Admin(bootstrap_servers=self.bootstrap) as admin:
            admin.create_topic(NewTopic(topic, PARTITIONS))
        return topic

    def _options(self, delivery: str) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.bootstrap, "topic": self._topic(), "delivery": delivery}

    def batch(self, delivery: str) -> None:
        frame = self.spark.range(0, self.rows, 1, 2).selectExpr(f"lpad(id, {VALUE_BYTES}, '0') AS value")
        frame.write.format("ottla").options(**self._options(delivery)).mode("append").save()

    def stream(self, delivery: str) -> None:
        reader = self.spark.readStream.format("ottla").option("kafka.bootstrap.servers", self.bootstrap).option("subscribe", "source")
        frame = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", self.batch_rows).load().select("value")
        writer = frame.writeStream.format("ottla").options(**self._options(delivery))
        query = writer.option("checkpointLocation", str(self.directory / uuid.uuid4().hex)).trigger(availableNow=True).start()
        assert query.awaitTermination(WAIT_S), "the query ends"

    def pipeline(self, delivery: str) -> None:
        from ottla.spark.pipeline.config.file import parse
        from ottla.spark.pipeline.run import RunningPipeline

        directory = self.directory / uuid.uuid4().hex
        directory.mkdir()
        text = PIPELINE.format(bootstrap=self.bootstrap, directory=directory, topic=self._topic(), delivery=delivery, batch=self.batch_rows)
        running = RunningPipeline(parse(text, directory / "p.toml", {}), self.spark, lambda *_: None)
        running.start()
        for query in running.queries:
            assert query.query.awaitTermination(WAIT_S), "the query ends"
        running.reports()
        running.stop()


def measure(way: Callable[[str], None], delivery: str, rows: int) -> dict[str, float]:
    began_s, spent_s = time.monotonic(), cpu_s()
    way(delivery)
    return {"rows_per_s": rows / (time.monotonic() - began_s), "cpu_s_per_million": (cpu_s() - spent_s) * 1e6 / rows}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rows", type=click.IntRange(1), default=1_000_000, show_default=True, help="Rows of each run.")
@click.option("--batches", type=click.IntRange(1), default=5, show_default=True, help="Batches of a stream.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Runs of each delivery.")
@click.option("--two-phase/--timeouts", default=True, help="Whether the brokers serve two-phase commit.")
@click.option("--ways", default="batch,stream,pipeline", show_default=True, help="What is measured.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write the results to this file as JSON.")
def main(rows: int, batches: int, rounds: int, two_phase: bool, ways: str, json_path: Path | None) -> None:
    """Measure the price of exactly once."""
    settings = {"transaction.two.phase.commit.enable": str(two_phase).lower()}
    outcome: dict[str, Any] = {"load_average": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory(prefix="ottla-delivery-") as made:
        directory = Path(made)
        with serving(directory / "data", directory / "server.log", brokers=1, settings=settings) as bootstrap:
            with Admin(bootstrap_servers=bootstrap) as admin:
                admin.create_topic(NewTopic("source", PARTITIONS))
            with Producer(bootstrap_servers=bootstrap) as producer:
                for number in range(rows):
                    producer.send("source", b"%0100d" % number)
            spark = start_session("bench", {}, log_file=directory / "spark.log", cores=2)
            measured = Ways(spark, bootstrap, directory, rows, batches)
            for name in ways.split(","):
                way = getattr(measured, name)
                found: dict[str, list[dict[str, float]]] = {delivery: [] for delivery in DELIVERIES}
                for number in range(rounds + 1):
                    # The order of a pair alternates; the first pair warms up.
                    for delivery in DELIVERIES if number % 2 else reversed(DELIVERIES):
                        one = measure(way, delivery, rows)
                        if number:
                            found[delivery].append(one)
                        click.echo(f"{name} {delivery} {one}", err=True)
                outcome[name] = summary(found)
            spark.stop()
    outcome["load_average_after"] = os.getloadavg()[0]
    text = json.dumps(outcome, indent=1)
    click.echo(text)
    if json_path is not None:
        json_path.write_text(text + "\n")


def summary(found: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Medians, and the median of exactly once over at least once in each pair of runs."""
    medians = {
        delivery: {figure: round(statistics.median(one[figure] for one in runs), 2) for figure in runs[0]}
        for delivery, runs in found.items()
    }
    pairs = list(zip(found["exactly_once"], found["at_least_once"], strict=True))
    ratios = {figure: round(statistics.median(one[figure] / other[figure] for one, other in pairs), 3) for figure in pairs[0][0]}
    return {**medians, "ratio": ratios}


if __name__ == "__main__":
    main()
