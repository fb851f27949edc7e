"""Many seeds, on all cores; a failure is a report that somebody can act on."""

import platform
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

from ottla.sim.history import History, Verdict


def run_seed(seed: int) -> Verdict:
    """One history; an exception in it is its first problem."""
    history = History(seed)
    try:
        return history.run()
    except Exception as error:
        import traceback

        tail = [*history.world.tail, *traceback.format_exc().splitlines()[-12:]]
        return Verdict(seed=seed, problems=[f"{type(error).__name__}: {error}"], tail=tail, trace_hash=history.world.trace_hash())


def run_seeds(seeds: range, *, jobs: int) -> Iterator[Verdict]:
    """The verdicts of these seeds, in their order."""
    if jobs <= 1:
        yield from map(run_seed, seeds)
        return
    with ProcessPoolExecutor(max_workers=jobs) as pool:
        yield from pool.map(run_seed, seeds, chunksize=4)


def report(verdict: Verdict) -> str:
    """Why a seed failed, what happened last, and how to see it again."""
    lines = [f"seed {verdict.seed} failed after {verdict.virtual_ms} ms and {verdict.faults} faults (Python {platform.python_version()}):"]
    lines += [f"  {problem}" for problem in verdict.problems]
    lines += ["  what happened last:", *(f"  | {line}" for line in verdict.tail)]
    lines.append(f"  to see it again: ottla sim run --seed {verdict.seed}")
    return "\n".join(lines)
