"""The watchdog of an event loop: how long it did not run, and why.

While the event loop does not run, a broker leads partitions without serving them. So a tick on the loop measures its own delay, and a
thread checks that ticks happen. A loop that did not run for ``STALL_S`` was blocked or starved:

===============================  ==================================================================================================
blocked, computing               its thread used CPU time for most of the stall
blocked, waiting                 its thread was in a waiting call of this package: a file, a lock, a subprocess
starved                          its thread was idle in the selector, or in the kernel's run queue for most of the stall: an
                                 overloaded machine, a stopped or suspended process
===============================  ==================================================================================================

The CPU time is that of the loop's thread (``pthread_getcpuclockid``), the wait in the run queue the second figure of
``/proc/self/task/TID/schedstat``. On a system without them, the place in the code and the delay of the watchdog's own thread decide; the
line on a waiting loop then says that it may have been short of CPU. Each kind is logged at most once per ``QUIET_S``, as one line.
"""

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ottla.server.metrics.counters import Counters

log = logging.getLogger("ottla.server")

TICK_S = 0.1
STALL_S = 0.25
#: Interval of the thread's checks.
LOOK_S = STALL_S + TICK_S
#: At most one line of each kind in this time.
QUIET_S = 60.0
#: A loop still blocked after this time is logged at once, since it may never run again.
ENDLESS_S = 10.0
#: Root of our packages; displayed file names begin with the package's name.
SOURCES = str(Path(__file__).resolve().parents[2]) + "/"
OURS = SOURCES + "ottla/"
#: Functions of asyncio that call everything else on the loop's thread.
LOOPS = frozenset(("_run_once", "run_forever", "run_until_complete", "run"))


class Frame(NamedTuple):
    """One call on a thread's stack."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        name = self.file.removeprefix(SOURCES) if self.file.startswith(OURS) else "/".join(self.file.split("/")[-2:])
        return f"{name}:{self.line} {self.function}"


class Sample(NamedTuple):
    """Clocks at one moment, in seconds; the last two are None on a system without them."""

    wall_s: float
    #: CPU time that the loop's thread has used.
    cpu_s: float | None
    #: Time that the loop's thread was ready to run and waited for a CPU.
    queued_s: float | None


def blocking(frames: Iterable[Frame]) -> str | None:
    """The call that blocks the loop, as FILE:LINE FUNCTION; None for an idle loop. ``frames`` begin with the innermost call.

    It is the innermost call of this package, and the library call in which that waits, if any.
    """
    calls: list[Frame] = []
    for frame in frames:
        if frame.function in LOOPS and "asyncio" in frame.file:
            break
        calls.append(frame)
    if not calls or (calls[0].function == "select" and calls[0].file.endswith("selectors.py")):
        return None
    own = next((frame for frame in calls if frame.file.startswith(OURS)), None)
    if own is None or own is calls[0]:
        return str(calls[0])
    return f"{own}, in {calls[0]}"


@dataclass(slots=True)
class _Stall:
    #: Clocks before it began, and now.
    before: Sample
    now: Sample
    #: The blocking call; None for an idle loop.
    place: str | None
    #: Time by which the watchdog's own thread woke late.
    own_lag_s: float = 0.0
    #: Logged before its end.
    logged: bool = False

    @property
    def wall_s(self) -> float:
        return self.now.wall_s - self.before.wall_s

    @property
    def cpu_s(self) -> float | None:
        if self.now.cpu_s is None or self.before.cpu_s is None:
            return None
        return self.now.cpu_s - self.before.cpu_s

    @property
    def starved(self) -> bool:
        if self.place is None:
            return True
        if self.now.queued_s is not None and self.before.queued_s is not None:
            return self.now.queued_s - self.before.queued_s > self.wall_s / 2
        return self.own_lag_s > self.wall_s / 2


class StallDetector:
    """Detects stalls from the watchdog's samples, and formats the log lines. Has no clock and no thread of its own."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._beats = -1
        self._before: Sample | None = None
        #: Clocks at the last check, and the watchdog's own delay since ``_before``.
        self._looked_s = 0.0
        self._own_lag_s = 0.0
        self._stall: _Stall | None = None
        #: By whether starved: when a line was logged last; stalls left out since then, and the longest of them.
        self._logged_s: dict[bool, float] = {}
        self._left_out: dict[bool, list[float]] = {True: [], False: []}

    def look(self, beats: int, lag_s: float, now: Sample, stack: Callable[[], Iterable[Frame]]) -> str | None:
        """One check of the watchdog; returns a line to log. ``beats`` counts ticks of the loop, the latest late one of which was ``lag_s``
        late; ``stack`` gives the current calls of the loop's thread."""
        before, stall = self._before, self._stall
        own_lag_s = max(now.wall_s - self._looked_s - LOOK_S, 0.0)
        self._looked_s = now.wall_s
        if before is None or beats != self._beats:
            self._beats, self._stall = beats, None
            if before is None or stall is not None or own_lag_s < STALL_S:
                self._before, self._own_lag_s = now, 0.0
            else:
                # The whole process was stopped; a stall that follows may be the same one.
                self._own_lag_s += own_lag_s
            if stall is None:
                return None
            stall.now = now
            return self._line(stall, lag_s, over=True)
        if stall is None:
            stall = self._stall = _Stall(before, now, blocking(stack()), self._own_lag_s)
        stall.now = now
        stall.own_lag_s += own_lag_s
        if stall.wall_s > ENDLESS_S and not stall.logged:
            stall.logged = True
            return self._line(stall, stall.wall_s, over=False)
        return None

    def _line(self, stall: _Stall, lasted_s: float, *, over: bool) -> str | None:
        starved = stall.starved
        if not (over and stall.logged):
            self._counters.starved += starved
            self._counters.stalls += not starved
        left_out = self._left_out[starved]
        now_s = stall.now.wall_s
        if now_s - self._logged_s.get(starved, -QUIET_S) < QUIET_S and not (over and stall.logged):
            left_out.append(lasted_s)
            return None
        self._logged_s[starved] = now_s
        more = f"; {len(left_out)} more since the last such line, the longest {max(left_out):.2f} s" if left_out else ""
        left_out.clear()
        return (_starved if starved else _blocked)(stall, lasted_s, over=over) + more


def _starved(stall: _Stall, lasted_s: float, *, over: bool) -> str:
    was = "got" if over else "has got"
    return f"the event loop {was} no CPU for {lasted_s:.2f} s: the machine is overloaded, or the process was stopped; nothing in it blocked"


def _blocked(stall: _Stall, lasted_s: float, *, over: bool) -> str:
    was = "was blocked" if over else "has been blocked"
    how = ""
    if stall.cpu_s is not None:
        otherwise = "waiting" if stall.now.queued_s is not None else "waiting, or short of CPU"
        how = f" ({'computing' if stall.cpu_s > stall.wall_s / 2 else otherwise}, {stall.cpu_s:.2f} s of CPU time)"
    return f"the event loop {was} for {lasted_s:.2f} s by {stall.place}{how}"


class Watchdog:
    """Monitors the loop that it is made on."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._loop = asyncio.get_running_loop()
        self._clocks = _ThreadClocks()
        self._beats = 0
        #: Delay of the latest late tick.
        self._lag_s = 0.0
        self._over = threading.Event()
        self._due = self._loop.time() + TICK_S
        self._timer = self._loop.call_at(self._due, self._beat)
        threading.Thread(target=self._watch, name="ottla-watchdog", daemon=True).start()

    def stop(self) -> None:
        self._over.set()
        self._timer.cancel()

    def _beat(self) -> None:
        now = self._loop.time()
        lag_s = now - self._due
        self._counters.lag_max_s = max(self._counters.lag_max_s, lag_s)
        self._counters.loop_lags.observe(max(int(lag_s * 1e9), 0))
        self._counters.beat_s = time.monotonic()
        if lag_s > STALL_S:
            self._lag_s = lag_s
        self._beats += 1
        self._due = now + TICK_S
        self._timer = self._loop.call_at(self._due, self._beat)

    def _watch(self) -> None:
        stalls = StallDetector(self._counters)
        while not self._over.wait(LOOK_S):
            line = stalls.look(self._beats, self._lag_s, self._clocks.sample(), self._clocks.stack)
            if line is not None:
                log.warning("%s", line)


class _ThreadClocks:
    """Clocks and stack of the thread that made it, for other threads to read."""

    def __init__(self) -> None:
        self._thread_id = threading.get_ident()
        self._clock: int | None = None
        if hasattr(time, "pthread_getcpuclockid"):
            self._clock = time.pthread_getcpuclockid(self._thread_id)
        self._schedstat = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")

    def sample(self) -> Sample:
        return Sample(time.monotonic(), self._cpu_s(), queued_s(self._schedstat))

    def _cpu_s(self) -> float | None:
        try:
            return time.clock_gettime(self._clock) if self._clock is not None else None
        except OSError:
            # The thread has ended.
            return None

    def stack(self) -> Iterator[Frame]:
        frame = sys._current_frames().get(self._thread_id)
        while frame is not None:
            yield Frame(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
            frame = frame.f_back


def queued_s(schedstat: Path) -> float | None:
    """How long a thread was ready and waited for a CPU. Its schedstat has CPU time, wait time (both ns) and a count; None without one."""
    try:
        figures: Sequence[str] = schedstat.read_text().split()
    except OSError:
        return None
    # A kernel that does not keep the figures shows zeros.
    return int(figures[1]) / 1e9 if len(figures) == 3 and int(figures[0]) else None
