"""``ottla sim``: runs brokers under simulated faults, and replays a flight record."""

import logging
import os
import resource
import sys
from pathlib import Path

import click
import msgspec

from ottla.cli.common.paths import LocalPath

#: Seeds between two progress messages.
PROGRESS_SEEDS = 500


@click.group(name="sim", help="Run brokers in a simulator that injects crashes, power failures and disk errors.")
def command() -> None:
    pass


@command.command(help="Run a history per seed. The last line counts those that passed and failed.")
@click.option("--seeds", default=200, show_default=True, help="Number of seeds.")
@click.option("--first", default=0, show_default=True, help="First seed.")
@click.option("--seed", type=int, default=None, help="Run only this seed and print its trace.")
@click.option("--jobs", default=os.cpu_count() or 1, show_default=True, help="Number of processes.")
@click.option(
    "--story",
    type=click.Choice(["logs", "groups", "cluster", "cluster-groups", "transactions", "cluster-transactions"]),
    default=None,
    help="Scenario of each seed. [default: they take turns]",
)
@click.option("--hashes", is_flag=True, help="Print the hash of each trace, to compare two runs.")
def run(seeds: int, first: int, seed: int | None, jobs: int, story: str | None, hashes: bool) -> None:
    from ottla.sim.sweep import report, run_seeds

    # The trace has what simulated servers log.
    logging.getLogger("ottla").addHandler(logging.NullHandler())
    if seed is not None:
        verdicts = list(run_seeds(range(seed, seed + 1), jobs=1, story=story))
        for verdict in verdicts:
            passed = f"seed {seed}, {verdict.story}, passed"
            click.echo(report(verdict) if verdict.problems else "\n".join([*verdict.tail, passed]))
        sys.exit(any(verdict.problems for verdict in verdicts))
    count = failed = acknowledged = faults = 0
    reached = first
    for verdict in run_seeds(range(first, first + seeds), jobs=jobs, story=story):
        if hashes:
            click.echo(f"{verdict.seed} {verdict.story} {verdict.trace_hash}")
        count += 1
        acknowledged += verdict.acknowledged
        faults += verdict.faults
        if verdict.problems:
            failed += 1
            click.echo(report(verdict))
        if verdict.seed != reached and verdict.seed % PROGRESS_SEEDS == 0:
            click.echo(f"ottla: reached seed {verdict.seed} of {first + seeds}", err=True)
        reached = verdict.seed
    click.echo(f"{acknowledged} records acknowledged under {faults} faults", err=hashes)
    click.echo(f"{count - failed} passed, {failed} failed", err=hashes)
    sys.exit(bool(failed))


@command.command(help="Replay the requests of a flight record on a new simulated broker.")
@click.argument("file", type=LocalPath(exists=True, dir_okay=False, path_type=Path))
@click.option("--steps", is_flag=True, help="Print each step, its event and its effects, as a line of JSON.")
@click.option("--memory", metavar="BYTES", type=click.IntRange(min=1 << 28), help="Limit of the address space. [default: none]")
def replay(file: Path, steps: bool, memory: int | None) -> None:
    """Exit code 1 if the broker fails again, else 0."""
    if memory is not None:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    from ottla.sim.replay import UnreadableRecord, read_record
    from ottla.sim.replay import replay as run_again

    try:
        record = read_record(file)
    except (OSError, UnreadableRecord) as error:
        raise click.UsageError(str(error)) from None
    # Steps alone are on standard output, so that a program can read them.
    click.echo(f"recorded of broker {record.failure.broker_id}: {record.failure.error}", err=steps)
    if steps:
        encode = msgspec.json.Encoder(enc_hook=repr).encode
        outcome = run_again(record, lambda step: click.echo(encode(step)))
    else:
        outcome = run_again(record)
        click.echo("\n".join(outcome.tail))
    click.echo(f"{outcome.requests} requests sent again; {outcome.story()}", err=steps)
    for lack in outcome.lacks:
        click.echo(f"the record lacks {lack}", err=steps)
    sys.exit(outcome.error is not None)
