"""``ottla pipeline test``: runs the tests of a pipeline file in one local Spark session, without brokers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.common.output_formats import OutputFormat, fields, output_option
from ottla.cli.pipeline.commands import EXIT_FAILED, file_argument, load_pipeline, parse_variables, variables_option
from ottla.cli.pipeline.plan import exiting

if TYPE_CHECKING:
    from ottla.spark.pipeline.case_run import CaseResult


@fields(
    {
        "tests[].name": "name of the test",
        "tests[].where": "file and line",
        "tests[].passed": "whether all rows are as expected",
        "tests[].error": "null, or the error of the run",
        "tests[].differences[].view": "view, topic or dead_letters",
        "tests[].differences[].batch": "number of the batch, from 1; null: at the end",
        "tests[].differences[].missing": "expected rows that are not there",
        "tests[].differences[].unexpected": "rows that are not expected",
        "tests[].differences[].other_order": "whether the rows are there in another order",
    },
    name="name of the pipeline",
    file="path of the file",
    passed="number of tests that passed",
    failed="number of tests that failed",
)
@click.command("test")
@file_argument
@variables_option
@click.option("-k", "part", metavar="TEXT", help="Run only the tests with TEXT in their name.")
@output_option
def test(file: Path, variables: tuple[str, ...], part: str | None, output: OutputFormat) -> None:
    """Run the tests of a pipeline FILE: records in, rows expected. Needs no broker.

    Tests are the [[test]] of FILE and of NAME.test.toml beside it. Exits with 1 if one fails.
    """
    pipeline = load_pipeline(file, variables)
    results: list[CaseResult] = []
    with exiting():
        from ottla.spark.pipeline.config.cases import read_cases
        from ottla.spark.pipeline.quick_check import quick_check
        from ottla.spark.pipeline.session import planning_session

        cases = [case for case in read_cases(pipeline, {**os.environ, **parse_variables(variables)}) if part is None or part in case.name]
        if not cases:
            raise click.BadParameter(f"no test has {part!r} in its name", param_hint="-k")
        # A misspelt name is reported before Spark starts.
        quick_check(pipeline)
        with planning_session(pipeline) as session:
            from ottla.spark.pipeline.case_run import run_case

            for case in cases:
                results.append(run_case(pipeline, case, session))
                if not output.is_structured:
                    _print(results[-1])
    failed = sum(not result.passed for result in results)
    if output.is_structured:
        documents = [_document(result) for result in results]
        output.document({"name": pipeline.name, "file": str(file), "passed": len(results) - failed, "failed": failed, "tests": documents})
    else:
        click.echo(f"{file}: {len(results) - failed} passed, {failed} failed")
    if failed:
        raise SystemExit(EXIT_FAILED)


def _print(result: CaseResult) -> None:
    from ottla.spark.pipeline.row_differences import differences_text

    click.echo(f"{'passed' if result.passed else 'FAILED'}  {result.case.name}  ({result.case.where})")
    if result.error is not None:
        click.echo(f"  {result.error}")
    for one in result.differences:
        for line in differences_text(one):
            click.echo(f"  {line}")


def _document(result: CaseResult) -> dict[str, Any]:
    return {
        "name": result.case.name,
        "where": result.case.where,
        "passed": result.passed,
        "error": result.error,
        "differences": [
            {
                "view": one.view,
                "batch": one.batch,
                "missing": one.missing,
                "unexpected": one.unexpected,
                "other_order": one.other_order,
            }
            for one in result.differences
        ],
    }
