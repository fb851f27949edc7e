"""`python -m bench.spark_functions`: CPU of user functions of a pipeline, by row, by column and by batch, beside Spark's own SQL.

The same calculation, `amount * (1 + rate)` with a rate by category, over rows that Spark makes in memory; results are dropped. All run in
one session, in turn, several times, so that their ratios hold on a busy machine. CPU is that of the JVM and of Python's processes.

    nothing     the columns alone
    sql         CASE in SQL
    row         def tax(amount: float, category: str) -> float
    columns     def tax(amount: pa.DoubleArray, category: pa.StringArray) -> pa.DoubleArray
    batches     the same calculation in `function` of a step, which passes all columns through Python
"""

from __future__ import annotations

import contextlib
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import click
import psutil

from ottla.spark.pipeline.config.file import parse
from ottla.spark.pipeline.functions import batch_function, register
from ottla.spark.session import start_session

MODULE = """
import pyarrow as pa
import pyarrow.compute as pc


def tax_of_row(amount: float, category: str) -> float:
    return amount * (1.07 if category == "food" else 1.19)


def tax_of_columns(amount: pa.DoubleArray, category: pa.StringArray) -> pa.DoubleArray:
    return pc.multiply(amount, pc.if_else(pc.equal(category, "food"), 1.07, 1.19))


def taxed(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"tax": tax_of_columns(batch["amount"], batch["category"])})
"""
QUERIES = {
    "nothing": "SELECT amount, category FROM records",
    "sql": "SELECT amount * CASE category WHEN 'food' THEN 1.07D ELSE 1.19D END AS tax FROM records",
    "row": "SELECT tax_of_row(amount, category) AS tax FROM records",
    "columns": "SELECT tax_of_columns(amount, category) AS tax FROM records",
    "batches": "SELECT amount, category FROM records",
}
ROWS = "SELECT CAST(id AS DOUBLE) AS amount, CASE id % 3 WHEN 0 THEN 'food' ELSE 'other' END AS category FROM range({rows})"


def frames(session: Any, directory: Path, rows: int) -> dict[str, Any]:
    """Each form over the same rows, by name."""
    (directory / "bench_functions.py").write_text(MODULE)
    text = '[source]\ntopic = "none"\n[functions]\nmodule = "bench_functions.py"\n[[sink]]\ntype = "console"\n'
    text += '[[step]]\nname = "batches"\nsql = "SELECT * FROM records"\nfunction = "taxed"\ncolumns = "tax DOUBLE"\n'
    pipeline = parse(text, directory / "bench.toml", {})
    register(pipeline, session)
    session.sql(ROWS.format(rows=rows)).createOrReplaceTempView("records")
    made = {name: session.sql(sql) for name, sql in QUERIES.items()}
    return {**made, "batches": made["batches"].mapInArrow(*batch_function(pipeline, pipeline.steps[0]))}


def cpu_s() -> float:
    """CPU seconds used so far by this process and its descendants."""
    total = 0.0
    for process in (own := psutil.Process(), *own.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rows", type=click.IntRange(1), default=2_000_000, show_default=True, help="Rows of each run.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Measured runs of each form.")
def main(rows: int, rounds: int) -> None:
    """Measure the CPU of user functions beside SQL."""
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        session = start_session("functions", {}, log_file=directory / "spark.log", cores=1)
        used: dict[str, list[float]] = {name: [] for name in QUERIES}
        found = frames(session, directory, rows)
        for number in range(rounds + 1):
            for name, frame in found.items():
                before = cpu_s()
                frame.write.format("noop").mode("overwrite").save()
                if number:
                    used[name].append((cpu_s() - before) / rows * 1e6)
        session.stop()
    medians = {name: round(statistics.median(times), 3) for name, times in used.items()}
    click.echo(json.dumps({"rows": rows, "cpu_s_per_million_rows": medians}, indent=1))


if __name__ == "__main__":
    main()
