"""`python -m chaos.tasks`: tasks of a Spark cluster write into topics and fail meanwhile, or lose their executor.

The cluster is a standalone one: a master, and two workers with an executor of one core each, all of them processes. In each scenario
four tasks write a topic. Their rows are large, so some of them are in the log before the failure:

    retried       one task raises an error half way; Spark runs it again
    executor      kill -9 of an executor with its tasks half way; Spark starts another one and runs them again
    speculative   one task is slow; Spark runs a second attempt on another host, uses that, and ends the slow one

Spark speculates on other hosts only, so the workers are on two loopback addresses (Linux). It may also run a second attempt of the last
task in the other scenarios; that must not change the result. A second attempt writes the rows again, and the transaction of the first
attempt is aborted: readers of committed records get each one once, also if the log has rows of both attempts.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from chaos.cluster import until
from chaos.pipelines import copies_in, executors
from chaos.soak import BrokerProcess
from chaos.standalone import cluster
from ottla import Admin, Consumer, NewTopic
from ottla.spark.session import start_session

TASKS, ROWS = 4, 40_000
#: Size of each row. The sink sends 4 MiB at a time.
ROW_BYTES = 1_000
#: The row of a task at which the failure occurs.
MIDWAY = ROWS // TASKS * 9 // 10
SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.task.maxFailures": "4",
    # Rows per call of the sink; small, so that a task has sent some rows half way.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "1s",
    "spark.executorEnv.PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
}
SCENARIOS = ("retried", "executor", "speculative")
WAIT_S = 400.0


def wait_for(sign: Path) -> None:
    """Wait in a task until the file exists, for at most WAIT_S."""
    deadline_s = time.monotonic() + WAIT_S
    while not sign.exists() and time.monotonic() < deadline_s:
        time.sleep(0.05)


def failing_function(scenario: str, signs: str) -> Callable[[int], str]:
    """Return the function that the tasks apply to each row. A task creates a file half way; the first attempt of the first task fails, or
    all wait."""

    def value(number: int) -> str:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None, "a task runs this"
        if number % (ROWS // TASKS) == MIDWAY:
            (Path(signs) / f"{context.partitionId()}-{context.attemptNumber()}").touch()
            first = context.attemptNumber() == 0
            if first and scenario == "retried" and context.partitionId() == 0:
                raise RuntimeError("the task stumbles")
            if scenario == "speculative" and context.partitionId() == 0:
                # The first attempt waits until Spark ends it, because another one is done. That one must not be done before the first
                # one is half way: the worker of the first may take seconds to start.
                wait_for(Path(signs) / ("never" if first else "0-0"))
            if scenario == "executor":
                # The kill may hit this task.
                wait_for(Path(signs) / "killed")
        return f"{number:0{ROW_BYTES}}"

    # Spark reads annotations, and rejects postponed ones.
    return lambda number: value(number)


def kill_one(bootstrap: str, topic: str, signs: Path, rng: random.Random) -> None:
    """kill -9 of an executor when both have a task half way, and the topic has some of their records. Raises: ConditionTimeout."""
    with Consumer(bootstrap_servers=bootstrap) as consumer:
        partitions = consumer.partitions_for(topic)
        until(
            lambda: len(list(signs.iterdir())) > 1 and any(consumer.end_offsets(partitions).values()),
            "two tasks are half way",
            timeout_s=WAIT_S,
        )
    os.kill(rng.choice(executors()), signal.SIGKILL)
    (signs / "killed").touch()


@contextmanager
def session(directory: Path) -> Iterator[Any]:
    """A Spark session on a cluster with two workers."""
    (directory / "cluster").mkdir()
    with cluster(directory / "cluster", ("127.0.0.1", "127.0.0.2"), cores=1) as master:
        spark = start_session("chaos.tasks", {**SETTINGS, "spark.master": master}, log_file=directory / "spark.log")
        try:
            yield spark
        finally:
            spark.stop()


def run_scenario(scenario: str, spark: Any, bootstrap: str, directory: Path, rng: random.Random) -> dict[str, Any]:
    """Run one scenario. Returns the numbers of records in the topic, of missing and duplicated ones, of records of all attempts and of open
    transactions at the end; and the attempts that reached the middle."""
    from pyspark.sql.functions import udf

    signs = directory / scenario
    signs.mkdir()
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topic(NewTopic(scenario, 2))
    frame = spark.range(0, ROWS, 1, TASKS).select(udf(failing_function(scenario, str(signs)), "string")("id").alias("value"))
    killer = threading.Thread(target=kill_one, args=(bootstrap, scenario, signs, rng))
    if scenario == "executor":
        killer.start()
    began_s = time.monotonic()
    frame.write.format("ottla").option("kafka.bootstrap.servers", bootstrap).option("topic", scenario).mode("append").save()
    took_s = time.monotonic() - began_s
    if scenario == "executor":
        killer.join()
    found = copies_in(bootstrap, scenario, int)
    with Admin(bootstrap_servers=bootstrap) as admin:
        open_transactions = len(admin.list_transactions(states=["Ongoing"]))
    return {
        "records": found.total(),
        "missing": ROWS - len(found),
        "doubled": sum(times > 1 for times in found.values()),
        "of_all_attempts": copies_in(bootstrap, scenario, int, isolation="read_uncommitted").total(),
        "open_transactions": open_transactions,
        "attempts": sorted(sign.name for sign in signs.iterdir()),
        "seconds": round(took_s, 1),
    }


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", nargs=-1, type=click.Choice(SCENARIOS), metavar="[STORY]...")
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the random choices.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write the results to this file as JSON.")
def main(names: tuple[str, ...], seed: int, json_path: Path | None) -> None:
    """Make tasks of a Spark cluster fail while they write into topics. Exit code 0: no record is missing or doubled."""
    # Child processes must not outlive a terminated run.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="ottla-tasks-", ignore_cleanup_errors=True) as made:
        directory = Path(made)
        broker = BrokerProcess(directory / "data")
        broker.start()
        try:
            rng, outcome = random.Random(seed), {}
            with session(directory) as spark:
                for scenario in names or SCENARIOS:
                    outcome[scenario] = run_scenario(scenario, spark, broker.address, directory, rng)
        finally:
            broker.end(by_force=False)
    text = json.dumps(outcome, indent=1)
    click.echo(text)
    if json_path is not None:
        json_path.write_text(text + "\n")
    sys.exit(1 if any(one["missing"] or one["doubled"] or one["open_transactions"] for one in outcome.values()) else 0)


if __name__ == "__main__":
    main()
