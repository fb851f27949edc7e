"""How figures are put together and compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from bench import report, runner
from bench.cases import SCALES, Case, Figure, Measured, Scale, Skipped, Stage
from bench.servers import OTTLA, OTTLA_CACHED, Contestant, Running

CPU = Figure("server CPU", "s/GB", False)
SPEED = Figure("throughput", "MB/s", True)


def stage(contestant: Contestant) -> Stage:
    return Stage(contestant, cast(Running, None), Path())


def play(run: Callable[[Stage, Scale], Measured], rounds: int) -> runner.Results:
    case = Case("group", "case", (CPU,), run, rounds=rounds)
    results = runner.Results([case], [OTTLA.name, OTTLA_CACHED.name], {}, {}, [])
    runner._run_case(case, [stage(OTTLA), stage(OTTLA_CACHED)], SCALES["quick"], results)
    return results


def test_servers_take_turns_in_alternating_order() -> None:
    order: list[str] = []

    def run(stage: Stage, scale: Scale) -> Measured:
        order.append(stage.name)
        return Measured({}, {})

    play(run, 3)
    assert order == ["ottla", "ottla cached", "ottla cached", "ottla", "ottla", "ottla cached"]


def test_a_figure_is_the_median_of_its_rounds() -> None:
    values = iter([1.0, 1.0, 9.0, 9.0, 2.0, 2.0])
    results = play(lambda stage, scale: Measured({CPU.key: next(values)}, {}), 3)
    assert results.outcomes["group: case", "ottla"].median(CPU.key) == 2.0


def test_a_failure_is_told_and_not_repeated() -> None:
    calls: list[str] = []

    def run(stage: Stage, scale: Scale) -> Measured:
        calls.append(stage.name)
        raise RuntimeError("no leader")

    results = play(run, 2)
    assert sorted(calls) == ["ottla", "ottla cached"]
    assert results.failures == ["group: case on ottla: no leader", "group: case on ottla cached: no leader"]
    assert results.ottla_failed


def test_a_skipped_case_is_no_failure() -> None:
    def run(stage: Stage, scale: Scale) -> Measured:
        raise Skipped("no Java")

    results = play(run, 1)
    assert results.outcomes["group: case", "ottla"].skipped == "no Java"
    assert not results.ottla_failed


@pytest.mark.parametrize(("figure", "ours", "colour"), [(CPU, 1.0, "green"), (CPU, 3.0, "red"), (SPEED, 1.0, "red"), (SPEED, 3.0, "green")])
def test_a_ratio_is_green_where_ottla_is_ahead(figure: Figure, ours: float, colour: str) -> None:
    assert report._ratio(ours, 2.0, figure).startswith(f"[{colour}]")
