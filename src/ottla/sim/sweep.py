"""Runs many seeds on all cores and reports failures."""

import gc
import platform
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor

from ottla.sim.cluster_history import ClusterHistory
from ottla.sim.group_history import GroupHistory
from ottla.sim.history import History, Verdict
from ottla.sim.transaction_history import TransactionHistory

#: Kinds of histories by name.
STORIES: dict[str, Callable[[int], History | GroupHistory | ClusterHistory | TransactionHistory]] = {
    "logs": History,
    "groups": GroupHistory,
    "cluster": ClusterHistory,
    "cluster-groups": lambda seed: GroupHistory(seed, brokers=3),
    "transactions": TransactionHistory,
    "cluster-transactions": lambda seed: TransactionHistory(seed, brokers=3),
}
#: The kind of a seed, by its remainder. Clusters have most of the code, and most of the faults.
TURNS = ("logs", "transactions", "cluster", "cluster-groups", "groups", "cluster-transactions", "cluster", "cluster-groups")


def run_seed(seed: int, story: str = "logs") -> Verdict:
    """Runs one history; an exception is its first problem."""
    history = STORIES[story](seed)
    try:
        return history.run()
    except Exception as error:
        import traceback

        tail = [*history.world.tail, *traceback.format_exc().splitlines()[-12:]]
        problems = [f"{type(error).__name__}: {error}"]
        return Verdict(seed=seed, story=story, problems=problems, tail=tail, trace_hash=history.world.trace_hash())
    finally:
        history.world.end()


def run_seeds(seeds: range, *, jobs: int, story: str | None = None) -> Iterator[Verdict]:
    """Results of these seeds in order, each with a history of this kind, or without one, of the kind whose turn it is."""
    stories = [story or TURNS[seed % len(TURNS)] for seed in seeds]
    if jobs <= 1:
        yield from map(run_seed, seeds, stories)
        return
    with ProcessPoolExecutor(max_workers=jobs, initializer=collect_seldom) as pool:
        yield from pool.map(run_seed, seeds, stories, chunksize=4)


def collect_seldom() -> None:
    """Collects garbage rarely: a history is small and can wait until its end."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def report(verdict: Verdict) -> str:
    """Why a seed failed, its last trace lines, and the command to run it again."""
    after = f"after {verdict.virtual_ms} ms and {verdict.faults} faults (Python {platform.python_version()})"
    lines = [f"seed {verdict.seed}, {verdict.story}, failed {after}:"]
    lines += [f"  {problem}" for problem in verdict.problems]
    lines += ["  what happened last:", *(f"  | {line}" for line in verdict.tail)]
    lines.append(f"  to see it again: ottla sim run --seed {verdict.seed} --story {verdict.story}")
    return "\n".join(lines)
