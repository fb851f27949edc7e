"""`ottla doctor`: finds what is wrong with a cluster, and says what to do.

It only looks. The checks are pure functions (`ottla.cli.doctor_checks`) over facts that are asked for at once (`ottla.cli.doctor_gather`).
To a person a block per finding, the worst first; to a pipe a line each; with `-o json` or `yaml` one document.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from ottla.cli import tables
from ottla.cli.connection import bootstrap_option, place_flags, profile_settings
from ottla.cli.forms import Form, fields, note, output_option
from ottla.cli.render import told
from ottla.cli.tables import Column
from ottla.cli.words import duration_ms

if TYPE_CHECKING:
    from ottla.cli.doctor_facts import Finding

FINDING = {
    "severity": "problem, warning, or note: only the first two are an exit code",
    "check": "which check found it",
    "where": "where it is, in few words; null: the cluster as a whole",
    "what": "what is wrong",
    "evidence": "what was seen that shows it",
    "remedy": "what to do",
    "command": "a command that does it, or shows more; null: there is none",
    "address": "the address that it is about; null: none",
    "broker": "the broker",
    "topic": "the topic",
    "partitions": "numbers of its partitions",
    "group": "the group",
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
CHECKS = (Column("CHECK", "check"), Column("LOOKS FOR", "says"))


def _names(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    """Raises: UsageError."""
    from ottla.base.options import suggestion
    from ottla.cli.doctor_checks import CHECKS as known

    for name in given:
        if name not in known:
            raise click.UsageError(f"there is no check {name}{suggestion(name, known)}; ottla doctor --list shows all")
    return given


@fields(
    {f"findings[].{name}": says for name, says in FINDING.items()},
    reachable="whether a broker answered",
    cluster_id="the cluster's id; null: nobody told",
    controller="the broker that is the controller; null: none, or a quorum of others is",
    brokers="how many there are",
    checks="the checks that were made",
    problems="how many findings are problems",
    warnings="how many are warnings",
    notes="how many are notes",
)
@click.command(name="doctor")
@click.option("--check", "names", multiple=True, callback=_names, metavar="NAME", help="Only this check; may be repeated.")
@click.option("--list", "listing", is_flag=True, help="List the checks, and make none.")
@click.option("--timeout", default="5s", show_default=True, metavar="DURATION", help="How long to wait for each answer.")
@click.option(
    "--between", default="6s", show_default=True, metavar="DURATION",
    help="How long after the first look groups that look stuck are looked at again; 0s: they are not.",
)  # fmt: skip
@output_option
@bootstrap_option
def command(names: tuple[str, ...], listing: bool, timeout: str, between: str, output: Form, bootstrap: str) -> None:
    """Find what is wrong with a cluster, and say what to do. It only looks, and changes nothing.

    Exit code 0 when nothing is wrong, 1 when there is a problem or a warning, or nobody answers.
    """
    from ottla.cli.doctor_checks import CHECKS as known
    from ottla.cli.doctor_checks import examine, needed
    from ottla.cli.doctor_gather import gather
    from ottla.client.options import AdminOptions

    if listing:
        rows = [{"check": name, "says": check.says} for name, check in known.items()]
        output.show(rows, CHECKS)
        return
    chosen = [name for name in known if not names or name in names]
    timeout_s = duration_ms(timeout, "--timeout") / 1000
    if not timeout_s:
        raise click.UsageError("--timeout expects a duration above 0")
    between_s = duration_ms(between, "--between") / 1000
    with told(), _quiet():
        settings = {name: value for name, value in profile_settings(AdminOptions).items() if name != "retries"}
        facts = asyncio.run(gather(bootstrap, needed(chosen), timeout_s=timeout_s, between_s=between_s, settings=settings))
    findings = examine(facts, chosen)
    flags = place_flags()
    for finding in findings:
        if finding.command is not None:
            finding.command += flags
    counts = {severity: sum(one.severity == severity for one in findings) for severity in ("problem", "warning", "note")}
    if output.for_programs:
        output.document(
            {
                "reachable": facts.is_reachable,
                "cluster_id": next((one.cluster_id for one in facts.visits if one.cluster_id), None),
                "controller": facts.controller if facts.controller >= 0 and not facts.has_quorum else None,
                "brokers": len(facts.nodes),
                "checks": chosen,
                **{f"{severity}s": count for severity, count in counts.items()},
                "findings": [one.document() for one in findings],
            }
        )
    else:
        _print(findings, output)
        note(_summary(counts, len(chosen), len(facts.nodes), reachable=facts.is_reachable))
    if counts["problem"] or counts["warning"]:
        raise SystemExit(1)


@contextmanager
def _quiet() -> Iterator[None]:
    """Clients warn of brokers that do not answer; here that is a finding."""
    log = logging.getLogger("ottla.client")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


def _summary(counts: dict[str, int], checks: int, brokers: int, *, reachable: bool) -> str:
    said = [f"{count} {severity}{'s' if count != 1 else ''}" for severity, count in counts.items() if count]
    made = f"{checks} check{'s' if checks != 1 else ''}, {brokers} broker{'s' if brokers != 1 else ''}"
    if not reachable:
        return f"{', '.join(said)}. No broker could be asked."
    return f"{', '.join(said) or 'Nothing is wrong'} ({made})."


def _print(findings: list[Finding], output: Form) -> None:
    if not tables.is_terminal():
        output.table([one.document() for one in findings], COLUMNS)
        return
    width, colours = tables.terminal_columns(), tables.has_colours()
    for number, one in enumerate(findings):
        if number:
            click.echo()
        head = f"{one.severity}: {one.what}" + (f" [{one.place}]" if one.place else "")
        for line in tables.folded(head, width):
            click.secho(line, bold=True, fg=COLOURS.get(one.severity)) if colours else click.echo(line)
        lines = [("seen", one.evidence), ("do", one.remedy), ("run", one.command), ("check", one.check if output.is_wide else None)]
        for label, text in lines:
            if text:
                # A command stays on its line, so that it can be copied.
                parts = [text] if label == "run" else tables.folded(text, max(width - 8, tables.FOLDED_MIN))
                for at, part in enumerate(parts):
                    click.echo(f"  {label if at == 0 else '':<6}{part}")
