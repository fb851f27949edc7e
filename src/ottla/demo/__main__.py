"""``python -m ottla.demo [--input FILE]``: runs one demonstration from start to end.

Exit codes: 0 every record was counted once, 1 the counts differ or something failed, 2 the input cannot be read, 3 no Java, 130 stopped.
"""

import argparse
import logging
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ottla.demo.console_output import Story

EXIT_FAILED, EXIT_USAGE, EXIT_NO_JAVA, EXIT_STOPPED = 1, 2, 3, 130
PARTITIONS = 6
#: Patience with a pipeline that has everything to read and does not come to the end of it.
CATCH_UP_TIMEOUT_S = 60.0
LOOK_S = 0.1


def main(arguments: list[str] | None = None) -> int:
    """Runs the demo and gives the exit code."""
    parser = argparse.ArgumentParser(prog="python -m ottla.demo", description="Live records, through brokers and Spark, into a table.")
    parser.add_argument("--input", type=Path, metavar="FILE", help="a web server's log in Apache's combined format; without it, telemetry")
    parser.add_argument("--seconds", type=float, metavar="S", help="how long records are produced")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the brokers' data, the table and the checkpoint in DIR")
    given = parser.parse_args(arguments)
    # Spark's bridge logs what it also raises, an interrupt among it.
    logging.disable(logging.ERROR)
    if given.input is not None and not given.input.is_file():
        print(f"ottla: {given.input} is not a file", file=sys.stderr)
        return EXIT_USAGE
    directory = given.keep or Path(tempfile.mkdtemp(prefix="ottla-demo-"))
    directory.mkdir(parents=True, exist_ok=True)
    code = EXIT_FAILED
    try:
        code = _run(given, directory)
    except KeyboardInterrupt:
        print("\nottla: stopped", file=sys.stderr)
        code = EXIT_STOPPED
    finally:
        if given.keep is None and code in (0, EXIT_STOPPED, EXIT_NO_JAVA):
            shutil.rmtree(directory, ignore_errors=True)
        else:
            print(f"ottla: everything is in {directory}", file=sys.stderr)
    return code


def _run(given: Any, directory: Path) -> int:
    try:
        import deltalake  # noqa: F401
        import psutil  # noqa: F401
        import pyspark  # noqa: F401

        from ottla import KafkaError
        from ottla.demo.brokers import ServerFailed
        from ottla.demo.scenario import scenario
        from ottla.spark.java import NoJava
        from ottla.spark.pipeline.config.toml_table import PipelineError
        from ottla.spark.pipeline.run import QueryFailed
    except ImportError as error:
        print(f"ottla: the demo needs the package {error.name}; install ottla[demo]", file=sys.stderr)
        return EXIT_FAILED
    try:
        return 0 if demonstrate(scenario(given.input, given.seconds), directory, Story()) else EXIT_FAILED
    except NoJava as error:
        print(f"ottla: {error}", file=sys.stderr)
        return EXIT_NO_JAVA
    except (KafkaError, OSError, PipelineError, QueryFailed, ServerFailed, TimeoutError) as error:
        print(f"ottla: {error}", file=sys.stderr)
        return EXIT_FAILED


def demonstrate(chosen: Any, directory: Path, story: Story) -> bool:
    """One demonstration in `directory`; whether the counts agree."""
    from ottla import Admin, NewTopic
    from ottla.demo.brokers import serving
    from ottla.demo.feed import Feed
    from ottla.demo.verification import read_table, verdict

    story.step(f"[bold]Ottla demo[/bold]: {chosen.what}, through three brokers and Spark, into a table")
    with serving(directory / "brokers", directory / "server.log") as bootstrap:
        story.step(f"three brokers are ready on {bootstrap}")
        with Admin(bootstrap_servers=bootstrap) as admin:
            for topic in (chosen.topic, chosen.result_topic):
                admin.create_topic(NewTopic(topic, PARTITIONS))
        feed = Feed(bootstrap, chosen.topic, chosen.records())
        feed.start()
        story.step(f"producing to topic {chosen.topic}: {PARTITIONS} partitions, keyed, acks=all")
        try:
            _process(chosen, bootstrap, directory, feed, story)
        finally:
            feed.stop()
        found = verdict(
            bootstrap,
            acknowledged=feed.acknowledged,
            topic=chosen.topic,
            result_topic=chosen.result_topic,
            table=directory / "table",
        )
        for title, names, rows in chosen.shown(read_table(directory / "table")):
            story.table(title, names, rows)
    story.table("Records", ["where", "count"], [[where, count] for where, count in found.rows()])
    story.console.print()
    if found.even:
        story.step(f"[green]every one of {found.acknowledged:,} records was counted exactly once[/green]")
    else:
        story.step("[red]the counts differ: records were lost or counted twice[/red]")
    return found.even


def _process(chosen: Any, bootstrap: str, directory: Path, feed: Any, story: Story) -> None:
    """Runs the pipeline until the feed has ended and everything in the topic is in the table."""
    from ottla.spark.pipeline.config.file import load
    from ottla.spark.pipeline.run import RunningPipeline
    from ottla.spark.session import start_session

    variables = {"bootstrap": bootstrap, "dir": str(directory), "topic": chosen.topic, "result_topic": chosen.result_topic}
    pipeline = load(chosen.file, variables)
    with story.doing("starting Spark"):
        session = start_session("ottla demo", pipeline.spark, log_file=directory / "spark.log")
    try:
        running = RunningPipeline(pipeline, session, lambda *_: None)
        running.start()
        story.step(f"Spark runs the pipeline {chosen.file.name}: windowed SQL into a Delta table and topic {chosen.result_topic}")
        try:
            with story.doing("the first batch is on its way; it takes longest"):
                _until_everything_is_read(running, feed, story)
        finally:
            running.stop()
        story.step(f"all {feed.sent:,} records are read; the pipeline is stopped")
    finally:
        session.stop()


def _until_everything_is_read(running: Any, feed: Any, story: Story) -> None:
    counted, batch, ends, deadline = 0, "the first batch is on its way", None, float("inf")
    while ends is None or not running.caught_up(ends):
        for report in running.reports():
            counted += report.rows_in
            batch = f"batch {report.batch} took {report.batch_ms} ms, lag {'unknown' if report.lag is None else f'{report.lag:,}'}"
        story.now(f"{feed.sent:,} records produced, {counted:,} counted; {batch}")
        if ends is None and not feed.is_alive():
            if feed.failure is not None:
                raise feed.failure
            ends, deadline = running.ends(), time.monotonic() + CATCH_UP_TIMEOUT_S
        if time.monotonic() > deadline:
            raise TimeoutError(f"the pipeline did not read everything within {CATCH_UP_TIMEOUT_S:.0f} s")
        time.sleep(LOOK_S)


if __name__ == "__main__":
    raise SystemExit(main())
