"""Runs many seeds on all cores and reports failures."""

import gc
import platform
from collections.abc import Callable, Iterator, Sequence
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
#: A kind runs for one seed in so many, those with this remainder: each seed runs at least one. Groups and transactions in clusters cost the
#: most time.
ONE_IN = {
    "logs": (2, 0),
    "groups": (2, 0),
    "cluster": (2, 1),
    "cluster-groups": (3, 0),
    "transactions": (8, 1),
    "cluster-transactions": (8, 5),
}


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


def run_seeds(seeds: range, *, jobs: int, stories: Sequence[str] = tuple(STORIES)) -> Iterator[Verdict]:
    """Results of these seeds in order, one per kind; a single kind runs for all seeds."""
    asked = [(seed, story) for seed in seeds for story in stories if len(stories) == 1 or _runs(story, seed)]
    if jobs <= 1:
        for seed, story in asked:
            yield run_seed(seed, story)
        return
    with ProcessPoolExecutor(max_workers=jobs, initializer=collect_seldom) as pool:
        yield from pool.map(run_seed, *zip(*asked, strict=True), chunksize=4)


def _runs(story: str, seed: int) -> bool:
    count, remainder = ONE_IN[story]
    return seed % count == remainder


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
