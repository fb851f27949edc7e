"""Group commit: the flushes of one log directory, carried out group by group in threads of their own.

While one group is under way the next gathers, so that the cost of a sync is shared by all requests that came meanwhile. Within a group the
order is: the logs' files; small files to replace; directories. A failed sync is never tried again: after it the kernel counts the pages
as clean, and a second try would succeed without having written them.

There are two lines, each with a thread and one group under way. A plan that syncs files only goes to the first. A plan that also replaces
small files or syncs directories, as that of a new log, takes several waits for the device and goes to the second, in groups of limited
size, those with records first. So thousands of new topics do not hold up those who write to old ones.

A group of one file, which is what a busy partition makes again and again, costs one hand-over to the thread and one back. Where the first
file shows that the device takes its time, the others of the group are synced at once in further threads, so that the device can take them
together; where it does not, handing them over would cost more than it saves.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar

from ottla.base.ids import Offset, TopicPartition
from ottla.base.ports import Disk, File
from ottla.log.flush import FlushPlan, NamedFile
from ottla.server.metrics import Counters

#: A device that takes longer for one file is slow enough for further threads to pay.
SLOW_NS = 1_000_000
#: Plans with small files or directories in one group: a tenth of a second where each waits three milliseconds for the device.
NAMES_AT_ONCE = 32

Plans = Sequence[tuple[TopicPartition, FlushPlan]]
Marks = tuple[tuple[TopicPartition, Offset], ...]
T = TypeVar("T")


class Flusher:
    """The flushes of one log directory. Belongs to the loop it is made on."""

    def __init__(
        self,
        disk: Disk,
        *,
        executor: Executor,
        lanes: int,
        counters: Counters,
        done: Callable[[Marks], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """``done`` hears of each group what is on disk, ``failed`` of the error after which nothing more is flushed.

        ``lanes`` is how many files are synced at once at most, in threads of the executor; 0 for a disk in memory, which nobody waits
        for: groups are carried out on the loop.
        """
        self._disk = disk
        self._executor = executor
        self._lanes = lanes
        self._counters = counters
        self._done = done
        self._failed = failed
        self._broken = False
        self._files = _Line(self, lanes=lanes, name="ottla-flush", at_once=None)
        self._names = _Line(self, lanes=lanes // 4, name="ottla-flush-names", at_once=NAMES_AT_ONCE)
        self._resting: asyncio.Future[None] | None = None

    def flush(self, plans: Plans) -> None:
        """Carry these out as soon as the group under way in their line is done."""
        if self._broken:
            return
        names = [entry for entry in plans if entry[1].replacements or entry[1].directories]
        files = plans if not names else [entry for entry in plans if not (entry[1].replacements or entry[1].directories)]
        if files:
            self._files.flush(files)
        if names:
            # Who waits for records is served before new logs that nobody has written to.
            names.sort(key=lambda entry: not entry[1].upto)
            self._names.flush(names)

    async def rest(self) -> None:
        """Returns when nothing is under way."""
        while self._files.busy or self._names.busy:
            if self._resting is None:
                self._resting = asyncio.get_running_loop().create_future()
            await self._resting

    def close(self) -> None:
        """Ends the threads. To be called at rest."""
        self._files.close()
        self._names.close()

    def begun(self, plans: Plans) -> None:
        """A line begins a group."""
        self._counters.commits += 1
        self._counters.flushes += len(plans)

    def ended(self, plans: Plans, error: Exception | None) -> None:
        """A group ended; the next one of its line has begun."""
        if error is None:
            self._done(tuple([(partition, plan.upto) for partition, plan in plans]))
        elif not self._broken:
            self._broken = True
            self._files.forget()
            self._names.forget()
            self._failed(error)
        if self._resting is not None and not (self._files.busy or self._names.busy):
            self._resting.set_result(None)
            self._resting = None

    # In a thread.

    def carry_out(self, plans: Sequence[FlushPlan], lanes: int | None = None) -> None:
        """Returns when all of it is on disk. To be called in a thread, or at rest. Raises: OSError, when nothing more is under way."""
        if not plans:
            return
        lanes = self._lanes if lanes is None else lanes
        files: Sequence[File | NamedFile] = plans[0].files
        if len(plans) > 1:
            files = list(dict.fromkeys(file for plan in plans for file in plan.files))
        self._spread(files, _sync, lanes)
        replacing = [FlushPlan(plan.upto, (), (), plan.replacements, plan.postponed) for plan in plans if plan.replacements]
        if replacing:
            self._spread(replacing, self._replace, lanes)
        directories = list(dict.fromkeys(directory for plan in plans for directory in plan.unsynced_directories()))
        if directories:
            self._spread(directories, self._sync_directories, lanes)

    def _spread(self, work: Sequence[T], act: Callable[[Sequence[T]], None], lanes: int) -> None:
        """Does the first piece; the others in further threads if that took long. Raises: OSError."""
        began_ns = time.monotonic_ns()
        act(work[:1])
        rest = work[1:]
        if len(rest) > 1 and lanes > 1 and time.monotonic_ns() - began_ns > SLOW_NS:
            lanes = min(lanes, len(rest))
            acting = [self._executor.submit(act, rest[lane::lanes]) for lane in range(lanes)]
            for error in [lane.exception() for lane in acting]:
                if error is not None:
                    raise error
        elif rest:
            act(rest)

    def _replace(self, plans: Sequence[FlushPlan]) -> None:
        for plan in plans:
            plan.carry_out(self._disk)

    def _sync_directories(self, directories: Sequence[str]) -> None:
        FlushPlan(Offset(0), (), tuple(directories)).carry_out(self._disk)


class _Line:
    """Groups one after the other, in a thread that the first of them starts."""

    def __init__(self, flusher: Flusher, *, lanes: int, name: str, at_once: int | None) -> None:
        """``at_once`` plans make a group at most; None: all that wait."""
        self._flusher = flusher
        self._lanes = lanes
        self._name = name
        self._at_once = at_once
        self._threaded = flusher._lanes > 0
        self._loop = asyncio.get_running_loop()
        #: Groups for the thread, one at a time; None ends it.
        self._groups: SimpleQueue[Plans | None] = SimpleQueue()
        self._thread: Thread | None = None
        #: Whether a group is under way, and what waits for the next one.
        self.busy = False
        self._gathering: list[tuple[TopicPartition, FlushPlan]] = []

    def flush(self, plans: Plans) -> None:
        self._gathering.extend(plans)
        if not self.busy:
            self._next_group()

    def forget(self) -> None:
        """Nothing more is flushed."""
        self._gathering = []

    def close(self) -> None:
        if self._thread is not None:
            self._groups.put(None)
            self._thread.join()
            self._thread = None

    def _next_group(self) -> None:
        plans, self._gathering = self._gathering[: self._at_once], self._gathering[self._at_once :] if self._at_once else []
        self.busy = True
        self._flusher.begun(plans)
        if not self._threaded:
            self._act(plans)
            return
        if self._thread is None:
            self._thread = Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._groups.put(plans)

    def _ended(self, plans: Plans, error: Exception | None) -> None:
        """Back on the loop. The next group begins before anybody hears of this one."""
        self.busy = False
        if error is None and self._gathering:
            self._next_group()
        self._flusher.ended(plans, error)

    def _act(self, plans: Plans) -> None:
        """Carries out a group, and has the loop hear of it."""
        met: Exception | None = None
        try:
            self._flusher.carry_out([plan for _, plan in plans], self._lanes)
        except Exception as error:
            # Whatever it is, the loop must hear of it: an error of our own ends the process, not this thread alone.
            met = error
        self._loop.call_soon_threadsafe(self._ended, plans, met)

    # In the thread.

    def _run(self) -> None:
        while self._next():
            # Nothing is held meanwhile: a file that was removed gives its room back only when nobody has it open.
            pass

    def _next(self) -> bool:
        plans = self._groups.get()
        if plans is None:
            return False
        self._act(plans)
        return True


def _sync(files: Iterable[File | NamedFile]) -> None:
    """A file that is gone belonged to a partition that was removed meanwhile, and needs nothing. Raises: OSError."""
    for file in files:
        try:
            file.sync()
        except FileNotFoundError:
            continue
