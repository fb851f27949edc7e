"""``ottla sim``: run the broker under simulated faults, and run a failure again."""

import os
import sys
from pathlib import Path

import click

from ottla.cli.common.paths import LocalPath

#: Seeds after which somebody who waits is told how far it is.
TOLD_EVERY = 500


@click.group(name="sim", help="Run the broker in a simulated world with crashes, power cuts and bad disks.")
def command() -> None:
    pass


@command.command(help="Run seeds; without --seed, many of them. The last line counts the stories that passed and failed.")
@click.option("--seeds", default=200, show_default=True, help="How many seeds to run.")
@click.option("--first", default=0, show_default=True, help="The first of them.")
@click.option("--seed", type=int, default=None, help="Run this one seed and show its trace.")
@click.option("--jobs", default=os.cpu_count() or 1, show_default=True, help="Processes to use.")
@click.option(
    "--story",
    type=click.Choice(["logs", "groups", "cluster", "cluster-groups"]),
    default=None,
    help="Tell this story of each seed, not all.",
)
@click.option("--hashes", is_flag=True, help="Print the hash of each seed's trace, to compare two runs.")
def run(seeds: int, first: int, seed: int | None, jobs: int, story: str | None, hashes: bool) -> None:
    from ottla.sim.sweep import STORIES, report, run_seeds

    stories = [story] if story is not None else list(STORIES)
    if seed is not None:
        found = list(run_seeds(range(seed, seed + 1), jobs=1, stories=stories))
        for verdict in found:
            passed = f"seed {seed}, {verdict.story}, passed"
            click.echo(report(verdict) if verdict.problems else "\n".join([*verdict.tail, passed]))
        sys.exit(any(verdict.problems for verdict in found))
    told = failed = acknowledged = faults = 0
    reached = first
    for verdict in run_seeds(range(first, first + seeds), jobs=jobs, stories=stories):
        if hashes:
            click.echo(f"{verdict.seed} {verdict.story} {verdict.trace_hash}")
        told += 1
        acknowledged += verdict.acknowledged
        faults += verdict.faults
        if verdict.problems:
            failed += 1
            click.echo(report(verdict))
        if verdict.seed != reached and verdict.seed % TOLD_EVERY == 0:
            click.echo(f"ottla: reached seed {verdict.seed} of {first + seeds}", err=True)
        reached = verdict.seed
    click.echo(f"{acknowledged} records acknowledged under {faults} faults", err=hashes)
    click.echo(f"{told - failed} passed, {failed} failed", err=hashes)
    sys.exit(bool(failed))


@command.command(help="Send the requests of a flight record again, to a fresh simulated broker, and show what comes of it.")
@click.argument("file", type=LocalPath(exists=True, dir_okay=False, path_type=Path))
def replay(file: Path) -> None:
    """Exit code 1 when it fails again, 0 when it does not."""
    from ottla.sim.replay import UnreadableRecord, read_record
    from ottla.sim.replay import replay as run_again

    try:
        record = read_record(file)
    except (OSError, UnreadableRecord) as error:
        raise click.UsageError(str(error)) from None
    click.echo(f"recorded of broker {record.failure.broker_id}: {record.failure.error}")
    outcome = run_again(record)
    click.echo("\n".join(outcome.tail))
    click.echo(f"{outcome.requests} requests sent again; {outcome.story()}")
    for lack in outcome.lacks:
        click.echo(f"the record lacks {lack}")
    sys.exit(outcome.error is not None)
