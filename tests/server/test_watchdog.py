"""The watchdog tells a blocked event loop from a starved one, and logs each with one line, at most once a minute."""

import asyncio
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.server.metrics.counters import Counters
from ottla.server.watchdog import LOOK_S, OURS, QUIET_S, STALL_S, Frame, Sample, StallDetector, Watchdog, blocking, queued_s

RUN_ONCE = Frame("/usr/lib/python3.12/asyncio/base_events.py", 1961, "_run_once")
BELOW = [RUN_ONCE, Frame("/usr/lib/python3.12/asyncio/base_events.py", 600, "run_forever"), Frame(OURS + "server/process.py", 90, "run")]
IDLE = [Frame("/usr/lib/python3.12/selectors.py", 468, "select"), *BELOW]
APPEND = Frame(OURS + "log/log.py", 210, "append")
BUSY = [APPEND, Frame(OURS + "broker/node.py", 120, "step"), Frame("/usr/lib/python3.12/asyncio/events.py", 88, "_run"), *BELOW]
WAITING = [Frame("/usr/lib/python3.12/subprocess.py", 1264, "wait"), *BUSY]


class Loop:
    """A loop as the watchdog sees it, at each look: clocks that the test moves, and a stack."""

    def __init__(self, *, cpu: bool = True, queue: bool = True) -> None:
        self.counters = Counters()
        self.lines: list[str] = []
        self._stalls = StallDetector(self.counters)
        self._beats = 0
        self._wall_s, self._cpu_s, self._queued_s = 1000.0, 5.0, 2.0
        self._cpu, self._queue = cpu, queue
        self._look(0.0, IDLE)

    def runs(self, seconds: float = LOOK_S) -> None:
        """It ticks."""
        self._beats += 1
        self._wall_s += seconds
        self._look(0.0, IDLE)

    def stalls(self, seconds: float, stack: list[Frame], *, cpu: float = 0.0, queued: float = 0.0, late: bool = False) -> None:
        """It does not tick for so long, in which its thread uses and waits for CPU by these shares; then it ticks. ``late``: the watchdog's
        thread wakes only once in that time, at its end."""
        for passed_s in [seconds] if late else [LOOK_S] * int(seconds / LOOK_S):
            self._wall_s += passed_s
            self._cpu_s += passed_s * cpu
            self._queued_s += passed_s * queued
            self._look(0.0, stack)
        self._beats += 1
        self._wall_s += LOOK_S
        self._look(seconds, IDLE)

    def _look(self, lag_s: float, stack: list[Frame]) -> None:
        sample = Sample(self._wall_s, self._cpu_s if self._cpu else None, self._queued_s if self._queue else None)
        line = self._stalls.look(self._beats, lag_s, sample, lambda: iter(stack))
        if line is not None:
            self.lines.append(line)


def test_a_loop_that_computes_is_blocked_by_the_innermost_call_of_ours() -> None:
    loop = Loop()
    loop.stalls(2.1, BUSY, cpu=1.0)
    assert loop.lines == ["the event loop was blocked for 2.10 s by ottla/log/log.py:210 append (computing, 2.10 s of CPU time)"]
    assert (loop.counters.stalls, loop.counters.starved) == (1, 0)


def test_a_loop_that_waits_in_a_library_is_blocked_by_our_call_and_the_librarys() -> None:
    loop = Loop()
    loop.stalls(1.05, WAITING)
    (line,) = loop.lines
    assert line.startswith(
        "the event loop was blocked for 1.05 s by ottla/log/log.py:210 append, in python3.12/subprocess.py:1264 wait (waiting"
    )


@pytest.mark.parametrize(("cpu", "queue"), [(True, True), (True, False), (False, False)])
def test_an_idle_loop_without_cpu_is_starved_and_no_call_is_named(cpu: bool, queue: bool) -> None:
    loop = Loop(cpu=cpu, queue=queue)
    loop.stalls(2.1, IDLE, queued=1.0)
    (line,) = loop.lines
    assert line == "the event loop got no CPU for 2.10 s: the machine is overloaded, or the process was stopped; nothing in it blocked"
    assert (loop.counters.stalls, loop.counters.starved) == (0, 1)


def test_a_loop_that_lost_its_cpu_in_the_middle_of_its_work_is_starved() -> None:
    loop = Loop()
    loop.stalls(2.1, BUSY, cpu=0.1, queued=0.9)
    assert loop.counters.starved == 1 and "no CPU for" in loop.lines[0]


def test_where_the_kernel_does_not_tell_of_its_queue_a_watchdog_that_wakes_late_itself_means_starved() -> None:
    loop = Loop(queue=False)
    loop.stalls(2.1, BUSY, late=True)
    assert loop.counters.starved == 1
    loop.stalls(2.1, BUSY)
    assert loop.counters.stalls == 1


def test_a_stop_of_the_process_that_is_seen_only_after_a_tick_is_not_blamed_on_the_call_that_follows() -> None:
    """The loop ticked once more before the stop, and has much to do after it."""
    loop = Loop(queue=False)
    loop.runs(3.0)
    loop.stalls(0.4, BUSY, cpu=0.1)
    assert (loop.counters.stalls, loop.counters.starved) == (0, 1)
    loop.runs()
    loop.stalls(1.05, BUSY)
    assert loop.counters.stalls == 1
    assert "(waiting, or short of CPU, 0.00 s of CPU time)" in loop.lines[-1]


def test_no_line_looks_like_a_traceback() -> None:
    loop = Loop()
    loop.stalls(1.05, IDLE)
    loop.stalls(1.05, WAITING)
    assert len(loop.lines) == 2
    assert not any("\n" in line or "Traceback" in line or 'File "' in line for line in loop.lines)


def test_a_minute_has_one_line_of_a_kind_and_the_next_counts_what_was_left_out() -> None:
    loop = Loop()
    for seconds in (1.05, 3.5, 1.4):
        loop.stalls(seconds, BUSY, cpu=1.0)
        loop.stalls(seconds, IDLE)
    assert len(loop.lines) == 2, "one of each kind"
    for _ in range(int(QUIET_S / LOOK_S)):
        loop.runs()
    loop.stalls(1.05, BUSY, cpu=1.0)
    assert loop.lines[2:] == [
        "the event loop was blocked for 1.05 s by ottla/log/log.py:210 append (computing, 1.05 s of CPU time)"
        "; 2 more since the last such line, the longest 3.50 s"
    ]
    assert (loop.counters.stalls, loop.counters.starved) == (4, 3)


def test_a_loop_that_stays_blocked_is_logged_before_it_runs_again_and_once_more_when_it_does() -> None:
    loop = Loop()
    loop.stalls(20.3, BUSY, cpu=1.0)
    first, last = loop.lines
    assert first.startswith("the event loop has been blocked for 10.") and last.startswith("the event loop was blocked for 20.30 s")
    assert loop.counters.stalls == 1


def test_a_loop_that_runs_is_not_logged() -> None:
    loop = Loop()
    for _ in range(1000):
        loop.runs()
    assert loop.lines == [] and loop.counters.stalls == loop.counters.starved == 0


@pytest.mark.parametrize(
    ("stack", "place"),
    [
        (IDLE, None),
        # uvloop waits in C, below asyncio's runner.
        ([Frame("/usr/lib/python3.12/asyncio/runners.py", 118, "run"), *BELOW], None),
        ([Frame("/usr/lib/python3.12/asyncio/events.py", 88, "_run"), *BELOW], "asyncio/events.py:88 _run"),
        ([], None),
        # A selector of ours that is not the loop's.
        (
            [Frame("/usr/lib/python3.12/ssl.py", 1103, "read"), APPEND, *BELOW],
            "ottla/log/log.py:210 append, in python3.12/ssl.py:1103 read",
        ),
    ],
)
def test_what_blocks_is_the_call_above_the_loop(stack: list[Frame], place: str | None) -> None:
    assert blocking(stack) == place


@pytest.mark.parametrize(
    ("text", "found"),
    [("12000000 1500000000 7\n", 1.5), ("0 0 0\n", None), ("", None), (None, None)],
    ids=["kept", "not kept", "empty", "none"],
)
def test_the_wait_for_a_cpu_is_read_from_schedstat(tmp_path: Path, text: str | None, found: float | None) -> None:
    path = tmp_path / "schedstat"
    if text is not None:
        path.write_text(text)
    assert queued_s(path) == found


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.WARNING, "ottla.server"):
        yield caplog


def test_a_real_loop_that_is_blocked_is_logged_when_it_runs_again(logged: pytest.LogCaptureFixture) -> None:
    """The call is this test's, which is not below our package, so that it is named as a library's would be."""
    counters = Counters()

    async def run() -> None:
        watchdog = Watchdog(counters)
        await asyncio.sleep(LOOK_S)
        until_s = time.monotonic() + 60
        while not (counters.stalls or counters.starved) and time.monotonic() < until_s:
            block_s = time.thread_time() + 0.5 + LOOK_S
            while time.thread_time() < block_s:
                pass
            await asyncio.sleep(2 * LOOK_S)
        watchdog.stop()

    asyncio.run(run())
    lines = [record.getMessage() for record in logged.records]
    assert counters.lag_max_s > STALL_S
    # A busy machine may starve it, too, before or after it is blocked.
    assert lines and all("\n" not in line and ("test_watchdog.py" in line or "no CPU" in line) for line in lines)
