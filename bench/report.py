"""The results of a run: a table for people, JSON for programs.

A ratio is Ottla's figure divided by Kafka's. It is green where Ottla is better, whether higher or lower is better for that figure.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from bench.cases import Case, Figure, Scale
from bench.runner import Results
from bench.servers import ROOT

MISSED = "[red]target missed[/]"
OTTLA, CACHED, KAFKA = "ottla", "ottla cached", "kafka"
#: (group, text in the case's name, figure, limit): Ottla's own targets.
TARGETS = (
    ("start", "", "until ready line", 0.5),
    ("start", "", "idle RSS", 80.0),
    ("spark source", "batch", "rows", 3.0),
    ("spark source", "stream", "rows", 1.5),
    ("spark sink", "", "rows", 0.5),
    ("spark source", "", "rows of the connector's", 1.0),
    ("spark source", "", "CPU of the connector's", 1.0),
    ("spark sink", "", "rows of the connector's", 1.0),
    ("groups", "classic, 500", "slowest of these", 10.0),
    ("groups", "new protocol, 500", "slowest of these", 5.0),
    ("groups", "", "fenced", 0.0),
    ("groups", "", "others' p99, times", 2.0),
    ("transactions", "produce, commit every 100 ms", "of idempotent", 0.9),
    ("console", "", "first page in Chromium", 1.0),
    ("console", "", "search", 300.0),
    ("console", "", "peak RSS", 200.0),
)


def machine(directory: Path) -> dict[str, Any]:
    """The test machine: processor, memory, kernel, Python, the file system of the data."""
    model = next((line.split(":", 1)[1].strip() for line in _text("/proc/cpuinfo").splitlines() if line.startswith("model name")), "")
    mounts = [part for part in psutil.disk_partitions(all=True) if directory.resolve().is_relative_to(part.mountpoint)]
    return {
        "cpu": model or platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "kernel": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "file_system": max(mounts, key=lambda part: len(part.mountpoint)).fstype if mounts else "unknown",
        "load_average": list(os.getloadavg()),
    }


def commit() -> str:
    """The measured commit, with `-dirty` when the tree has uncommitted changes."""
    try:
        name = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
        changes = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{name}-dirty" if changes else name


def as_json(
    results: Results, *, scale: Scale, machine: dict[str, Any], commit: str, servers: dict[str, str], began: datetime.datetime
) -> dict[str, Any]:
    return {
        "format": 1,
        "began": began.isoformat(timespec="seconds"),
        "seconds": round((datetime.datetime.now(datetime.UTC) - began).total_seconds(), 1),
        "commit": commit,
        "machine": machine,
        "scale": scale.name,
        "servers": servers,
        "notes": results.notes,
        "warm_up_cpu_s_per_gb": results.warm_up,
        "cases": [_case_json(case, results) for case in results.cases],
    }


def _case_json(case: Case, results: Results) -> dict[str, Any]:
    by_contestant = {}
    for name in results.contestants:
        if (outcome := results.outcomes.get((case.title, name))) is not None:
            by_contestant[name] = {
                "median": {figure.key: outcome.median(figure.key) for figure in case.figures},
                "rounds": outcome.rounds,
                "details": outcome.details,
                "skipped": outcome.skipped,
                "failed": outcome.failed,
            }
    return {
        "group": case.group,
        "name": case.name,
        "figures": [{"key": figure.key, "unit": figure.unit, "better": "higher" if figure.higher else "lower"} for figure in case.figures],
        "results": by_contestant,
    }


def write(document: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")


def show(results: Results, console: Console) -> None:
    ratios = [name for name in (OTTLA, CACHED) if name in results.contestants and KAFKA in results.contestants]
    for group in dict.fromkeys(case.group for case in results.cases):
        table = Table(title=group, title_justify="left", title_style="bold", header_style="", box=None, pad_edge=False)
        table.add_column("case", min_width=44)
        table.add_column("unit")
        for name in results.contestants:
            table.add_column(name, justify="right")
        for name in ratios:
            table.add_column(f"{name} / kafka", justify="right")
        for case in results.cases:
            if case.group == group:
                _add_rows(table, case, results, ratios)
        console.print(table)
        console.print()
    for line in [*results.notes, *results.failures, *_skips(results)]:
        console.print(f"[yellow]note[/] {line}", highlight=False)
    lines = _target_lines(results)
    for line in lines:
        console.print(line, highlight=False)
    if lines:
        missed = sum(line.startswith(MISSED) for line in lines)
        console.print(f"{len(lines) - missed} of {len(lines)} targets met, {missed} missed", highlight=False)


def exit_status(results: Results, console: Console) -> int:
    """1 when Ottla or one of its cases could not be measured, with the reason printed; else 0. A missed target is a result, not a
    failure."""
    if not results.contestants:
        console.print("[red]benchmark failed[/] no server started", highlight=False)
        return 1
    if results.ottla_failures:
        console.print(f"[red]benchmark failed[/] {len(results.ottla_failures)} cases could not be measured:", highlight=False)
        for line in results.ottla_failures:
            console.print(f"  {line}", markup=False, highlight=False)
    return int(bool(results.ottla_failures))


def _add_rows(table: Table, case: Case, results: Results, ratios: list[str]) -> None:
    for index, figure in enumerate(case.figures):
        cells = [_cell(results, case, name, figure) for name in results.contestants]
        compared = [_ratio(_value(results, case, name, figure), _value(results, case, KAFKA, figure), figure) for name in ratios]
        table.add_row(case.name if index == 0 else "", f"{figure.key}, {figure.unit}", *cells, *compared)


def _value(results: Results, case: Case, name: str, figure: Figure) -> float | None:
    outcome = results.outcomes.get((case.title, name))
    return outcome.median(figure.key) if outcome else None


def _cell(results: Results, case: Case, name: str, figure: Figure) -> str:
    outcome = results.outcomes.get((case.title, name))
    if outcome is None:
        return ""
    if outcome.failed or outcome.skipped:
        return "[red]failed[/]" if outcome.failed else "skipped"
    value = outcome.median(figure.key)
    return "" if value is None else f"{value:,.{figure.digits}f}"


def _ratio(ours: float | None, theirs: float | None, figure: Figure) -> str:
    if ours is None or not theirs:
        return ""
    ratio = ours / theirs
    ahead = ratio > 1 if figure.higher else ratio < 1
    return f"[{'green' if ahead else 'red'}]{ratio:.2f}[/]"


def _skips(results: Results) -> list[str]:
    return [f"{title} on {name}: skipped: {outcome.skipped}" for (title, name), outcome in results.outcomes.items() if outcome.skipped]


def _target_lines(results: Results) -> list[str]:
    """Ottla's figures against its targets: the limits above, and no more CPU per GB than Kafka."""
    lines = []
    for group, part, key, limit in TARGETS:
        for case in results.cases:
            figure = next((figure for figure in case.figures if figure.key == key), None)
            if case.group == group and part in case.name and figure and (value := _value(results, case, OTTLA, figure)) is not None:
                met = value >= limit if figure.higher else value <= limit
                sign = ">=" if figure.higher else "<="
                lines.append(_target_line(met, f"{case.title}, {key}: {value:,.2f} {figure.unit} (target {sign} {limit:g})"))
    for name in (CACHED, OTTLA):
        pairs = [
            (_value(results, case, name, figure), _value(results, case, KAFKA, figure))
            for case in results.cases
            for figure in case.figures
            if figure.unit == "s/GB" and not case.group.startswith("spark ")
        ]
        known = [ours <= theirs for ours, theirs in pairs if ours is not None and theirs is not None]
        if known:
            lines.append(
                _target_line(all(known), f"CPU-seconds per GB of {name} at or below Kafka's in {sum(known)} of {len(known)} cases")
            )
    return lines


def _target_line(met: bool, text: str) -> str:
    return f"[green]target met[/]      {text}" if met else f"{MISSED}   {text}"


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
