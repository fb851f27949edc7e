"""``python -m ottla.demo [--input FILE]``: runs the demo.

Exit codes: 0 every record was counted once, 1 the counts differ or a part failed, 2 the input cannot be read, 3 no Java, 130 interrupted.
"""

import argparse
import logging
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ottla.demo.console_output import ConsoleOutput

EXIT_FAILED, EXIT_USAGE, EXIT_NO_JAVA, EXIT_STOPPED = 1, 2, 3, 130
PARTITIONS = 6
#: How long the pipeline may take to read the rest after the feed has ended.
CATCH_UP_TIMEOUT_S = 60.0
POLL_INTERVAL_S = 0.1


def main(arguments: list[str] | None = None) -> int:
    """Runs the demo and gives the exit code."""
    parser = argparse.ArgumentParser(prog="python -m ottla.demo", description="Live records, through brokers and Spark, into a table.")
    parser.add_argument("--input", type=Path, metavar="FILE", help="a web server's log in Apache's combined format; without it, telemetry")
    parser.add_argument("--seconds", type=float, metavar="S", help="how long records are produced")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the brokers' data, the table and the checkpoint in DIR")
    options = parser.parse_args(arguments)
    # py4j logs errors that it also raises, an interrupt among them.
    logging.disable(logging.ERROR)
    if options.input is not None and not options.input.is_file():
        print(f"ottla: {options.input} is not a file", file=sys.stderr)
        return EXIT_USAGE
    directory = options.keep or Path(tempfile.mkdtemp(prefix="ottla-demo-"))
    directory.mkdir(parents=True, exist_ok=True)
    code = EXIT_FAILED
    try:
        code = _run(options, directory)
    except KeyboardInterrupt:
        print("\nottla: stopped", file=sys.stderr)
        code = EXIT_STOPPED
    finally:
        if options.keep is None and code in (0, EXIT_STOPPED, EXIT_NO_JAVA):
            shutil.rmtree(directory, ignore_errors=True)
        else:
            print(f"ottla: everything is in {directory}", file=sys.stderr)
    return code


def _run(options: Any, directory: Path) -> int:
    try:
        import deltalake  # noqa: F401
        import psutil  # noqa: F401
        import pyspark  # noqa: F401

        from ottla import KafkaError
        from ottla.demo.brokers import ServerFailed
        from ottla.demo.scenario import make_scenario
        from ottla.spark.java import NoJava
        from ottla.spark.pipeline.config.toml_table import PipelineError
        from ottla.spark.pipeline.run import QueryFailed
    except ImportError as error:
        print(f"ottla: the demo needs the package {error.name}; install ottla[demo]", file=sys.stderr)
        return EXIT_FAILED
    try:
        return 0 if demonstrate(make_scenario(options.input, options.seconds), directory, ConsoleOutput()) else EXIT_FAILED
    except NoJava as error:
        print(f"ottla: {error}", file=sys.stderr)
        return EXIT_NO_JAVA
    except (KafkaError, OSError, PipelineError, QueryFailed, ServerFailed, TimeoutError) as error:
        print(f"ottla: {error}", file=sys.stderr)
        return EXIT_FAILED


def demonstrate(scenario: Any, directory: Path, console: ConsoleOutput) -> bool:
    """Runs the demo in `directory`. Returns whether the counts agree."""
    from ottla import Admin, NewTopic
    from ottla.demo.brokers import serving
    from ottla.demo.feed import Feed
    from ottla.demo.verification import count_records, read_table

    console.step(f"[bold]Ottla demo[/bold]: {scenario.description}, through three brokers and Spark, into a table")
    with serving(directory / "brokers", directory / "server.log") as bootstrap:
        console.step(f"three brokers are ready on {bootstrap}")
        with Admin(bootstrap_servers=bootstrap) as admin:
            for topic in (scenario.topic, scenario.result_topic):
                admin.create_topic(NewTopic(topic, PARTITIONS))
        feed = Feed(bootstrap, scenario.topic, scenario.records())
        feed.start()
        console.step(f"producing to topic {scenario.topic}: {PARTITIONS} partitions, keyed, acks=all")
        try:
            _run_pipeline(scenario, bootstrap, directory, feed, console)
        finally:
            feed.stop()
        counts = count_records(
            bootstrap,
            acknowledged=feed.acknowledged,
            topic=scenario.topic,
            result_topic=scenario.result_topic,
            table=directory / "table",
        )
        for title, names, rows in scenario.summary_tables(read_table(directory / "table")):
            console.table(title, names, rows)
    console.table("Records", ["where", "count"], [[where, count] for where, count in counts.rows()])
    console.console.print()
    if counts.agree:
        console.step(f"[green]every one of {counts.acknowledged:,} records was counted exactly once[/green]")
    else:
        console.step("[red]the counts differ: records were lost or counted twice[/red]")
    return counts.agree


def _run_pipeline(scenario: Any, bootstrap: str, directory: Path, feed: Any, console: ConsoleOutput) -> None:
    """Runs the pipeline until the feed has ended and all records of the topic are in the table."""
    from ottla.spark.pipeline.config.file import load
    from ottla.spark.pipeline.run import RunningPipeline
    from ottla.spark.session import start_session

    variables = {"bootstrap": bootstrap, "dir": str(directory), "topic": scenario.topic, "result_topic": scenario.result_topic}
    pipeline = load(scenario.file, variables)
    with console.doing("starting Spark"):
        session = start_session("ottla demo", pipeline.spark, log_file=directory / "spark.log")
    try:
        running = RunningPipeline(pipeline, session, lambda *_: None)
        running.start()
        console.step(f"Spark runs the pipeline {scenario.file.name}: windowed SQL into a Delta table and topic {scenario.result_topic}")
        try:
            with console.doing("running the first batch, which takes longest"):
                _wait_until_read(running, feed, console)
        finally:
            running.stop()
        console.step(f"all {feed.sent:,} records are read; the pipeline is stopped")
    finally:
        session.stop()


def _wait_until_read(running: Any, feed: Any, console: ConsoleOutput) -> None:
    counted, batch, ends, deadline = 0, "running the first batch", None, float("inf")
    while ends is None or not running.caught_up(ends):
        for report in running.reports():
            counted += report.rows_in
            batch = f"batch {report.batch} took {report.batch_ms} ms, lag {'unknown' if report.lag is None else f'{report.lag:,}'}"
        console.now(f"{feed.sent:,} records produced, {counted:,} counted; {batch}")
        if ends is None and not feed.is_alive():
            if feed.failure is not None:
                raise feed.failure
            ends, deadline = running.ends(), time.monotonic() + CATCH_UP_TIMEOUT_S
        if time.monotonic() > deadline:
            raise TimeoutError(f"the pipeline did not read all records within {CATCH_UP_TIMEOUT_S:.0f} s")
        time.sleep(POLL_INTERVAL_S)


if __name__ == "__main__":
    raise SystemExit(main())
