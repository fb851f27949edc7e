"""`ottla doctor`: finds what is wrong with a cluster, and says what to do.

It only looks. The checks are pure functions (`ottla.cli.doctor.checks`) over facts that are asked for at once (`ottla.cli.doctor.gather`).
To a person a block per finding, the worst first; to a pipe a line each; with `-o json` or `yaml` one document.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ottla.cli.common import tables
from ottla.cli.common.arguments import duration_ms
from ottla.cli.common.connection import bootstrap_option, place_flags, profile_settings
from ottla.cli.common.errors import told
from ottla.cli.common.output_formats import Form, fields, note, output_option
from ottla.cli.common.paths import LocalPath
from ottla.cli.common.tables import Column

if TYPE_CHECKING:
    from ottla.cli.doctor.facts import Facts, Finding

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
    from ottla.cli.doctor.checks import CHECKS as known

    for name in given:
        if name not in known:
            raise click.UsageError(f"there is no check {name}{suggestion(name, known)}; ottla doctor --list shows all")
    return given


@fields(
    {f"findings[].{name}": says for name, says in FINDING.items()},
    reachable="whether a broker answered; null: none was asked",
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
@click.option(
    "--data-dir",
    "directory",
    type=LocalPath(path_type=Path),
    metavar="DIR",
    help="Look at a broker's data directory on this machine, too.",
)
@output_option
@bootstrap_option
def command(
    names: tuple[str, ...], listing: bool, timeout: str, between: str, directory: Path | None, output: Form, bootstrap: str
) -> None:
    """Find what is wrong with a cluster, and say what to do. It only looks, and changes nothing.

    Exit code 0 when nothing is wrong, 1 when there is a problem or a warning, or nobody answers.
    """
    from ottla.cli.doctor.checks import CHECKS as known
    from ottla.cli.doctor.checks import examine

    if listing:
        rows = [{"check": name, "says": check.says} for name, check in known.items()]
        output.show(rows, CHECKS)
        return
    if "data-dir" in names and directory is None:
        raise click.UsageError("--check data-dir needs --data-dir, the directory to look at")
    chosen = [name for name in known if name in names or (not names and (name != "data-dir" or directory is not None))]
    facts = _facts(bootstrap, chosen, directory, _seconds(timeout, "--timeout"), _seconds(between, "--between", at_least_s=0))
    findings = examine(facts, chosen)
    flags = place_flags()
    for finding in findings:
        if finding.command is not None:
            finding.command += flags
    counts = {severity: sum(one.severity == severity for one in findings) for severity in ("problem", "warning", "note")}
    if output.for_programs:
        output.document(
            {
                "reachable": facts.is_reachable if facts.bootstrap else None,
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
        note(_summary(counts, len(chosen), facts))
    if counts["problem"] or counts["warning"]:
        raise SystemExit(1)


def _seconds(text: str, option: str, *, at_least_s: float = 0.001) -> float:
    """Raises: UsageError."""
    found = duration_ms(text, option) / 1000
    if found < at_least_s:
        raise click.UsageError(f"{option} expects a duration above 0")
    return found


def _facts(bootstrap: str, chosen: list[str], directory: Path | None, timeout_s: float, between_s: float) -> Facts:
    """Everything that some checks need. Raises: UsageError, ClickException."""
    from ottla.cli.doctor import local
    from ottla.cli.doctor.checks import LOCAL, needed
    from ottla.cli.doctor.facts import Facts
    from ottla.cli.doctor.gather import gather
    from ottla.client.options import AdminOptions

    if set(chosen) <= LOCAL:
        facts = Facts(now_ms=int(time.time() * 1000), patience_ms=timeout_s * 1000)
    else:
        with told(), _quiet():
            settings = profile_settings(AdminOptions)
            facts = asyncio.run(gather(bootstrap, needed(chosen), timeout_s=timeout_s, between_s=between_s, settings=settings))
    facts.machine = local.machine(os.environ)
    if directory is not None:
        facts.data_dir = local.data_dir(directory)
    return facts


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


def _summary(counts: dict[str, int], checks: int, facts: Facts) -> str:
    said = [_many(count, severity) for severity, count in counts.items() if count]
    if facts.bootstrap and not facts.is_reachable:
        return f"{', '.join(said)}. No broker could be asked."
    asked = f", {_many(len(facts.nodes), 'broker')}" if facts.bootstrap else ""
    return f"{', '.join(said) or 'Nothing is wrong'} ({_many(checks, 'check')}{asked})."


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


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
