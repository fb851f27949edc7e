"""How figures are put together and compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from bench import report, runner
from bench.__main__ import main
from bench.cases import SCALES, Case, CaseContext, Figure, Measurement, Scale, Skipped
from bench.servers import OTTLA, OTTLA_CACHED, Contestant, Running
from click.testing import CliRunner, Result

CPU = Figure("server CPU", "s/GB", False)
SPEED = Figure("throughput", "MB/s", True)


def context(contestant: Contestant) -> CaseContext:
    return CaseContext(contestant, cast(Running, None), Path())


def play(run: Callable[[CaseContext, Scale], Measurement], rounds: int) -> runner.Results:
    case = Case("group", "case", (CPU,), run, rounds=rounds)
    results = runner.Results([case], [OTTLA.name, OTTLA_CACHED.name], {}, {}, [])
    runner._run_case(case, [context(OTTLA), context(OTTLA_CACHED)], SCALES["quick"], results)
    return results


def test_servers_take_turns_in_alternating_order() -> None:
    order: list[str] = []

    def run(context: CaseContext, scale: Scale) -> Measurement:
        order.append(context.name)
        return Measurement({}, {})

    play(run, 3)
    assert order == ["ottla", "ottla cached", "ottla cached", "ottla", "ottla", "ottla cached"]


def test_a_figure_is_the_median_of_its_rounds() -> None:
    values = iter([1.0, 1.0, 9.0, 9.0, 2.0, 2.0])
    results = play(lambda context, scale: Measurement({CPU.key: next(values)}, {}), 3)
    assert results.outcomes["group: case", "ottla"].median(CPU.key) == 2.0


def test_a_failure_is_reported_and_not_repeated() -> None:
    calls: list[str] = []

    def run(context: CaseContext, scale: Scale) -> Measurement:
        calls.append(context.name)
        raise RuntimeError("no leader")

    results = play(run, 2)
    assert sorted(calls) == ["ottla", "ottla cached"]
    assert results.failures == ["group: case on ottla: no leader", "group: case on ottla cached: no leader"]
    assert results.ottla_failures == results.failures


def test_a_skipped_case_is_no_failure() -> None:
    def run(context: CaseContext, scale: Scale) -> Measurement:
        raise Skipped("no Java")

    results = play(run, 1)
    assert results.outcomes["group: case", "ottla"].skipped == "no Java"
    assert not results.ottla_failures


def bench(monkeypatch: pytest.MonkeyPatch, directory: Path, run: Callable[[CaseContext, Scale], Measurement]) -> Result:
    """`python -m bench` with one case that has a target (idle memory of at most 80 MB), without starting servers."""
    case = Case("start", "idle", (Figure("idle RSS", "MB", False),), run, rounds=1)

    def play(cases: list[Case], contestants: list[Contestant], scale: Scale, *, directory: Path | None, say: object) -> runner.Results:
        results = runner.Results(cases, [OTTLA.name], {}, {}, [])
        runner._run_case(case, [context(OTTLA)], scale, results)
        return results

    monkeypatch.setattr("bench.__main__._cases", lambda scale: [case])
    monkeypatch.setattr(runner, "run", play)
    return CliRunner().invoke(main, ["--quick", "--no-peer", "--server", "ottla", "--json", str(directory / "found.json")])


def test_a_missed_aim_is_printed_and_is_no_failure_of_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done = bench(monkeypatch, tmp_path, lambda context, scale: Measurement({"idle RSS": 81.0}, {}))
    assert done.exit_code == 0, done.output
    assert "target missed   start: idle, idle RSS: 81.00 MB (target <= 80)" in done.output
    assert "0 of 1 targets met, 1 missed" in done.output


def test_a_case_that_could_not_be_measured_fails_the_command_and_is_named_last(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run(context: CaseContext, scale: Scale) -> Measurement:
        raise RuntimeError("no leader")

    done = bench(monkeypatch, tmp_path, run)
    assert done.exit_code == 1
    assert done.output.endswith("benchmark failed 1 cases could not be measured:\n  start: idle on ottla: no leader\n")


@pytest.mark.parametrize(("figure", "ours", "colour"), [(CPU, 1.0, "green"), (CPU, 3.0, "red"), (SPEED, 1.0, "red"), (SPEED, 3.0, "green")])
def test_a_ratio_is_green_where_ottla_is_ahead(figure: Figure, ours: float, colour: str) -> None:
    assert report._ratio(ours, 2.0, figure).startswith(f"[{colour}]")
