"""`python -m chaos`: runs fault scenarios on a real cluster and prints the results."""

from __future__ import annotations

import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from chaos.cluster import ConditionTimeout, Setup, running
from chaos.context import ScenarioContext, ScenarioResult, run_scenario
from chaos.namespaces import NotPermitted, enter
from chaos.scenarios import SCENARIOS, Scenario
from ottla.server.data_directory import CannotStart
from ottla.spark.java import NoJava

WIDTH = 150


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", nargs=-1, type=click.Choice(list(SCENARIOS)), metavar="[SCENARIO]...")
@click.option("--rounds", type=click.IntRange(1), help="Faults in each scenario. [default: the scenario's own number]")
@click.option("--session-timeout-ms", type=click.IntRange(1000), default=6000, show_default=True, help="zookeeper.session.timeout.ms.")
@click.option("--zookeepers", type=click.Choice(["1", "3"]), default="3", show_default=True, help="Servers of the ensemble.")
@click.option("--secured", is_flag=True, help="Use TLS and SASL between all processes, and access rules; `rotate` always does.")
@click.option("--burst", type=click.IntRange(1), default=1, show_default=True, help="Records that a producer sends to a partition at once.")
@click.option("--pause-ms", type=click.IntRange(1), default=10, show_default=True, help="Pause of a producer between two bursts.")
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="A setting of the brokers; repeatable.")
@click.option("--late-max", type=click.IntRange(0), default=0, show_default=True, help="Failovers of a scenario that may exceed its bound.")
@click.option("--seed", type=int, help="Seed of the random choices. [default: a new one]")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write the results to this file as JSON.")
@click.option("--directory", type=click.Path(file_okay=False, exists=True, path_type=Path), help="Parent of the data directories.")
@click.option("--keep", is_flag=True, help="Keep data directories and the brokers' output.")
@click.option("--list", "list_only", is_flag=True, help="Print the scenarios and stop.")
def main(
    names: tuple[str, ...],
    rounds: int | None,
    session_timeout_ms: int,
    zookeepers: str,
    secured: bool,
    burst: int,
    pause_ms: int,
    settings: tuple[str, ...],
    late_max: int,
    seed: int | None,
    json_path: Path | None,
    directory: Path | None,
    keep: bool,
    list_only: bool,
) -> None:
    """Inject faults into a cluster of real processes while clients work, and check what the clients saw.

    Without names, all scenarios run. Exit code 0: no problem was found; 1: otherwise.
    """
    if list_only:
        for scenario in SCENARIOS.values():
            click.echo(f"{scenario.name:14} {scenario.about}")
        return
    confined = enter()
    # As process 1 of its namespace the run would ignore this signal by default.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    extra = tuple((name, value) for name, _, value in (setting.partition("=") for setting in settings))
    setup = Setup(
        session_timeout_ms=session_timeout_ms, zookeepers=int(zookeepers), extra=extra, burst=burst, pause_ms=pause_ms, secured=secured
    )
    home = Path(tempfile.mkdtemp(prefix="ottla-chaos-", dir=directory))
    began_s = time.monotonic()
    outcomes: list[ScenarioResult] = []
    try:
        for needs, scenarios in _by_cluster([SCENARIOS[name] for name in names or SCENARIOS], setup):
            if confined is not None and (needs.networked or needs.small_disk):
                outcomes += [ScenarioResult(scenario.name, seed, skipped=confined) for scenario in scenarios]
            else:
                outcomes += _run_all(scenarios, needs, home / f"cluster-{len(outcomes)}", rounds, seed)
    finally:
        bad = any(not outcome.good or outcome.late > late_max for outcome in outcomes) or not outcomes
        if keep or bad:
            click.echo(f"data directories and output: {home}", err=True)
        else:
            shutil.rmtree(home, ignore_errors=True)
    show(outcomes, session_timeout_ms, time.monotonic() - began_s)
    if json_path is not None:
        json_path.write_text(json.dumps([outcome.summary() for outcome in outcomes], indent=1) + "\n")
    sys.exit(1 if bad else 0)


def _by_cluster(scenarios: Iterable[Scenario], setup: Setup) -> Iterable[tuple[Setup, list[Scenario]]]:
    """Group scenarios that can share a cluster, with its setup."""

    def needs(scenario: Scenario) -> tuple[bool, bool, int, bool]:
        return scenario.networked, scenario.small_disk, scenario.brokers, scenario.secured or setup.secured

    for (networked, small_disk, brokers, secured), found in groupby(sorted(scenarios, key=needs), key=needs):
        yield replace(setup, networked=networked, small_disk=small_disk, brokers=brokers, secured=secured), list(found)


def _run_all(scenarios: list[Scenario], setup: Setup, directory: Path, rounds: int | None, seed: int) -> list[ScenarioResult]:
    outcomes: list[ScenarioResult] = []
    directory.mkdir()
    try:
        with running(setup, directory) as cluster:
            for scenario in scenarios:
                click.echo(f"{scenario.name}: {scenario.about}", err=True)
                run = partial(_run_rounds, scenario, rounds or scenario.rounds)
                log = partial(click.echo, err=True)
                outcomes.append(run_scenario(scenario.name, run, cluster, seed=seed, bound_ms=scenario.bound_ms(setup), log=log))
    except NotPermitted as why:
        outcomes += [ScenarioResult(scenario.name, seed, skipped=str(why)) for scenario in scenarios[len(outcomes) :]]
    except (CannotStart, NoJava, ConditionTimeout) as why:
        outcomes += [ScenarioResult(scenario.name, seed, problems=[str(why)]) for scenario in scenarios[len(outcomes) :]]
    return outcomes


def _run_rounds(scenario: Scenario, rounds: int, context: ScenarioContext) -> None:
    scenario.run(context, rounds)


def show(outcomes: list[ScenarioResult], session_timeout_ms: int, seconds: float) -> None:
    """Print the table of results, then the problems."""
    table = Table(title=f"session timeout {session_timeout_ms} ms, {seconds:.0f} s in all", title_justify="left", box=None, pad_edge=False)
    table.add_column("scenario")
    for name in (
        "faults",
        "acknowledged",
        "lost",
        "duplicates",
        "other",
        "unknown",
        "failover ms",
        "longest",
        "bound",
        "late",
        "in sync ms",
    ):
        table.add_column(name, justify="right")
    for outcome in outcomes:
        summary = outcome.summary()
        if outcome.skipped:
            table.add_row(outcome.scenario, "skipped")
            continue
        other = sum(outcome.findings.counts.values()) - outcome.lost - outcome.findings.counts.get("duplicate", 0)
        longest = round(max(outcome.failovers_ms)) if outcome.failovers_ms else None
        cells = [
            outcome.faults, outcome.findings.acknowledged, outcome.lost, summary["duplicates"], other, outcome.findings.unknown,
            summary["election_median_ms"], summary["failover_median_ms"], longest, outcome.bound_ms or None, outcome.late,
            summary["in_sync_median_ms"],
        ]  # fmt: skip
        table.add_row(outcome.scenario, *("" if cell is None else f"{cell:,}" for cell in cells))
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    console.print(table)
    for outcome in outcomes:
        lines = [*outcome.problems, *outcome.findings.lines(), *(f"given up: {line}" for line in outcome.given_up[:3])]
        if outcome.skipped:
            lines.append(f"skipped: {outcome.skipped}")
        for line in lines:
            console.print(f"{outcome.scenario} (seed {outcome.seed}): {line}", markup=False, soft_wrap=True)


if __name__ == "__main__":
    main()
