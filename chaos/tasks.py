"""`python -m chaos.tasks`: tasks of a Spark cluster write into topics and fail on the way, or lose their executor.

The cluster is Spark's own `local-cluster`: a driver with a master in this process's JVM, and two executors, each a process. In each story
four tasks write a topic. Their rows are large, so that a part of them is in the log before anything happens:

    retried       one task raises an error half way; Spark runs it again
    executor      kill -9 of an executor with its tasks half way; Spark starts another, and runs them again
    speculative   one task is slow; Spark runs another one of it on another host, takes that, and ends the slow one

Spark speculates on other hosts only, so the last one has a standalone cluster with workers on two addresses of the loopback (Linux). A task
that is run again writes its rows again, and what its attempt before had sent stays: so records may be doubled, and none is missing.
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
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click

from chaos.cluster import until
from chaos.pipelines import copies_in, descendants, is_java
from chaos.soak import Served
from chaos.standalone import cluster
from ottla import Admin, Consumer, NewTopic
from ottla.spark.session import start_session

TASKS, ROWS = 4, 40_000
#: Of each row. The sink sends 4 MiB at a time.
ROW_BYTES = 1_000
#: The row of a task at which things happen.
MIDWAY = ROWS // TASKS * 9 // 10
SETTINGS = {
    "spark.master": "local-cluster[2,1,1024]",
    "spark.executor.memory": "512m",
    "spark.task.maxFailures": "4",
    # What comes to the sink at once, so that a task has sent something when it is half way.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
}
SPECULATING = {
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "1s",
    "spark.executorEnv.PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
}
STORIES = ("retried", "executor", "speculative")
WAIT_S = 400.0


def stumbling(story: str, signs: str) -> Callable[[int], str]:
    """What the tasks make of each row. A task leaves a sign when it is half way; the first attempt of the first fails, or all wait."""

    def value(number: int) -> str:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None, "a task runs this"
        if number % (ROWS // TASKS) == MIDWAY:
            (Path(signs) / f"{context.partitionId()}-{context.attemptNumber()}").touch()
            first = context.attemptNumber() == 0
            if first and story == "retried" and context.partitionId() == 0:
                raise RuntimeError("the task stumbles")
            if first and story == "speculative" and context.partitionId() == 0:
                # Spark ends this attempt when the other one is done.
                time.sleep(WAIT_S)
            if story == "executor" and not (Path(signs) / "killed").exists():
                # Until the kill, which may hit this very task.
                deadline_s = time.monotonic() + WAIT_S
                while not (Path(signs) / "killed").exists() and time.monotonic() < deadline_s:
                    time.sleep(0.05)
        return f"{number:0{ROW_BYTES}}"

    # Spark looks at annotations, and takes none that are put off.
    return lambda number: value(number)


def spark_home(directory: Path) -> Path:
    """The installed Spark, in a directory of our own: executors work and write below it."""
    import pyspark

    directory.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name != "work":
            (directory / entry.name).symlink_to(entry)
    return directory


def executors() -> list[int]:
    """The executors of this process's cluster."""
    return sorted(
        pid for pid, command in descendants(os.getpid()).items() if is_java(command) and "CoarseGrainedExecutorBackend" in command
    )


def kill_one(bootstrap: str, topic: str, signs: Path, rng: random.Random) -> None:
    """kill -9 of an executor when both have a task half way, and the topic has something of them. Raises: Stuck."""
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
def session(story: str, directory: Path) -> Iterator[Any]:
    """A Spark session on the cluster that a story needs."""
    with ExitStack() as ending:
        settings = SETTINGS
        if story == "speculative":
            (directory / "cluster").mkdir()
            master = ending.enter_context(cluster(directory / "cluster", ("127.0.0.1", "127.0.0.2"), cores=1))
            settings = {**SPECULATING, "spark.master": master}
        spark = start_session("chaos.tasks", settings, log_file=directory / "spark.log")
        ending.callback(spark.stop)
        yield spark


def told(story: str, spark: Any, bootstrap: str, directory: Path, rng: random.Random) -> dict[str, Any]:
    """One story: how many records are in the topic, how many are missing or doubled, and the attempts that came to their middle."""
    from pyspark.sql.functions import udf

    signs = directory / story
    signs.mkdir()
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topic(NewTopic(story, 2))
    frame = spark.range(0, ROWS, 1, TASKS).select(udf(stumbling(story, str(signs)), "string")("id").alias("value"))
    killer = threading.Thread(target=kill_one, args=(bootstrap, story, signs, rng))
    if story == "executor":
        killer.start()
    began_s = time.monotonic()
    frame.write.format("ottla").option("kafka.bootstrap.servers", bootstrap).option("topic", story).mode("append").save()
    took_s = time.monotonic() - began_s
    if story == "executor":
        killer.join()
    found = copies_in(bootstrap, story, int)
    return {
        "records": found.total(),
        "missing": ROWS - len(found),
        "doubled": sum(times > 1 for times in found.values()),
        "attempts": sorted(sign.name for sign in signs.iterdir()),
        "seconds": round(took_s, 1),
    }


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", nargs=-1, type=click.Choice(STORIES), metavar="[STORY]...")
@click.option("--seed", type=int, default=1, show_default=True, help="Which executor is killed.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write the outcome here, too.")
def main(names: tuple[str, ...], seed: int, json_path: Path | None) -> None:
    """Let tasks of a Spark cluster fail while they write into topics. Exit code 0: no record is missing."""
    # What was started must not outlive a run that is told to end.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="ottla-tasks-", ignore_cleanup_errors=True) as made:
        directory = Path(made)
        os.environ["SPARK_HOME"] = str(spark_home(directory / "spark"))
        broker = Served(directory / "data")
        broker.start()
        try:
            rng, outcome = random.Random(seed), {}
            for story in names or STORIES:
                with session(story, directory) as spark:
                    outcome[story] = told(story, spark, broker.address, directory, rng)
        finally:
            broker.end(by_force=False)
    text = json.dumps(outcome, indent=1)
    click.echo(text)
    if json_path is not None:
        json_path.write_text(text + "\n")
    sys.exit(1 if any(one["missing"] for one in outcome.values()) else 0)


if __name__ == "__main__":
    main()
