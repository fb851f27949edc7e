"""The first page: health in one sentence, throughput, what is wrong and the command that mends it, brokers, the busiest topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request

from ottla.client.doctor.facts import Finding
from ottla.console.watch.snapshot import Snapshot
from ottla.console.watch.watcher import Report
from ottla.console.web.errors import explain
from ottla.console.web.page import refreshed_page
from ottla.wire.errors import KafkaError

BUSIEST_MAX = 8
#: Findings of the doctor on the page, the worst first.
FINDINGS_MAX = 40


class Health(msgspec.Struct, frozen=True):
    """The state of the cluster: "good", "note", "warning", "bad" or "unknown"; and a sentence."""

    level: str
    sentence: str


def health(snapshot: Snapshot | None, report: Report | None, error: KafkaError | None) -> Health:
    """Health in one sentence: what does not work first, then what is at risk."""
    if error is not None:
        return Health("bad", "The cluster cannot be reached.")
    if snapshot is None:
        return Health("unknown", "The cluster is being measured.")
    leaderless = sum(one.leaderless for one in snapshot.topics.values())
    lagging = sum(one.under_replicated for one in snapshot.topics.values())
    if leaderless:
        return Health("bad", f"{plural(leaderless, 'partition')} {has(leaderless)} no leader and cannot be read or written.")
    problems = [] if report is None else [one for one in report.findings if one.severity == "problem"]
    warnings = [] if report is None else [one for one in report.findings if one.severity == "warning"]
    if problems:
        return Health("bad", f"{_sentence(problems[0])}{_more(len(problems) - 1, 'problem')}")
    if lagging:
        return Health("warning", f"{plural(lagging, 'partition')} {has(lagging)} replicas that are not in sync.")
    if warnings:
        return Health("warning", f"{_sentence(warnings[0])}{_more(len(warnings) - 1, 'warning')}")
    count = len(snapshot.brokers)
    brokers = "The broker answers" if count == 1 else f"All {count} brokers answer"
    if report is None:
        return Health("unknown", f"{brokers}; the checks are running.")
    return Health("good", f"{brokers}, all replicas are in sync, and {report.checks} checks found no problem.")


def plural(count: int, noun: str) -> str:
    """`1 topic`, `2 topics`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def has(count: int) -> str:
    """The verb for a number of things."""
    return "has" if count == 1 else "have"


def _sentence(finding: Finding) -> str:
    text = finding.what.rstrip(".")
    place = f" ({finding.place})" if finding.place else ""
    return f"{text}{place}."


def _more(count: int, noun: str) -> str:
    return f" And {plural(count, f'more {noun}')}." if count > 0 else ""


def busiest(snapshot: Snapshot) -> list[object]:
    """The topics with the most records per second, or with the most bytes if nothing is written."""
    shown = [one for one in snapshot.topics.values() if not one.is_internal]
    return list(sorted(shown, key=lambda one: (-(one.rate or 0.0), -(one.size_bytes or 0), one.name))[:BUSIEST_MAX])


def counted(findings: Sequence[Finding]) -> str:
    """`1 problem, 2 warnings`."""
    counts = {severity: sum(one.severity == severity for one in findings) for severity in ("problem", "warning", "note")}
    return ", ".join(plural(count, severity) for severity, count in counts.items() if count)


async def _values(request: Request) -> dict[str, Any]:
    watcher = request.app.state.watcher
    problem = None
    snapshot: Snapshot | None = None
    try:
        snapshot = await watcher.latest()
    except KafkaError as error:
        problem = explain(error, request.app.state.options.command_flags)
    return {
        "title": "Overview",
        "snapshot": snapshot,
        "report": watcher.report,
        "problem": problem,
        "health": health(snapshot, watcher.report, watcher.error),
        "busiest": [] if snapshot is None else busiest(snapshot),
        "findings_max": FINDINGS_MAX,
        "counted": "" if watcher.report is None else counted(watcher.report.findings),
        "history": [rate for _, rate in watcher.history],
    }


routes = refreshed_page("/", "overview", _values, part="/live/overview")
