"""`ottla doctor`: finds problems of a cluster and shows how to fix them. It changes nothing.

`ottla.client.doctor.gather` queries facts concurrently; the checks (`ottla.client.doctor.checks`) are pure functions of them. On a
terminal each finding is a block, by severity; in a pipe a line; `-o json` and `yaml` print one document.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

import click

from ottla.base.options import suggestion
from ottla.cli.common import tables
from ottla.cli.common.admin import admin_options
from ottla.cli.common.arguments import duration_ms
from ottla.cli.common.connection import connection_flags, profile_settings
from ottla.cli.common.errors import reporting_errors
from ottla.cli.common.output_formats import OutputFormat, fields, note
from ottla.cli.common.paths import LocalPath
from ottla.cli.common.tables import Column
from ottla.client.options import AdminOptions

if TYPE_CHECKING:
    from ottla.client.doctor.facts import Facts, Finding

FINDING = {
    "severity": "problem, warning, or note; a note does not change the exit code",
    "check": "name of the check",
    "where": "location in short; null: the whole cluster",
    "what": "the problem",
    "evidence": "observation that shows it",
    "remedy": "how to fix it",
    "command": "command that fixes it or shows more; null: none",
    "address": "address; null: none",
    "broker": "broker id; null: none",
    "topic": "topic; null: none",
    "partitions": "partitions of the topic",
    "group": "group id; null: none",
}
COLOURS = {"problem": "red", "warning": "yellow"}
COLUMNS = (
    Column("SEVERITY", "severity"),
    Column("CHECK", "check"),
    Column("WHERE", "where"),
    Column("WHAT", "what"),
    Column("EVIDENCE", "evidence"),
    Column("REMEDY", "remedy"),
    Column("COMMAND", "command"),
)
CHECKS = (Column("CHECK", "check"), Column("DESCRIPTION", "says"))


def _names(context: click.Context, parameter: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    """Raises: UsageError."""
    from ottla.client.doctor.checks import CHECKS as known

    for name in names:
        if name not in known:
            raise click.UsageError(f"unknown check {name}{suggestion(name, known)}; list all with ottla doctor --list")
    return names


@fields(
    {f"findings[].{name}": help for name, help in FINDING.items()},
    reachable="whether a broker answered; null: none was queried",
    cluster_id="cluster id; null: unknown",
    controller="broker id of the controller; null: none, or a KRaft quorum",
    brokers="number of brokers",
    checks="names of the checks that ran",
    problems="number of problems",
    warnings="number of warnings",
    notes="number of notes",
)
@click.command(name="doctor")
@click.option("--check", "names", multiple=True, callback=_names, metavar="NAME", help="Only this check; repeatable.")
@click.option("--list", "listing", is_flag=True, help="List the checks and run none.")
@click.option("--timeout", default="5s", show_default=True, metavar="DURATION", help="Timeout of each query.")
@click.option(
    "--between", default="6s", show_default=True, metavar="DURATION",
    help="Time between two measurements of groups that seem stuck; 0s: measure once.",
)  # fmt: skip
@click.option(
    "--data-dir",
    "directory",
    type=LocalPath(path_type=Path),
    metavar="DIR",
    help="Also check a broker's data directory on this machine.",
)
@admin_options
def command(
    names: tuple[str, ...], listing: bool, timeout: str, between: str, directory: Path | None, output: OutputFormat, bootstrap: str
) -> None:
    """Find problems of a cluster and show how to fix them. Changes nothing.

    Exit code 0 without problems and warnings, 1 with one, or if no broker answers.
    """
    from ottla.client.doctor.checks import CHECKS as known
    from ottla.client.doctor.checks import run_checks

    if listing:
        rows = [{"check": name, "says": check.help} for name, check in known.items()]
        output.show(rows, CHECKS)
        return
    if "data-dir" in names and directory is None:
        raise click.UsageError("--check data-dir needs --data-dir DIR")
    chosen = [name for name in known if name in names or (not names and (name != "data-dir" or directory is not None))]
    facts = _facts(bootstrap, chosen, directory, _seconds(timeout, "--timeout"), _seconds(between, "--between", at_least_s=0))
    findings = run_checks(facts, chosen)
    flags = connection_flags()
    for finding in findings:
        if finding.command is not None:
            finding.command += flags
    counts = {severity: sum(one.severity == severity for one in findings) for severity in ("problem", "warning", "note")}
    if output.is_structured:
        output.document(
            {
                "reachable": facts.is_reachable if facts.bootstrap else None,
                "cluster_id": next((one.cluster_id for one in facts.probes if one.cluster_id), None),
                "controller": facts.controller if facts.controller >= 0 and not facts.has_quorum else None,
                "brokers": len(facts.nodes),
                "checks": chosen,
                **{f"{severity}s": count for severity, count in counts.items()},
                "findings": [one.document() for one in findings],
            }
        )
    else:
        _print(findings, output)
        note(_summary(counts, len(chosen), facts))
    if counts["problem"] or counts["warning"]:
        raise SystemExit(1)


def _seconds(text: str, option: str, *, at_least_s: float = 0.001) -> float:
    """Raises: UsageError."""
    seconds = duration_ms(text, option) / 1000
    if seconds < at_least_s:
        raise click.UsageError(f"{option} expects a duration above 0")
    return seconds


def _facts(bootstrap: str, chosen: list[str], directory: Path | None, timeout_s: float, between_s: float) -> Facts:
    """The facts that these checks need. Raises: UsageError, ClickException."""
    from ottla.cli.doctor import local
    from ottla.client.doctor.checks import LOCAL, required_facts
    from ottla.client.doctor.facts import Facts
    from ottla.client.doctor.gather import gather

    if set(chosen) <= LOCAL:
        facts = Facts(now_ms=int(time.time() * 1000), timeout_ms=timeout_s * 1000)
    else:
        with reporting_errors(), _quiet():
            settings = profile_settings(AdminOptions)
            facts = asyncio.run(gather(bootstrap, required_facts(chosen), timeout_s=timeout_s, between_s=between_s, settings=settings))
    facts.machine = local.machine(os.environ)
    if directory is not None:
        facts.data_dir = local.data_dir(directory)
    return facts


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences the clients' warnings of unreachable brokers, which are findings here."""
    log = logging.getLogger("ottla.client")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


def _summary(counts: dict[str, int], checks: int, facts: Facts) -> str:
    findings = [_plural(count, severity) for severity, count in counts.items() if count]
    if facts.bootstrap and not facts.is_reachable:
        return f"{', '.join(findings)}. No broker is reachable."
    brokers = f", {_plural(len(facts.nodes), 'broker')}" if facts.bootstrap else ""
    return f"{', '.join(findings) or 'No problems'} ({_plural(checks, 'check')}{brokers})."


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _print(findings: list[Finding], output: OutputFormat) -> None:
    if not tables.is_terminal():
        if not findings:
            return
        output.table([one.document() for one in findings], COLUMNS)
        return
    width, colours = tables.terminal_columns(), tables.has_colours()
    for number, one in enumerate(findings):
        if number:
            click.echo()
        head = f"{one.severity}: {one.what}" + (f" [{one.place}]" if one.place else "")
        for line in wrap(head, width, break_on_hyphens=False):
            click.secho(line, bold=True, fg=COLOURS.get(one.severity)) if colours else click.echo(line)
        lines = [("shows", one.evidence), ("fix", one.remedy), ("run", one.command), ("check", one.check if output.is_wide else None)]
        for label, text in lines:
            if text:
                # A command is not folded, so that it can be copied.
                parts = [text] if label == "run" else wrap(text, max(width - 8, tables.FOLDED_MIN), break_on_hyphens=False)
                for at, part in enumerate(parts):
                    click.echo(f"  {label if at == 0 else '':<6}{part}")
