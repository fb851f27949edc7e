"""`python -m chaos.fuzz`: sends frames from a range of seeds to brokers in this process, on all cores, and prints the findings.

Each seed is a chunk of 1,000 frames for fresh brokers. A finding names its seed: ``--seed N`` replays it, and prints the shortest list of
steps that still fails. To continue a stopped run, pass the number of its last line to ``--first``.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import click

from chaos.fuzz.chunk import FRAMES, Chunk, ChunkResult, shrunk

#: Chunks that a worker process gets at once.
CHUNKS_PER_TASK = 20


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--frames", type=click.IntRange(1), default=100_000, show_default=True, help="Frames to send, in chunks of 1,000.")
@click.option("--brokers", type=click.Choice(["1", "3"]), default="1", show_default=True, help="Brokers of each chunk.")
@click.option("--first", type=click.IntRange(0), default=0, show_default=True, help="Seed of the first chunk.")
@click.option("--seed", type=click.IntRange(0), help="Run this chunk alone, and shorten it if it fails.")
@click.option("--jobs", type=click.IntRange(1), default=os.cpu_count() or 1, show_default=True, help="Processes.")
@click.option("--shrink-seconds", type=click.FloatRange(0), default=60.0, show_default=True, help="Time to shorten a chunk that fails.")
def main(frames: int, brokers: str, first: int, seed: int | None, jobs: int, shrink_seconds: float) -> None:
    """Send valid requests with hostile structure, and mutated bytes, to brokers in this process.

    Exit code 1: there are findings.
    """
    if seed is not None:
        outcome = Chunk(seed, brokers=int(brokers)).run()
        if outcome.finding is None:
            click.echo(f"seed {seed}: {outcome.frames} frames, {outcome.answers} answers, nothing found")
            return
        show(outcome, int(brokers), shrink_seconds)
        sys.exit(1)
    sys.exit(1 if sweep(first, -(-frames // FRAMES), brokers=int(brokers), jobs=jobs) else 0)


def show(outcome: ChunkResult, brokers: int, seconds: float) -> None:
    """Print the finding, and the shortest list of steps that reproduces it."""
    click.echo(str(outcome.finding))
    steps = shrunk(outcome, brokers=brokers, seconds=seconds)
    click.echo(f"{len(steps)} of {len(outcome.steps)} steps are enough:")
    for step in steps:
        if step[0] == "frame":
            click.echo(f"  connection {step[1]}: {step[3].description if step[3].request is not None else step[2][:400].hex()}")
        else:
            click.echo(f"  {' '.join(map(str, step))}")


def sweep(first: int, chunks: int, *, brokers: int, jobs: int) -> Counter[str]:
    """Run all seeds of a range; returns the findings with their counts."""
    found: Counter[str] = Counter()
    sent = answers = memory = 0
    spent, begun, shown = 0.0, time.monotonic(), time.monotonic()
    portions = [range(start, min(start + CHUNKS_PER_TASK, first + chunks)) for start in range(first, first + chunks, CHUNKS_PER_TASK)]
    with ProcessPoolExecutor(jobs) as pool:
        for portion, (outcomes, resident) in zip(portions, pool.map(partial(run_seeds, brokers=brokers), portions), strict=True):
            memory = max(memory, resident)
            for seed, frames, answered, seconds, signature, description in outcomes:
                sent, answers, spent = sent + frames, answers + answered, spent + seconds
                if signature is not None:
                    found[signature] += 1
                    if found[signature] == 1:
                        click.echo(f"python -m chaos.fuzz --brokers {brokers} --seed {seed}\n{description}")
            if time.monotonic() - shown > 10 or portion is portions[-1]:
                shown = time.monotonic()
                click.echo(
                    f"{sent:,} frames, {answers:,} answers, {sum(found.values())} findings of {len(found)} kinds, "
                    f"{sent / (shown - begun):,.0f} frames/s, {sent / spent:,.0f} per CPU second, {memory >> 20} MiB, "
                    f"go on with --first {portion.stop}"
                )
    for signature, times in found.most_common():
        click.echo(f"{times:>6} {signature}")
    return found


SeedResult = tuple[int, int, int, float, str | None, str]


def run_seeds(seeds: range, *, brokers: int) -> tuple[list[SeedResult], int]:
    """Run some seeds; returns the result of each, and the maximum resident memory of this process."""
    results: list[SeedResult] = []
    for seed in seeds:
        outcome = Chunk(seed, brokers=brokers).run()
        finding = outcome.finding
        signature = finding.signature if finding is not None else None
        results.append((seed, outcome.frames, outcome.answers, outcome.seconds, signature, str(finding or "")[:3000]))
    return results, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
