"""`ottla cluster health`: whether a cluster is healthy, once, at each change, or until it is."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.common.arguments import duration_ms
from ottla.cli.common.connection import bootstrap_option
from ottla.cli.common.errors import reporting_errors
from ottla.cli.common.output_formats import OutputFormat, fields, output_option
from ottla.wire.errors import KafkaError

if TYPE_CHECKING:
    from ottla.cli.cluster.health import Health

INTERVAL_S = 1.0
#: Partitions and brokers that a sentence names.
NAMED_MAX = 5


@fields(
    healthy="whether there is a controller, all brokers with replicas are up, and all replicas are in sync and undamaged",
    problems="what is wrong, in sentences",
    brokers="number of live brokers; null: no broker answers",
    partitions="number of partitions; null: no broker answers",
)
@click.command(name="health")
@click.option("--watch", is_flag=True, help="Go on until Ctrl-C, and print each change.")
@click.option("--exit-when-healthy", is_flag=True, help="With --watch: end as soon as the cluster is healthy.")
@click.option("--timeout", metavar="DURATION", help="With --watch: end after this time.")
@output_option
@bootstrap_option
def command(bootstrap: str, watch: bool, exit_when_healthy: bool, timeout: str | None, output: OutputFormat) -> None:
    """Say whether a cluster is healthy, and what is wrong. Exit code 1 if it is not healthy at the end."""
    if (exit_when_healthy or timeout is not None) and not watch:
        raise click.UsageError("--exit-when-healthy and --timeout need --watch")
    end_s = float("inf") if timeout is None else time.monotonic() + duration_ms(timeout, "--timeout") / 1000
    with reporting_errors():
        report = _report(bootstrap, retry=watch)
        _print(report, output, of_many=watch)
        while watch and time.monotonic() < end_s and not (exit_when_healthy and report["healthy"]):
            time.sleep(INTERVAL_S)
            before, report = report, _report(bootstrap, retry=True)
            if report != before:
                _print(report, output, of_many=True)
    if not report["healthy"]:
        raise SystemExit(1)


def _report(bootstrap: str, *, retry: bool) -> dict[str, Any]:
    """``retry``: that no broker answers is a problem of the cluster, not of the command. Raises: KafkaError."""
    from ottla.cli.cluster.health import health

    try:
        found = health(bootstrap)
    except KafkaError as error:
        if not retry:
            raise
        return {"healthy": False, "problems": [f"no broker answers: {' '.join(str(error).split())}"], "brokers": None, "partitions": None}
    problems = problems_of(found)
    return {"healthy": not problems, "problems": problems, "brokers": len(found.brokers), "partitions": found.partitions}


def problems_of(found: Health) -> list[str]:
    """The problems, in sentences."""
    problems = ["there is no controller"] if found.controller < 0 else []
    problems += [f"broker {broker} is down" for broker in found.absent]
    for what, partitions in (("offline", found.offline), ("under-replicated", found.under_replicated), ("damaged", found.damaged)):
        if partitions:
            problems.append(f"{len(partitions)} of {found.partitions} partitions {what}: {_named(partitions)}")
    return problems


def _named(partitions: Collection[tuple[Any, ...]]) -> str:
    names = sorted({f"{topic}-{number}" for topic, number, *_ in partitions})
    return ", ".join(names[:NAMED_MAX]) + (", ..." if len(names) > NAMED_MAX else "")


def _print(report: dict[str, Any], output: OutputFormat, *, of_many: bool) -> None:
    if output.is_structured:
        output.document(report, of_many=of_many)
    elif report["healthy"]:
        click.echo(f"healthy: {report['brokers']} brokers, {report['partitions']} partitions, all replicas in sync")
    else:
        click.echo("not healthy: " + "; ".join(report["problems"]))
