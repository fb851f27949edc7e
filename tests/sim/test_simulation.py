"""The simulator on the real broker: every invariant holds, and a seed always has the same history."""

import inspect

import pytest
from click.testing import CliRunner

from ottla.cli.sim.commands import command
from ottla.sim.event_loop import ProcessLoop
from ottla.sim.faults import FAULT_KINDS
from ottla.sim.history import History
from ottla.sim.sweep import report, run_seed
from ottla.sim.world import World

pytestmark = pytest.mark.slow


def test_no_acknowledged_record_is_lost_whatever_happens() -> None:
    for seed in range(4):
        verdict = run_seed(seed)
        assert not verdict.problems, report(verdict)
        assert verdict.acknowledged > 0, f"seed {seed} tested nothing"


@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_each_kind_of_fault_alone_is_survived(kind: str) -> None:
    for seed in range(2):
        verdict = History(seed, kinds=(kind,)).run()
        assert not verdict.problems, report(verdict)
        assert verdict.faults > 0


def test_the_last_line_of_many_seeds_counts_what_passed() -> None:
    done = CliRunner().invoke(command, ["run", "--seeds", "2", "--story", "logs", "--jobs", "1"])
    assert (done.exit_code, done.output.splitlines()[-1]) == (0, "2 passed, 0 failed")


def test_a_failure_names_its_seed_and_the_command_that_shows_it_again() -> None:
    history = History(7)
    history.reports.complaint("something is wrong")
    verdict = history.run()
    assert "something is wrong" in report(verdict)
    assert "ottla sim run --seed 7" in report(verdict)


def test_end_of_a_history_closes_the_coroutines_that_never_ran() -> None:
    """Python warns of a coroutine that was never awaited."""
    world = World(0)
    loop = ProcessLoop(world, thread_ms=lambda: 1)

    async def work() -> None: ...

    coroutine = work()
    loop.create_task(coroutine)
    world.end()
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED
