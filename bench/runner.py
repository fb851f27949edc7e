"""Runs the cases: all servers run the whole time and take turns, case by case and round by round.

    case 1:  A B C   C B A   A B C
    case 2:  A B C   C B A   ...

The machine's speed varies (other tenants, temperature, the disk's own cache), so servers that are compared must be measured
within seconds of each other, and no server may always be last. A figure is the median of its rounds; the JSON has every round.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.cases import Case, CaseContext, Scale, Skipped
from bench.process import ServerDied
from bench.servers import Contestant

#: A server is warm when another turn of the load makes it cheaper by less than this share.
WARM_GAIN = 0.05
WARM_SECONDS, WARM_READ_SECONDS = 1.5, 0.7
WARM_BYTES_MAX = 200_000_000
#: Groups of cases that start their own servers.
OWN_SERVERS = ("start", "replicated", "console")

Say = Callable[[str], None]


@dataclass(slots=True)
class CaseResult:
    """One case on one contestant: its rounds, or the reason why there are none."""

    rounds: list[dict[str, float]] = field(default_factory=list)
    details: list[dict[str, Any]] = field(default_factory=list)
    skipped: str | None = None
    failed: str | None = None

    def median(self, key: str) -> float | None:
        values = [figures[key] for figures in self.rounds if key in figures]
        return statistics.median(values) if values else None


@dataclass(slots=True)
class Results:
    """All results of a run."""

    cases: list[Case]
    contestants: list[str]
    outcomes: dict[tuple[str, str], CaseResult]
    warm_up: dict[str, list[float]]
    notes: list[str]

    @property
    def failures(self) -> list[str]:
        """One line for every failed case."""
        return [f"{title} on {name}: {outcome.failed}" for (title, name), outcome in self.outcomes.items() if outcome.failed]

    @property
    def ottla_failures(self) -> list[str]:
        """The same for cases on Ottla only."""
        return [
            f"{title} on {name}: {outcome.failed}" for (title, name), outcome in self.outcomes.items() if outcome.failed and name != "kafka"
        ]


def run(cases: Sequence[Case], contestants: Sequence[Contestant], scale: Scale, *, directory: Path | None, say: Say) -> Results:
    results = Results(list(cases), [], {}, {}, [])
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ottla-bench-", dir=directory, ignore_cleanup_errors=True)))
        contexts = list(_contexts(stack, contestants, scratch, results, say))
        results.contestants = [context.name for context in contexts]
        if any(case.group not in OWN_SERVERS for case in cases):
            for context in contexts:
                results.warm_up[context.name] = _warm(context, scale, results)
                say(f"warm-up  {context.name}: CPU-s/GB {' '.join(f'{value:.1f}' for value in results.warm_up.get(context.name, []))}")
        for number, case in enumerate(cases, start=1):
            _run_case(case, contexts, scale, results)
            say(f"[{number}/{len(cases)}] {case.title}  " + _summary(case, results))
    return results


def _contexts(
    stack: contextlib.ExitStack, contestants: Sequence[Contestant], scratch: Path, results: Results, say: Say
) -> Iterator[CaseContext]:
    for contestant in contestants:
        home = scratch / contestant.name.replace(" ", "-")
        home.mkdir()
        try:
            running = stack.enter_context(contestant.running(home))
        except (ServerDied, OSError) as why:
            note = f"{contestant.name} did not start: {str(why).strip().splitlines()[-1]}"
            results.notes.append(note)
            say(note)
            continue
        say(f"started  {contestant.name} in {running.process.first_answer_s:.2f} s on {running.bootstrap}")
        yield CaseContext(contestant, running, scratch)


def _warm(context: CaseContext, scale: Scale, results: Results) -> list[float]:
    """Load a server until it gets no cheaper, so a JVM is measured after its compiler has finished.

    Returns the CPU-seconds per GB of each turn, or an empty list when the load failed.
    """
    costs: list[float] = []
    try:
        topics = {(1, 100): context.create_topic(1), (6, 1024): context.create_topic(6)}
        began = time.monotonic()
        while time.monotonic() - began < scale.warm_s_max:
            costs.append(sum(_warm_turn(context, topic, partitions, value_size) for (partitions, value_size), topic in topics.items()))
            if len(costs) >= 2 and costs[-1] > costs[-2] * (1 - WARM_GAIN):
                break
        for request in ("metadata", "produce acks=1", "produce acks=all"):
            context.load("round_trips", topics[1, 100], request=request, connections=10, seconds=WARM_SECONDS)
        topic = topics[6, 1024]
        context.load("librdkafka_produce", topic, value_size=1024, acks=-1, seconds=WARM_SECONDS, bytes_max=WARM_BYTES_MAX)
        filled, records = context.filled_topic(1024, 6, scale.fill_bytes)
        context.load("librdkafka_consume", filled, partitions=6, value_size=1024, records=records, seconds=WARM_SECONDS)
        for topic in topics.values():
            context.delete_topic(topic)
    except Exception as why:  # The cases that need what is missing will say so again, one by one.
        results.notes.append(f"the warm-up of {context.name} broke off: {_one_line(why)}")
    return costs


def _warm_turn(context: CaseContext, topic: str, partitions: int, value_size: int) -> float:
    shape = {"partitions": partitions, "value_size": value_size}
    done = context.load("raw_produce", topic, batch_size=16 << 10, acks=-1, seconds=WARM_SECONDS, bytes_max=WARM_BYTES_MAX, **shape)
    context.load("raw_fetch", topic, seconds=WARM_READ_SECONDS, **shape)
    return float(done["server_cpu_s"] / done["bytes"] * 1e9)


def _run_case(case: Case, contexts: Sequence[CaseContext], scale: Scale, results: Results) -> None:
    taking_part = [context for context in contexts if case.only is None or context.name in case.only]
    for context in taking_part:
        results.outcomes[case.title, context.name] = CaseResult()
    for number in range(case.rounds or scale.rounds):
        for context in taking_part if number % 2 == 0 else reversed(taking_part):
            outcome = results.outcomes[case.title, context.name]
            if outcome.failed or outcome.skipped:
                continue
            try:
                measured = case.run(context, scale)
            except Skipped as why:
                outcome.skipped = str(why)
            except Exception as why:  # A benchmark goes on without the figure it could not get, and says so.
                outcome.failed = _one_line(why)
            else:
                outcome.rounds.append(measured.figures)
                outcome.details.append(measured.detail)


def _one_line(why: BaseException) -> str:
    lines = str(why).strip().splitlines() or [type(why).__name__]
    return f"{lines[0]} {lines[-1]}"[:400] if len(lines) > 1 else lines[0][:400]


def _summary(case: Case, results: Results) -> str:
    parts = []
    for name in results.contestants:
        outcome = results.outcomes.get((case.title, name))
        if outcome is None:
            continue
        if outcome.failed or outcome.skipped:
            parts.append(f"{name}: {'failed' if outcome.failed else 'skipped'}: {outcome.failed or outcome.skipped}")
            continue
        values = [
            f"{value:,.{figure.digits}f} {figure.unit}" for figure in case.figures if (value := outcome.median(figure.key)) is not None
        ]
        parts.append(f"{name}: {', '.join(values)}")
    return "  |  ".join(parts)
